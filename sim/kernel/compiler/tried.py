"""Versions of numba under which the steps that `parts` replaces were tried, and pay."""

from __future__ import annotations

import importlib.metadata

TRIED = ("0.68",)
"""Releases, each with its patches. Under any other numba functions are compiled in its own way, with the same
results: the first compile of the timed kernel takes 23 s of CPU instead of 10 (0.68.1). Under 0.60 it takes 27 s,
and had not ended after 600 s with these steps replaced."""


def is_tried() -> bool:
    """Whether the numba that is installed is one of them."""
    return ".".join(importlib.metadata.version("numba").split(".")[:2]) in TRIED
