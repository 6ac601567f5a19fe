"""Versions of numba under which the steps that `parts` replaces were tried."""

from __future__ import annotations

import importlib.metadata

TRIED = ("0.60", "0.68")
"""Releases, each with its patches. Under any other numba functions are compiled in its own way: with the same
results, and the first compile of the timed kernel takes twice as long."""


def is_tried() -> bool:
    """Whether the numba that is installed is one of them."""
    return ".".join(importlib.metadata.version("numba").split(".")[:2]) in TRIED
