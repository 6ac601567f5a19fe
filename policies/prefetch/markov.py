"""From layer to layer: which experts of the next layer followed the experts of this one.

    learn:   for each pair (i in the last event, j in this one) of neighbouring layers: table[i, j] += 1;
             an entry that reaches `limit` halves its whole row, so old habits fade
    propose: when an event is done, the `width` experts j of the next layer with the highest
             sum of table[i, j] over the event's members i; ties: lower key
    width:   0 stands for the model's top-k; the last layer leads to the first of the next pass

Published: 1.7 to 2.9 points of hits behind gate look-ahead (OLMoE); limit 255 is one byte an entry.
Source: JustVugg/colibri, "phase 2" transition table with saturating counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from expert_residency.policies.parameters import AtLeastOne, Count
from expert_residency.policies.prefetch.ranking import best_of_layer
from expert_residency.policies.protocol import Allocator, Event, Future, Ints, Pool, PrefetchPolicy


class MarkovState(NamedTuple):
    """Transition counts, the set of the last event, and room for one layer's sums."""

    table: Ints
    """(keys x experts,) from a key to an expert of the next layer."""
    last: Ints
    last_size: Ints
    last_layer: Ints
    total: Ints
    layers: int
    experts: int
    width: int
    limit: int


@dataclass(frozen=True)
class Markov(PrefetchPolicy):
    """Experts that used to follow the current ones are fetched for the next layer."""

    name: ClassVar[str] = "markov"
    source: ClassVar[str] = "JustVugg/colibri"
    compiled: ClassVar[bool] = True
    at_layer: ClassVar[bool] = True

    width: Count = 0
    limit: AtLeastOne = 255

    def start(self, pool: Pool, alloc: Allocator, future: Future | None, predictions: Any) -> MarkovState:
        """No transition seen."""
        return MarkovState(
            alloc.ints(pool.keys * pool.experts), alloc.ints(pool.experts), alloc.ints(1), alloc.ints(1, -1),
            alloc.ints(pool.experts), pool.layers, pool.experts, self.width or pool.top_k, self.limit,
        )  # fmt: skip

    @staticmethod
    def learn(state: MarkovState, event: Event) -> None:
        """Count the transitions from the layer before, if that was the last event."""
        experts = state.experts
        if (state.last_layer[0] + 1) % state.layers == event.layer and state.last_layer[0] >= 0:
            for a in range(state.last_size[0]):
                row = state.last[a] * experts
                for key in event.keys:
                    at = row + key % experts
                    state.table[at] += 1
                    if state.table[at] >= state.limit:
                        for j in range(row, row + experts):
                            state.table[j] //= 2
        for i in range(len(event.keys)):
            state.last[i] = event.keys[i]
        state.last_size[0] = len(event.keys)
        state.last_layer[0] = event.layer

    @staticmethod
    def propose(state: MarkovState, event: Event, keys: Ints, deadlines: Ints) -> int:
        """Highest sums for the next layer."""
        experts = state.experts
        for j in range(experts):
            state.total[j] = 0
        for key in event.keys:
            row = key * experts
            for j in range(experts):
                state.total[j] += state.table[row + j]
        layer = (event.layer + 1) % state.layers
        return best_of_layer(state.total, 0, layer, experts, state.width, event.number + 1, keys, deadlines)
