"""What every layer costs in an engine that moves nothing, event by event of a trace, in the engine's own integers.

A layer's experts lie on its card, on the host, or in thirds on both (a layer's experts are three stacked tensors).
Then no event waits for another and a run is a sum. For whole layers it is the sum that the timed engine comes to,
to the nanosecond (`tests/test_split_layers.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from expert_residency.errors import SimError
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.timed import rules
from expert_residency.sim.timed.attention import NO_DEPTH, Context, attention_ns, kv_bytes, lengths
from expert_residency.sim.timed.costs import Costs
from expert_residency.sim.timed.host import PAGEABLE
from expert_residency.sim.timed.machine import Machine
from expert_residency.traces import Phase, RoutingTrace

THIRDS = 3
"""Stacked tensors of a layer's experts: gate, up and down."""
_OF_THE_TRACE = ("_events", "_rows", "_cell_bytes", "_curve")
"""Cached properties that do not depend on the machine."""
CAUSES = ("dense", "experts on cards", "CPU experts", "host", "hand-offs")


@dataclass(frozen=True)
class Parts:
    """Time by cause, ns: dense parts, experts on cards, experts on the CPU, fixed host time, hand-offs."""

    dense: int = 0
    on_card: int = 0
    on_cpu: int = 0
    fixed: int = 0
    handoff: int = 0

    def __add__(self, other: Parts) -> Parts:
        return Parts(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def ns(self) -> int:
        """Sum."""
        return sum(vars(self).values())

    def named(self) -> dict[str, int]:
        """By the names of `CAUSES`."""
        return dict(zip(CAUSES, vars(self).values(), strict=True))


class LayerSums:
    """Times of the layers of all counted passes of a trace, by card and by how many thirds the card holds.

    Parameters
    ----------
    trace
        Decode and verify passes count, prompts do not; its geometry has the sizes.
    cards
        Profiles by name.
    host
        Whose processor, memory and drive they share.
    preset
        An engine that places layers.
    p2p
        Hand over peer to peer.
    context
        What requests have behind them, and how its cells are stored: attention reads them in every pass.

    Raises
    ------
    SimError
        A trace without decode passes.
    """

    def __init__(
        self, trace: RoutingTrace, cards: Mapping[str, HardwareProfile], host: HardwareProfile,
        preset: EnginePreset, *, p2p: bool = False, context: Context = NO_DEPTH,
    ) -> None:  # fmt: skip
        self.trace, self.geometry, self.preset, self.p2p = trace, trace.geometry, preset, p2p
        self.context = context
        shared = {"cpu": host.cpu, "dram": host.dram, "ram": host.ram, "disk": host.disk}
        self.host = host
        self.cards = {name: profile.model_copy(update=shared) for name, profile in cards.items()}
        self.passes = np.flatnonzero(trace.pass_phase != Phase.PREFILL)
        if not len(self.passes):
            raise SimError("the trace has no decode pass, so it says nothing about tokens a second")
        self.tokens = int(trace.pass_emits[self.passes].sum())
        self._costs: dict[str, Costs] = {}
        self._known: dict[tuple[str, int, int], Parts] = {}
        self._reads: dict[str, int] = {}
        self._engines: dict[str, EnginePreset] = {}
        self._dram = host.dram.shared_mb_per_s

    def count_as(self, other: LayerSums) -> None:
        """Take the events of another one that stands on the same trace, instead of counting them again."""
        assert other.trace is self.trace
        self._events = other._events

    @cached_property
    def _events(self) -> list[Counter[tuple[int, tuple[int, ...]]]]:
        """Of each layer: how often an event of so many rows wants experts by so many rows each."""
        trace = self.trace
        counted = np.zeros(trace.n_passes, dtype=bool)
        counted[self.passes] = True
        found: list[Counter[tuple[int, tuple[int, ...]]]] = [Counter() for _ in range(self.geometry.n_layers)]
        offsets, rows = trace.event_offsets.tolist(), trace.rows_wanting
        for event in np.flatnonzero(counted[trace.event_pass]).tolist():
            wanting = tuple(np.sort(rows[offsets[event] : offsets[event + 1]]).tolist())
            found[trace.event_layer[event]][int(trace.event_rows[event]), wanting] += 1
        return found

    @cached_property
    def _rows(self) -> Counter[int]:
        """How many passes have so many rows."""
        first = self.trace.pass_event_offsets[self.passes]
        return Counter(self.trace.event_rows[first].tolist())

    def costs(self, card: str) -> Costs:
        """The timed engine's tables of one card that has every layer."""
        if card not in self._costs:
            machine = Machine.single(self.cards[card], self.geometry.n_layers)
            self._costs[card] = Costs.of(self.geometry, machine, self.preset)
        return self._costs[card]

    def _engine(self, card: str) -> EnginePreset:
        """The engine's times on a card."""
        if card not in self._engines:
            self._engines[card] = self.preset.on(self.cards[card].gpu)
        return self._engines[card]

    def layer(self, card: str, layer: int, thirds: int) -> Parts:
        """One MoE layer over all passes.

        Parameters
        ----------
        card
            The card that runs it.
        layer
            MoE layer, from 0.
        thirds
            How many of its three stacked tensors lie on the card; the CPU computes the others.

        Returns
        -------
        Parts
            Ns by cause.
        """
        key = (card, layer, thirds)
        if key not in self._known:
            total = Parts()
            for (n_rows, wanting), times in self._events[layer].items():
                one = self._event(card, layer, thirds, n_rows, wanting)
                total += Parts(*(times * ns for ns in vars(one).values()))
            self._known[key] = total + Parts(dense=self._attention(card))
        return self._known[key]

    @cached_property
    def _cell_bytes(self) -> int:
        """Bytes that attention reads for one layer over all passes."""
        length = lengths(self.trace, self.context.depth)[self.passes]
        return int(kv_bytes(self.geometry, length, self.context.kv_type).sum())

    def _attention(self, card: str) -> int:
        if card not in self._reads:
            machine = Machine.single(self.cards[card], self.geometry.n_layers)
            self._reads[card] = int(attention_ns(self.trace, machine, self.context)[0][self.passes].sum())
        return self._reads[card]

    def at_depth(self, depth: int) -> Self:
        """The same with so many tokens behind each request."""
        context = replace(self.context, depth=depth)
        made = type(self)(self.trace, self.cards, self.host, self.preset, p2p=self.p2p, context=context)
        made._events = self._events
        return made

    def on(self, cards: Mapping[str, HardwareProfile], host: HardwareProfile, preset: EnginePreset) -> Self:
        """The same trace on other cards of the same names, under another engine, with what was counted of it.

        Parameters
        ----------
        cards, host, preset
            As the constructor takes them.

        Returns
        -------
        LayerSums
            Of the same class.
        """
        made = type(self)(self.trace, cards, host, preset, p2p=self.p2p, context=self.context)
        made.__dict__ |= {name: value for name, value in self.__dict__.items() if name in _OF_THE_TRACE}
        return made

    def _event(self, card: str, layer: int, thirds: int, n_rows: int, wanting: tuple[int, ...]) -> Parts:
        costs, preset = self.costs(card), self.preset
        dense = costs.dense(layer, 0, n_rows) + (n_rows - 1) * self._engine(card).row_ns
        fixed = costs.sync_ns[0] + preset.plan_ns + preset.combine_ns
        on_card = on_cpu = 0
        if thirds:
            nbytes = len(wanting) * self.geometry.expert_bytes[layer]
            on_card = costs.experts(0, nbytes, sum(wanting)) * thirds // THIRDS
        if thirds < THIRDS:
            on_cpu = self._cpu(costs, layer, wanting, THIRDS - thirds) + costs.dispatch_ns
        return Parts(dense, on_card, on_cpu, fixed)

    def _cpu(self, costs: Costs, layer: int, wanting: tuple[int, ...], thirds: int) -> int:
        solo = sum(costs.cpu(PAGEABLE, layer, rows) for rows in wanting) * thirds // THIRDS
        rate = costs.cpu_mb_per_s[PAGEABLE]
        return solo if rate <= self._dram else rules.slowed_ns(solo, rate, self._dram)

    def on_host(self, layer: int) -> Parts:
        """A layer that runs on the CPU altogether: its dense part is read like its experts."""
        card = next(iter(self.cards))
        costs = self.costs(card)
        total = Parts(rules.bytes_ns(self._cell_bytes, costs.cpu_mb_per_s[PAGEABLE]))
        dense = rules.bytes_ns(self.geometry.dense_bytes[layer], costs.cpu_mb_per_s[PAGEABLE])
        for (_, wanting), times in self._events[layer].items():
            total += Parts(times * dense, 0, times * self._cpu(costs, layer, wanting, THIRDS))
        return total

    def ends(self, first: str, last: str | None) -> Parts:
        """What a pass costs beside its MoE layers: layers without experts, head (None: the CPU's), the rest."""
        passes, preset = len(self.passes), self.preset
        if last is None:
            head = rules.bytes_ns(self.geometry.head_bytes, self.costs(first).cpu_mb_per_s[PAGEABLE])
        else:
            head = self.costs(last).head_ns
        drafts = sum((rows - 1) * times for rows, times in self._rows.items())
        drafts *= self._engine(last or first).draft_ns
        return Parts(passes * (self.costs(first).first_ns + head), fixed=passes * preset.pass_ns + drafts)

    def handoff(self, before: str, after: str) -> Parts:
        """The rows of all passes from one card to the next."""
        pair = Machine.split(
            (self.cards[before], self.cards[after]), (1, self.geometry.n_layers - 1), p2p=self.p2p
        )
        costs = Costs.of(self.geometry, pair, self.preset)
        return Parts(handoff=sum(costs.handoff(1, rows) * times for rows, times in self._rows.items()))

    def expert_trip(self, own: str, other: str) -> Parts:
        """There and back once a layer and pass, for tensors that lie on another card than their layer's."""
        return self.handoff(own, other) + self.handoff(own, other)
