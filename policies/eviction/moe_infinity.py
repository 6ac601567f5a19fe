"""MoE-Infinity: keep what this request activates, and early layers more than late ones.

    learn:  A[layer][expert] += rows that want it (the activation matrix of the running request)
    insert: nothing more
    victim: least (A + eps) / (sum of A over the layer + eps x experts) x (1 - layer / layers); ties: lower key
    a new request starts with an empty matrix

The open-source form: visit counts of the running request. (The paper predicts them from a collection of past
requests; the prefetcher `activation-match` does that.) `eps` is ours; the paper names it without a value.
Source: MoE-Infinity, arXiv 2401.14361 v3, and its repository.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from expert_residency.policies.heaps import (
    Heap,
    heap,
    heap_first_free,
    heap_fix,
    heap_push,
    heap_rebuild,
    heap_remove,
)
from expert_residency.policies.parameters import Within
from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Floats, Future, Ints, Pool
from expert_residency.policies.structures import by_layer, layer_spans


class MoeInfinityState(NamedTuple):
    """A heap a layer by activation; within a layer the order does not depend on the layer's sum."""

    order: Heap
    total: Floats
    """(layers,) sum of the layer's activations."""
    request: Ints
    spans: Ints
    experts: int
    eps: float


@dataclass(frozen=True)
class MoeInfinity(EvictionPolicy):
    """Expert with the least share of its layer's activations leaves first, late layers before early ones."""

    name: ClassVar[str] = "moe-infinity"
    source: ClassVar[str] = "MoE-Infinity, arXiv 2401.14361"
    compiled: ClassVar[bool] = True

    eps: Annotated[float, Within(1e-12, 1e9)] = 1e-4

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> MoeInfinityState:
        """An empty matrix."""
        return MoeInfinityState(
            heap(alloc, by_layer(alloc, pool)),
            alloc.floats(pool.layers),
            alloc.ints(1),
            layer_spans(alloc, pool),
            pool.experts,
            self.eps,
        )

    @staticmethod
    def learn(state: MoeInfinityState, event: Event) -> None:
        """Add the event to the matrix."""
        order = state.order
        if event.request != state.request[0]:
            state.request[0] = event.request
            for key in range(len(order.score)):
                order.score[key] = 0.0
            for layer in range(len(state.total)):
                state.total[layer] = 0.0
                heap_rebuild(order, layer)
        layer = event.layer
        for i in range(len(event.keys)):
            key = event.keys[i]
            order.score[key] += float(event.rows[i])
            state.total[layer] += float(event.rows[i])
            if order.place[key] >= 0:
                heap_fix(order, layer, key)

    @staticmethod
    def insert(state: MoeInfinityState, key: int) -> None:
        """Join the layer's heap."""
        heap_push(state.order, key // state.experts, key)

    @staticmethod
    def remove(state: MoeInfinityState, key: int) -> None:
        """Leave it; the activation stays."""
        heap_remove(state.order, key // state.experts, key)

    @staticmethod
    def victim(state: MoeInfinityState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Least value among the least active of each layer."""
        layers = len(state.total)
        best = -1
        least = 0.0
        for layer in range(state.spans[scope], state.spans[scope + 1]):
            key = heap_first_free(state.order, layer, guard, tick)
            if key >= 0:
                share = (state.order.score[key] + state.eps) / (state.total[layer] + state.eps * state.experts)
                value = share * (1.0 - layer / layers)
                if best < 0 or value < least:
                    best = key
                    least = value
        return best
