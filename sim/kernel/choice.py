"""Which engine runs: the reference in Python or the compiled kernel."""

from __future__ import annotations

import functools
import importlib.util
from typing import Literal

from policies.protocol import Policy
from sim.errors import SimError

Engine = Literal["auto", "reference", "kernel"]
ENGINES: tuple[Engine, ...] = ("auto", "reference", "kernel")
WORTH_LOOK_UPS = 1_000_000
"""From so many look-ups on the kernel is faster even if it must be loaded or compiled first."""


@functools.cache
def _has_numba() -> bool:
    return importlib.util.find_spec("numba") is not None


def refusal(*policies: Policy) -> str | None:
    """Why the kernel cannot run these policies; None if it can."""
    if not _has_numba():
        return "numba is not installed (extra `fast`)"
    for policy in policies:
        if not policy.compiled:
            return f"policy {policy.name} is outside the compiled subset"
    return None


def choose(engine: str, look_ups: int, *policies: Policy) -> Literal["reference", "kernel"]:
    """Engine of a job of so many look-ups, all its runs together.

    Raises
    ------
    SimError
        An unknown engine, or `kernel` where it cannot run.
    """
    if engine not in ENGINES:
        raise SimError(f"unknown engine {engine!r} (known: {', '.join(ENGINES)})")
    if engine == "reference":
        return "reference"
    reason = refusal(*policies)
    if engine == "kernel":
        if reason:
            raise SimError(f"the kernel cannot run this: {reason}; the reference engine can")
        return "kernel"
    return "kernel" if reason is None and look_ups >= WORTH_LOOK_UPS else "reference"
