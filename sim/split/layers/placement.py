"""A placement by whole layers and tensors: what lies where, what it takes, how long a run of the trace is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from expert_residency.hwmodels.vram import VramBudget
from expert_residency.sim.choices.vram import UNDIVIDED, layer_span, stage_budget
from expert_residency.sim.split.layers.times import THIRDS, LayerCosts, Parts
from expert_residency.sim.split.memory import HEADROOM_BYTES, Needs, gib
from expert_residency.traces import ModelGeometry


def third_bytes(geometry: ModelGeometry, layer: int, thirds: int) -> int:
    """Bytes of so many of a layer's three stacked tensors, rounded up.

    Parameters
    ----------
    geometry
        The model.
    layer
        MoE layer, from 0.
    thirds
        How many of them, 0 to 3.

    Returns
    -------
    int
        Bytes.
    """
    return -(-geometry.experts * geometry.expert_bytes[layer] * thirds // THIRDS)


@dataclass(frozen=True)
class LayerProblem:
    """What is to be placed where.

    Parameters
    ----------
    costs
        Model, trace, engine and the profiles of the cards.
    needs
        Context and draft layer.
    cards
        Names of the cards, every one of which runs a layer.
    ram_bytes, headroom_bytes
        Memory of the host, and what of it stays free of the model.
    mapped
        The model file is mapped: what does not fit into memory is read from the drive again and again.
    """

    costs: LayerCosts
    needs: Needs
    cards: tuple[str, ...]
    ram_bytes: int
    headroom_bytes: int = HEADROOM_BYTES
    mapped: bool = False

    @property
    def geometry(self) -> ModelGeometry:
        """The model."""
        return self.costs.geometry

    @property
    def room_bytes(self) -> int:
        """Memory that the model may take: none where more is to stay free than there is."""
        return max(0, self.ram_bytes - self.headroom_bytes)

    def room_beside(self, host_layers: int) -> int:
        """Memory for weights where the CPU runs the first MoE layers: their context takes its place first."""
        return max(0, self.room_bytes - self.context_on_host(host_layers))

    def context_on_host(self, host_layers: int) -> int:
        """Bytes of the context of layers that the CPU runs: of no file, so that memory has to hold them."""
        if not host_layers:
            return 0
        share, total = self.span(0, host_layers), self.total_layers
        return sum(-(-line.nbytes * share // total) for line in self.needs.session if line.name not in UNDIVIDED)

    @cached_property
    def total_layers(self) -> int:
        """Layers of the model, those without experts among them."""
        return max(self.geometry.total_layers, self.geometry.layer_ids[-1] + 1)

    @property
    def has_card(self) -> bool:
        """Whether there is a card; else the machine's memory holds everything."""
        return any(self.costs.cards[card].has_card for card in self.cards)

    def drive_note(self, placement: LayerPlacement) -> str:
        """Why a placement's speed is estimated; empty if no read of the drive is in it."""
        if not placement.drive_ns:
            return ""
        if self.has_card:
            short = placement.ram_bytes - self.room_beside(placement.host_layers)
        else:
            short = self.geometry.all_expert_bytes - sum(placement.expert_bytes)
        return f"{gib(short)} of what the CPU reads do not fit into memory; reads of the drive are estimated"

    def span(self, first: int, end: int) -> int:
        """Layers of the model from MoE layer `first` up to `end`; layers without experts go with the next one."""
        return layer_span(self.geometry, first, end)

    def dense_on_host(self, host_layers: int, *, head: bool) -> int:
        """Bytes of dense weights that the CPU reads."""
        geometry = self.geometry
        first = geometry.dense_only_bytes if host_layers else 0
        return first + sum(geometry.dense_bytes[:host_layers]) + (geometry.head_bytes if head else 0)

    def budget(self, card: str, first: int, end: int, *, output: bool = True) -> VramBudget:
        """Memory of a card that runs MoE layers `first` to `end - 1`, beside experts.

        Context and dense weights lie with their layers: a card takes its layers' share of the context, rounded up.

        Parameters
        ----------
        card
            Name of the card.
        first, end
            MoE layers, from 0.
        output
            Whether the card of the last layer has the output head as well.

        Returns
        -------
        VramBudget
            Lines in bytes, and what they leave for experts.
        """
        geometry, profile = self.geometry, self.costs.cards[card]
        if not output:
            geometry = replace(geometry, head_bytes=0)
        made = stage_budget(geometry, profile, first, end, self.needs.session, by_layer=True)
        draft = self.needs.draft if end == geometry.n_layers else ()
        return VramBudget(card, made.usable_bytes, (*made.lines, *draft))


@dataclass(frozen=True)
class LayerPlacement:
    """A placement that fits.

    Parameters
    ----------
    cards
        In the order of their layers.
    layers_each, ts
        MoE layers of each card; layers of the model, as `-ts` divides them, without the output.
    host_layers
        MoE layers that run on the CPU altogether, the first ones.
    thirds
        Of each MoE layer, how many of its three stacked tensors lie on its card.
    budgets
        Of each card, beside experts.
    expert_bytes
        On each card.
    parts
        Time of all passes by cause.
    passes, tokens
        Of the trace.
    ram_bytes
        What the host holds of the model.
    drive_ns
        Of `parts`, estimated reads of what does not fit into memory.
    """

    cards: tuple[str, ...]
    layers_each: tuple[int, ...]
    ts: tuple[int, ...]
    host_layers: int
    thirds: tuple[int, ...]
    budgets: tuple[VramBudget, ...]
    expert_bytes: tuple[int, ...]
    parts: Parts
    passes: int
    tokens: int
    ram_bytes: int
    drive_ns: int = 0

    @property
    def tokens_per_s(self) -> float:
        """Decoding speed."""
        return self.tokens * 1e9 / self.parts.ns

    @property
    def how(self) -> str:
        """How its speed was found: reads of the drive are estimated."""
        return "estimated" if self.drive_ns else "simulated"

    @property
    def ms_a_pass(self) -> float:
        """Mean time of a pass."""
        return self.parts.ns / self.passes / 1e6

    @property
    def binding(self) -> str:
        """What takes most of a pass, with its share."""
        named = self.parts.named()
        cause = max(named, key=lambda one: named[one])
        return f"{cause}, {100 * named[cause] / self.parts.ns:.0f} % of a token"

    @property
    def rank(self) -> tuple[int, int]:
        """Less is better: time; of equally fast ones, what the fullest card lacks to more free memory."""
        return self.parts.ns, -min(b.cache_bytes - n for b, n in zip(self.budgets, self.expert_bytes, strict=True))

    @property
    def on_cpu(self) -> int:
        """Layers of which the CPU computes experts."""
        return sum(n < THIRDS for n in self.thirds)


def evaluate(
    problem: LayerProblem, cards: Sequence[str], layers_each: Sequence[int], thirds: Sequence[int],
    host_layers: int = 0,
) -> LayerPlacement | None:  # fmt: skip
    """What a placement takes and how long a run is; None if a card or the host has not the room.

    Parameters
    ----------
    problem
        Model, engine and machine.
    cards, layers_each
        In order, and MoE layers of each.
    thirds
        Of each MoE layer, how many stacked tensors lie on its card.
    host_layers
        MoE layers before those of the first card, which the CPU runs.

    Returns
    -------
    LayerPlacement | None
        The placement.
    """
    costs, geometry = problem.costs, problem.geometry
    if not problem.has_card:
        return without_card(problem)
    parts = costs.ends(cards[0], None if host_layers else cards[-1])
    budgets, held, spans = [], [], []
    first = host_layers
    for layer in range(host_layers):
        parts += costs.on_host(layer)
    for number, (card, n) in enumerate(zip(cards, layers_each, strict=True)):
        end = first + n
        budget = problem.budget(card, first, end, output=not host_layers)
        nbytes = sum(third_bytes(geometry, i, thirds[i]) for i in range(first, end))
        if nbytes > budget.cache_bytes:
            return None
        for layer in range(first, end):
            parts += costs.layer(card, layer, thirds[layer])
        if number:
            parts += costs.handoff(cards[number - 1], card)
        budgets.append(budget)
        held.append(nbytes)
        spans.append(problem.span(first, end))
        first = end
    in_ram = geometry.all_expert_bytes - sum(held) + problem.dense_on_host(host_layers, head=host_layers > 0)
    room = problem.room_beside(host_layers)
    drive = 0
    if in_ram > room:
        if not problem.mapped or room == 0:
            return None
        drive = costs.drive_ns(thirds, host_layers, in_ram, room)
        parts += Parts(on_cpu=drive)
    return LayerPlacement(
        tuple(cards), tuple(layers_each), tuple(spans), host_layers, tuple(thirds), tuple(budgets), tuple(held),
        parts, len(costs.passes), costs.tokens, in_ram, drive,
    )  # fmt: skip


def without_card(problem: LayerProblem) -> LayerPlacement | None:
    """The one placement of a processor alone; None if memory has not the room.

    Nothing lies in one of two places there: what memory leaves beside weights and context is the page cache of all
    experts, as it is on a machine whose cards hold none of them.
    """
    costs, geometry, card = problem.costs, problem.geometry, problem.cards[0]
    layers, wanted = geometry.n_layers, geometry.all_expert_bytes
    budget = problem.budget(card, 0, layers)
    room = budget.cache_bytes
    if room < 0 or (wanted > room and not (problem.mapped and room)):
        return None
    parts = costs.ends(card, card)
    for layer in range(layers):
        parts += costs.layer(card, layer, THIRDS)
    drive = costs.drive_ns([0] * layers, 0, wanted, room) if wanted > room else 0
    parts += Parts(on_cpu=drive)
    return LayerPlacement(
        (card,), (layers,), (problem.span(0, layers),), 0, (THIRDS,) * layers, (budget,), (min(wanted, room),),
        parts, len(costs.passes), costs.tokens, 0, drive,
    )  # fmt: skip
