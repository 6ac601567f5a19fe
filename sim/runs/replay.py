"""Replay: counters without time.

The event-atomic contract, in order: classify the whole event against the residency before it, serve the
misses, then let the policy learn, admit and evict; no member of the event is a victim. `sequential` looks
members up one by one, ascending, and may evict a member that the same event still needs; it is there to
compare with tools that do so, and inflates misses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from expert_residency.errors import CompileError, SimError
from expert_residency.policies import Given, policy_of
from expert_residency.policies.protocol import AdmissionPolicy, Event, EvictionPolicy, PlacementPolicy, Pool
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.caveats import caveats, texts
from expert_residency.sim.kernel import choose
from expert_residency.sim.residency.future import kept_with
from expert_residency.sim.residency.laws import ranked_by
from expert_residency.sim.residency.other_texts import future_for
from expert_residency.sim.residency.pool import CachePool, check_room, make_pool, start_placement
from expert_residency.sim.residency.quotas import share_out
from expert_residency.sim.runs.counts import Counted, ReplayResult, count, counted, phase_passes, result_of
from expert_residency.sim.runs.requests import apart, joined_replay, one_by_one
from expert_residency.sim.runs.steps import Steps
from expert_residency.sim.timed.rules import extra_waves
from expert_residency.text import check_known
from expert_residency.traces import Phase, RoutingTrace

CONTRACTS: tuple[str, ...] = ("event", "sequential", "sequential-descending")


def replay(
    trace: RoutingTrace,
    eviction: Given[EvictionPolicy],
    capacity: Capacity | str | Sequence[str],
    *,
    scope: str | None = None,
    admission: Given[AdmissionPolicy] = "always",
    placement: Given[PlacementPolicy] | None = None,
    contract: str = "event",
    oversize: Literal["waves", "overflow"] = "waves",
    warmup_passes: int = 0,
    lag_passes: int = 1,
    simulator: str = "auto",
    steps: Steps | None = None,
    cold: str = "trace",
) -> ReplayResult:
    """Replay `trace` through one cache.

    Parameters
    ----------
    eviction, admission, placement
        Policies, their classes or their names; the placement defaults to the eviction policy's own.
    capacity, scope
        Of one card: a `Capacity`, or words as `25%`, `32/layer` or `4000MiB` and `global`, `layer` or
        `layer:PLACEMENT`. `auto` is refused, since no machine is named.
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
    simulator
        `reference`, `kernel` (compiled) or `auto`: the kernel where it can run and pays.
    steps
        `Steps.of(trace, contract)`, to share between replays of the same trace and contract.
    cold
        `trace`: one cache from the first pass to the last. `request`: every request starts with an empty (or newly
        placed) one and with a policy that has learned nothing; warm-up passes are then those of each request.

    Raises
    ------
    SimError, PolicyError
        Unknown contract, policy or parameter, a policy that the kernel cannot run, or room for not one expert.
    """
    if parts := apart(trace, cold):
        own: dict[str, Any] = {
            "scope": scope, "admission": admission, "placement": placement, "contract": contract,
            "oversize": oversize, "warmup_passes": warmup_passes, "lag_passes": lag_passes, "simulator": simulator,
        }  # fmt: skip
        found = one_by_one(parts, lambda part, _: replay(part, eviction, capacity, **own))
        whole = joined_replay(trace, found)
        whole.caveats = list(counted_caveats(trace))
        return whole
    check_known("contract", contract, CONTRACTS)
    if lag_passes < 1:
        raise SimError(f"a lag of {lag_passes} passes is impossible: a copy lands at the next pass at the soonest")
    capacity = Capacity.of(capacity, scope).of_one_cache(trace.geometry)
    gate, evicting = policy_of("admission", admission), policy_of("eviction", eviction)
    start = policy_of("placement", placement if placement is not None else evicting.default_placement)
    pool = make_pool(trace.geometry, share_out(trace, capacity))
    if oversize == "waves":  # an event that may stay whole over the capacity needs no room of its own
        check_room(pool)
    job = _Job(
        trace, steps or Steps.of(trace, contract), pool, evicting, gate, start, oversize == "overflow",
        warmup_passes, lag_passes,
    )  # fmt: skip
    if choose(simulator, trace.n_lookups, evicting, gate) == "reference":
        run = job.interpreted()
    else:
        try:
            run = job.compiled()
        except CompileError:
            if simulator == "kernel":
                raise
            run = job.interpreted()
    result = result_of(run, evicting, gate, pool, trace.geometry, capacity.scope, contract)
    result.caveats = list(counted_caveats(trace))
    return result


@dataclass
class _Job:
    """One replay, ready to run."""

    trace: RoutingTrace
    steps: Steps
    pool: Pool
    eviction: EvictionPolicy
    admission: AdmissionPolicy
    placement: PlacementPolicy
    overflow: bool
    warmup_passes: int
    lag_passes: int

    def interpreted(self) -> Counted:
        """Run in Python."""
        trace, steps = self.trace, self.steps
        future = steps.future if self.eviction.needs_future or self.placement.needs_future else None
        cache = CachePool(self.pool, self.eviction, self.admission, future, overflow=self.overflow)
        placed = start_placement(cache, self.placement, future_for(self.placement, trace, lambda: future))
        tally = _run(cache, steps, trace, self.lag_passes)
        hits, compulsory = self._in_order(tally.hits), self._in_order(tally.compulsory)
        event = np.repeat(np.arange(trace.n_events), np.diff(trace.event_offsets))
        phase = trace.event_phase[event]
        phases = {"all": count(trace, hits, compulsory, np.ones(len(hits), dtype=bool), event)}
        for value in Phase:
            chosen = phase == value
            if chosen.any():
                phases[value.name.lower()] = count(trace, hits, compulsory, chosen, event)
        warm = count(trace, hits, compulsory, trace.event_pass[event] >= self.warmup_passes, event)
        return Counted(
            hits, phases, warm, cache.evictions, tally.admitted_bytes, tally.waves, len(placed), "reference"
        )  # fmt: skip

    def compiled(self) -> Counted:
        """Run in the kernel."""
        from expert_residency.sim.kernel.counts.replay import ReplayKernel

        trace, steps = self.trace, self.steps
        oracle = self.eviction.needs_future or self.placement.needs_future
        future = steps.future_arrays if oracle else None
        kernel = ReplayKernel(
            self.pool, self.eviction, self.admission, future, overflow=self.overflow,
            warmup_passes=self.warmup_passes, lag_passes=self.lag_passes,
        )  # fmt: skip
        told = future_for(self.placement, trace, lambda: future)
        placed = kernel.place(ranked_by(self.placement, self.pool, told))
        hits = self._in_order(kernel.feed(steps.arrays))
        passes = phase_passes(trace, self.warmup_passes)
        return counted(kernel, passes, hits, len(placed))

    def _in_order(self, values: Any) -> npt.NDArray[np.uint8]:
        """Of each step's look-ups, in the trace's order."""
        found = np.asarray(values).astype(np.uint8)
        if self.steps.back is None:
            return found
        out = np.empty_like(found)
        out[self.steps.back] = found
        return out


@dataclass
class _Tally:
    hits: list[int]
    compulsory: list[int]
    admitted_bytes: int
    waves: int


def _run(cache: CachePool, steps: Steps, trace: RoutingTrace, lag_passes: int) -> _Tally:
    hits_of: list[int] = []
    compulsory: list[int] = []
    seen = list(cache.resident)
    admitted_bytes = waves = 0
    sizes, capacity, scope_of = cache.pool.size_of, cache.pool.capacity, cache.pool.scope_of
    phases, requests = trace.pass_phase.tolist(), trace.pass_request.tolist()
    offsets, passes, layers = steps.offsets.tolist(), steps.passes.tolist(), steps.layers.tolist()
    all_keys, rows = steps.keys.tolist(), steps.rows.tolist()
    last = len(offsets) - 2
    between = _Between(cache, lag_passes) if cache.admission.periodic else None
    for step in range(last + 1):
        lo, hi = offsets[step], offsets[step + 1]
        keys = all_keys[lo:hi]
        number = passes[step]
        hits = cache.lookup(step, keys)
        if between is not None and number < between.lands:
            hits = [int(hit and key not in between.pending) for hit, key in zip(hits, keys, strict=True)]
        hits_of += hits
        for key in keys:
            compulsory.append(1 - seen[key])
            seen[key] = 1
        waves += extra_waves(sum(sizes[key] for key in keys), capacity[scope_of[keys[0]]])
        event = Event(step, number, layers[step], lo, keys, rows[lo:hi], hits, phases[number], requests[number])
        for position in cache.learn(event):
            if not cache.resident[keys[position]] and cache.admit(keys[position], step):
                admitted_bytes += sizes[keys[position]]
        if cache.overflow:
            cache.trim(scope_of[keys[0]], step)
        if between is not None and (step == last or passes[step + 1] != number):
            admitted_bytes += between.pass_done(number)
    return _Tally(hits_of, compulsory, admitted_bytes, waves)


class _Between:
    """What a periodic policy does between passes, and which of its newcomers are still on their way."""

    def __init__(self, cache: CachePool, lag_passes: int) -> None:
        self.cache = cache
        self.lag = lag_passes
        self.pending: set[int] = set()
        self.lands = 0
        """Pass at whose start the newcomers are there."""
        self._newcomers, self._victims = [0] * cache.pool.keys, [0] * cache.pool.keys

    def pass_done(self, number: int) -> int:
        """Ask for swaps, unless the last ones are on their way; returns the bytes asked for."""
        if number < self.lands:
            return 0
        n = self.cache.adapt(number, self._newcomers, self._victims)
        for newcomer, victim in zip(self._newcomers[:n], self._victims[:n], strict=True):
            self.cache.swap(newcomer, victim)
        self.pending = set(self._newcomers[:n])
        self.lands = number + self.lag if n else 0
        return sum(self.cache.pool.size_of[key] for key in self._newcomers[:n])


def counted_caveats(trace: RoutingTrace) -> list[str]:
    """Caveats of counts of `trace`, found once and kept with it."""
    return kept_with(trace, "caveats", lambda: texts(caveats(trace)))


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


__all__ = ["CONTRACTS", "compulsory_bound", "matches_engine", "replay"]
