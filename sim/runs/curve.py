"""Hit rate against capacity: one policy or several at many capacities, without time.

An LRU that starts empty, admits always and keeps experts of one size in each scope is counted at all capacities
in one pass (`sim.kernel.counts.stack` says when that is exact); all others are replayed at each, in threads where
the kernel runs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from expert_residency.errors import CompileError, SimError
from expert_residency.policies import Given, policy_of
from expert_residency.policies.protocol import AdmissionPolicy, EvictionPolicy, PlacementPolicy
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.kernel import choose
from expert_residency.sim.residency.quotas import share_out
from expert_residency.sim.runs.counts import Counters
from expert_residency.sim.runs.replay import counted_caveats, replay
from expert_residency.sim.runs.requests import apart, one_by_one, summed_phases
from expert_residency.sim.runs.steps import Steps
from expert_residency.traces import Phase, RoutingTrace


@dataclass
class Point:
    """One policy at one capacity; `phases` has `all` and each phase that occurs."""

    capacity_bytes: int
    phases: dict[str, Counters]
    method: str
    """`one pass`, `kernel` or `reference`: how it was counted. The numbers are the same."""
    caveats: list[str] = field(default_factory=list, repr=False)
    """What the counts stand on; the same at every point, so that `to_dict` leaves them to the curve."""

    def to_dict(self) -> dict[str, Any]:
        """Plain form, without `caveats`."""
        plain = vars(self) | {"phases": {name: c.to_dict() for name, c in self.phases.items()}}
        del plain["caveats"]
        return plain


def hit_curve(
    trace: RoutingTrace,
    eviction: Given[EvictionPolicy],
    capacities: Sequence[Capacity | str],
    *,
    scope: str | None = None,
    admission: Given[AdmissionPolicy] = "always",
    placement: Given[PlacementPolicy] | None = None,
    simulator: str = "auto",
    threads: int | None = None,
    steps: Steps | None = None,
    cold: str = "trace",
) -> list[Point]:
    """Replay `trace` at every capacity, in their order.

    Parameters
    ----------
    capacities
        Each a `Capacity` or its words.
    eviction, scope, admission, placement, simulator
        As for `sim.runs.replay.replay`.
    threads
        Replays at once in the kernel; as many as the machine has processors by default.
    steps
        `Steps.of(trace)`, to share between curves.
    cold
        `trace`, or `request`: every request by itself from an empty cache, counts added up.

    Raises
    ------
    SimError, PolicyError
        As `sim.runs.replay.replay`, or no capacity at all.
    """
    if isinstance(capacities, str | Capacity):
        raise SimError(f"{capacities!r} is no list of capacities: a curve needs a sequence of them")
    if not capacities:
        raise SimError("a curve needs at least one capacity")
    if parts := apart(trace, cold):
        own: dict[str, Any] = {
            "scope": scope, "admission": admission, "placement": placement, "simulator": simulator,
            "threads": threads,
        }  # fmt: skip
        curves = [
            points for _, points in one_by_one(parts, lambda part, _: hit_curve(part, eviction, capacities, **own))
        ]
        return [
            Point(one[0].capacity_bytes, summed_phases([point.phases for point in one]), one[0].method,
                  list(counted_caveats(trace)))
            for one in zip(*curves, strict=True)
        ]  # fmt: skip
    rooms = [Capacity.of(words, scope).of_one_cache(trace.geometry) for words in capacities]
    gate, evicting = policy_of("admission", admission), policy_of("eviction", eviction)
    start = policy_of("placement", placement if placement is not None else evicting.default_placement)
    steps = steps or Steps.of(trace)
    chosen = choose(simulator, trace.n_lookups * len(rooms), evicting, gate)
    points: dict[int, Point] = {}
    if chosen == "kernel" and (evicting.name, gate.name, start.name) == ("lru", "always", "none"):
        points = _one_pass(trace, steps, rooms)
    left = [i for i in range(len(rooms)) if i not in points]

    def one(i: int) -> Point:
        result = replay(trace, evicting, rooms[i], admission=gate, placement=start, simulator=chosen, steps=steps)
        return Point(result.capacity_bytes, result.phases, result.simulator)

    if chosen == "kernel" and left:
        try:
            points[left[0]] = one(left[0])  # compiled once, not in every thread
        except CompileError:
            if simulator == "kernel":
                raise
            chosen = "reference"
    left = [i for i in left if i not in points]
    with ThreadPoolExecutor(threads or os.cpu_count() if chosen == "kernel" else 1) as pool:
        points.update(zip(left, pool.map(one, left), strict=True))
    for point in points.values():
        point.caveats = list(counted_caveats(trace))
    return [points[i] for i in range(len(rooms))]


def _one_pass(trace: RoutingTrace, steps: Steps, capacities: Sequence[Capacity]) -> dict[int, Point]:
    """Points of an LRU that one pass answers exactly, by their index."""
    from expert_residency.sim.kernel.counts.curves import Depths, lru_depths

    found: dict[int, Point] = {}
    known: dict[str, Depths] = {}
    geometry = trace.geometry
    sizes = np.asarray(geometry.expert_bytes)
    for i, capacity in enumerate(capacities):
        room = share_out(trace, capacity).per_scope(geometry, (0,) * geometry.n_layers)
        if len(room) == 1 and (sizes != sizes[0]).any():
            continue  # unequal sizes share a scope
        if capacity.scope not in known:
            scope_of_layer = np.arange(geometry.n_layers) % len(room)
            known[capacity.scope] = lru_depths(
                steps.arrays, np.repeat(scope_of_layer, geometry.experts), len(room)
            )
        depths, scope_size = known[capacity.scope], sizes[: len(room)]
        slots = np.asarray(room) // scope_size
        if (slots >= np.maximum(depths.largest_event, 1)).all():
            found[i] = Point(sum(room), _phases(trace, depths, slots, scope_size), "one pass")
    return found


def _phases(trace: RoutingTrace, depths: Any, slots: Any, scope_size: Any) -> dict[str, Counters]:
    """Counters of one capacity out of the depths."""
    hits, routed_hits = depths.hits(slots)
    every, every_row = depths.distinct[:, :, -1] + depths.first_uses, depths.routed_total
    columns = np.stack(
        [
            every.sum(axis=1), hits.sum(axis=1), every_row, routed_hits.sum(axis=1),
            depths.first_uses.sum(axis=1), (every - hits) @ scope_size,
        ]
    )  # fmt: skip
    present = np.bincount(trace.event_pass, minlength=trace.n_passes) > 0
    phases = {"all": Counters.of(columns.sum(axis=1), int(present.sum()))}
    for value in Phase:
        if columns[0, value]:
            passes = int((present & (trace.pass_phase == value)).sum())
            phases[value.name.lower()] = Counters.of(columns[:, value], passes)
    return phases


def even_capacities(trace: RoutingTrace, points: int, scope: str) -> list[Capacity]:
    """`points` capacities up to all experts, evenly spaced: whole experts of every layer where there are enough.

    Raises
    ------
    SimError
        Fewer than one point.
    """
    if points < 1:
        raise SimError(f"a curve of {points} points is impossible")
    experts = trace.geometry.experts
    steps = sorted({max(1, round(experts * i / points)) for i in range(1, points + 1)})
    if ":" in scope:  # quotas share out bytes
        each = sum(trace.geometry.expert_bytes)
        return [Capacity.of(Capacity(total_bytes=slots * each), scope) for slots in steps]
    return [Capacity.of(Capacity(slots_per_layer=slots), scope) for slots in steps]
