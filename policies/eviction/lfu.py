"""Least frequently used.

    learn:  count every member once; stamp it
    insert: `counts=in-cache` starts again at 1, `perfect` keeps the count through evictions
    victim: least (count, stamp, key) that is not protected

The stamp is the last use with perfect counts, the insertion with in-cache counts.
Source: perfect as in Helldez/BigMoeOnEdge route-replay and arXiv 2608.07911; in-cache as in CECAR `LFUCache`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from policies.protocol import Allocator, Event, EvictionPolicy, Future, Ints, Pool
from policies.structures import Heap, heap, heap_first_free, heap_fix, heap_push, heap_remove


class LfuState(NamedTuple):
    """A heap a scope; scores are counts and are kept for non-residents too."""

    order: Heap
    clock: Ints
    perfect: int
    scope_of: Ints


@dataclass(frozen=True)
class Lfu(EvictionPolicy):
    """Least often used expert leaves first."""

    name: ClassVar[str] = "lfu"
    source: ClassVar[str] = "Helldez/BigMoeOnEdge route-replay; arXiv 2608.07911; CECAR (in-cache)"

    counts: Literal["perfect", "in-cache"] = "perfect"

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> LfuState:
        """All counts 0."""
        return LfuState(heap(alloc, pool), alloc.ints(1), int(self.counts == "perfect"), pool.scope_of)

    @staticmethod
    def learn(state: LfuState, event: Event) -> None:
        """Count each member; in-cache counts only residents."""
        for key in event.keys:
            resident = state.order.place[key] >= 0
            if state.perfect == 1:
                state.clock[0] += 1
                state.order.stamp[key] = state.clock[0]
                state.order.score[key] += 1.0
            elif resident:
                state.order.score[key] += 1.0
            if resident:
                heap_fix(state.order, state.scope_of[key], key)

    @staticmethod
    def insert(state: LfuState, key: int) -> None:
        """In-cache counts start at 1 with the insertion's stamp."""
        if state.perfect == 0:
            state.clock[0] += 1
            state.order.stamp[key] = state.clock[0]
            state.order.score[key] = 1.0
        heap_push(state.order, state.scope_of[key], key)

    @staticmethod
    def remove(state: LfuState, key: int) -> None:
        """Leave the heap; a perfect count stays."""
        heap_remove(state.order, state.scope_of[key], key)

    @staticmethod
    def victim(state: LfuState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Least count, then older stamp, then lower key."""
        return heap_first_free(state.order, scope, guard, tick)
