"""The largest context beside a run's cache, and its speed when that is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from expert_residency.errors import SimError
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.cliffs import standing_of
from expert_residency.sim.choices.longest import Longest, largest_context
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.timed.attention import lengths
from expert_residency.traces import RoutingTrace

MOST_LOOK_UPS = 2_000_000
"""Of a trace that is run once more."""


def longest(
    trace: RoutingTrace, spec: RunSpec, *, profiles: Sequence[HardwareProfile] | None = None, cold: str = "trace"
) -> Longest | None:
    """What a run leaves room for.

    Parameters
    ----------
    trace, spec
        The run.
    profiles
        Cards instead of those that `spec` names.
    cold
        As `simulate` takes it.

    Returns
    -------
    Longest | None
        None where the context of the model or positions of the trace are not known, or the trace is so long that
        it is not run again.

    Raises
    ------
    SimError, HardwareError
        A run that cannot be.
    """
    geometry, auto = trace.geometry, spec.capacity.auto
    known = geometry.session_shape is not None and not bool((trace.row_position < 0).any())
    if not known or trace.n_lookups > MOST_LOOK_UPS or (auto is not None and auto.session is not None):
        return None
    cards = tuple(profiles or map(load_profile, spec.hardware))
    own = int(lengths(trace, 0).max(initial=1))

    def fits(tokens: int) -> bool:
        standing = standing_of(spec, geometry, tokens=tokens, profiles=cards)
        if standing is None:
            return False
        return all(
            now <= room for now, room in zip(standing.cache_bytes, standing.room_bytes, strict=True) if now or room
        )

    asked = own + spec.depth if auto is None else auto.context
    tokens = asked if auto is not None else largest_context(fits, asked)
    try:
        full = simulate(
            trace, replace(spec, depth=max(0, tokens - own)), profiles=cards, cold=cold
        ).tokens_per_s  # fmt: skip
    except SimError:
        return None
    return Longest(tokens, asked, full) if full else None
