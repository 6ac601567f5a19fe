"""The experts that a layer used for the previous token are wanted again.

    learn:   remember each layer's last set
    propose: when an event is done, the next layer's remembered set, in its row order
             (`depth` layers ahead, wrapping into the next pass)

Published recall: 38 % (Qwen3-30B-A3B, k = 6), 17.9 % (gpt-oss-120b, k = 2); for a cache that admits every
miss it proposes what is mostly resident already.
Source: Helldez/BigMoeOnEdge; imp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from expert_residency.policies.parameters import Ahead
from expert_residency.policies.protocol import Allocator, Event, Future, Ints, Pool, PrefetchPolicy


class PreviousTokenState(NamedTuple):
    """Last set of each layer, in a table of `width` keys a layer."""

    last: Ints
    size: Ints
    layers: int
    width: int
    depth: int


@dataclass(frozen=True)
class PreviousToken(PrefetchPolicy):
    """A layer's last experts are fetched before its next turn."""

    name: ClassVar[str] = "previous-token"
    source: ClassVar[str] = "Helldez/BigMoeOnEdge; kekzl/imp"
    compiled: ClassVar[bool] = True
    at_layer: ClassVar[bool] = True

    depth: Ahead = 1

    def start(self, pool: Pool, alloc: Allocator, future: Future | None, predictions: Any) -> PreviousTokenState:
        """No set known."""
        return PreviousTokenState(
            alloc.ints(pool.layers * pool.experts), alloc.ints(pool.layers), pool.layers, pool.experts, self.depth
        )

    @staticmethod
    def learn(state: PreviousTokenState, event: Event) -> None:
        """Remember the set."""
        base = event.layer * state.width
        for i in range(len(event.keys)):
            state.last[base + i] = event.keys[i]
        state.size[event.layer] = len(event.keys)

    @staticmethod
    def propose(state: PreviousTokenState, event: Event, keys: Ints, deadlines: Ints) -> int:
        """The remembered set of the layer `depth` ahead."""
        layer = (event.layer + state.depth) % state.layers
        base = layer * state.width
        for i in range(state.size[layer]):
            keys[i] = state.last[base + i]
            deadlines[i] = event.number + state.depth
        return state.size[layer]
