"""A bound that is beaten is no result: the program, or the policy, broke a rule."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from expert_residency.errors import PolicyFaultError
from expert_residency.policies import create
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.residency.pool import make_pool
from expert_residency.sim.residency.quotas import share_out
from expert_residency.traces import RoutingTrace

BOUND = "min"


def check_bound(
    trace: RoutingTrace, capacity: Capacity, misses: Mapping[str, int], *, admission: str = "always",
    placement: str | None = None,
) -> None:  # fmt: skip
    """Refuse counts of event-atomic replays that are better than the optimum.

    The optimum is one where all experts of a scope have one size, no event is larger than its scope, and a policy
    brings in only what was missed, from the same start; elsewhere it is a heuristic, and nothing is checked.

    Parameters
    ----------
    trace
        What was replayed, whole.
    capacity
        The cache.
    misses
        Distinct misses by eviction policy; `min` is the bound.
    admission
        Of all policies but the bound.
    placement
        Of all; None for each policy's own.

    Raises
    ------
    PolicyFaultError
        A policy misses less than the optimum.
    """
    if BOUND not in misses or create("admission", admission).periodic or not _is_optimum(trace, capacity):
        return
    start = placement or create("eviction", BOUND).default_placement
    for spec, missed in misses.items():
        if missed < misses[BOUND] and (placement or create("eviction", spec).default_placement) == start:
            raise PolicyFaultError(
                f"eviction policy {spec} misses {missed:,} times where the optimum misses {misses[BOUND]:,}; "
                "that cannot be, so one of them breaks its protocol and no result is given"
            )


def _is_optimum(trace: RoutingTrace, capacity: Capacity) -> bool:
    """Whether `min` is the optimum here."""
    geometry = trace.geometry
    pool = make_pool(geometry, share_out(trace, capacity))
    scope_of, size_of = np.asarray(pool.scope_of), np.asarray(pool.size_of)
    room = np.asarray(pool.capacity)
    largest = np.zeros(pool.scopes, dtype=np.int64)
    np.maximum.at(largest, scope_of, size_of)
    if (size_of != largest[scope_of]).any():
        return False
    members = np.diff(trace.event_offsets)
    first = scope_of[trace.event_layer * geometry.experts]
    return bool((members * largest[first] <= room[first]).all())
