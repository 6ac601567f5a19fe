"""The walk through the passes: one SimPy process, layer by layer.

At each event it waits for the dense part, the router's ids and the host's plan, then decides against the
residency of that moment, sends copies, disk reads and CPU work on their way, computes what is resident and what
lands, and joins the CPU pool. Transfers are flows through shared servers and need no process of their own: an
event a layer and an event a transfer, never one an expert that is resident.

At equal times the order is (time, priority, sequence): transfers end before anybody decides, those that end
together end in the order in which they began, and then the walk goes on. Nothing depends on hash order.

What becomes of an event's members is decided in `sim.timed.engine.decisions`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from expert_residency.policies.protocol import (
    AdmissionPolicy,
    Event,
    EvictionPolicy,
    Future,
    Lists,
    PrefetchPolicy,
)
from expert_residency.sim.choices.prefetch_rule import Insertion
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.residency.future import recorded_predictions
from expert_residency.sim.residency.pool import CachePool
from expert_residency.sim.timed.attention import NO_DEPTH, Context, attention_ns
from expert_residency.sim.timed.channels import Batch, CopyEngine, Disk
from expert_residency.sim.timed.channels.cpu import Segment
from expert_residency.sim.timed.costs import Costs
from expert_residency.sim.timed.engine.decisions import Decisions, EventPlan, Wait
from expert_residency.sim.timed.engine.exchange import Exchange
from expert_residency.sim.timed.engine.prefetcher import Prefetcher
from expert_residency.sim.timed.engine.slots import Slots
from expert_residency.sim.timed.engine.transfers import Transfers
from expert_residency.sim.timed.host import HostPlan
from expert_residency.sim.timed.machine import Machine
from expert_residency.sim.timed.page_cache import PageCache
from expert_residency.sim.timed.result import (
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
    SYNC,
    PrefetchStats,
    RunResult,
)
from expert_residency.sim.timed.watch import Watch
from expert_residency.traces import Phase, RoutingTrace

PREFILL, VERIFY = int(Phase.PREFILL), int(Phase.VERIFY)
Steps = Generator[Any, Any, None]


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
    watch
        Told what happens, or None.
    context
        What requests attend over.
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
        watch: Watch | None = None,
        progress: Callable[[int], None] | None = None,
        *,
        context: Context = NO_DEPTH,
    ) -> None:
        geometry = trace.geometry
        self.trace = trace
        self.machine = machine
        self.preset = preset
        self.cache = cache
        self.policies = policies
        self.miss = miss
        self.watch = watch
        self.progress = progress
        self.env: Any = simpy.Environment()
        """Its time is integer ns throughout."""
        self.costs = Costs.of(geometry, machine, preset, host_plan.cpu_sources, host_plan.weights)
        self._attention_ns = attention_ns(trace, machine, context).tolist()
        self.stats = PrefetchStats(pages=policies.insertion.rule == "pages")
        self.slots = Slots(cache, self.stats, self._settled)
        if watch is not None:
            self.slots.watch = watch
            self.slots.observer = lambda slots: watch.filling(self.env.now, slots)
        card_of = [card for card in machine.layer_card for _ in range(geometry.experts)]
        self.transfers = Transfers(
            self.env, machine, list(cache.pool.size_of), card_of, host_plan, page_cache, self._is_stale, watch,
            self.stats, in_order=preset.copy_order == "asked", link_reads=preset.reads == "link",
            copy_ns=preset.copy_ns,
        )  # fmt: skip
        self.pass_ns: list[int] = []
        self.pass_causes: list[list[int]] = []
        self.gpu_bytes = 0
        self.waves = 0
        self._causes = [0] * len(CAUSES)
        self._card = 0
        prefetch = policies.prefetch
        self._prefetch = prefetch.start(
            cache.pool._replace(resident=cache.resident), Lists,
            policies.future if prefetch.needs_future else None, recorded_predictions(trace),
        )  # fmt: skip
        self.prefetcher = Prefetcher(
            prefetch, self._prefetch, self.slots, self.transfers, policies.insertion, policies.prefetch_bytes,
            geometry.n_layers, self.slots.copy_ended,
        )  # fmt: skip
        self.decisions = Decisions(self.slots, self.transfers, self.prefetcher, self.costs, preset, miss)
        self.exchange = Exchange(self.slots, self.transfers, self.slots.copy_ended, waits=preset.adapt_waits)
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
        held: list[CopyEngine | Disk] = [*transfers.h2d, transfers.disk]
        stats.blocked_ns = sum(channel.blocked_ns for channel in held)
        stats.blocking_bytes = sum(channel.blocking_bytes for channel in held)
        by_class = [sum(link.nbytes[c] for link in transfers.h2d) for c in range(3)]
        return RunResult(
            manifest=manifest,
            pass_ns=np.asarray(self.pass_ns, dtype=np.int64),
            pass_causes=np.asarray(self.pass_causes, dtype=np.int64),
            pass_phase=np.asarray(self.trace.pass_phase, dtype=np.int8),
            pass_emits=np.asarray(self.trace.pass_emits, dtype=np.int32),
            pass_request=np.asarray(self.trace.pass_request, dtype=np.int64),
            served_distinct=np.asarray(self.decisions.served_distinct, dtype=np.int64),
            served_routed=np.asarray(self.decisions.served_routed, dtype=np.int64),
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

    def _settled(self, key: int) -> int:
        return self.transfers.settled(key)

    def _is_stale(self, deadline: int) -> bool:
        return deadline <= self.slots.number

    def _walk(self) -> Steps:
        trace = self.trace
        offsets = trace.event_offsets.tolist()
        keys, rows = trace.keys, trace.rows_wanting  # whole as lists they would take a gigabyte
        layers, event_rows = trace.event_layer.tolist(), trace.event_rows.tolist()
        phases, events = trace.pass_phase.tolist(), trace.pass_event_offsets.tolist()
        for number, phase in enumerate(phases):
            began = self.env.now
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
            drafted = event_rows[events[number]] - 1 if phase == VERIFY else None
            yield from self._end_of_pass(number, drafted)
            self.pass_ns.append(self.env.now - began)
            if self.watch is not None:
                self.watch.pass_done(number, began, self.env.now)
            self.pass_causes.append(self._causes)
            if self.progress is not None:
                self.progress(number + 1)

    def _end_of_pass(self, number: int, drafted: int | None) -> Steps:
        """The head, swaps of a periodic policy, the pass's fixed work, and drafting the next window."""
        env, preset = self.env, self.preset
        if self.costs.head_ns:
            yield from self._spend(self.costs.head_ns, DENSE, "head")
        if self.policies.admission.periodic:
            self._adapt(number)
        if preset.pass_ns:
            yield env.timeout(preset.pass_ns)
            self._spent(OVERHEAD, preset.pass_ns)
        if preset.draft_ns and drafted is not None:
            yield env.timeout(drafted * preset.draft_ns)
            self._spent(DRAFT, drafted * preset.draft_ns)
        if self.exchange.busy:
            yield from self._wait_for_exchange()

    def _wait_for_exchange(self) -> Steps:
        """The next pass begins when the host has exchanged victims and newcomers."""
        began = self.env.now
        while self.exchange.busy:
            yield self.transfers.net.wake
        self._spent(ADAPT_WAIT, self.env.now - began)

    def _spent(self, cause: int, ns: int, keys: Sequence[int] = ()) -> None:
        """Book time of the pass under its cause; `keys`: for whom it was."""
        self._causes[cause] += ns
        if self.watch is not None:
            self.watch.spent(cause, ns, keys)

    def _spend(self, ns: int, cause: int, label: str) -> Steps:
        """Compute on the current card."""
        yield self.env.timeout(ns)
        self._spent(cause, ns)
        if self.watch is not None:
            self.watch.slice(f"GPU {self._card}", label, self.env.now - ns, self.env.now)

    # ---- one event -----------------------------------------------------------------------------

    def _event(
        self, number: int, pass_index: int, layer: int, offset: int, keys: list[int], rows: list[int],
        n_rows: int, phase: int,
    ) -> Steps:  # fmt: skip
        """One layer of one pass: the dense part, what is decided, the card, the CPU pool, and what comes after."""
        card = self.machine.layer_card[layer]
        if card != self._card:
            yield from self._hand_over(card, n_rows)
        yield from self._dense_part(card, layer, pass_index, n_rows, phase)

        # Decide, in the replay's order: look up, learn, admit.
        self.slots.number = number
        request = int(self.trace.pass_request[pass_index])
        hits = self.cache.lookup(number, keys)
        event = Event(number, pass_index, layer, offset, keys, rows, hits, phase, request)
        plan = self.decisions.decide(event, card, phase)
        if self.watch is not None:
            self.watch.decided(event, plan.hit_keys, plan.admitted, self.env.now)

        yield from self._send_demands(event, plan)
        host_free = self.env.now
        cpu_work = self.decisions.cpu_segments(plan, layer) if plan.cpu else []
        if cpu_work and self.preset.overlap:
            self.transfers.cpu.run(cpu_work)
        yield from self._compute(card, layer, plan)
        if cpu_work:
            yield from self._join_pool(cpu_work)
        if self.preset.combine_ns:
            yield self.env.timeout(self.preset.combine_ns)
            self._spent(SYNC, self.preset.combine_ns)
        yield from self._send_fills(event, plan, -1 if cpu_work else host_free)

    def _hand_over(self, card: int, n_rows: int) -> Steps:
        """The rows go on to the next card."""
        ns = self.costs.handoff(card, n_rows)
        yield self.env.timeout(ns)
        self._spent(HANDOFF, ns)
        self._card = card

    def _dense_part(self, card: int, layer: int, pass_index: int, n_rows: int, phase: int) -> Steps:
        """The layer's dense part with its attention, the router's ids and the host's plan."""
        env, costs = self.env, self.costs
        dense = costs.dense(layer, card, n_rows) + self._attention_ns[card][pass_index]
        sync = costs.sync_ns[card] + self.preset.plan_ns
        if phase != PREFILL:
            dense += (n_rows - 1) * self.preset.row_ns
        if self.transfers.h2d[card].current is not None:
            sync += self.preset.beside_ns
        yield env.timeout(dense + sync)
        self._spent(DENSE, dense)
        self._spent(SYNC, sync)
        if self.watch is not None:
            start = env.now - dense - sync
            self.watch.slice(f"GPU {card}", f"dense L{self.trace.geometry.layer_ids[layer]}", start, start + dense)
            self.watch.slice("host plan", "router, plan", start + dense, env.now)

    def _send_demands(self, event: Event, plan: EventPlan) -> Steps:
        """Host time for copies of the event's misses, and for those that are predicted from the router's ids."""
        preset, stats = self.preset, self.slots.stats
        sending = preset.send_ns + plan.sends * preset.copy_ns if plan.sends else 0
        if self.policies.prefetch.at_router:
            issued = stats.issued
            yield from self._predict(event, event.number)
            if stats.issued > issued:
                sending += preset.send_ns + (stats.issued - issued) * preset.copy_ns
        if sending:
            yield from self._send(sending)

    def _compute(self, card: int, layer: int, plan: EventPlan) -> Steps:
        """The card computes residents, then what lands, in waves."""
        if plan.hit_bytes:
            yield self.env.timeout(self._group_ns(card, layer, plan.hit_bytes, plan.hit_rows, plan.hit_keys))
        if plan.waits:
            yield from self._land(card, layer, plan.waits)
        if plan.deferred:
            self.waves += 1
            yield from self._land(card, layer, self.decisions.demand(plan.deferred, plan.deferred_rows))

    def _join_pool(self, cpu_work: list[Segment]) -> Steps:
        """Wait for the CPU pool, which begins now if it may not work beside the card."""
        pool = self.transfers.cpu
        if not self.preset.overlap:
            pool.run(cpu_work)
        if not pool.idle:
            disk_ns, cpu_ns = yield from self.transfers.wait_cpu()
            keys = [key for segment in cpu_work for key in segment.keys]
            self._spent(DISK_WAIT, disk_ns, keys)
            self._spent(CPU_WAIT, cpu_ns, keys)

    def _send_fills(self, event: Event, plan: EventPlan, host_free: int) -> Steps:
        """Copies into slots, and those that are predicted from the whole event, with the host time for both.

        With nothing of its own to compute the host has sent since `host_free`, while the card was busy; -1: it is
        free only now.
        """
        preset, prefetch, stats = self.preset, self.policies.prefetch, self.slots.stats
        if plan.fills:
            self.decisions.fill(plan.fills)
        prefetch.learn(self._prefetch, event)
        issued = stats.issued
        if prefetch.at_layer or (prefetch.at_pass and event.layer == self.trace.geometry.n_layers - 1):
            yield from self._predict(event, event.number + 1)
        fills, ahead = len(plan.fills), stats.issued - issued
        if fills or ahead:
            now = self.env.now
            host_ns = preset.fill_ns + fills * preset.fill_copy_ns if fills else preset.ahead_ns
            left = (now if host_free < 0 else host_free) + host_ns + ahead * preset.copy_ns - now
            if left > 0:
                yield from self._send(left)

    def _send(self, ns: int) -> Steps:
        """Time of the host for sending copies."""
        yield self.env.timeout(ns)
        self._spent(SYNC, ns)
        if self.watch is not None:
            self.watch.slice("host plan", "send copies", self.env.now - ns, self.env.now)

    def _group_ns(self, card: int, layer: int, nbytes: int, rows: int, keys: Sequence[int]) -> int:
        """Book one group of experts that the card computes from now on; returns its time."""
        ns = self.costs.experts(card, nbytes, rows)
        self.gpu_bytes += nbytes
        self._spent(EXPERTS, ns, keys)
        if self.watch is not None:
            layer_id = self.trace.geometry.layer_ids[layer]
            experts = [key % self.trace.geometry.experts for key in keys]
            self.watch.slice(
                f"GPU {card}",
                f"experts L{layer_id}",
                self.env.now,
                self.env.now + ns,
                experts=experts,
                bytes=nbytes,
            )
        return ns

    def _land(self, card: int, layer: int, waits: list[Wait]) -> Steps:
        """Compute experts as they land: of each batch in turn, all that have landed since as one group."""
        if self.preset.copy_unit == "layer":
            for batch, _, end, _ in waits:
                yield from self._wait(card, batch, end - 1)
            nbytes = sum(sum(batch.nbytes[at:end]) for batch, at, end, _ in waits)
            keys = [key for batch, at, end, _ in waits for key in batch.keys[at:end]]
            rows_of_all = sum(sum(rows) for *_, rows in waits)
            yield self.env.timeout(self._group_ns(card, layer, nbytes, rows_of_all, keys))
            return
        env = self.env
        for batch, first, end, rows in waits:
            at = first
            while at < end:
                if batch.landed <= at:
                    yield from self._wait(card, batch, at)
                upto = min(end, batch.landed)
                if upto == at + 1:
                    nbytes, wanting = batch.nbytes[at], rows[at - first]
                else:
                    nbytes, wanting = sum(batch.nbytes[at:upto]), sum(rows[at - first : upto - first])
                yield env.timeout(self._group_ns(card, layer, nbytes, wanting, batch.keys[at:upto]))
                at = upto

    def _wait(self, card: int, batch: Batch, at: int) -> Steps:
        """Wait until copy `at` of a batch has landed."""
        if self.watch is not None:
            self.watch.waits_for(batch.keys[at], self.transfers.h2d[card].ahead_of(batch))
        disk_ns, pcie_ns = yield from self.transfers.wait(batch, at)
        self._spent(DISK_WAIT, disk_ns, batch.keys[at : at + 1])
        self._spent(PCIE_WAIT, pcie_ns, batch.keys[at : at + 1])

    # ---- prefetches and swaps ------------------------------------------------------------------

    def _predict(self, event: Event, tick: int) -> Steps:
        """Let the prefetcher predict, which may take time, and ask for copies."""
        ns = self.policies.predict_ns
        if ns:
            yield self.env.timeout(ns)
            self._spent(SYNC, ns)
            if self.watch is not None:
                self.watch.slice("host plan", "predict", self.env.now - ns, self.env.now)
        self.prefetcher.propose(event, tick)

    def _adapt(self, pass_index: int) -> None:
        """Let a periodic policy exchange residents between two passes, if its last exchange is over."""
        if not self.exchange.under_way:
            n = self.cache.adapt(pass_index, self._keys, self._deadlines)
            self.exchange.start(self._keys[:n], self._deadlines[:n])
