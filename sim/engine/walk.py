"""The walk through the passes: one SimPy process, layer by layer.

At each event it waits for the dense part, the router's ids and the host's plan, then decides against the
residency of that moment, sends copies, disk reads and CPU work on their way, computes what is resident and what
lands, and joins the CPU pool. Transfers are flows through shared servers and need no process of their own: an
event a layer and an event a transfer, never one an expert that is resident.

At equal times the order is (time, priority, sequence): transfers end before anybody decides, those that end
together end in the order in which they began, and then the walk goes on. Nothing depends on hash order.

The policy is asked in exactly the order of `sim.replay`, so with demand fetching alone both count the same hits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import simpy

from policies.protocol import AdmissionPolicy, Event, EvictionPolicy, Future, Lists, PrefetchPolicy
from sim.channels import ADAPT, DEMAND, PREFETCH, Copy
from sim.channels.copy_engine import DONE
from sim.channels.cpu import Segment
from sim.costs import Costs
from sim.engine.slots import Slots
from sim.engine.transfers import Transfers
from sim.host import DISK, PAGE_CACHE, SOURCES, HostPlan
from sim.machine import Machine
from sim.page_cache import PageCache
from sim.pool import CachePool
from sim.preset import EnginePreset
from sim.result import (
    CAUSES,
    CPU_WAIT,
    DENSE,
    DISK_WAIT,
    EXPERTS,
    HANDOFF,
    OVERHEAD,
    PCIE_WAIT,
    PHASES,
    SYNC,
    T_CPU_PINNED,
    T_DISK,
    T_IN_FLIGHT,
    T_PCIE,
    T_VRAM,
    TIERS,
)
from sim.timeline import Timeline
from traces import RoutingTrace

Steps = Generator[Any, Any, None]


@dataclass
class Policies:
    """The algorithms of one run; `future` is handed to oracles only."""

    eviction: EvictionPolicy
    admission: AdmissionPolicy
    prefetch: PrefetchPolicy
    future: Future | None


class SimPyEngine:
    """One run.

    Parameters
    ----------
    trace, machine, preset
        What is asked, of what, and how.
    cache
        Who has a slot at the start, with its eviction and admission policies.
    policies
        The same policies, and the prefetcher.
    miss
        Miss mode: `cpu`, `fetch`, `hybrid` or `stream`.
    host_plan, page_cache
        Where experts lie on the host; the page cache is changed by the run.
    timeline
        Receives slices, or None.
    progress
        Called with the number of passes done.
    """

    def __init__(
        self,
        trace: RoutingTrace,
        machine: Machine,
        preset: EnginePreset,
        cache: CachePool,
        policies: Policies,
        miss: str,
        host_plan: HostPlan,
        page_cache: PageCache | None,
        timeline: Timeline | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        geometry = trace.geometry
        self.trace = trace
        self.machine = machine
        self.preset = preset
        self.cache = cache
        self.policies = policies
        self.miss = miss
        self.timeline = timeline
        self.progress = progress
        self.env: Any = simpy.Environment()
        """Its time is integer ns throughout."""
        self.costs = Costs.of(geometry, machine, preset)
        self.slots = Slots(cache)
        card_of = [card for card in machine.layer_card for _ in range(geometry.experts)]
        self.transfers = Transfers(
            self.env, machine, list(cache.pool.size_of), card_of, host_plan, page_cache, self._is_stale, timeline
        )
        self.served_distinct = [[0] * len(TIERS) for _ in PHASES]
        self.served_routed = [[0] * len(TIERS) for _ in PHASES]
        self.pass_ns: list[int] = []
        self.pass_causes: list[list[int]] = []
        self.gpu_bytes = 0
        self.waves = 0
        self.number = -1
        """Running number of the current event."""
        self._causes = [0] * len(CAUSES)
        self._card = 0
        prefetch = policies.prefetch
        self._prefetch = prefetch.start(
            cache.pool, Lists, policies.future if prefetch.needs_future else None, trace.predictions or None
        )
        self._keys = [0] * cache.pool.keys
        self._deadlines = [0] * cache.pool.keys

    # ---- the run -----------------------------------------------------------------------------

    def run(self) -> None:
        """Simulate every pass."""
        self.env.run(until=self.env.process(self._walk()))
        self.slots.close()

    def _is_stale(self, deadline: int) -> bool:
        return deadline <= self.number

    def _walk(self) -> Steps:
        trace, env = self.trace, self.env
        offsets = trace.event_offsets.tolist()
        keys, rows = trace.keys.tolist(), trace.rows_wanting.tolist()
        layers, event_rows = trace.event_layer.tolist(), trace.event_rows.tolist()
        phases, events = trace.pass_phase.tolist(), trace.pass_event_offsets.tolist()
        for number, phase in enumerate(phases):
            began = env.now
            self._causes = [0] * len(CAUSES)
            self._card = 0
            if self.costs.first_ns:
                yield from self._spend(self.costs.first_ns, DENSE, "dense layers")
            for e in range(events[number], events[number + 1]):
                lo, hi = offsets[e], offsets[e + 1]
                yield from self._event(e, number, layers[e], lo, keys[lo:hi], rows[lo:hi], event_rows[e], phase)
            if self.costs.head_ns:
                yield from self._spend(self.costs.head_ns, DENSE, "head")
            if self.preset.pass_ns:
                yield env.timeout(self.preset.pass_ns)
                self._causes[OVERHEAD] += self.preset.pass_ns
            if self.policies.admission.periodic:
                self._adapt(number)
            self.pass_ns.append(env.now - began)
            self.pass_causes.append(self._causes)
            if self.progress is not None:
                self.progress(number + 1)

    def _spend(self, ns: int, cause: int, label: str) -> Steps:
        """Compute on the current card."""
        yield self.env.timeout(ns)
        self._causes[cause] += ns
        if self.timeline is not None:
            self.timeline.slice(f"GPU {self._card}", label, self.env.now - ns, self.env.now)

    # ---- one event -----------------------------------------------------------------------------

    def _event(
        self, number: int, pass_index: int, layer: int, offset: int, keys: list[int], rows: list[int],
        n_rows: int, phase: int,
    ) -> Steps:  # fmt: skip
        env, costs, causes = self.env, self.costs, self._causes
        card = self.machine.layer_card[layer]
        if card != self._card:
            ns = costs.handoff(card, n_rows)
            yield env.timeout(ns)
            causes[HANDOFF] += ns
            self._card = card
        dense, sync = costs.dense(layer, card, n_rows), costs.sync_ns[card] + self.preset.plan_ns
        yield env.timeout(dense + sync)
        causes[DENSE] += dense
        causes[SYNC] += sync
        if self.timeline is not None:
            start = env.now - dense - sync
            self.timeline.slice(
                f"GPU {card}", f"dense L{self.trace.geometry.layer_ids[layer]}", start, start + dense
            )
            self.timeline.slice("host plan", "router, plan", start + dense, env.now)

        # Decide, in the replay's order: look up, learn, admit.
        self.number = number
        hits = self.cache.lookup(number, keys)
        event = Event(number, pass_index, layer, offset, keys, rows, hits)
        plan = self._decide(event, phase)
        if self.policies.prefetch.at_router:
            self._propose(event, number)
        cpu_work = self._cpu_segments(plan, layer)
        if cpu_work and self.preset.overlap:
            self.transfers.cpu.run(cpu_work, self.transfers.cpu_ended)

        # The card: residents, then what lands, in waves.
        if plan.hit_bytes:
            yield from self._compute(card, layer, plan.hit_bytes, plan.hit_rows)
        yield from self._land(card, layer, plan.copies)
        if plan.deferred:
            self.waves += 1
            copies = [self._demand(key, source, keep) for key, source, keep in plan.deferred]
            yield from self._land(card, layer, [(copy, plan.rows_of[copy.key]) for copy in copies])

        # The CPU pool.
        if cpu_work:
            if not self.preset.overlap:
                self.transfers.cpu.run(cpu_work, self.transfers.cpu_ended)
            disk_ns, cpu_ns = yield from self.transfers.wait_cpu()
            causes[DISK_WAIT] += disk_ns
            causes[CPU_WAIT] += cpu_ns
        if self.preset.combine_ns:
            yield env.timeout(self.preset.combine_ns)
            causes[SYNC] += self.preset.combine_ns
        for key in plan.fills:
            self._fill(key)
        self.policies.prefetch.learn(self._prefetch, event)
        if self.policies.prefetch.at_layer:
            self._propose(event, number + 1)
        if self.policies.prefetch.at_pass and layer == self.trace.geometry.n_layers - 1:
            self._propose(event, number + 1)

    def _compute(self, card: int, layer: int, nbytes: int, rows: int) -> Steps:
        """One group of experts on the card."""
        self.gpu_bytes += nbytes
        layer_id = self.trace.geometry.layer_ids[layer]
        yield from self._spend(self.costs.experts(card, nbytes, rows), EXPERTS, f"experts L{layer_id}")

    def _land(self, card: int, layer: int, copies: list[tuple[Copy, int]]) -> Steps:
        """Compute experts as their copies land, or all at once when the last has."""
        sizes = self.slots.sizes
        left = copies
        while left:
            waited = left if self.preset.copy_unit == "layer" else left[:1]
            landed = [item for item in left if item[0].state == DONE]
            if len(landed) < len(waited):
                landed = []
                for copy, _ in waited:
                    disk_ns, pcie_ns = yield from self.transfers.wait(copy)
                    self._causes[DISK_WAIT] += disk_ns
                    self._causes[PCIE_WAIT] += pcie_ns
                landed = [item for item in left if item[0].state == DONE]
            left = [item for item in left if item[0].state != DONE]
            nbytes = sum(sizes[copy.key] for copy, _ in landed)
            yield from self._compute(card, layer, nbytes, sum(n for _, n in landed))

    # ---- decisions -----------------------------------------------------------------------------

    def _decide(self, event: Event, phase: int) -> _Plan:
        """Classify the event, admit misses, send demand copies on their way."""
        slots, plan = self.slots, _Plan()
        distinct, routed = self.served_distinct[phase], self.served_routed[phase]
        host = self.transfers.host
        missing: list[int] = []
        for i, key in enumerate(event.keys):
            rows = event.rows[i]
            if not event.hits[i]:
                missing.append(i)
                slots.stats.wanted += 1
                continue
            slots.wanted(key)
            if slots.ready[key]:
                plan.hit_bytes += slots.sizes[key]
                plan.hit_rows += rows
                tier = T_VRAM
            else:
                copy = slots.copy_of[key]
                assert copy is not None
                if self._waits_for(copy):
                    self.transfers.h2d[self._card].promote(copy, DEMAND)
                    plan.copies.append((copy, rows))
                    tier = T_IN_FLIGHT
                else:
                    source = host.source(key)
                    plan.cpu.append((key, source, rows))
                    tier = T_DISK if source == DISK else T_CPU_PINNED + source
            distinct[tier] += 1
            routed[tier] += rows
        admitted = self.cache.learn(event)
        fetch_from = len(missing) - self._fetched(len(missing))
        to_fetch = set(missing[fetch_from:])
        keeps: dict[int, bool] = {}
        deferred: set[int] = set()
        for i in admitted:
            key = event.keys[i]
            fetched = i in to_fetch
            if self.miss == "stream" or not (fetched or self.preset.fill):
                continue
            kept, waits = slots.admit(key, event.number, forced=fetched)
            if kept:
                keeps[i] = True
                if waits:
                    deferred.add(i)
                if not fetched:
                    plan.fills.append(key)
        for i in missing:
            key, rows = event.keys[i], event.rows[i]
            source = host.source(key)
            keep = keeps.get(i, False) and bool(self.cache.resident[key])
            if i in to_fetch:
                plan.rows_of[key] = rows
                if i in deferred:
                    plan.deferred.append((key, source, keep))
                else:
                    plan.copies.append((self._demand(key, source, keep), rows))
                tier = T_DISK if source == DISK else T_PCIE
            else:
                plan.cpu.append((key, source, rows))
                tier = T_DISK if source == DISK else T_CPU_PINNED + source
            distinct[tier] += 1
            routed[tier] += rows
        return plan

    def _waits_for(self, copy: Copy) -> bool:
        """Whether an expert under way is waited for; adaptive swaps and `miss` engines use the CPU meanwhile."""
        if self.miss in ("fetch", "stream"):
            return True
        return self.preset.in_flight == "wait" and copy.priority != ADAPT

    def _fetched(self, n: int) -> int:
        """How many of `n` misses go over the link."""
        if self.miss == "cpu":
            return 0
        if self.miss in ("fetch", "stream"):
            return n
        share = self.preset.pcie_share
        if share == "balanced":
            link = self.transfers.h2d_rate[self._card][0]
            return n * link // (link + self.costs.cpu_mb_per_s[0])
        return int(n * share.value)

    def _cpu_segments(self, plan: _Plan, layer: int) -> list[Segment]:
        """Work of the CPU pool: what is in memory, by source, then what comes from the disk, one by one."""
        if not plan.cpu:
            return []
        costs, sizes = self.costs, self.slots.sizes
        totals = [[0, 0] for _ in SOURCES]
        late: list[Segment] = []
        for key, source, rows in plan.cpu:
            if source == DISK:
                ns = costs.cpu(PAGE_CACHE, layer, rows)
                segment = Segment(sizes[key], ns, costs.cpu_mb_per_s[PAGE_CACHE], False, "experts from disk")
                self.transfers.host.read(key, lambda s=segment: self.transfers.cpu.arrived(s))  # type: ignore[misc]
                late.append(segment)
            else:
                totals[source][0] += sizes[key]
                totals[source][1] += costs.cpu(source, layer, rows)
        segments = [
            Segment(nbytes, ns, costs.cpu_mb_per_s[source], True, f"experts {SOURCES[source]}")
            for source, (nbytes, ns) in enumerate(totals)
            if nbytes
        ]
        segments += late
        segments[0].solo_ns += costs.dispatch_ns
        return segments

    # ---- copies --------------------------------------------------------------------------------

    def _demand(self, key: int, source: int, keep: bool) -> Copy:
        copy = self.transfers.fetch(key, source, DEMAND, self.number, keep, self._ended)
        if keep and copy.state != DONE:
            self.slots.under_way(key, copy)
        return copy

    def _fill(self, key: int) -> None:
        """Copy an expert that the CPU has just served into the slot that was made free for it."""
        if self.cache.resident[key] and not self.slots.ready[key] and self.slots.copy_of[key] is None:
            source = self.transfers.host.source(key)
            self.slots.under_way(key, self.transfers.fetch(key, source, ADAPT, NEVER_STALE, True, self._ended))

    def _ended(self, copy: Copy) -> None:
        if copy.keep:
            self.slots.ended(copy, self.number)
        self.transfers.ended(copy)

    def _propose(self, event: Event, tick: int) -> None:
        """Ask the prefetcher, and send the copies that find room."""
        slots, stats = self.slots, self.slots.stats
        n = self.policies.prefetch.propose(self._prefetch, event, self._keys, self._deadlines)
        stats.proposed += n
        for i in range(n):
            key, deadline = self._keys[i], self._deadlines[i]
            if self.cache.resident[key]:
                if self.cache.guard[key] < deadline:
                    self.cache.guard[key] = deadline
                continue
            admitted, _ = slots.admit(key, tick, forced=False)
            if not admitted:
                stats.refused += 1
                continue
            source = self.transfers.host.source(key)
            copy = self.transfers.fetch(key, source, PREFETCH, deadline, True, self._ended)
            slots.prefetched(key, copy)

    def _adapt(self, pass_index: int) -> None:
        """Let a periodic policy exchange residents between two passes."""
        cache = self.cache
        n = self.policies.admission.pass_done(
            cache.admission_state, pass_index, cache.resident, self._keys, self._deadlines
        )
        for i in range(n):
            newcomer, victim = self._keys[i], self._deadlines[i]
            self.slots.swap(newcomer, victim)
            source = self.transfers.host.source(newcomer)
            self.slots.under_way(
                newcomer, self.transfers.fetch(newcomer, source, ADAPT, NEVER_STALE, True, self._ended)
            )


NEVER_STALE = 1 << 62


class _Plan:
    """What becomes of the members of one event."""

    __slots__ = ("copies", "cpu", "deferred", "fills", "hit_bytes", "hit_rows", "rows_of")

    def __init__(self) -> None:
        self.hit_bytes = 0
        self.hit_rows = 0
        self.copies: list[tuple[Copy, int]] = []
        """Copies that the card waits for, with the rows that want each."""
        self.cpu: list[tuple[int, int, int]] = []
        """(key, source, rows) for the CPU pool."""
        self.deferred: list[tuple[int, int, bool]] = []
        """(key, source, keep) of the next wave: members of the event leave for them."""
        self.fills: list[int] = []
        """Served by the CPU now, copied into a slot afterwards."""
        self.rows_of: dict[int, int] = {}
