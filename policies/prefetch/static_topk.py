"""The most used experts of a layer are wanted again: the baseline that any look-ahead must beat.

    learn:   count every member
    propose: when an event is done, the `width` experts of the next layer with the highest counts so far
             (`depth` layers ahead, wrapping into the next pass); ties: lower key
    width:   0 stands for the model's top-k

Published recall: 37.6 % (Qwen3-30B-A3B, k = 6), 39.6 % (Gemma-4-26B, k = 6), 26.7 % (gpt-oss-120b, k = 2).
Source: Helldez/BigMoeOnEdge (static top-k list); here the counts are causal, not a profile of the same run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from expert_residency.policies.parameters import Ahead, Count
from expert_residency.policies.prefetch.ranking import best_of_layer
from expert_residency.policies.protocol import Allocator, Event, Future, Ints, Pool, PrefetchPolicy


class StaticTopkState(NamedTuple):
    """Uses of each key."""

    uses: Ints
    layers: int
    experts: int
    width: int
    depth: int


@dataclass(frozen=True)
class StaticTopk(PrefetchPolicy):
    """A layer's most used experts are fetched before its turn."""

    name: ClassVar[str] = "static-topk"
    source: ClassVar[str] = "Helldez/BigMoeOnEdge"
    compiled: ClassVar[bool] = True
    at_layer: ClassVar[bool] = True

    width: Count = 0
    depth: Ahead = 1

    def start(self, pool: Pool, alloc: Allocator, future: Future | None, predictions: Any) -> StaticTopkState:
        """No use seen."""
        return StaticTopkState(
            alloc.ints(pool.keys), pool.layers, pool.experts, self.width or pool.top_k, self.depth
        )

    @staticmethod
    def learn(state: StaticTopkState, event: Event) -> None:
        """Count every member."""
        for key in event.keys:
            state.uses[key] += 1

    @staticmethod
    def propose(state: StaticTopkState, event: Event, keys: Ints, deadlines: Ints) -> int:
        """Highest counts of the layer `depth` ahead."""
        layer = (event.layer + state.depth) % state.layers
        return best_of_layer(
            state.uses, layer * state.experts, layer, state.experts, state.width,
            event.number + state.depth, keys, deadlines,
        )  # fmt: skip
