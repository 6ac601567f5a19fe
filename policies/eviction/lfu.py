"""Least frequently used.

    learn:  count every member once; stamp it
    insert: `counts=in-cache` starts again at 1; `perfect` and `decayed` keep the count through evictions
    victim: least (count, stamp, key) that is not protected

`decayed` halves every count each `half_life_tokens` passes: instead of all counts shrinking, the increment
grows, and now and then everything is scaled back. The stamp is the last use, with in-cache counts the insertion.
Source: perfect as in Helldez/BigMoeOnEdge route-replay and arXiv 2608.07911; in-cache as in CECAR `LFUCache`;
decayed as in harshithkantamneni/moe-speed-of-light (half-life 16; Infernix has 64).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from expert_residency.errors import PolicyError
from expert_residency.policies.heaps import (
    Heap,
    decayed_growth,
    decayed_step,
    heap,
    heap_first_free,
    heap_fix,
    heap_push,
    heap_remove,
)
from expert_residency.policies.parameters import HalfLife
from expert_residency.policies.protocol import (
    Allocator,
    Event,
    EvictionPolicy,
    Floats,
    Future,
    Ints,
    Pool,
)
from expert_residency.policies.tally import (
    Tally,
    tally,
    tally_add,
    tally_first_free,
    tally_remove,
    tally_used,
    tally_wait,
)


class LfuState(NamedTuple):
    """Counts are kept for non-residents too."""

    order: Tally
    clock: Ints
    """[last stamp, last one before the event]."""
    scope_of: Ints


@dataclass(frozen=True)
class Lfu(EvictionPolicy):
    """Least often used expert leaves first."""

    name: ClassVar[str] = "lfu"
    source: ClassVar[str] = (
        "Helldez/BigMoeOnEdge; arXiv 2608.07911; CECAR (in-cache); moe-speed-of-light (decayed)"
    )
    compiled: ClassVar[bool] = True

    counts: Literal["perfect", "in-cache", "decayed"] = "perfect"
    half_life_tokens: HalfLife = 16.0

    def __new__(cls, counts: str = "perfect", half_life_tokens: float = 16.0) -> Lfu:
        """Perfect counts rise one by one, each with the newest stamp; others need a heap."""
        return super().__new__(HeapLfu if cls is Lfu and counts != "perfect" else cls)

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> Any:
        """All counts 0."""
        if self.counts != "perfect":
            raise PolicyError(f"policy {self.name}: counts are {self.counts}, which a subclass of HeapLfu keeps")
        return LfuState(tally(alloc, pool), alloc.ints(2), pool.scope_of)

    @staticmethod
    def learn(state: Any, event: Event) -> None:
        """Count each member."""
        order, clock = state.order.waiting, state.clock
        clock[1] = clock[0]
        for key in event.keys:
            clock[0] += 1
            order.stamp[key] = clock[0]
            order.score[key] += 1.0
            if order.place[key] >= 0 or state.order.members.home[key] >= 0:
                tally_used(state.order, state.scope_of[key], key)

    @staticmethod
    def insert(state: Any, key: int) -> None:
        """A member of the event is among the newest of its count."""
        if state.order.waiting.stamp[key] > state.clock[1]:
            tally_add(state.order, state.scope_of[key], key)
        else:
            tally_wait(state.order, state.scope_of[key], key)

    @staticmethod
    def remove(state: Any, key: int) -> None:
        """Leave; the count stays."""
        tally_remove(state.order, state.scope_of[key], key)

    @staticmethod
    def victim(state: Any, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Least count, then older stamp, then lower key."""
        return tally_first_free(state.order, scope, guard, tick)


class HeapLfuState(NamedTuple):
    """A heap a scope; scores are counts and are kept for non-residents too."""

    order: Heap
    clock: Ints
    """[last stamp, last pass]."""
    increment: Floats
    growth: float
    """Factor of the increment from pass to pass; 1 without decay."""
    in_cache: int
    scope_of: Ints


@dataclass(frozen=True)
class HeapLfu(Lfu):
    """The same with counts that decay, or that are stamped by the insertion."""

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> Any:
        """All counts 0."""
        growth = decayed_growth(self.half_life_tokens) if self.counts == "decayed" else 1.0
        return HeapLfuState(
            heap(alloc, pool),
            alloc.ints(2),
            alloc.floats(1, 1.0),
            growth,
            int(self.counts == "in-cache"),
            pool.scope_of,
        )

    @staticmethod
    def learn(state: Any, event: Event) -> None:
        """Count each member; in-cache counts only residents."""
        order = state.order
        if state.growth != 1.0:
            decayed_step(order, state.increment, state.growth, event.pass_index - state.clock[1])
            state.clock[1] = event.pass_index
        for key in event.keys:
            resident = order.place[key] >= 0
            if state.in_cache == 0:
                state.clock[0] += 1
                order.stamp[key] = state.clock[0]
                order.score[key] += state.increment[0]
            elif resident:
                order.score[key] += 1.0
            if resident:
                heap_fix(order, state.scope_of[key], key)

    @staticmethod
    def insert(state: Any, key: int) -> None:
        """In-cache counts start at 1 with the insertion's stamp."""
        if state.in_cache == 1:
            state.clock[0] += 1
            state.order.stamp[key] = state.clock[0]
            state.order.score[key] = 1.0
        heap_push(state.order, state.scope_of[key], key)

    @staticmethod
    def remove(state: Any, key: int) -> None:
        """Leave the heap; other counts than in-cache stay."""
        heap_remove(state.order, state.scope_of[key], key)

    @staticmethod
    def victim(state: Any, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Least count, then older stamp, then lower key."""
        return heap_first_free(state.order, scope, guard, tick)
