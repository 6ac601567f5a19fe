"""A bound on time: no schedule of a trace on a machine is faster, whoever stays, comes early or is computed where.

It holds for every eviction, admission, prefetch and placement policy, causal or not, with the same machine,
engine, capacity, miss mode and host: what a schedule must do at the least is asked, not how. `docs/time-bound.md`
has the proof. In short, for any stretch of events that follow one another:

- the walk goes layer by layer, so its time is at least the sum over layers of what is serial (dense part, ids to
  the host, planning, joining) and of the longer of two branches, the card's experts and the processor's;
- of the bytes that are wanted, those that could not have been on the card when the stretch began, or since their
  last use, are *missed* (`sim.residency.kept`). Each is copied over its card's link or computed by the processor,
  within the stretch, and passes the memory either way;
- of a file, what neither cards nor page cache can have held is read from the drive.

Stretches are single layers, single passes, all passes between two prefills, and the whole trace; a longer one
takes no less than its parts together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import PolicyFaultError
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.policies import create
from expert_residency.sim.choices.prefetch_rule import parse_insertion
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.residency.future import kept_with
from expert_residency.sim.residency.kept import Uses, least_missed
from expert_residency.sim.runs.requests import apart
from expert_residency.sim.runs.simulate import Prepared, prepare
from expert_residency.sim.timed import rules
from expert_residency.sim.timed.attention import attention_ns
from expert_residency.sim.timed.costs import Costs
from expert_residency.sim.timed.engine.transfers import DRAM_SERVER, drive_rates, shared_servers
from expert_residency.sim.timed.host import PAGE_CACHE, PINNED, parse_host
from expert_residency.sim.timed.result import RunResult
from expert_residency.traces import Phase, RoutingTrace

Floats = npt.NDArray[np.float64]
CARD, MOVES, MEMORY, DRIVE = "card", "moves", "memory", "drive"
LIMITS = {
    CARD: "what the cards compute, with everything at hand",
    MOVES: "links and processor, which share what the cards cannot hold",
    MEMORY: "the memory, which all that the cards cannot hold passes",
    DRIVE: "the drive, which reads what neither cards nor memory can hold",
}
"""What a bound can come from."""
FORCED = "what the processor computes: experts that no card has room for"
"""The first of `LIMITS`, where most of it is that."""


def beaten(who: str, what: str, ns: int, least: int) -> PolicyFaultError:
    """The error of what is faster than can be.

    Parameters
    ----------
    who, what
        The run, and what of it.
    ns, least
        The time that it takes, and the bound.

    Returns
    -------
    PolicyFaultError
        To be raised.
    """
    return PolicyFaultError(
        f"{who}: {what} takes {ns:,} ns where no schedule can take less than {least:,}; that cannot be, so the "
        "program or a policy breaks a rule and no result is given"
    )


BY_PLACEMENT = ("resident", "budget")
"""Host tiers that keep what no card holds at the start."""


@dataclass(frozen=True)
class TimeBound:
    """Least times of a trace on a machine.

    Parameters
    ----------
    pass_ns : (P,)
        Of each pass by itself, whoever is resident when it begins.
    total_ns, decode_ns
        Of all passes, and of those that are no prefills; more than the sums of `pass_ns`.
    limits
        Of the passes that are ranked by (decode if there is any): least time by each limit alone (`LIMITS`).
    left_out
        What the bound does not count, in sentences.
    forced_ns
        Of the same passes, what the processor takes for experts that no card can have.
    """

    pass_ns: npt.NDArray[np.int64]
    total_ns: int
    decode_ns: int
    limits: dict[str, int]
    left_out: tuple[str, ...] = ()
    forced_ns: int = 0

    @property
    def time_ns(self) -> int:
        """Of the passes that runs are ranked by."""
        return self.decode_ns or self.total_ns

    @property
    def binds(self) -> str:
        """Which limit it comes from, in words."""
        most = max(self.limits, key=lambda name: self.limits[name])
        return FORCED if most == CARD and 2 * self.forced_ns > self.limits[CARD] else LIMITS[most]

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {
            "total_ns": self.total_ns, "decode_ns": self.decode_ns, "limits_ns": self.limits,
            "left_out": list(self.left_out),
        }  # fmt: skip

    def check(self, result: RunResult, who: str) -> None:
        """Refuse a run that is faster than it.

        Raises
        ------
        PolicyFaultError
            A rule is broken somewhere.
        """
        for what, ns, least in (
            ("all passes", result.total_ns, self.total_ns), ("decoding", result.decode_ns, self.decode_ns)
        ):  # fmt: skip
            if ns < least:
                raise beaten(who, what, ns, least)
        under = np.flatnonzero(result.pass_ns < self.pass_ns)
        if len(under):
            at = int(under[0])
            raise beaten(who, f"pass {at}", int(result.pass_ns[at]), int(self.pass_ns[at]))


def time_bound(
    trace: RoutingTrace,
    spec: RunSpec,
    *,
    profiles: Sequence[HardwareProfile] | None = None,
    preset: EnginePreset | None = None,
    cold: str = "trace",
    staging_slots: int | None = None,
) -> TimeBound:
    """Least time of `trace` with the machine, engine, capacity, miss mode and host of `spec` under any policies.

    Parameters
    ----------
    trace
        The trace.
    spec
        Its policies do not matter, but for the host's memory, which a placement may decide.
    profiles, preset
        In the place of those that `spec` names.
    cold
        As of the run.
    staging_slots
        Buffers of the largest staging ring that is compared; by default that of `spec.insertion`.

    Returns
    -------
    TimeBound
        Times in ns.

    Raises
    ------
    SimError, HardwareError
        As `simulate`.
    """
    if parts := apart(trace, cold):
        found = [
            time_bound(part, spec, profiles=profiles, preset=preset, staging_slots=staging_slots)
            for _, part in parts
        ]
        pass_ns = np.zeros(trace.n_passes, dtype=np.int64)
        for (chosen, _), one in zip(parts, found, strict=True):
            pass_ns[chosen] = one.pass_ns
        return TimeBound(
            pass_ns, sum(one.total_ns for one in found), sum(one.decode_ns for one in found),
            {name: sum(one.limits[name] for one in found) for name in LIMITS}, found[0].left_out,
            sum(one.forced_ns for one in found),
        )  # fmt: skip
    ready = prepare(trace, bounded_case(spec), profiles=profiles, preset=preset)
    slots = ready.policies.insertion.staging_slots if staging_slots is None else staging_slots
    return _Question(trace, ready, slots).bound()


def bounded_case(spec: RunSpec) -> RunSpec:
    """`spec` with plain policies: those that differ in nothing else have one bound."""
    start = None
    if parse_host(spec.host)[0] in BY_PLACEMENT:
        start = spec.placement or create("eviction", spec.eviction).default_placement
    slots = parse_insertion(spec.insertion).staging_slots
    return replace(
        spec, eviction="lru", admission="always", prefetch="none", placement=start, prefetch_bytes=None,
        predict_us=0.0, insertion=f"staging:slots={slots}" if slots else "free",
    )  # fmt: skip


def _up(ns: float) -> int:
    """Whole ns: real times are whole, and sums of floats are off by less than a hundredth."""
    return math.ceil(ns - 0.01)


class _Kinds:
    """Events by kind: those that take the same whatever is done with them, but for what is serial.

    Attributes
    ----------
    of : (E,)
        Kind of each event.
    least, free : (kinds,)
        Ns of the two branches when the processor takes the best number of experts, and the bytes of these.
    slope, beyond, kind : (segments,)
        Ns a byte for so many bytes more, by kind; by slope, which in a kind rises.
    """

    def __init__(self, of: npt.NDArray[np.int64], branches: Sequence[tuple[Floats, Floats]]) -> None:
        self.of = of
        self.least, self.free = np.zeros(len(branches)), np.zeros(len(branches))
        found: list[tuple[float, float, int]] = []
        for kind, (nbytes, ns) in enumerate(branches):
            at = len(ns) - 1 - int(np.argmin(ns[::-1]))
            self.least[kind], self.free[kind] = ns[at], nbytes[at]
            while at < len(ns) - 1:  # the lower convex hull: between whole experts, as if parts could be taken
                slopes = (ns[at + 1 :] - ns[at]) / (nbytes[at + 1 :] - nbytes[at])
                step = len(slopes) - int(np.argmin(slopes[::-1]))
                found.append((float(slopes[step - 1]), float(nbytes[at + step] - nbytes[at]), kind))
                at += step
        found.sort()
        self.slope, self.beyond, kinds = np.asarray(found).reshape(-1, 3).T
        self.kind = kinds.astype(np.int64)

    def taking(self, lo: int, hi: int) -> tuple[Floats, Floats]:
        """What events `lo` to `hi` take at the least (ns), by bytes that the processor takes of them all."""
        counts = np.bincount(self.of[lo:hi], minlength=len(self.least))
        more = self.beyond * counts[self.kind]
        nbytes = counts @ self.free + np.concatenate(([0.0], np.cumsum(more)))
        return nbytes, counts @ self.least + np.concatenate(([0.0], np.cumsum(more * self.slope)))


class _Question:
    """One bound in the making; times are floats in ns, amounts in bytes."""

    def __init__(self, trace: RoutingTrace, ready: Prepared, staging_slots: int) -> None:
        self.trace = trace
        self.ready = ready
        machine, plan, pool = ready.machine, ready.host_plan, ready.cache.pool
        geometry = trace.geometry
        self.costs = Costs.of(geometry, machine, ready.preset, plan.cpu_sources, plan.weights)
        self.processor = ready.miss in ("cpu", "hybrid")
        self.layer = trace.event_layer.astype(np.int64)
        self.card_of_layer = np.asarray(machine.layer_card, dtype=np.int64)
        self.card = self.card_of_layer[self.layer]
        self.sizes = np.asarray(geometry.expert_bytes, dtype=np.int64)
        self.members = np.diff(trace.event_offsets)
        self.size = self.sizes[self.layer]
        self.moved = plan.swap != "copy"
        """Whether swaps change where experts lie on the host."""
        present = sorted({min(source, PAGE_CACHE) for source in plan.source_of})
        self.tiers = [0, 1, 2] if self.moved else present
        scope_of_layer = [pool.scope_of[layer * pool.experts] for layer in range(pool.layers)]
        self.scope = np.asarray(scope_of_layer, dtype=np.int64)[self.layer]
        self.scope_card = [0] * pool.scopes
        self.room = [0] * pool.scopes
        """Bytes that a card can hold when an event is decided, by part of the cache, with the staging ring."""
        for scope in range(pool.scopes):
            layers = [layer for layer, own in enumerate(scope_of_layer) if own == scope]
            if not layers:
                continue
            sizes = {geometry.expert_bytes[layer] for layer in layers}
            self.scope_card[scope] = card = machine.layer_card[layers[0]]
            capacity = pool.capacity[scope]
            if len(sizes) == 1:
                capacity -= capacity % max(1, min(sizes))
            largest = max(geometry.expert_bytes[i] for i, c in enumerate(machine.layer_card) if c == card)
            self.room[scope] = capacity + staging_slots * largest
        self.scope_of_layer = scope_of_layer
        lanes, lane_rate, drive_rate = drive_rates(machine.host.disk, plan.access)
        rates, ports = shared_servers(machine, drive_rate)
        self.memory_mb_per_s = rates[DRAM_SERVER] + len(rates)  # what is left of a full server is at least 1 MB/s
        self.port_mb_per_s = rates
        self.port_of = ports
        linked = len(machine.cards) * lane_rate if ready.preset.reads == "link" else 0
        self.drive_mb_per_s = drive_rate + linked + len(rates)
        from_file = not self.moved and present == [PAGE_CACHE]
        self.in_memory: int | None = None
        """Bytes that cards, page cache and reads under way can hold, where the host has nothing else."""
        if from_file:
            under_way = (lanes + len(machine.cards) + 1) * max(geometry.expert_bytes)
            self.in_memory = sum(self.room) + plan.page_cache_bytes + under_way
        self.link_ns = [self._link_ns(card) for card in range(len(machine.cards))]

    def bound(self) -> TimeBound:
        """Of every stretch."""
        trace = self.trace
        events = trace.pass_event_offsets.tolist()
        own = self._own_ns()
        alone = self._stretches([(p, p + 1, self._wanted_beyond(p)) for p in range(trace.n_passes)], own)
        least = np.asarray([found[0] for found in alone])
        prefill = trace.pass_phase == Phase.PREFILL
        cuts = [0, *(np.flatnonzero(np.diff(prefill)) + 1).tolist(), trace.n_passes]
        runs = [(a, b, self._missed(events[a], events[b])) for a, b in pairwise(cuts) if b > a]
        found = self._stretches(runs, own)
        by_run = [max(ns, int(least[a:b].sum())) for (a, b, _), (ns, _) in zip(runs, found, strict=True)]
        whole, limits = by_run[0] if by_run else 0, found[0][1] if found else dict.fromkeys(LIMITS, 0)
        if len(runs) > 1:
            every = (0, trace.n_passes, self._missed(0, events[-1]))
            ((whole, limits),) = self._stretches([every], own)
            whole = max(whole, sum(by_run))
        decode = [i for i, (a, _, _) in enumerate(runs) if not prefill[a]]
        if decode and len(runs) > 1:
            limits = {name: sum(found[i][1][name] for i in decode) for name in LIMITS}
        return TimeBound(
            least.astype(np.int64),
            whole,
            sum(by_run[i] for i in decode),
            limits,
            tuple(self._left_out()),
            self._forced_ns(decoding=bool(decode)),
        )

    def _forced_ns(self, *, decoding: bool) -> int:
        """What the processor must take, of decoding or of all passes."""
        if self.ready.miss != "cpu":
            return 0
        beyond, pool_ns = self._table[:, 3], self._table[:, 6]
        forced = beyond * pool_ns + self.costs.dispatch_ns * (beyond > 0)
        return int(forced[self.trace.event_phase != Phase.PREFILL].sum() if decoding else forced.sum())

    def _left_out(self) -> list[str]:
        left = []
        if self.moved and PAGE_CACHE in self.ready.host_plan.source_of:
            left.append("reads of the drive: swaps change what lies in the file only")
        if self.ready.preset.fill and self.processor:
            left.append("copies that fill slots with what the processor has computed")
        return left

    # ---- what is missed -----------------------------------------------------------------------------

    def _missed(self, first: int, end: int) -> tuple[Floats, float]:
        """Bytes of events `first` to `end` that each card misses, and that the drive reads, at the least."""
        by_card = np.zeros(len(self.link_ns))
        for scope, nbytes in enumerate(self._least_missed(self.scope_of_layer, self.room, first, end)):
            by_card[self.scope_card[scope]] += nbytes
        read = 0.0
        if self.in_memory is not None:
            (read,) = self._least_missed([0] * len(self.scope_of_layer), [self.in_memory], first, end)
        return by_card, read

    def _least_missed(self, scope_of_layer: list[int], room: list[int], first: int, end: int) -> list[int]:
        """`least_missed`, found once for all machines with the same room."""
        trace, scopes = self.trace, f"uses {scope_of_layer}"
        uses = kept_with(trace, scopes, lambda: Uses.of(trace, scope_of_layer))
        return kept_with(trace, f"{scopes} {room} {first} {end}", lambda: least_missed(uses, room, first, end))

    def _wanted_beyond(self, number: int) -> tuple[Floats, float]:
        """The same of one pass, in which no expert is wanted twice."""
        lo, hi = self.trace.pass_event_offsets[number : number + 2].tolist()
        wanted = np.zeros(len(self.room))
        np.add.at(wanted, self.scope[lo:hi], (self.members * self.size)[lo:hi])
        by_card = np.zeros(len(self.link_ns))
        np.add.at(by_card, np.asarray(self.scope_card), np.maximum(0, wanted - np.asarray(self.room)))
        return by_card, 0.0 if self.in_memory is None else max(0.0, wanted.sum() - self.in_memory)

    # ---- times of stretches -------------------------------------------------------------------------

    def _stretches(
        self, stretches: Sequence[tuple[int, int, tuple[Floats, float]]], own: Floats
    ) -> list[tuple[int, dict[str, int]]]:
        """Least time of passes `first` to `end` that miss so much, and by each limit alone."""
        found, events = [], self.trace.pass_event_offsets.tolist()
        for first, end, (missed, read) in stretches:
            lo, hi = events[first], events[end]
            nbytes, ns = self.kinds.taking(lo, hi)
            ns += float(self.serial_ns[lo:hi].sum() + own[first:end].sum())
            card_ns = float(ns[0])
            alone = {
                CARD: card_ns,
                MOVES: self._moves_ns(nbytes, ns, missed) if missed.any() else 0.0,
                MEMORY: missed.sum() * 1000 / self.memory_mb_per_s,
                DRIVE: read * 1000 / self.drive_mb_per_s,
            }
            limits = {name: max(0, _up(ns)) for name, ns in alone.items()}
            found.append((max(limits.values()), limits))
        return found

    def _moves_ns(self, nbytes: Floats, takes: Floats, missed: Floats) -> float:
        """Least time in which links and processor can do what is missed.

        The longer the time, the more the links carry and the less the processor has to do: the least one is that
        in which the processor just manages the rest.

        Parameters
        ----------
        nbytes, takes
            Ns that the stretch takes, by bytes that the processor does.
        missed : (cards,)
            Bytes.

        Returns
        -------
        float
            Ns.
        """
        links = self._links_ns(missed)
        if not self.processor:
            return links

        def enough(ns: float) -> bool:
            return float(np.interp(self._left_by_links(missed, ns), nbytes, takes)) <= ns

        low, high = 0.0, max(links, float(takes[0]))
        for _ in range(100):
            middle = (low + high) / 2
            if not low < middle < high:
                break
            low, high = (low, middle) if enough(middle) else (middle, high)
        return low

    def _links_ns(self, missed: Floats) -> float:
        """Time of the links for all of it."""
        cards = [ns * nbytes for ns, nbytes in zip(self.link_ns, missed.tolist(), strict=True)]
        through = {port: missed[[own == port for own in self.port_of]].sum() for port in set(self.port_of) - {-1}}
        ports = [nbytes * 1000 / self._port_rate(port) for port, nbytes in through.items()]
        return float(max([*cards, *ports]))

    def _left_by_links(self, missed: Floats, ns: float) -> float:
        """Bytes that the links cannot carry in a time."""
        left = 0.0
        for port in set(self.port_of):
            cards = [card for card, own in enumerate(self.port_of) if own == port]
            over = sum(max(0.0, float(missed[card]) - ns / self.link_ns[card]) for card in cards)
            if port >= 0:
                over = max(over, sum(float(missed[card]) for card in cards) - ns * self._port_rate(port) / 1000)
            left += over
        return left

    def _port_rate(self, port: int) -> int:
        return self.port_mb_per_s[port] + len(self.port_mb_per_s)

    def _link_ns(self, card: int) -> float:
        """Least time of the link for a byte: of the layer whose experts copy fastest."""
        sizes = {int(self.sizes[layer]) for layer in np.flatnonzero(self.card_of_layer == card)}
        return min((self._copy_ns(card, size) / size for size in sizes), default=1.0)

    # ---- times of layers ----------------------------------------------------------------------------

    def _own_ns(self) -> Floats:
        """(P,) what each pass has beside its layers."""
        trace, preset, costs = self.trace, self.ready.preset, self.costs
        first = trace.pass_event_offsets[:-1]
        drafted = np.where(trace.pass_phase == Phase.VERIFY, trace.event_rows[first] - 1, 0)
        own = costs.first_ns + costs.head_ns + preset.pass_ns + drafted * preset.draft_ns
        return np.asarray(own, dtype=np.float64)

    @cached_property
    def serial_ns(self) -> Floats:
        """(E,) before and after the two branches of each layer."""
        trace, preset, costs = self.trace, self.ready.preset, self.costs
        attention = attention_ns(trace, self.ready.machine, self.ready.context)
        serial = np.empty(trace.n_events)
        rows, phases, passes = trace.event_rows.tolist(), trace.event_phase.tolist(), trace.event_pass.tolist()
        layers, before, of_pass = self.layer.tolist(), 0, -1
        for e, card in enumerate(self.card.tolist()):
            if passes[e] != of_pass:
                before, of_pass = 0, passes[e]
            ns = costs.dense(layers[e], card, rows[e]) + int(attention[card][of_pass]) + costs.sync_ns[card]
            if phases[e] != Phase.PREFILL:
                ns += (rows[e] - 1) * preset.row_ns
            if card != before:
                ns += costs.handoff(card, rows[e])
                before = card
            serial[e] = ns
        return serial + preset.plan_ns + preset.combine_ns

    @cached_property
    def _table(self) -> npt.NDArray[Any]:
        """(E, 7) what decides the two branches of each layer of each pass: the parameters of `_branches`."""
        costs, trace, offsets = self.costs, self.trace, self.trace.event_offsets[:-1]
        flop = trace.rows_wanting.astype(np.int64) * costs.expert_flop
        flop_per_ns = np.asarray(costs.flop_per_ns)[self.card]
        launch = np.asarray(costs.expert_launch_ns)[self.card]
        whole = np.add.reduceat(flop, offsets) // flop_per_ns
        apart = np.add.reduceat(flop // np.repeat(flop_per_ns, self.members), offsets)
        arithmetic = np.where(launch > 0, whole, apart)  # each group is rounded down; a launch makes up for it
        pool_ns = np.repeat(np.min([costs.cpu_ns[tier] for tier in self.tiers], axis=0)[self.layer], self.members)
        if costs.cpu_flop_per_ns:
            pool_ns = np.maximum(pool_ns, flop // costs.cpu_flop_per_ns)
        beyond = -(-np.maximum(0, self.members * self.size - np.asarray(self.room)[self.scope]) // self.size)
        table: Any = np.stack(
            [self.card, self.size, self.members, beyond, arithmetic, np.maximum.reduceat(flop, offsets),
             np.minimum.reduceat(pool_ns, offsets)], axis=1,
        )  # fmt: skip
        return np.asarray(table)

    @cached_property
    def kinds(self) -> _Kinds:
        """What the two branches of each layer of each pass take, by what the processor does."""
        kinds, of = np.unique(self._table, axis=0, return_inverse=True)
        return _Kinds(of.reshape(-1), [self._branches(*kind) for kind in kinds.tolist()])

    def _branches(
        self, card: int, size: int, members: int, beyond: int, arithmetic_ns: int, most_flop: int, pool_ns: int
    ) -> tuple[Floats, Floats]:
        """Least time of card and processor in an event, by what the processor takes.

        Parameters
        ----------
        card, size, members
            The card, bytes of each expert, and how many there are.
        beyond
            Experts that cannot have been on the card when the event is decided.
        arithmetic_ns, most_flop
            Arithmetic of all of them on the card, and of the one with most rows.
        pool_ns
            The one that takes the processor least.

        Returns
        -------
        nbytes, ns
            Bytes that the processor takes, ascending, and the time.
        """
        costs, preset = self.costs, self.ready.preset
        taken = np.arange(members + 1) if self.processor else np.zeros(1, dtype=np.int64)
        left = members - taken
        some = arithmetic_ns + costs.expert_launch_ns[card] - taken * (most_flop / costs.flop_per_ns[card])
        ns = np.maximum(self._under_groups(card, left * size), some - (taken > 0)) * (left > 0)
        link_ns = self._copy_ns(card, size)
        if self.processor:
            pool = taken * float(pool_ns) + costs.dispatch_ns * (taken > 0)
            ns = np.maximum(ns, pool) if preset.overlap else ns + pool
            ns = np.maximum(ns, np.maximum(0, beyond - taken) * link_ns)
        elif beyond:  # the last of the copies lands, and then its expert is computed
            last = float(self._under_groups(card, np.asarray([size]))[0])
            ns = np.maximum(ns, self._idle_ns(card) + beyond * link_ns + last)
        first = beyond if self.ready.miss == "cpu" else 0
        return np.asarray(taken[first:] * size, dtype=np.float64), np.asarray(ns[first:], dtype=np.float64)

    def _under_groups(self, card: int, nbytes: npt.NDArray[np.int64]) -> Floats:
        """Least ns of the card for so many bytes of experts, grouped anyhow."""
        costs = self.costs
        if costs.points[card] == costs.points[card + 1]:
            rounded = -(-nbytes * 1000 // costs.expert_mb_per_s[card])
            return np.asarray(rounded + costs.expert_launch_ns[card], dtype=np.float64)
        experts = nbytes // max(1, int(self.sizes.min()))
        lines = [
            fixed + slope * nbytes - (1 if fixed >= 1 else experts)  # between points a group is rounded down
            for fixed, slope in _under_points(costs, card)
        ]
        return np.asarray(np.maximum(0.0, np.max(lines, axis=0)), dtype=np.float64)

    def _copy_ns(self, card: int, size: int) -> int:
        """Least time of one copy."""
        link = self.ready.machine.cards[card].link
        rates = {link.h2d_mb_per_s if tier == PINNED else link.h2d_pageable_mb_per_s for tier in self.tiers}
        return min(rules.copy_ns(size, rate, link.submit_ns) for rate in rates)

    def _idle_ns(self, card: int) -> int:
        """Set-up of an event's first copy: the link is idle if nothing can be copied ahead."""
        bare = not any(room for room, own in zip(self.room, self.scope_card, strict=True) if own == card)
        return self.ready.machine.cards[card].link.copy_t0_ns if bare else 0


def _under_points(costs: Costs, card: int) -> list[tuple[float, float]]:
    """Lines (ns, ns a byte) that no group of experts of a card is faster than.

    They go through two of its measured points, or through one and the origin, and lie under all: a sum over groups
    is then at least the line of their sum.
    """
    rate = 1000 / costs.expert_mb_per_s[card]
    xs = costs.point_bytes[costs.points[card] : costs.points[card + 1]]
    ys = costs.point_ns[costs.points[card] : costs.points[card + 1]]
    slopes = {0.0, rate, min([rate, *(y / x for x, y in zip(xs, ys, strict=True) if x)])}
    slopes |= {
        (ys[j] - ys[i]) / (xs[j] - xs[i]) for i in range(len(xs)) for j in range(i + 1, len(xs)) if xs[j] > xs[i]
    }
    lines = []
    for slope in sorted(slopes):
        fixed = min(y - slope * x for x, y in zip(xs, ys, strict=True))
        if 0 <= slope <= rate and fixed >= -1e-6:
            lines.append((max(0.0, fixed), slope))
    return lines
