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
from typing import ClassVar, Literal, NamedTuple

from policies.heaps import decayed_growth, decayed_step, heap_fix
from policies.protocol import Allocator, Event, EvictionPolicy, Floats, Future, Ints, Pool
from policies.tally import Tally, tally, tally_add, tally_first_free, tally_remove, tally_used, tally_wait


class LfuState(NamedTuple):
    """Counts are kept for non-residents too. Other counts than perfect use the heap alone."""

    order: Tally
    clock: Ints
    """[last stamp, last pass, last stamp before the event]."""
    perfect: int
    increment: Floats
    growth: float
    """Factor of the increment from pass to pass; 1 without decay."""
    in_cache: int
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
    half_life_tokens: float = 16.0

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> LfuState:
        """All counts 0."""
        growth = decayed_growth(self.half_life_tokens, self.name) if self.counts == "decayed" else 1.0
        return LfuState(
            tally(alloc, pool),
            alloc.ints(3),
            int(self.counts == "perfect"),
            alloc.floats(1, 1.0),
            growth,
            int(self.counts == "in-cache"),
            pool.scope_of,
        )

    @staticmethod
    def learn(state: LfuState, event: Event) -> None:
        """Count each member; in-cache counts only residents."""
        order = state.order.waiting
        state.clock[2] = state.clock[0]
        if state.growth != 1.0:
            decayed_step(order, state.increment, state.growth, event.pass_index - state.clock[1])
            state.clock[1] = event.pass_index
        for key in event.keys:
            waits = order.place[key] >= 0
            if state.in_cache == 0:
                state.clock[0] += 1
                order.stamp[key] = state.clock[0]
                order.score[key] += state.increment[0]
            elif waits:
                order.score[key] += 1.0
            if state.perfect == 0:
                if waits:
                    heap_fix(order, state.scope_of[key], key)
            elif waits or state.order.members.home[key] >= 0:
                tally_used(state.order, state.scope_of[key], key)

    @staticmethod
    def insert(state: LfuState, key: int) -> None:
        """In-cache counts start at 1 with the insertion's stamp."""
        order = state.order.waiting
        if state.in_cache == 1:
            state.clock[0] += 1
            order.stamp[key] = state.clock[0]
            order.score[key] = 1.0
        if state.perfect == 1 and order.stamp[key] > state.clock[2]:
            tally_add(state.order, state.scope_of[key], key)
        else:
            tally_wait(state.order, state.scope_of[key], key)

    @staticmethod
    def remove(state: LfuState, key: int) -> None:
        """Leave; other counts than in-cache stay."""
        tally_remove(state.order, state.scope_of[key], key)

    @staticmethod
    def victim(state: LfuState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Least count, then older stamp, then lower key."""
        return tally_first_free(state.order, scope, guard, tick)
