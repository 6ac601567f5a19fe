"""Decisions of a live run, taken before the clock starts.

The same residency pool, policies and order of questions as in the replay and the timed engine; what they
answer is laid down as one `Step` an event: which slots to compute at once, what to copy whither and compute when
it has landed, what the CPU computes, what to copy ahead. So the timed loop holds no decision and no policy.

The rules of the live engine: copies go out in the order in which they are asked for and are never taken back; an
expert whose copy is under way is waited for; one that was copied ahead may not be a victim before the event it
was copied for has passed. Events that want more than their part of the cache are refused.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from expert_residency.errors import SimError
from expert_residency.hwmodels.executor.card import LiveSizes
from expert_residency.hwmodels.executor.experts import form_of
from expert_residency.hwmodels.executor.steps import Program, Step
from expert_residency.policies import create
from expert_residency.policies.protocol import Event, Lists
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.residency.future import make_future, recorded_predictions
from expert_residency.sim.residency.other_texts import future_for
from expert_residency.sim.residency.pool import CachePool, make_pool, start_placement
from expert_residency.traces import ModelGeometry, RoutingTrace


@dataclass(frozen=True)
class LiveChoices:
    """What decides a schedule; the words are those of `sim.runs.simulate.RunSpec` and of the engine presets.

    `pcie_share` is the share of misses that `hybrid` fetches; `fill`: what the CPU served gets a slot as well.
    """

    capacity: Capacity
    eviction: str = "lru"
    admission: str = "always"
    prefetch: str = "none"
    placement: str | None = None
    miss: str = "fetch"
    pcie_share: float = 0.5
    fill: bool = True


@dataclass(frozen=True)
class Schedule(Program):
    """A program with what the decisions come to: distinct hits and look-ups, bytes by way."""

    hits: int
    lookups: int
    copied_bytes: int
    ahead_bytes: int
    cpu_bytes: int


def sizes_of(geometry: ModelGeometry, trace: RoutingTrace | None = None) -> LiveSizes:
    """What a live engine needs to know of a model, and of the passes of a trace, which have one row by default.

    Raises
    ------
    SimError
        If the hidden size is not known.
    """
    if geometry.hidden_size <= 0:
        raise SimError(
            f"model {geometry.label} does not say its hidden size, which a live run needs: give the model with "
            "--model (residency list models)"
        )
    known = geometry.expert_params > 0
    rows = 1 if trace is None else int(trace.event_rows.max())
    pairs = 1 if trace is None else round(trace.n_routed / trace.n_lookups)
    return LiveSizes(
        geometry.hidden_size,
        geometry.experts,
        geometry.top_k,
        geometry.expert_bytes,
        geometry.dense_bytes,
        geometry.head_bytes,
        form_of(geometry.quant_family, geometry.hidden_size),
        rows,
        max(1, pairs),
        8 * geometry.expert_bytes[0] / geometry.expert_params if known else 0.0,
        *((missed(trace, "static"), missed(trace, "lru")) if trace is not None and rows == 1 else ((), ())),
    )


def missed(trace: RoutingTrace, eviction: str) -> tuple[tuple[int, ...], ...]:
    """For each layer the experts that miss with a third of all in slots, in that order.

    Parameters
    ----------
    trace
        Passes of one row.
    eviction
        Policy; what misses gets a slot unless it is `static`.

    Returns
    -------
    tuple of tuple of int
        Experts of each layer.
    """
    geometry = trace.geometry
    slots = Capacity(slots_per_layer=max(geometry.top_k, geometry.experts // 3))
    choices = LiveChoices(slots, eviction=eviction, miss="cpu", fill=eviction != "static")
    found: list[list[int]] = [[] for _ in range(geometry.n_layers)]
    for step in make_schedule(trace, choices).steps:
        found[step.layer] += [key % geometry.experts for key in step.cpu]
    return tuple(map(tuple, found))


class _Slots:
    """Which slot holds which key; the lowest free one is taken."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self.free: list[int] = []
        self.made = 0

    def take(self, key: int) -> int:
        if self.free:
            slot = self.free.pop()
        else:
            slot = self.made
            self.made += 1
        self.of[key] = slot
        return slot

    def leave(self, key: int) -> None:
        self.free.append(self.of.pop(key))


def make_schedule(trace: RoutingTrace, choices: LiveChoices) -> Schedule:
    """Take all decisions of a run.

    Raises
    ------
    SimError, PolicyError
        Choices that are not valid, or an event larger than its part of the cache.
    """
    return _Planner(trace, choices).plan()


class _Planner:
    def __init__(self, trace: RoutingTrace, choices: LiveChoices) -> None:
        self.trace, self.choices = trace, choices
        eviction = create("eviction", choices.eviction)
        admission = create("admission", choices.admission)
        placement = create("placement", choices.placement or eviction.default_placement)
        self.prefetch = create("prefetch", choices.prefetch)
        if admission.periodic:
            raise SimError(f"admission {choices.admission!r} acts between passes; live runs do not do that")
        pool = make_pool(trace.geometry, choices.capacity)
        future = make_future(trace)
        self.sizes = pool.size_of
        self.several = int(trace.event_rows.max()) > 1
        if self.several and choices.miss in ("cpu", "hybrid"):
            raise SimError(
                "the live engine's CPU pool computes one row: passes of several take miss fetch or stream"
            )
        self.cache = CachePool(pool, eviction, admission, future if eviction.needs_future else None)
        self.slots = _Slots()
        placed = start_placement(self.cache, placement, future_for(placement, trace, lambda: future))
        self.start = tuple((key, self.slots.take(key)) for key in placed)
        self.state = self.prefetch.start(
            pool._replace(resident=self.cache.resident), Lists, future if self.prefetch.needs_future else None,
            recorded_predictions(trace),
        )  # fmt: skip
        self.keys, self.deadlines = [0] * pool.keys, [0] * pool.keys
        self.batch = -1
        """Last copy-ahead batch."""
        self.batch_of: dict[int, int] = {}
        """Copy-ahead batch of keys that no event has waited for yet."""
        self.bytes = {"copied": 0, "ahead": 0, "cpu": 0}

    def plan(self) -> Schedule:
        """Walk through the trace."""
        trace = self.trace
        offsets, keys, rows = trace.event_offsets.tolist(), trace.keys.tolist(), trace.rows_wanting.tolist()
        layers, passes = trace.event_layer.tolist(), trace.event_pass.tolist()
        steps: list[Step] = []
        hits = most_staged = 0
        for e in range(trace.n_events):
            lo, hi = offsets[e], offsets[e + 1]
            wanted = keys[lo:hi]
            event = Event(e, passes[e], layers[e], lo, wanted, rows[lo:hi], self.cache.lookup(e, wanted))
            hits += sum(event.hits)
            step, staged = self._step(event, self._rows_of(e) if self.several else None)
            most_staged = max(most_staged, staged)
            steps.append(step)
        base = self.slots.made
        steps = [_resolve(step, base) for step in steps]
        return Schedule(
            steps, trace.pass_event_offsets.tolist(), self.start, base + most_staged,
            hits, trace.n_lookups,
            self.bytes["copied"], self.bytes["ahead"], self.bytes["cpu"],
        )  # fmt: skip

    def _rows_of(self, e: int) -> dict[int, tuple[int, ...]]:
        """Which rows of an event want each of its experts, by key."""
        trace, wanting = self.trace, defaultdict(list)
        first = int(trace.event_layer[e]) * trace.geometry.experts
        start, end = trace.event_row_offsets[e], trace.event_row_offsets[e + 1]
        for number, row in enumerate(range(start, end)):
            for expert in trace.row_experts[trace.row_offsets[row] : trace.row_offsets[row + 1]].tolist():
                wanting[first + expert].append(number)
        return {key: tuple(rows) for key, rows in wanting.items()}

    def _step(self, event: Event, rows_of: dict[int, tuple[int, ...]] | None) -> tuple[Step, int]:
        choices, of = self.choices, self.slots.of
        resident = [key for key, hit in zip(event.keys, event.hits, strict=True) if hit]
        missing = [i for i, hit in enumerate(event.hits) if not hit]
        fetch_from = len(missing) - self._fetched(len(missing))
        fetched = set(missing[fetch_from:])
        fills: list[tuple[int, int]] = []
        slot_of = {key: of[key] for key in resident}
        for i in self.cache.learn(event):
            if choices.miss != "stream" and (i in fetched or choices.fill):
                slot = self._admit(event.keys[i], event.number, event.number, forced=i in fetched)
                if slot >= 0 and i in fetched:
                    slot_of[event.keys[i]] = slot
                elif slot >= 0:
                    fills.append((event.keys[i], slot))
        copies: list[tuple[int, int]] = []
        staged = 0
        for i in sorted(fetched):
            key = event.keys[i]
            if key not in slot_of:  # not admitted: a staging slot, numbered below zero until all slots are known
                staged += 1
                slot_of[key] = -staged
            copies.append((key, slot_of[key]))
            self.bytes["copied"] += self.sizes[key]
        cpu = tuple(event.keys[i] for i in missing if i not in fetched)
        self.bytes["cpu"] += sum(self.sizes[key] for key in cpu)
        batches = {key: self.batch_of.pop(key, -1) for key in resident}
        ready = [slot_of[key] for key in resident if batches[key] < 0]
        under_way = [slot_of[key] for key in resident if batches[key] >= 0]
        now = tuple(ready if copies else ready + under_way)
        later = tuple(under_way + [slot_of[key] for key, _ in copies]) if copies else ()
        ahead_router = tuple(self._propose(event, event.number)) if self.prefetch.at_router else ()
        self.batch += bool(ahead_router)
        for key, _ in fills:
            self.batch_of[key] = self.batch + 1
        self.prefetch.learn(self.state, event)
        last = event.layer == self.trace.geometry.n_layers - 1
        ahead = list(fills)
        if self.prefetch.at_layer or (self.prefetch.at_pass and last):
            ahead += self._propose(event, event.number + 1)
        self.batch += bool(ahead)
        needs = max(batches.values(), default=-1)
        rows = None if rows_of is None else {slot: rows_of[key] for key, slot in slot_of.items()}
        step = Step(
            event.layer, now, tuple(copies), later, needs, len(under_way), cpu, ahead_router, tuple(ahead), rows
        )  # fmt: skip
        return step, staged

    def _fetched(self, n: int) -> int:
        if self.choices.miss in ("fetch", "stream"):
            return n
        return int(n * self.choices.pcie_share) if self.choices.miss == "hybrid" else 0

    def _admit(self, key: int, tick: int, number: int, *, forced: bool) -> int:
        """Slot for `key`, or -1 if it was turned away."""
        cache = self.cache
        admitted = cache.admit(key, tick, forced=forced)
        for victim in cache.evicted:
            if cache.guard[victim] >= number and forced:
                raise SimError(f"event {number} wants more than its part of the cache; live runs have no waves")
            self.slots.leave(victim)
            self.batch_of.pop(victim, None)
        return self.slots.take(key) if admitted else -1

    def _propose(self, event: Event, tick: int) -> list[tuple[int, int]]:
        """Copies that the prefetcher asks for and that find room: the next batch."""
        n = self.prefetch.propose(self.state, event, self.keys, self.deadlines)
        copies: list[tuple[int, int]] = []
        for i in range(n):
            key, deadline = self.keys[i], self.deadlines[i]
            if not self.cache.resident[key]:
                slot = self._admit(key, tick, event.number, forced=False)
                if slot < 0:
                    continue
                copies.append((key, slot))
                self.batch_of[key] = self.batch + 1
                self.bytes["ahead"] += self.sizes[key]
            self.cache.guard[key] = max(self.cache.guard[key], deadline)
        return copies


def _resolve(step: Step, base: int) -> Step:
    """Staging slots (-1, -2, ...) become `base`, `base + 1`, ..."""

    def slot(number: int) -> int:
        return number if number >= 0 else base - number - 1

    return step._replace(
        now=tuple(map(slot, step.now)),
        later=tuple(map(slot, step.later)),
        copies=tuple((key, slot(number)) for key, number in step.copies),
        rows=None if step.rows is None else {slot(number): rows for number, rows in step.rows.items()},
    )
