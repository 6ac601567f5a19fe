"""Time: residency, channels, the event-driven engine, scores, sweeps, plans, reports and the command line.

The verbs of the command line are functions: `sim.simulate`, `sim.replay`, `sim.sweep`, `sim.tune`, `sim.split`.
They are loaded when first used, so that `import sim` costs nothing.
"""

from importlib import import_module
from typing import Any

_FROM = {"simulate": "sim.run", "RunSpec": "sim.run", "Capacity": "sim.pool"}
_MODULES = ("replay", "sweep", "split", "tune")
"""Modules that can be called like the function of the same name in them."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"sim.{name}")
    if name in _FROM:
        return getattr(import_module(_FROM[name]), name)
    raise AttributeError(f"module 'sim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_FROM, *_MODULES])
