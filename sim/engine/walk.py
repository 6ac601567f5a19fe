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
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import simpy

from policies.protocol import NEVER, AdmissionPolicy, Event, EvictionPolicy, Future, Lists, PrefetchPolicy
from sim.channels import ADAPT, DEMAND, Batch
from sim.channels.copy_engine import DONE
from sim.channels.cpu import Segment
from sim.costs import Costs
from sim.engine.exchange import Exchange
from sim.engine.prefetcher import Prefetcher
from sim.engine.slots import Slots
from sim.engine.transfers import Transfers
from sim.errors import SimError
from sim.host import DISK, PAGE_CACHE, PAGEABLE, PINNED, SOURCES, HostPlan
from sim.insertion import Insertion
from sim.machine import Machine
from sim.page_cache import PageCache
from sim.pool import CachePool
from sim.preset import EnginePreset
from sim.result import (
    ADAPT_WAIT,
    CAUSES,
    CPU_WAIT,
    DENSE,
    DISK_WAIT,
    DRAFT,
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
    RunResult,
)
from sim.timeline import Timeline
from traces import Phase, RoutingTrace

PREFILL, VERIFY = int(Phase.PREFILL), int(Phase.VERIFY)
Steps = Generator[Any, Any, None]
_Wait = tuple[Batch, int, int, list[int]]
"""Copies of a batch from one position up to another, and the rows that want each."""


@dataclass
class Policies:
    """The algorithms of one run; `future` is handed to oracles only."""

    eviction: EvictionPolicy
    admission: AdmissionPolicy
    prefetch: PrefetchPolicy
    future: Future | None
    insertion: Insertion = field(default_factory=Insertion)
    """Where prefetched experts may go."""
    prefetch_bytes: int | None = None
    """Most bytes that the prefetcher may ask for in one pass."""
    predict_ns: int = 0
    """What one call of the prefetcher costs; card and host stand still meanwhile."""


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
        self.costs = Costs.of(geometry, machine, preset, host_plan.cpu_sources)
        self.slots = Slots(cache)
        if timeline is not None:
            self.slots.observer = lambda slots: timeline.filling(self.env.now, slots)
        card_of = [card for card in machine.layer_card for _ in range(geometry.experts)]
        self.transfers = Transfers(
            self.env, machine, list(cache.pool.size_of), card_of, host_plan, page_cache, self._is_stale, timeline,
            in_order=preset.copy_order == "asked", link_reads=preset.reads == "link", copy_ns=preset.copy_ns,
        )  # fmt: skip
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
        self.prefetcher = Prefetcher(
            prefetch, self._prefetch, self.slots, self.transfers, policies.insertion, policies.prefetch_bytes,
            geometry.n_layers, self._slot_landed,
        )  # fmt: skip
        self.exchange = Exchange(self.slots, self.transfers, self._slot_landed, waits=preset.adapt_waits)
        self._keys = [0] * cache.pool.keys
        self._deadlines = [0] * cache.pool.keys

    # ---- the run -----------------------------------------------------------------------------

    def run(self) -> None:
        """Simulate every pass."""
        self.env.run(until=self.env.process(self._walk()))
        self.slots.close()
        self.prefetcher.close()

    def result(self, manifest: dict[str, Any], start_bytes: int) -> RunResult:
        """What was found."""
        transfers, stats = self.transfers, self.slots.stats
        stats.blocked_ns = sum(link.blocked_ns for link in transfers.h2d)
        stats.blocking_bytes = sum(link.blocking_bytes for link in transfers.h2d)
        by_class = [sum(link.nbytes[c] for link in transfers.h2d) for c in range(3)]
        return RunResult(
            manifest=manifest,
            pass_ns=np.asarray(self.pass_ns, dtype=np.int64),
            pass_causes=np.asarray(self.pass_causes, dtype=np.int64),
            pass_phase=np.asarray(self.trace.pass_phase, dtype=np.int8),
            pass_emits=np.asarray(self.trace.pass_emits, dtype=np.int32),
            served_distinct=np.asarray(self.served_distinct, dtype=np.int64),
            served_routed=np.asarray(self.served_routed, dtype=np.int64),
            link_bytes={
                "h2d_demand": by_class[0],
                "h2d_adapt": by_class[1],
                "h2d_prefetch": by_class[2],
                "d2h": sum(sum(link.nbytes) for link in transfers.d2h),
                "disk": transfers.disk.nbytes,
                "cpu": transfers.cpu.nbytes,
            },
            prefetch=stats,
            evictions=self.cache.evictions,
            admitted_bytes=self.slots.admitted_bytes,
            waves=self.waves,
            start_bytes=start_bytes,
            gpu_bytes=self.gpu_bytes,
            resident_end=np.asarray(self.cache.resident, dtype=np.uint8),
        )

    def _is_stale(self, deadline: int) -> bool:
        return deadline <= self.number

    def _walk(self) -> Steps:
        trace, env = self.trace, self.env
        offsets = trace.event_offsets.tolist()
        keys, rows = trace.keys, trace.rows_wanting  # whole as lists they would take a gigabyte
        layers, event_rows = trace.event_layer.tolist(), trace.event_rows.tolist()
        phases, events = trace.pass_phase.tolist(), trace.pass_event_offsets.tolist()
        for number, phase in enumerate(phases):
            began = env.now
            self._causes = [0] * len(CAUSES)
            self._card = 0
            self.prefetcher.spent_bytes = 0
            if self.costs.first_ns:
                yield from self._spend(self.costs.first_ns, DENSE, "dense layers")
            for e in range(events[number], events[number + 1]):
                lo, hi = offsets[e], offsets[e + 1]
                yield from self._event(
                    e, number, layers[e], lo, keys[lo:hi].tolist(), rows[lo:hi].tolist(), event_rows[e], phase
                )
            if self.costs.head_ns:
                yield from self._spend(self.costs.head_ns, DENSE, "head")
            if self.policies.admission.periodic:
                self._adapt(number)
            if self.preset.pass_ns:
                yield env.timeout(self.preset.pass_ns)
                self._causes[OVERHEAD] += self.preset.pass_ns
            if self.preset.draft_ns and phase == VERIFY:
                drafting = (event_rows[events[number]] - 1) * self.preset.draft_ns
                yield env.timeout(drafting)
                self._causes[DRAFT] += drafting
            if self.exchange.busy:
                yield from self._wait_for_exchange()
            self.pass_ns.append(env.now - began)
            self.pass_causes.append(self._causes)
            if self.progress is not None:
                self.progress(number + 1)

    def _wait_for_exchange(self) -> Steps:
        """The next pass begins when the host has exchanged victims and newcomers."""
        began = self.env.now
        while self.exchange.busy:
            yield self.transfers.net.wake
        self._causes[ADAPT_WAIT] += self.env.now - began

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
        if phase != PREFILL:
            dense += (n_rows - 1) * self.preset.row_ns
        if self.transfers.h2d[card].current is not None:
            sync += self.preset.beside_ns
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
        request = int(self.trace.pass_request[pass_index])
        hits = self.cache.lookup(number, keys)
        event = Event(number, pass_index, layer, offset, keys, rows, hits, phase, request)
        plan = self._decide(event, card, phase)
        prefetch = self.policies.prefetch
        preset, stats = self.preset, self.slots.stats
        sending = preset.send_ns + plan.sends * preset.copy_ns if plan.sends else 0
        if prefetch.at_router:
            issued = stats.issued
            yield from self._predict(event, number)
            if stats.issued > issued:
                sending += preset.send_ns + (stats.issued - issued) * preset.copy_ns
        if sending:
            yield from self._send(sending)
        host_free = env.now
        cpu_work = self._cpu_segments(plan, layer) if plan.cpu else []
        if cpu_work and self.preset.overlap:
            self.transfers.cpu.run(cpu_work)

        # The card: residents, then what lands, in waves.
        if plan.hit_bytes:
            yield env.timeout(self._group_ns(card, layer, plan.hit_bytes, plan.hit_rows))
        if plan.waits:
            yield from self._land(card, layer, plan.waits)
        if plan.deferred:
            self.waves += 1
            yield from self._land(card, layer, self._demand(plan.deferred, plan.deferred_rows))

        # The CPU pool.
        if cpu_work:
            if not self.preset.overlap:
                self.transfers.cpu.run(cpu_work)
            if not self.transfers.cpu.idle:
                disk_ns, cpu_ns = yield from self.transfers.wait_cpu()
                causes[DISK_WAIT] += disk_ns
                causes[CPU_WAIT] += cpu_ns
        if self.preset.combine_ns:
            yield env.timeout(self.preset.combine_ns)
            causes[SYNC] += self.preset.combine_ns
        if plan.fills:
            self._fill(plan.fills)
        prefetch.learn(self._prefetch, event)
        issued = stats.issued
        if prefetch.at_layer or (prefetch.at_pass and layer == self.trace.geometry.n_layers - 1):
            yield from self._predict(event, number + 1)
        fills, ahead = len(plan.fills), stats.issued - issued
        if fills or ahead:
            # With nothing of its own to compute the host has sent while the card was busy.
            began = env.now if cpu_work else host_free
            host_ns = preset.fill_ns + fills * preset.fill_copy_ns if fills else preset.ahead_ns
            if (left := began + host_ns + ahead * preset.copy_ns - env.now) > 0:
                yield from self._send(left)

    def _send(self, ns: int) -> Steps:
        """Time of the host for sending copies."""
        yield self.env.timeout(ns)
        self._causes[SYNC] += ns
        if self.timeline is not None:
            self.timeline.slice("host plan", "send copies", self.env.now - ns, self.env.now)

    def _group_ns(self, card: int, layer: int, nbytes: int, rows: int) -> int:
        """Book one group of experts that the card computes from now on; returns its time."""
        ns = self.costs.experts(card, nbytes, rows)
        self.gpu_bytes += nbytes
        self._causes[EXPERTS] += ns
        if self.timeline is not None:
            layer_id = self.trace.geometry.layer_ids[layer]
            self.timeline.slice(f"GPU {card}", f"experts L{layer_id}", self.env.now, self.env.now + ns)
        return ns

    def _land(self, card: int, layer: int, waits: list[_Wait]) -> Steps:
        """Compute experts as they land: of each batch in turn, all that have landed since as one group."""
        causes, wait = self._causes, self.transfers.wait
        if self.preset.copy_unit == "layer":
            for batch, _, end, _ in waits:
                disk_ns, pcie_ns = yield from wait(batch, end - 1)
                causes[DISK_WAIT] += disk_ns
                causes[PCIE_WAIT] += pcie_ns
            nbytes = sum(sum(batch.nbytes[at:end]) for batch, at, end, _ in waits)
            yield self.env.timeout(self._group_ns(card, layer, nbytes, sum(sum(rows) for *_, rows in waits)))
            return
        env = self.env
        for batch, first, end, rows in waits:
            at = first
            while at < end:
                if batch.landed <= at:
                    disk_ns, pcie_ns = yield from wait(batch, at)
                    causes[DISK_WAIT] += disk_ns
                    causes[PCIE_WAIT] += pcie_ns
                upto = min(end, batch.landed)
                if upto == at + 1:
                    nbytes, wanting = batch.nbytes[at], rows[at - first]
                else:
                    nbytes, wanting = sum(batch.nbytes[at:upto]), sum(rows[at - first : upto - first])
                yield env.timeout(self._group_ns(card, layer, nbytes, wanting))
                at = upto

    # ---- decisions -----------------------------------------------------------------------------

    def _decide(self, event: Event, card: int, phase: int) -> _Plan:
        """Classify the event, admit misses, send demand copies on their way."""
        slots, plan = self.slots, _Plan()
        distinct, routed = self.served_distinct[phase], self.served_routed[phase]
        keys, rows_of, ready, sizes, unused = event.keys, event.rows, slots.ready, slots.sizes, slots.unused
        missing: list[int] = []
        hit_bytes = hit_rows = hit_count = 0
        for i, hit in enumerate(event.hits):
            if not hit:
                missing.append(i)
                continue
            key = keys[i]
            if unused[key]:
                slots.wanted(key)
            if ready[key]:
                hit_bytes += sizes[key]
                hit_rows += rows_of[i]
                hit_count += 1
            else:
                tier = self._under_way(key, rows_of[i], card, plan)
                distinct[tier] += 1
                routed[tier] += rows_of[i]
        distinct[T_VRAM] += hit_count
        routed[T_VRAM] += hit_rows
        plan.hit_bytes, plan.hit_rows = hit_bytes, hit_rows
        admitted = self.cache.learn(event)
        if phase == PREFILL and not self.preset.prefill_admits:
            admitted = []
        if missing and self.prefetcher.frames:
            missing, admitted = self._staged(event, card, missing, admitted, plan, distinct, routed)
        if slots.stats.issued:
            for link in self.transfers.h2d:
                link.drop_stale()
        if missing:
            self._serve(event, card, missing, admitted, plan, distinct, routed)
        return plan

    def _under_way(self, key: int, rows: int, card: int, plan: _Plan) -> int:
        """A resident whose copy has not landed: wait for it, or let the CPU compute it. Returns the tier."""
        batch = self.slots.copy_of[key]
        assert batch is not None
        if self._waits_for(batch):
            self.transfers.h2d[card].promote(batch, DEMAND)
            at = batch.keys.index(key)
            plan.waits.append((batch, at, at + 1, [rows]))
            return T_IN_FLIGHT
        source = self.transfers.host.source(key)
        plan.cpu.append((key, source, rows))
        return T_DISK if source == DISK else T_CPU_PINNED + source

    def _staged(
        self, event: Event, card: int, missing: list[int], admitted: list[int], plan: _Plan,
        distinct: list[int], routed: list[int],
    ) -> tuple[list[int], list[int]]:  # fmt: skip
        """Serve misses whose expert stands in the staging ring, with a slot if admission lets it in.

        Returns the other misses, and those of them to admit.
        """
        slots, keys, ring = self.slots, event.keys, self.prefetcher.staged[card]
        staged = {i for i in missing if keys[i] in ring}
        if not staged:
            return missing, admitted
        slots.stats.wanted += len(staged)
        welcome = staged.intersection(admitted)
        for i in sorted(staged):
            key, rows = keys[i], event.rows[i]
            kept = i in welcome and slots.admit(key, event.number)[0]
            waits = self._waits_for(ring[key])
            batch = self.prefetcher.take(key, waits=waits, kept=kept)
            if batch.state == DONE:
                plan.hit_bytes += slots.sizes[key]
                plan.hit_rows += rows
                tier = T_VRAM
            elif waits:
                self.transfers.h2d[card].promote(batch, DEMAND)
                plan.waits.append((batch, 0, 1, [rows]))
                tier = T_IN_FLIGHT
            else:
                if kept:
                    slots.under_way(key, batch)
                source = self.transfers.host.source(key)
                plan.cpu.append((key, source, rows))
                tier = T_DISK if source == DISK else T_CPU_PINNED + source
            distinct[tier] += 1
            routed[tier] += rows
        return [i for i in missing if i not in staged], [i for i in admitted if i not in staged]

    def _serve(
        self, event: Event, card: int, missing: list[int], admitted: list[int], plan: _Plan,
        distinct: list[int], routed: list[int],
    ) -> None:  # fmt: skip
        """Misses: who gets a slot, who is fetched, who goes to the CPU."""
        slots, keys, number = self.slots, event.keys, event.number
        host = self.transfers.host
        if admitted and host.plan.swap != "copy":
            raise SimError(host.plan.swaps_only)
        slots.stats.wanted += len(missing)
        if slots.stats.issued:
            for i in missing:
                if slots.displaced[keys[i]]:
                    slots.missed(keys[i])
        sources = [host.source(keys[i]) for i in missing]
        fetched = self._fetched(missing, sources, card)
        deferred: set[int] = set()
        if self.miss != "stream":
            for i in admitted:
                if i in fetched or self.preset.fill:
                    kept, waits = slots.admit(keys[i], number, forced=i in fetched)
                    if waits:
                        deferred.add(i)
                    if kept and i not in fetched:
                        plan.fills.append(keys[i])
        now: list[tuple[int, int]] = []
        now_rows: list[int] = []
        for i, source in zip(missing, sources, strict=True):
            key, rows = keys[i], event.rows[i]
            tier = T_DISK if source == DISK else T_PCIE
            if i not in fetched:
                plan.cpu.append((key, source, rows))
                if source != DISK:
                    tier = T_CPU_PINNED + source
            elif i in deferred:
                plan.deferred.append((key, source))
                plan.deferred_rows.append(rows)
            else:
                now.append((key, source))
                now_rows.append(rows)
            distinct[tier] += 1
            routed[tier] += rows
        if now:
            plan.waits += self._demand(now, now_rows)
            plan.sends = sum(source == PINNED for _, source in now)

    def _waits_for(self, batch: Batch) -> bool:
        """Whether an expert under way is waited for; adaptive swaps and `miss` engines use the CPU meanwhile."""
        if self.miss in ("fetch", "stream"):
            return True
        return self.preset.in_flight == "wait" and batch.priority != ADAPT

    def _fetched(self, missing: list[int], sources: list[int], card: int) -> set[int]:
        """Those misses that go over the link."""
        if self.miss == "cpu":
            return set()
        if self.miss in ("fetch", "stream"):
            return set(missing)
        n = self.preset.fetched(len(missing), self.transfers.h2d_rate[card][0], self.costs.cpu_mb_per_s[0])
        last = list(zip(missing, sources, strict=True))[len(missing) - n :]
        return {i for i, source in last if source == PINNED or not self.preset.pcie_pinned_only}

    def _cpu_segments(self, plan: _Plan, layer: int) -> list[Segment]:
        """Work of the CPU pool: what is in memory, by source, then what comes from the disk, one by one."""
        costs, sizes = self.costs, self.slots.sizes
        totals = [[0, 0] for _ in SOURCES]
        late: list[Segment] = []
        for key, source, rows in plan.cpu:
            if source == DISK:
                ns = costs.cpu(PAGE_CACHE, layer, rows)
                segment = Segment(sizes[key], ns, costs.cpu_mb_per_s[PAGE_CACHE], False, "experts from disk")
                read = partial(self.transfers.host.read, key, partial(self.transfers.cpu.arrived, segment))
                if self.transfers.host.plan.access == "direct":
                    read()
                else:  # a page fault happens where the pool touches the bytes
                    segment.fault = read
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
        launched = (plan.hit_bytes > 0) + bool(plan.waits) if self.preset.overlap else 0
        segments[0].solo_ns += costs.dispatch_ns + launched * self.preset.start_ns
        return segments

    # ---- copies --------------------------------------------------------------------------------

    def _demand(self, wanted: list[tuple[int, int]], rows: list[int]) -> list[_Wait]:
        """Copies of (key, source) that this event waits for: those in memory first, in order, then the disk's."""
        fetch, number = self.transfers.fetch, self.number
        made: list[_Wait] = []
        for source in (PINNED, PAGEABLE, PAGE_CACHE):
            chosen = [i for i, item in enumerate(wanted) if item[1] == source]
            if chosen:
                batch = fetch([wanted[i][0] for i in chosen], source, DEMAND, number, _nothing)
                made.append((batch, 0, len(chosen), [rows[i] for i in chosen]))
        for i, (key, source) in enumerate(wanted):
            if source == DISK:
                made.append((fetch([key], DISK, DEMAND, number, _nothing), 0, 1, [rows[i]]))
        return made

    def _fill(self, keys: list[int]) -> None:
        """Copy experts that the CPU has just served into the slots that were made free for them."""
        by_source: dict[int, list[int]] = {}
        for key in keys:
            if self.cache.resident[key]:
                by_source.setdefault(self.transfers.host.source(key), []).append(key)
        for source, chosen in sorted(by_source.items()):
            for group in [[key] for key in chosen] if source == DISK else [chosen]:
                self._in_background(group, source)

    def _in_background(self, keys: list[int], source: int) -> None:
        batch = self.transfers.fetch(keys, source, ADAPT, NEVER, self._slot_landed)
        for key in keys[batch.landed :]:
            self.slots.under_way(key, batch)

    def _slot_landed(self, batch: Batch, at: int) -> None:
        """A copy that nobody waited for at the start landed (or was dropped)."""
        if at < 0:
            self.slots.cancelled(batch.keys[0])
        else:
            self.slots.landed(batch.keys[at], batch, self.number)

    def _predict(self, event: Event, tick: int) -> Steps:
        """Let the prefetcher predict, which may take time, and ask for copies."""
        ns = self.policies.predict_ns
        if ns:
            yield self.env.timeout(ns)
            self._causes[SYNC] += ns
            if self.timeline is not None:
                self.timeline.slice("host plan", "predict", self.env.now - ns, self.env.now)
        self.prefetcher.propose(event, tick)

    def _adapt(self, pass_index: int) -> None:
        """Let a periodic policy exchange residents between two passes, if its last exchange is over."""
        if not self.exchange.under_way:
            n = self.cache.adapt(pass_index, self._keys, self._deadlines)
            self.exchange.start(self._keys[:n], self._deadlines[:n])


def _nothing(batch: Batch, at: int) -> None:
    """Landing of a demand: the walk itself waits for it."""


class _Plan:
    """What becomes of the members of one event."""

    __slots__ = ("cpu", "deferred", "deferred_rows", "fills", "hit_bytes", "hit_rows", "sends", "waits")

    def __init__(self) -> None:
        self.hit_bytes = 0
        self.hit_rows = 0
        self.waits: list[_Wait] = []
        """Copies that the card waits for."""
        self.cpu: list[tuple[int, int, int]] = []
        """(key, source, rows) for the CPU pool."""
        self.deferred: list[tuple[int, int]] = []
        """(key, source) of the next wave: members of the event leave for them."""
        self.deferred_rows: list[int] = []
        self.sends = 0
        """Copies out of page-locked memory that are asked for."""
        self.fills: list[int] = []
        """Served by the CPU now, copied into a slot afterwards."""
