"""Experts that one layer uses together come together again.

    learn:   for each pair (i, j) in an event: pairs[i, j] += 1 (i = j too); an entry that reaches `limit`
             halves its whole row; remember the layer's last set
    propose: when an event is done, the `width` experts j of the next layer with the highest sum of
             pairs[i, j] over that layer's last set; ties: lower key
    width:   0 stands for the model's top-k

Between `previous-token` (the last set itself) and `static-topk` (counts alone).
Source: pairs within a layer as recorded by doramirdor/mbolt; the table form of JustVugg/colibri.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from expert_residency.policies.parameters import AtLeastOne, Count
from expert_residency.policies.prefetch.ranking import best_of_layer
from expert_residency.policies.protocol import Allocator, Event, Future, Ints, Pool, PrefetchPolicy


class CoActivationState(NamedTuple):
    """Pair counts, each layer's last set, and room for one layer's sums."""

    pairs: Ints
    """(keys x experts,) pairs of experts of the same layer."""
    last: Ints
    """(keys,) last set of each layer, `experts` entries a layer."""
    size: Ints
    total: Ints
    layers: int
    experts: int
    width: int
    limit: int


@dataclass(frozen=True)
class CoActivation(PrefetchPolicy):
    """Usual company of a layer's last experts is fetched before its next turn."""

    name: ClassVar[str] = "co-activation"
    source: ClassVar[str] = "doramirdor/mbolt; JustVugg/colibri"
    compiled: ClassVar[bool] = True
    at_layer: ClassVar[bool] = True

    width: Count = 0
    limit: AtLeastOne = 255

    def start(self, pool: Pool, alloc: Allocator, future: Future | None, predictions: Any) -> CoActivationState:
        """No pair seen."""
        return CoActivationState(
            alloc.ints(pool.keys * pool.experts), alloc.ints(pool.keys), alloc.ints(pool.layers),
            alloc.ints(pool.experts), pool.layers, pool.experts, self.width or pool.top_k, self.limit,
        )  # fmt: skip

    @staticmethod
    def learn(state: CoActivationState, event: Event) -> None:
        """Count the pairs and remember the set."""
        experts = state.experts
        base = event.layer * experts
        for i in range(len(event.keys)):
            row = event.keys[i] * experts
            for key in event.keys:
                at = row + key - base
                state.pairs[at] += 1
                if state.pairs[at] >= state.limit:
                    for j in range(row, row + experts):
                        state.pairs[j] //= 2
            state.last[base + i] = event.keys[i]
        state.size[event.layer] = len(event.keys)

    @staticmethod
    def propose(state: CoActivationState, event: Event, keys: Ints, deadlines: Ints) -> int:
        """Highest sums for the next layer."""
        experts = state.experts
        layer = (event.layer + 1) % state.layers
        base = layer * experts
        for j in range(experts):
            state.total[j] = 0
        for i in range(state.size[layer]):
            row = state.last[base + i] * experts
            for j in range(experts):
                state.total[j] += state.pairs[row + j]
        return best_of_layer(state.total, 0, layer, experts, state.width, event.number + 1, keys, deadlines)
