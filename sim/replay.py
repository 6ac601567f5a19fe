"""Replay: counters without time.

The event-atomic contract, in order: classify the whole event against the residency before it, serve the
misses, then let the policy learn, admit and evict; no member of the event is a victim. `sequential` looks
members up one by one, ascending, and may evict a member that the same event still needs; it is there to
compare with tools that do so, and inflates misses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from policies import create
from policies.protocol import AdmissionPolicy, Event, EvictionPolicy, Future, PlacementPolicy
from sim.errors import SimError
from sim.pool import CachePool, Capacity, future_of, make_future, make_pool, prompt_rows, start_placement
from sim.quotas import share_out
from traces import Phase, RoutingTrace

Contract = Literal["event", "sequential", "sequential-descending"]
CONTRACTS: tuple[str, ...] = ("event", "sequential", "sequential-descending")


@dataclass
class Counters:
    """Look-ups and what became of them, over some passes.

    *distinct* counts each expert once an event, *routed* once a row that wants it.
    """

    distinct: int = 0
    distinct_hits: int = 0
    routed: int = 0
    routed_hits: int = 0
    compulsory: int = 0
    """Distinct misses on experts never wanted before (and not placed at the start)."""
    miss_bytes: int = 0
    passes: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Hits over distinct look-ups, None without look-ups."""
        return self.distinct_hits / self.distinct if self.distinct else None

    @property
    def routed_hit_rate(self) -> float | None:
        """Hits over routed rows, None without rows."""
        return self.routed_hits / self.routed if self.routed else None

    def to_dict(self) -> dict[str, Any]:
        """Plain form with both rates."""
        return vars(self) | {
            "misses": self.distinct - self.distinct_hits,
            "hit_rate_distinct": self.hit_rate,
            "hit_rate_routed": self.routed_hit_rate,
        }


@dataclass
class ReplayResult:
    """What one replay counted. `phases` has `all` and each phase that occurs; `warm` leaves a warm-up out."""

    policy: str
    admission: str
    contract: str
    capacity_bytes: int
    scope: str
    phases: dict[str, Counters]
    warm: Counters
    evictions: int
    admitted_bytes: int
    placed: int
    waves: int
    """Extra waves: how many times an event had to be split because it did not fit."""
    hits: npt.NDArray[np.uint8]
    """(look-ups,) 1 for a hit, in the trace's order."""
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able form without the per-look-up array."""
        plain = {k: v for k, v in vars(self).items() if k not in ("hits", "phases", "warm")}
        return plain | {
            "phases": {name: c.to_dict() for name, c in self.phases.items()},
            "warm": self.warm.to_dict(),
        }


def replay(
    trace: RoutingTrace,
    eviction: EvictionPolicy | str,
    capacity: Capacity,
    *,
    admission: AdmissionPolicy | str = "always",
    placement: PlacementPolicy | str | None = None,
    contract: str = "event",
    oversize: Literal["waves", "overflow"] = "waves",
    warmup_passes: int = 0,
    lag_passes: int = 1,
) -> ReplayResult:
    """Replay `trace` through one cache.

    Parameters
    ----------
    eviction, admission, placement
        Policies or their names; the placement defaults to the eviction policy's own.
    contract
        `event` (atomic), `sequential` (ascending) or `sequential-descending`.
    oversize
        An event larger than its scope is served in `waves`, or stays whole over the capacity (`overflow`)
        until the next event of that scope, as BigMoeOnEdge's replay tool has it.
    warmup_passes
        Passes that `ReplayResult.warm` leaves out.
    lag_passes
        When an expert that a periodic policy asks for between two passes is there: 1, at the next pass (the engine
        waits for its copies); 2, one pass later, and so on. Its slot is taken at once, and while it is on its way
        a look-up misses and the policy is not asked again.

    Raises
    ------
    SimError, PolicyError
        Unknown contract, policy or parameter.
    """
    if contract not in CONTRACTS:
        raise SimError(f"unknown contract {contract!r} (known: {', '.join(CONTRACTS)})")
    if lag_passes < 1:
        raise SimError(f"a lag of {lag_passes} passes is impossible: a copy lands at the next pass at the soonest")
    if isinstance(eviction, str):
        eviction = create("eviction", eviction)
    if isinstance(admission, str):
        admission = create("admission", admission)
    placement = placement if placement is not None else eviction.default_placement
    if isinstance(placement, str):
        placement = create("placement", placement)
    steps = _Steps.of(trace, contract)
    pool = make_pool(trace.geometry, share_out(trace, capacity))
    future = steps.future(trace) if eviction.needs_future or placement.needs_future else None
    cache = CachePool(pool, eviction, admission, future, overflow=oversize == "overflow")
    placed = start_placement(cache, placement, future)
    run = _run(cache, steps, trace, lag_passes)
    return _result(trace, steps, cache, run, placed, capacity, contract, warmup_passes)


@dataclass
class _Steps:
    """The trace as a sequence of steps: whole events, or single look-ups under the sequential contracts."""

    offsets: list[int]
    layers: list[int]
    passes: list[int]
    keys: list[int]
    rows: list[int]
    back: npt.NDArray[np.int64]
    """(look-ups,) position of each step's look-up in the trace."""

    @classmethod
    def of(cls, trace: RoutingTrace, contract: str) -> _Steps:
        offsets, keys, rows = trace.event_offsets, trace.keys, trace.rows_wanting
        layers, passes = trace.event_layer, trace.event_pass
        back = np.arange(len(keys), dtype=np.int64)
        if contract != "event":
            event = np.repeat(np.arange(trace.n_events), np.diff(offsets))
            sign = 1 if contract == "sequential" else -1
            back = np.lexsort((sign * keys.astype(np.int64), event))
            keys, rows, layers, passes = keys[back], rows[back], layers[event], passes[event]
            offsets = np.arange(len(keys) + 1)
        return cls(offsets.tolist(), layers.tolist(), passes.tolist(), keys.tolist(), rows.tolist(), back)

    def future(self, trace: RoutingTrace) -> Future:
        return future_of(self.keys, self.offsets, prompt_rows(trace))


@dataclass
class _Run:
    hits: list[int]
    compulsory: list[int]
    admitted_bytes: int
    waves: int


def _run(cache: CachePool, steps: _Steps, trace: RoutingTrace, lag_passes: int) -> _Run:
    hits_of: list[int] = []
    compulsory: list[int] = []
    seen = list(cache.resident)
    admitted_bytes = waves = 0
    sizes, capacity, scope_of = cache.pool.size_of, cache.pool.capacity, cache.pool.scope_of
    phases, requests = trace.pass_phase.tolist(), trace.pass_request.tolist()
    last = len(steps.offsets) - 2
    between = _Between(cache, lag_passes) if cache.admission.periodic else None
    for step in range(last + 1):
        lo, hi = steps.offsets[step], steps.offsets[step + 1]
        keys = steps.keys[lo:hi]
        number = steps.passes[step]
        hits = cache.lookup(step, keys)
        if between is not None and between.pending:
            hits = [hit and key not in between.pending for hit, key in zip(hits, keys, strict=True)]
        hits_of += hits
        for key in keys:
            compulsory.append(1 - seen[key])
            seen[key] = 1
        needed = sum(sizes[key] for key in keys)
        room = capacity[scope_of[keys[0]]]
        if needed > room:
            waves += -(-needed // max(room, 1)) - 1
        event = Event(
            step, number, steps.layers[step], lo, keys, steps.rows[lo:hi], hits, phases[number], requests[number]
        )  # fmt: skip
        for position in cache.learn(event):
            if not cache.resident[keys[position]] and cache.admit(keys[position], step):
                admitted_bytes += sizes[keys[position]]
        if cache.overflow:
            cache.trim(scope_of[keys[0]], step)
        if between is not None and (step == last or steps.passes[step + 1] != number):
            admitted_bytes += between.pass_done(number)
    return _Run(hits_of, compulsory, admitted_bytes, waves)


class _Between:
    """What a periodic policy does between passes, and which of its newcomers are still on their way."""

    def __init__(self, cache: CachePool, lag_passes: int) -> None:
        self.cache = cache
        self.lag = lag_passes
        self.pending: set[int] = set()
        self._lands = 0
        self._newcomers, self._victims = [0] * cache.pool.keys, [0] * cache.pool.keys

    def pass_done(self, number: int) -> int:
        """Let copies land and ask for new ones; returns the bytes asked for."""
        if self.pending and number + 1 < self._lands:
            return 0
        self.pending.clear()
        n = self.cache.adapt(number, self._newcomers, self._victims)
        for newcomer, victim in zip(self._newcomers[:n], self._victims[:n], strict=True):
            self.cache.swap(newcomer, victim)
        if self.lag > 1:
            self.pending.update(self._newcomers[:n])
            self._lands = number + self.lag
        return sum(self.cache.pool.size_of[key] for key in self._newcomers[:n])


def _result(
    trace: RoutingTrace,
    steps: _Steps,
    cache: CachePool,
    run: _Run,
    placed: list[int],
    capacity: Capacity,
    contract: str,
    warmup_passes: int,
) -> ReplayResult:
    hits = np.empty(trace.n_lookups, dtype=np.uint8)
    compulsory = np.empty(trace.n_lookups, dtype=np.uint8)
    hits[steps.back] = run.hits
    compulsory[steps.back] = run.compulsory
    event = np.repeat(np.arange(trace.n_events), np.diff(trace.event_offsets))
    phase = trace.event_phase[event]
    phases = {"all": _count(trace, hits, compulsory, np.ones(len(hits), dtype=bool), event)}
    for value in Phase:
        chosen = phase == value
        if chosen.any():
            phases[value.name.lower()] = _count(trace, hits, compulsory, chosen, event)
    warm = _count(trace, hits, compulsory, trace.event_pass[event] >= warmup_passes, event)
    result = ReplayResult(
        policy=cache.eviction.name,
        admission=cache.admission.name,
        contract=contract,
        capacity_bytes=sum(cache.pool.capacity),
        scope=capacity.scope,
        phases=phases,
        warm=warm,
        evictions=cache.evictions,
        admitted_bytes=run.admitted_bytes,
        placed=len(placed),
        waves=run.waves,
        hits=hits,
    )
    result.warnings = _warnings(trace, result)
    return result


def _count(
    trace: RoutingTrace,
    hits: npt.NDArray[np.uint8],
    compulsory: npt.NDArray[np.uint8],
    chosen: npt.NDArray[np.bool_],
    event: npt.NDArray[Any],
) -> Counters:
    rows = trace.rows_wanting
    size = np.asarray(trace.geometry.expert_bytes, dtype=np.int64)[trace.event_layer[event]]
    hit = hits.astype(bool) & chosen
    return Counters(
        distinct=int(chosen.sum()),
        distinct_hits=int(hit.sum()),
        routed=int(rows[chosen].sum()),
        routed_hits=int(rows[hit].sum()),
        compulsory=int(compulsory[chosen].sum()),
        miss_bytes=int(size[chosen & ~hits.astype(bool)].sum()),
        passes=len(np.unique(trace.event_pass[event[chosen]])) if chosen.any() else 0,
    )


def _warnings(trace: RoutingTrace, result: ReplayResult) -> list[str]:
    """What a reader must know before believing the numbers."""
    geometry = trace.geometry
    found = []
    if result.evictions == 0 and result.policy != "static" and result.admitted_bytes:
        found.append(f"policy {result.policy} was never exercised: nothing had to leave, so all policies tie")
    cycle = geometry.token_cycle_bytes
    if result.scope == "global" and result.capacity_bytes < cycle:
        found.append(
            f"capacity {result.capacity_bytes / 2**20:.0f} MiB is below one token's experts "
            f"({cycle / 2**20:.0f} MiB): a global LRU then hits exactly 0 %"
        )
    if result.waves:
        found.append(f"{result.waves} extra waves: some events want more than their scope holds")
    return found


def compulsory_bound(trace: RoutingTrace) -> float:
    """Hit rate (distinct) of an endless cache that starts empty: only first uses miss."""
    first = len(np.unique(trace.keys))
    return 1.0 - first / trace.n_lookups


def matches_engine(trace: RoutingTrace, result: ReplayResult) -> tuple[int, int]:
    """(equal, compared) first touches whose residency, as the engine reported it, the replay gives too.

    Raises
    ------
    SimError
        If the trace has no residency column.
    """
    if trace.row_residency is None:
        raise SimError("the trace does not say what the engine found resident")
    reported = trace.row_residency[trace.first_entry]
    known = reported >= 0
    return int(((reported > 0) == (result.hits == 1))[known].sum()), int(known.sum())


__all__ = [
    "CONTRACTS",
    "Capacity",
    "Counters",
    "ReplayResult",
    "compulsory_bound",
    "make_future",
    "matches_engine",
    "replay",
]
