"""Versions of numba under which the steps that `parts` replaces were tried, and pay."""

from __future__ import annotations

import importlib.metadata

TRIED = ("0.60", "0.61", "0.62", "0.63", "0.64", "0.65", "0.66", "0.67", "0.68")
"""Releases, each with its patches. Under each, a first compile of the timed kernel takes 9 to 11 s of CPU and one
in numba's own way, as under any other numba, 20 to 25 s (Python 3.11, once each; the same results). The tests
run on the oldest and the newest of them."""


def is_tried() -> bool:
    """Whether the numba that is installed is one of them."""
    return ".".join(importlib.metadata.version("numba").split(".")[:2]) in TRIED
