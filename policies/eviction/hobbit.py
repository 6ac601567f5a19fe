"""HOBBIT: a weighted sum of recency, frequency and layer distance.

    learn:  R = this pass, F += 1 for every member; T = passes of this request so far
    insert: nothing more
    victim: least recency x R / T + frequency x F / T + distance x (1 - ahead / layers), where ahead is how many
            layers from now the expert's layer comes round again (0 for the current one); ties: older, lower key
    a new request starts with R = F = T = 0

The term for uses in high precision is left out: here an expert has one precision. The paper fits the weights
to each model; equal ones are our default.
Source: HOBBIT, arXiv 2411.01433.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.heaps import (
    Heap,
    heap,
    heap_first_free,
    heap_fix,
    heap_push,
    heap_rebuild,
    heap_remove,
)
from expert_residency.policies.parameters import Weight
from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Floats, Future, Ints, Pool
from expert_residency.policies.structures import by_layer, layer_spans


class HobbitState(NamedTuple):
    """A heap a layer by recency x R + frequency x F; the rest is the same for a whole layer."""

    order: Heap
    last: Ints
    uses: Ints
    now: Ints
    """[request, its first pass, current pass, current layer]."""
    clock: Ints
    weights: Floats
    """[recency, frequency, distance]."""
    spans: Ints
    layers: int
    experts: int


@dataclass(frozen=True)
class Hobbit(EvictionPolicy):
    """Expert with the least weighted sum of recency, frequency and nearness of its layer leaves first."""

    name: ClassVar[str] = "hobbit"
    source: ClassVar[str] = "HOBBIT, arXiv 2411.01433"
    compiled: ClassVar[bool] = True

    recency: Weight = 1.0
    frequency: Weight = 1.0
    distance: Weight = 1.0

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> HobbitState:
        """No use seen."""
        weights = alloc.floats(3)
        weights[0], weights[1], weights[2] = self.recency, self.frequency, self.distance
        return HobbitState(
            heap(alloc, by_layer(alloc, pool)),
            alloc.ints(pool.keys),
            alloc.ints(pool.keys),
            alloc.ints(4),
            alloc.ints(1),
            weights,
            layer_spans(alloc, pool),
            pool.layers,
            pool.experts,
        )

    @staticmethod
    def learn(state: HobbitState, event: Event) -> None:
        """Date and count every member."""
        order, now = state.order, state.now
        if event.request != now[0]:
            now[0], now[1] = event.request, event.pass_index
            for key in range(len(state.last)):
                state.last[key] = 0
                state.uses[key] = 0
                order.score[key] = 0.0
            for layer in range(state.layers):
                heap_rebuild(order, layer)
        now[2], now[3] = event.pass_index, event.layer
        for key in event.keys:
            state.clock[0] += 1
            state.last[key] = event.pass_index - now[1] + 1
            state.uses[key] += 1
            order.score[key] = state.weights[0] * state.last[key] + state.weights[1] * state.uses[key]
            order.stamp[key] = state.clock[0]
            if order.place[key] >= 0:
                heap_fix(order, event.layer, key)

    @staticmethod
    def insert(state: HobbitState, key: int) -> None:
        """Join the layer's heap."""
        heap_push(state.order, key // state.experts, key)

    @staticmethod
    def remove(state: HobbitState, key: int) -> None:
        """Leave it; the record stays."""
        heap_remove(state.order, key // state.experts, key)

    @staticmethod
    def victim(state: HobbitState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Least priority among the least of each layer."""
        passes = float(state.now[2] - state.now[1] + 1)
        best = -1
        least = 0.0
        for layer in range(state.spans[scope], state.spans[scope + 1]):
            key = heap_first_free(state.order, layer, guard, tick)
            if key >= 0:
                ahead = (layer - state.now[3]) % state.layers
                near = state.weights[2] * (1.0 - ahead / state.layers)
                value = state.order.score[key] / passes + near
                if best < 0 or value < least:
                    best = key
                    least = value
        return best
