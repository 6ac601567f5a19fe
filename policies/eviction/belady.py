"""Belady's rule where every miss must be admitted: the bound for engines that copy every miss.

    learn:  note every member's next use
    victim: furthest next use that is not protected; ties: older use, then lower key

Optimal in hits for uniform sizes under forced admission.
Source: Belady 1966; forced admission as in Helldez/BigMoeOnEdge and arXiv 2608.07911.
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
    heap_remove,
)
from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Future, Ints, Pool, require_future


class BeladyState(NamedTuple):
    """A heap a scope whose least member has the furthest next use (scores are negated next uses)."""

    order: Heap
    clock: Ints
    next_use: Sequence[int]
    scope_of: Ints


@dataclass(frozen=True)
class Belady(EvictionPolicy):
    """Expert used furthest in the future leaves first; every miss is admitted."""

    name: ClassVar[str] = "belady"
    source: ClassVar[str] = "Belady 1966"
    compiled: ClassVar[bool] = True
    needs_future: ClassVar[bool] = True

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> BeladyState:
        """Nobody is used again until seen."""
        future = require_future(future, f"policy {self.name}")
        state = BeladyState(heap(alloc, pool), alloc.ints(1), future.next_use, pool.scope_of)
        for key, first in enumerate(future.first_use):
            state.order.score[key] = -float(first)
        return state

    @staticmethod
    def learn(state: BeladyState, event: Event) -> None:
        """Note the next use of each member."""
        for i in range(len(event.keys)):
            key = event.keys[i]
            state.clock[0] += 1
            state.order.stamp[key] = state.clock[0]
            state.order.score[key] = -float(state.next_use[event.offset + i])
            if state.order.place[key] >= 0:
                heap_fix(state.order, state.scope_of[key], key)

    @staticmethod
    def insert(state: BeladyState, key: int) -> None:
        """Join the heap."""
        heap_push(state.order, state.scope_of[key], key)

    @staticmethod
    def remove(state: BeladyState, key: int) -> None:
        """Leave it."""
        heap_remove(state.order, state.scope_of[key], key)

    @staticmethod
    def victim(state: BeladyState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Furthest next use."""
        return heap_first_free(state.order, scope, guard, tick)
