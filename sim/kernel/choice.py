"""Which simulator runs: the reference in Python or the compiled kernel."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from typing import Literal

from expert_residency.errors import SimError
from expert_residency.policies.protocol import Policy
from expert_residency.sim.kernel.compiler.link import cache_folder
from expert_residency.sim.timed import rules
from expert_residency.text import check_known

Simulator = Literal["auto", "reference", "kernel"]
SIMULATORS: tuple[Simulator, ...] = ("auto", "reference", "kernel")
WORTH_LOOK_UPS = 1_000_000
"""From so many look-ups on the kernel is faster even if it must be loaded or compiled first."""
WORTH_TIMED_LOOK_UPS = 2_000_000
"""The same for timed runs, whose kernel is larger: the reference does as many while that one is compiled."""
WORTH_LOADING_LOOK_UPS = 100_000
"""From so many on a timed run repays loading the kernel, if it is compiled."""


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


def choose(simulator: str, look_ups: int, *policies: Policy) -> Literal["reference", "kernel"]:
    """Simulator of a replay of so many look-ups, all its runs together.

    Parameters
    ----------
    simulator
        `reference`, `kernel` or `auto`.
    look_ups
        Of the whole job.
    policies
        That would run.

    Returns
    -------
    Literal[reference, kernel]
        The simulator.

    Raises
    ------
    SimError
        An unknown simulator, or `kernel` where it cannot run.
    """
    return _choose(simulator, look_ups >= WORTH_LOOK_UPS, refusal(*policies))


def choose_timed(
    simulator: str, look_ups: int, *policies: Policy, timeline: bool = False
) -> Literal["reference", "kernel"]:
    """Simulator of timed runs of so many look-ups, all together.

    Parameters
    ----------
    simulator
        `reference`, `kernel` or `auto`.
    look_ups
        Of the whole job.
    policies
        That would run.
    timeline
        Whether one is to be written, which the kernel cannot.

    Returns
    -------
    Literal[reference, kernel]
        The simulator.

    Raises
    ------
    SimError
        An unknown simulator, or `kernel` where it cannot run.
    """
    reason = "only the reference writes a timeline" if timeline else refusal(*policies)
    worth = look_ups >= WORTH_TIMED_LOOK_UPS or (look_ups >= WORTH_LOADING_LOOK_UPS and timed_marker().exists())
    return _choose(simulator, worth, reason)


def _choose(simulator: str, worth: bool, reason: str | None) -> Literal["reference", "kernel"]:
    check_known("simulator", simulator, SIMULATORS)
    if simulator == "kernel" and reason:
        raise SimError(f"the kernel cannot run this: {reason}; the reference engine can")
    return "kernel" if simulator == "kernel" or (simulator == "auto" and worth and not reason) else "reference"


@functools.cache
def timed_marker() -> Path:
    """File that says that the timed kernel of these sources was compiled here before."""
    digest = hashlib.sha256()
    for source in [*sorted(Path(__file__).parent.rglob("*.py")), Path(rules.__file__)]:
        digest.update(source.read_bytes())
    digest.update(str(sys.implementation.cache_tag).encode())
    if _has_numba():
        digest.update(importlib.metadata.version("numba").encode())
    return cache_folder() / f"timed-{digest.hexdigest()[:24]}"
