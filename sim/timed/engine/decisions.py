"""Decisions of an event: who is there, who gets a slot, who is fetched, who goes to the CPU.

The policy is asked in exactly the order of `sim.runs.replay`, so with demand fetching alone both count the same
hits.
"""

from __future__ import annotations

from functools import partial

from expert_residency.errors import SimError
from expert_residency.policies.protocol import NEVER, Event
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.timed.channels import ADAPT, DEMAND, Batch
from expert_residency.sim.timed.channels.copy_engine import DONE
from expert_residency.sim.timed.channels.cpu import Segment
from expert_residency.sim.timed.costs import Costs
from expert_residency.sim.timed.engine.prefetcher import Prefetcher
from expert_residency.sim.timed.engine.slots import Slots
from expert_residency.sim.timed.engine.transfers import Transfers
from expert_residency.sim.timed.host import DISK, PAGE_CACHE, PAGEABLE, PINNED, SOURCES
from expert_residency.sim.timed.result import PHASES, T_CPU_PINNED, T_DISK, T_IN_FLIGHT, T_PCIE, T_VRAM, TIERS
from expert_residency.sim.timed.rules import own_rate
from expert_residency.traces import Phase

PREFILL = int(Phase.PREFILL)
Wait = tuple[Batch, int, int, list[int]]
"""Copies of a batch from one position up to another, and the rows that want each."""


class EventPlan:
    """What becomes of the members of one event."""

    __slots__ = (
        "admitted", "cpu", "deferred", "deferred_rows", "fills", "hit_bytes", "hit_keys", "hit_rows", "sends",
        "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.hit_bytes = 0
        self.hit_rows = 0
        self.hit_keys: list[int] = []
        """Those that are ready on the card."""
        self.admitted: list[int] = []
        """Positions of misses that may take a slot."""
        self.waits: list[Wait] = []
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


class Decisions:
    """Decisions of one run, and what they came to.

    Parameters
    ----------
    slots, transfers, prefetcher
        Residents, channels, and what is staged.
    costs, preset, miss
        Times, the engine's rules, and the miss mode.
    """

    def __init__(
        self, slots: Slots, transfers: Transfers, prefetcher: Prefetcher, costs: Costs, preset: EnginePreset,
        miss: str,
    ) -> None:  # fmt: skip
        self.slots = slots
        self.cache = slots.cache
        self.transfers = transfers
        self.prefetcher = prefetcher
        self.costs = costs
        self.preset = preset
        self.miss = miss
        self.served_distinct = [[0] * len(TIERS) for _ in PHASES]
        self.served_routed = [[0] * len(TIERS) for _ in PHASES]

    def decide(self, event: Event, card: int, phase: int) -> EventPlan:
        """Classify the event, admit misses, send demand copies on their way.

        Parameters
        ----------
        event
            The event, with its hits.
        card
            The card that has the layer.
        phase
            0 prefill, 1 decode, 2 verify window.

        Returns
        -------
        EventPlan
            What the card and the CPU have to do.
        """
        slots, plan = self.slots, EventPlan()
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
                plan.hit_keys.append(key)
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
        plan.admitted = admitted
        if missing and self.prefetcher.frames:
            missing, admitted = self._staged(event, card, missing, admitted, plan, distinct, routed)
        if slots.stats.issued:
            for link in self.transfers.h2d:
                link.drop_stale()
        if missing:
            self._serve(event, card, missing, admitted, plan, distinct, routed)
        return plan

    def _under_way(self, key: int, rows: int, card: int, plan: EventPlan) -> int:
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
        self, event: Event, card: int, missing: list[int], admitted: list[int], plan: EventPlan,
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
                plan.hit_keys.append(key)
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
        self, event: Event, card: int, missing: list[int], admitted: list[int], plan: EventPlan,
        distinct: list[int], routed: list[int],
    ) -> None:  # fmt: skip
        """Misses: who gets a slot, who is fetched, who goes to the CPU."""
        slots, keys, number = self.slots, event.keys, event.number
        host = self.transfers.host
        if admitted and host.plan.swap != "copy":
            raise SimError(host.plan.swaps_only)
        slots.stats.wanted += len(missing)
        sources = self._sources([keys[i] for i in missing])
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
            plan.waits += self.demand(now, now_rows)
            plan.sends = sum(source == PINNED for _, source in now)

    def _sources(self, keys: list[int]) -> list[int]:
        """Where missed experts lie; what prefetching did to them is booked."""
        slots, host = self.slots, self.transfers.host
        if slots.stats.issued:
            for key in keys:
                if slots.displaced[key]:
                    slots.missed(key)
        sources = [host.source(key) for key in keys]
        if slots.stats.pages:
            self.prefetcher.looked_up(keys, sources)
        return sources

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

    def cpu_segments(self, plan: EventPlan, layer: int) -> list[Segment]:
        """Work of the CPU pool: what is in memory, by source, then what comes from the disk, one by one."""
        costs, sizes = self.costs, self.slots.sizes
        totals = [[0, 0, 0] for _ in SOURCES]
        members: list[list[int]] = [[] for _ in SOURCES]
        late: list[Segment] = []
        for key, source, rows in plan.cpu:
            if source == DISK:
                ns, size = costs.cpu(PAGE_CACHE, layer, rows), sizes[key]
                rate = own_rate(size, ns, costs.cpu_ns[PAGE_CACHE][layer], costs.cpu_mb_per_s[PAGE_CACHE])
                segment = Segment(size, ns, rate, False, "experts from disk", [key])
                read = partial(self.transfers.read, key, partial(self.transfers.cpu.arrived, segment), DEMAND)
                if self.transfers.host.plan.access == "direct":
                    read()
                else:  # a page fault happens where the pool touches the bytes
                    segment.fault = read
                late.append(segment)
            else:
                members[source].append(key)
                totals[source][0] += sizes[key]
                totals[source][1] += costs.cpu(source, layer, rows)
                totals[source][2] += costs.cpu_ns[source][layer]
        segments = [
            Segment(
                nbytes, ns, own_rate(nbytes, ns, read_ns, costs.cpu_mb_per_s[source]), True,
                f"experts {SOURCES[source]}", members[source],
            )
            for source, (nbytes, ns, read_ns) in enumerate(totals)
            if nbytes
        ]  # fmt: skip
        segments += late
        launched = (plan.hit_bytes > 0) + bool(plan.waits) if self.preset.overlap else 0
        segments[0].fixed_ns += costs.dispatch_ns + launched * self.preset.start_ns
        return segments

    # ---- copies --------------------------------------------------------------------------------

    def demand(self, wanted: list[tuple[int, int]], rows: list[int]) -> list[Wait]:
        """Copies of (key, source) that this event waits for: those in memory first, in order, then the disk's."""
        fetch, number = self.transfers.fetch, self.slots.number
        made: list[Wait] = []
        for source in (PINNED, PAGEABLE, PAGE_CACHE):
            chosen = [i for i, item in enumerate(wanted) if item[1] == source]
            if chosen:
                batch = fetch([wanted[i][0] for i in chosen], source, DEMAND, number, _nothing)
                made.append((batch, 0, len(chosen), [rows[i] for i in chosen]))
        for i, (key, source) in enumerate(wanted):
            if source == DISK:
                made.append((fetch([key], DISK, DEMAND, number, _nothing), 0, 1, [rows[i]]))
        return made

    def fill(self, keys: list[int]) -> None:
        """Copy experts that the CPU has just served into the slots that were made free for them.

        What the pool read from the drive lies in its memory: it is copied from there, and not read again.
        """
        by_source: dict[int, list[int]] = {}
        for key in keys:
            if self.cache.resident[key]:
                source = min(self.transfers.host.source(key), PAGE_CACHE)
                by_source.setdefault(source, []).append(key)
        for source, chosen in sorted(by_source.items()):
            self._in_background(chosen, source)

    def _in_background(self, keys: list[int], source: int) -> None:
        batch = self.transfers.fetch(keys, source, ADAPT, NEVER, self.slots.copy_ended)
        for key in keys[batch.landed :]:
            self.slots.under_way(key, batch)


def _nothing(batch: Batch, at: int) -> None:
    """Landing of a demand: the walk itself waits for it."""
