"""Which card runs which layers: exact search over contiguous splits of up to four cards.

A pass visits the stages one after the other, so its time is a sum: stages, hand-offs, what comes at the end. The
search walks the splits depth first in every order of the cards, and leaves a branch when its stages so far plus
the least that the remaining layers can cost on the remaining cards is no better than the best split found. That
least is found by dynamic programming with everything in RAM; a split that reads the drive costs more, never less,
so no optimum is lost (`prune=False` tries every split; the tests compare the two). Of equally fast splits the one
whose fullest card has most free is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import pairwise, permutations

import numpy as np

from expert_residency.errors import SimError
from expert_residency.hwmodels.vram import VramBudget, slot_bytes
from expert_residency.sim.split.cards import Card, handoff_ns
from expert_residency.sim.split.cost import LayerTimes, Store
from expert_residency.sim.split.memory import RamNeed, ram_need, spread_slots
from expert_residency.sim.split.placement import Placement, Problem, Shortfall, Stage

MAX_CARDS = 4
NEVER_FULL = 1 << 62


@dataclass(frozen=True)
class _Fit:
    """What the search compares."""

    ns: int
    stages: tuple[Stage, ...]
    ram: RamNeed
    level: int
    handoffs_ns: tuple[int, ...]

    @property
    def rank(self) -> tuple[int, int]:
        """Less is better: time; of equally fast ones, the one whose fullest card has most free."""
        return self.ns, max(_over(stage) for stage in self.stages)


class Planner:
    """Searches one problem; layer times and stages are remembered.

    Parameters
    ----------
    problem
        What is to be placed.
    times
        Layer times of a problem that differs in its cards only, to go on with.

    Raises
    ------
    SimError
        No card or more than four, more cards than layers, a hand-off whose size is not known, a store card that
        cannot hold experts.
    """

    def __init__(self, problem: Problem, times: LayerTimes | None = None) -> None:
        geometry, count = problem.needs.geometry, len(problem.cards)
        if not 1 <= count <= MAX_CARDS:
            raise SimError(f"a split of {count} cards cannot be searched; 1 to {MAX_CARDS} are possible")
        if count > geometry.n_layers:
            raise SimError(f"{count} cards for {geometry.n_layers} MoE layers: each card needs one layer at least")
        if count > 1 and geometry.token_handoff_bytes == 0:
            raise SimError(f"{geometry.label} does not say its width, so the hand-off between cards has no size")
        self.problem = problem
        self.geometry = geometry
        self.store = _store_of(problem)
        self.times = times or LayerTimes(
            geometry, problem.curve, problem.host, problem.preset, problem.miss, problem.mode, problem.room_bytes,
            self.store,
        )  # fmt: skip
        self._handoff_bytes = round(problem.curve.rows * geometry.token_handoff_bytes)
        self._stages: dict[tuple[Card, bool, bool, int, int], Stage | VramBudget] = {}
        self.visited = 0
        """Splits and partial splits looked at by the last search."""
        self.shortfall: Shortfall | None = None
        self._limit: tuple[int, int] | None = None

    @cached_property
    def orders(self) -> list[tuple[Card, ...]]:
        """Different orders of the cards, the same whatever order they were given in."""
        return sorted(set(permutations(self.problem.cards)), key=lambda cards: [astuple(card) for card in cards])

    def best(
        self, *, prune: bool = True, order: tuple[Card, ...] | None = None, first_layers: int | None = None
    ) -> Placement | None:
        """Fastest placement that fits, None if none does (then `shortfall` says why).

        Parameters
        ----------
        prune
            Leave branches that cannot win.
        order
            Only this order of cards.
        first_layers
            Only splits that give the first card so many layers.

        Returns
        -------
        Placement | None
            The placement, or None.
        """
        self.visited, self.shortfall, self._limit = 0, None, None
        found: _Fit | None = None
        for cards in [order] if order else self.orders:
            for layers_each in self._walk(cards, first_layers):
                fit = self._fit(cards, layers_each)
                if fit and (found is None or fit.rank < found.rank):
                    found = fit
                    self._limit = fit.rank if prune else None
        return self._placement(found) if found else None

    def evaluate(self, cards: tuple[Card, ...], layers_each: tuple[int, ...]) -> Placement | None:
        """The placement of one split; None if it does not fit."""
        fit = self._fit(cards, layers_each)
        return self._placement(fit) if fit else None

    def roomiest(self) -> Placement | None:
        """The placement that keeps most expert bytes in VRAM, the fastest of those; None if none fits.

        Both are sums over the stages, so dynamic programming finds it in each order of the cards.
        """
        layers = self.geometry.n_layers
        found: tuple[tuple[int, int], Placement] | None = None
        for cards in self.orders:
            count = len(cards)
            most: list[dict[int, tuple[int, int, tuple[int, ...]]]] = [{layers: (0, 0, ())}]
            for number in range(count - 1, -1, -1):
                here: dict[int, tuple[int, int, tuple[int, ...]]] = {}
                for end, (held, ns, each) in most[0].items():
                    for first in range(number, end) if number else (0,):
                        stage = self._stage(cards[number], number, count, first, end)
                        if isinstance(stage, Stage) and first < end:
                            option = (held + stage.expert_bytes, ns - stage.ns, (end - first, *each))
                            here[first] = max(here.get(first, option), option, key=lambda o: o[:2])
                most.insert(0, here)
            if 0 in most[0]:
                placement = self.evaluate(cards, most[0][0][2])
                if placement:
                    rank = (placement.vram_expert_bytes, -placement.pass_ns)
                    found = max(found or (rank, placement), (rank, placement), key=lambda item: item[0])
        return found[1] if found else None

    def _fit(self, cards: tuple[Card, ...], layers_each: tuple[int, ...]) -> _Fit | None:
        stages, first = [], 0
        for number, (card, n) in enumerate(zip(cards, layers_each, strict=True)):
            stage = self._stage(card, number, len(cards), first, first + n)
            if isinstance(stage, VramBudget):
                self._miss(Shortfall("VRAM", -stage.cache_bytes, budget=stage))
                return None
            stages.append(stage)
            first += n
        problem = self.problem
        on_cards = sum(stage.expert_bytes for stage in stages) + self._stored_bytes(stages)
        ram = ram_need(problem.needs, problem.mode, problem.host.ram_bytes, on_cards, problem.headroom_bytes)
        if ram.least_bytes > problem.host.ram_bytes:
            self._miss(Shortfall("RAM", ram.least_bytes - problem.host.ram_bytes, ram=ram))
            return None
        level = self._level(stages, ram)
        if level < self.geometry.experts:
            stages = [self._timed(stage, i, len(stages), level) for i, stage in enumerate(stages)]
        handoffs = tuple(self.handoff_between(cards, number) for number in range(1, len(cards)))
        ns = sum(stage.ns for stage in stages) + sum(handoffs) + self.times.overhead_ns
        return _Fit(ns, tuple(stages), ram, level, handoffs)

    def _placement(self, fit: _Fit) -> Placement:
        curve = self.problem.curve
        store = self.store.slots if self.store else 0
        wanted = missed = on_disk = 0
        for layer, slots in enumerate(n for stage in fit.stages for n in stage.slots):
            wanted += int(curve.sizes[layer].sum())
            missed += int(curve.beyond(layer, slots).sum())
            on_disk += int(curve.beyond(layer, max(fit.level, slots + store)).sum())
        return Placement(
            stages=fit.stages,
            ram=fit.ram,
            handoffs_ns=fit.handoffs_ns,
            overhead_ns=self.times.overhead_ns,
            tokens_a_pass=curve.tokens_a_pass,
            hit_rate=1.0 - missed / wanted,
            ram_rate=(missed - on_disk) / wanted,
            level=fit.level,
            store=self.store,
        )

    def handoffs_ns(self, placement: Placement, rows: int) -> list[int]:
        """Hand-offs of a pass of so many rows (a prompt chunk, say)."""
        cards, nbytes = [stage.card for stage in placement.stages], rows * self.geometry.token_handoff_bytes
        return [handoff_ns(a, b, nbytes, p2p=self.problem.p2p) for a, b in pairwise(cards)]

    # ---- the walk ------------------------------------------------------------------------------

    def _walk(self, cards: tuple[Card, ...], first_layers: int | None) -> Iterator[tuple[int, ...]]:
        """Splits worth a look, in lexicographic order of their layer counts."""
        layers, count = self.geometry.n_layers, len(cards)
        rest = self._least(cards)

        def descend(
            number: int, first: int, ns: int, over: int, taken: tuple[int, ...]
        ) -> Iterator[tuple[int, ...]]:
            self.visited += 1
            if number == count:
                yield taken
                return
            ns += self.handoff_between(cards, number) if number else self.times.overhead_ns
            ends = (
                range(layers, layers + 1) if number == count - 1 else range(first + 1, layers - count + number + 2)
            )
            for end in ends:
                if number == 0 and first_layers is not None and end != first_layers:
                    continue
                stage = self._stage(cards[number], number, count, first, end)
                if isinstance(stage, VramBudget):
                    self._miss(Shortfall("VRAM", -stage.cache_bytes, budget=stage))
                    continue
                full = max(over, _over(stage))
                if self._limit is not None and (ns + stage.ns + rest[number + 1][end], full) >= self._limit:
                    continue
                yield from descend(number + 1, end, ns + stage.ns, full, (*taken, end - first))

        yield from descend(0, 0, 0, -NEVER_FULL, ())

    def _least(self, cards: tuple[Card, ...]) -> list[list[float]]:
        """[stage][layer] least time of the layers from there on the cards from there, everything in memory."""
        layers, count = self.geometry.n_layers, len(cards)
        least = [[float("inf")] * (layers + 1) for _ in range(count + 1)]
        least[count][layers] = 0.0
        for number in range(count - 1, -1, -1):
            handoff = self.handoff_between(cards, number) if number else 0
            for first in range(number, layers - (count - number) + 1):
                for end in range(first + 1, layers - (count - number) + 2):
                    stage = self._stage(cards[number], number, count, first, end)
                    if isinstance(stage, Stage):
                        ns = handoff + stage.ns + least[number + 1][end]
                        least[number][first] = min(least[number][first], ns)
        return least

    # ---- parts ---------------------------------------------------------------------------------

    def _stage(self, card: Card, number: int, count: int, first: int, end: int) -> Stage | VramBudget:
        """A stage with all its misses in memory; its budget alone if the lines do not fit the card."""
        key = (card, number == 0, number == count - 1, first, end)
        if key not in self._stages:
            budget = self.problem.needs.budget(card, number, count, first, end)
            if budget.cache_bytes < 0:
                self._stages[key] = budget
            else:
                sizes = self.geometry.expert_bytes[first:end]
                slots = spread_slots(budget.cache_bytes, sizes, self.geometry.experts)
                nbytes = sum(n * size for n, size in zip(slots, sizes, strict=True))
                bare = Stage(card, first, end, budget, slots, nbytes, 0)
                self._stages[key] = self._timed(bare, number, count, self.geometry.experts)
        return self._stages[key]

    def _timed(self, stage: Stage, number: int, count: int, level: int) -> Stage:
        times = self.times
        ns = sum(
            times.layer_ns(stage.card, layer, slots, level)
            for layer, slots in zip(range(stage.first, stage.end), stage.slots, strict=True)
        )
        if number == 0:
            ns += times.first_ns(stage.card)
        if number == count - 1:
            ns += times.head_ns(stage.card)
        return Stage(stage.card, stage.first, stage.end, stage.budget, stage.slots, stage.expert_bytes, ns)

    def handoff_between(self, cards: tuple[Card, ...], number: int) -> int:
        """From card `number - 1` to card `number`."""
        return handoff_ns(cards[number - 1], cards[number], self._handoff_bytes, p2p=self.problem.p2p)

    def _stored_bytes(self, stages: list[Stage]) -> int:
        """Bytes on the store card that no other card holds too."""
        if self.store is None:
            return 0
        slots = [n for stage in stages for n in stage.slots]
        return sum(
            min(self.store.slots, self.geometry.experts - n) * size
            for n, size in zip(slots, self.geometry.expert_bytes, strict=True)
        )

    def _level(self, stages: list[Stage], ram: RamNeed) -> int:
        """How many of each layer's experts are in memory when RAM takes the warmest that the cards leave over."""
        experts = self.geometry.experts
        if ram.file_bytes == 0:
            return experts
        near = np.asarray([n for stage in stages for n in stage.slots], dtype=np.int64)
        near += self.store.slots if self.store else 0
        sizes = np.asarray(self.geometry.expert_bytes, dtype=np.int64)
        low, high = 0, experts
        while high - low > 1:
            middle = (low + high) // 2
            taken = int((np.maximum(0, middle - near) * sizes).sum())
            low, high = (middle, high) if taken <= ram.experts_bytes else (low, middle)
        return low

    def _miss(self, shortfall: Shortfall) -> None:
        if self.shortfall is None or shortfall.short_bytes < self.shortfall.short_bytes:
            self.shortfall = shortfall


def _over(stage: Stage) -> int:
    """Bytes by which a stage's experts go over their room, below 0."""
    return stage.expert_bytes - stage.budget.cache_bytes


def _store_of(problem: Problem) -> Store | None:
    if problem.store is None:
        return None
    card, geometry = problem.store, problem.needs.geometry
    room = card.usable_bytes - card.reserve_bytes
    slots = min(geometry.experts, max(0, room) // sum(slot_bytes(size) for size in geometry.expert_bytes))
    if slots == 0:
        raise SimError(f"the store card {card.name} has no room for one expert of every layer")
    return Store(card, slots, problem.p2p)
