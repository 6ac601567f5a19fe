"""The fastest placement by whole layers and tensors, exactly.

What is searched: every order of the cards, every contiguous division of the layers (each card runs one at least),
and for every division which of a layer's three stacked tensors lie on its card, the others on the CPU. Nothing
moves and no layer waits for another, so a run is a sum over layers: a card's layers are filled by Pareto fronts
(`fill`), the division is dynamic programming; of equally fast placements the one whose fullest card has most
free is taken. Layers go to the CPU altogether (`-ngl`) only where dense
weights and context do not fit otherwise. Not searched: experts on a card that does not run their layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations

import numpy as np

from expert_residency.errors import SimError
from expert_residency.hwmodels.vram import VramBudget
from expert_residency.sim.split.layers.fill import MOST, Front, Ints
from expert_residency.sim.split.layers.placement import (
    LayerPlacement,
    LayerProblem,
    evaluate,
    third_bytes,
    without_card,
)
from expert_residency.sim.split.layers.times import THIRDS
from expert_residency.sim.split.planner import MAX_CARDS, NEVER_FULL

Path = tuple[tuple[int, int, int], ...]
"""Of each card: first MoE layer, last + 1, filling."""
Partial = tuple[int, int, int, int]
"""Of the cards so far: time, what the fullest has over its room (below 0), filling and first layer of the last."""


@dataclass
class LayerPlanner:
    """Searches one problem; fillings are remembered.

    Parameters
    ----------
    problem
        What is to be placed.
    as_named
        The cards stand in the order of the problem, as rules count them; else every order is tried.

    Raises
    ------
    SimError
        No card or more than four, more cards than layers, a hand-off whose size is not known.
    """

    problem: LayerProblem
    as_named: bool = False
    exact: bool = field(default=True, init=False)
    """Whether the last search left no filling out."""
    feasible: bool = field(default=False, init=False)
    """Whether some division fits the cards, be the memory as it may."""
    host_layers: int = field(default=0, init=False)
    """Of a division that fits the cards and not the memory: the layers that the CPU runs."""
    short: VramBudget | None = field(default=None, init=False)
    """Budget of the card that came closest to having room for its dense part, where none has."""
    _chains: dict[tuple[str, int, bool], list[Front]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        geometry, count = self.problem.geometry, len(self.problem.cards)
        if not 1 <= count <= MAX_CARDS:
            raise SimError(f"a split of {count} cards cannot be searched; 1 to {MAX_CARDS} are possible")
        if count > geometry.n_layers:
            raise SimError(f"{count} cards for {geometry.n_layers} MoE layers: each card needs one layer at least")
        if count > 1 and geometry.token_handoff_bytes == 0:
            raise SimError(f"{geometry.label} does not say its width, so the hand-off between cards has no size")

    @cached_property
    def orders(self) -> list[tuple[str, ...]]:
        """Different orders of the cards."""
        return [self.problem.cards] if self.as_named else sorted(set(permutations(self.problem.cards)))

    def best(self) -> LayerPlacement | None:
        """The fastest placement; None if none fits."""
        self.exact, self.feasible, self.short = True, False, None
        if not self.problem.has_card:
            self.feasible = self._room(self.problem.cards[0], 0, self.problem.geometry.n_layers, 0) >= 0
            return without_card(self.problem)
        layers = self.problem.geometry.n_layers
        for host_layers in range(layers - len(self.problem.cards) + 1):
            found = [p for order in self.orders if (p := self._of_order(order, host_layers))]
            if found:
                return min(found, key=lambda placement: placement.rank)
            if self.feasible:
                self.host_layers = host_layers
                break
        return None

    def by_first_layers(self) -> tuple[int, LayerPlacement] | None:
        """The fastest placement that `--n-cpu-moe N` and `-ts` can say, and its N; None if none fits."""
        if not self.problem.has_card:
            alone = without_card(self.problem)
            return None if alone is None else (0, alone)
        found: tuple[int, LayerPlacement] | None = None
        for n in range(self.problem.total_layers + 1):
            placement = self.of_first_layers(n)
            if placement and (found is None or placement.rank < found[1].rank):
                found = n, placement
        return found

    def of_first_layers(self, n: int) -> LayerPlacement | None:
        """The fastest division of `--n-cpu-moe N` over the cards; None if none fits."""
        thirds = [0 if layer_id < n else THIRDS for layer_id in self.problem.geometry.layer_ids]
        divided = [(order, each) for order in self.orders if (each := self._divide(order, thirds))]
        made = [evaluate(self.problem, order, each, thirds) for order, each in divided]
        return min((one for one in made if one), key=lambda placement: placement.rank, default=None)

    # ---- one order of the cards -------------------------------------------------------------------

    def _of_order(self, order: tuple[str, ...], host_layers: int) -> LayerPlacement | None:
        problem, geometry = self.problem, self.problem.geometry
        layers, count = geometry.n_layers, len(order)
        best: list[dict[int, Partial]] = [{host_layers: (0, -NEVER_FULL, 0, -1)}]
        for number, card in enumerate(order):
            here: dict[int, Partial] = {}
            ends = (
                [layers] if number == count - 1 else range(host_layers + number + 1, layers - count + number + 2)
            )
            for first, (ns, full, _, _) in best[-1].items():
                for end in ends:
                    if end > first and (at := self._filled(card, first, end, host_layers)) is not None:
                        front = self._chain(card, first)[end - first]
                        over = int(front.nbytes[at]) - self._room(card, first, end, host_layers)
                        total = ns + int(front.ns[at]), max(full, over)
                        if end not in here or total < here[end][:2]:
                            here[end] = (*total, at, first)
            best.append(here)
        if layers not in best[-1]:
            return None
        self.feasible = True
        each: list[int] = []
        thirds, end = [0] * layers, layers
        for number in range(count, 0, -1):
            _, _, at, first = best[number][end]
            thirds[first:end] = self._states(order[number - 1], first, end, at)
            each.insert(0, end - first)
            end = first
        placement = evaluate(problem, order, each, thirds, host_layers)
        if placement is None or placement.drive_ns:  # memory binds: what lies on the cards counts more than time
            roomy = self._roomiest(order, host_layers)
            both = [p for p in (placement, roomy) if p]
            return min(both, key=lambda p: p.rank, default=None)
        return placement

    def _roomiest(self, order: tuple[str, ...], host_layers: int) -> LayerPlacement | None:
        """The fastest placement of those within memory; of a mapped file the one with most on the cards."""
        problem, geometry = self.problem, self.problem.geometry
        layers, count = geometry.n_layers, len(order)
        fronts: list[dict[int, list[tuple[int, int, Path]]]] = [{host_layers: [(0, 0, ())]}]
        for number, card in enumerate(order):
            here: dict[int, list[tuple[int, int, Path]]] = {}
            ends = (
                [layers] if number == count - 1 else range(host_layers + number + 1, layers - count + number + 2)
            )
            for first, paths in fronts[-1].items():
                for end in (end for end in ends if end > first):
                    if (room := self._room(card, first, end, host_layers)) < 0:
                        continue
                    front = self._chain(card, first, every=True)[end - first]
                    points = [(int(front.nbytes[i]), int(front.ns[i]), i) for i in range(front.within(room))]
                    here.setdefault(end, []).extend(
                        (held + nbytes, ns + more, (*path, (first, end, at)))
                        for held, ns, path in paths
                        for nbytes, more, at in points
                    )
            fronts.append({end: _undominated(paths) for end, paths in here.items()})
        found: LayerPlacement | None = None
        for _, _, path in reversed(fronts[-1].get(layers, [])):
            thirds = [0] * layers
            for card, (first, end, at) in zip(order, path, strict=True):
                thirds[first:end] = self._states(card, first, end, at, every=True)
            each = [end - first for first, end, _ in path]
            placement = evaluate(problem, order, each, thirds, host_layers)
            if placement and (found is None or placement.rank < found.rank):
                found = placement
        return found

    def _divide(self, order: tuple[str, ...], thirds: list[int]) -> tuple[int, ...] | None:
        """Layers of each card with which the tensors lie as they are wanted, the fastest; None if they cannot."""
        geometry, layers, count = self.problem.geometry, self.problem.geometry.n_layers, len(order)
        held = np.cumsum([0, *(third_bytes(geometry, i, n) for i, n in enumerate(thirds))])
        best: dict[int, tuple[int, int, tuple[int, ...]]] = {0: (0, -NEVER_FULL, ())}
        for number, card in enumerate(order):
            ns = np.cumsum([0, *(self.problem.costs.layer(card, i, n).ns for i, n in enumerate(thirds))])
            here: dict[int, tuple[int, int, tuple[int, ...]]] = {}
            ends = [layers] if number == count - 1 else range(number + 1, layers - count + number + 2)
            for first, (before, full, each) in best.items():
                for end in (end for end in ends if end > first):
                    over = int(held[end] - held[first]) - self._room(card, first, end, 0)
                    if over <= 0:
                        option = (before + int(ns[end] - ns[first]), max(full, over), (*each, end - first))
                        here[end] = min(here.get(end, option), option)
            best = here
        return best[layers][2] if layers in best else None

    # ---- one card ---------------------------------------------------------------------------------

    def _room(self, card: str, first: int, end: int, host_layers: int) -> int:
        key = (card, first, end, host_layers > 0)
        if key not in self._rooms:
            budget = self.problem.budget(card, first, end, output=not host_layers)
            self._rooms[key] = budget.cache_bytes
            if budget.cache_bytes < 0 and (self.short is None or budget.cache_bytes > self.short.cache_bytes):
                self.short = budget
        return self._rooms[key]

    @cached_property
    def _rooms(self) -> dict[tuple[str, int, int, bool], int]:
        return {}

    def _filled(self, card: str, first: int, end: int, host_layers: int) -> int | None:
        """The fastest filling of a card's layers, as a place in their front; None if they do not fit at all."""
        room = self._room(card, first, end, host_layers)
        if room < 0:
            return None
        front = self._chain(card, first)[end - first]
        self.exact &= front.exact
        return front.within(room) - 1

    def _chain(self, card: str, first: int, *, every: bool = False) -> list[Front]:
        """Fronts of the layers from `first` on, of none, one, two, ... of them."""
        if (card, first, every) not in self._chains:
            fronts = [Front.empty()]
            grain = max(1, self.problem.costs.cards[card].gpu.vram_usable_bytes // MOST)
            for layer in range(first, self.problem.geometry.n_layers):
                fronts.append(fronts[-1].with_layer(*self._options(card, layer), grain, every=every))
            self._chains[card, first, every] = fronts
        return self._chains[card, first, every]

    def _options(self, card: str, layer: int) -> tuple[Ints, Ints]:
        geometry, costs = self.problem.geometry, self.problem.costs
        states = range(THIRDS + 1)
        return (
            np.asarray([third_bytes(geometry, layer, n) for n in states], dtype=np.int64),
            np.asarray([costs.layer(card, layer, n).ns for n in states], dtype=np.int64),
        )

    def _states(self, card: str, first: int, end: int, at: int, *, every: bool = False) -> list[int]:
        """What each layer has on the card; of equal layers the first ones have least, as `--n-cpu-moe` has it."""
        chain, states = self._chain(card, first, every=every), []
        for n in range(end - first, 0, -1):
            states.append(int(chain[n].state[at]))
            at = int(chain[n].before[at])
        states.reverse()
        alike: dict[tuple[bytes, bytes], list[int]] = {}
        for layer in range(first, end):
            nbytes, ns = self._options(card, layer)
            alike.setdefault((nbytes.tobytes(), (ns - ns[0]).tobytes()), []).append(layer - first)
        for places in alike.values():
            for place, state in zip(places, sorted(states[i] for i in places), strict=True):
                states[place] = state
        return states


def _undominated(paths: list[tuple[int, int, Path]]) -> list[tuple[int, int, Path]]:
    """Of paths with as many bytes or more, the fastest; bytes ascending."""
    kept: list[tuple[int, int, Path]] = []
    for path in sorted(paths, key=lambda one: (-one[0], one[1])):
        if not kept or path[1] < kept[-1][1]:
            kept.append(path)
    return kept[::-1]
