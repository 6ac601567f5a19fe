"""LRU-K: the oldest of the last K uses decides.

    learn:  push the look-up's stamp onto each member's last K; kept after eviction
    insert: nothing more
    victim: oldest K-th last use; fewer than K uses count as infinitely old; ties: older last use

Source: O'Neil et al., SIGMOD 1993 (K = 2, correlated-reference period 0); Infernix.
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
    heap_remove,
)
from expert_residency.policies.parameters import Within
from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Future, Ints, Pool


class LruKState(NamedTuple):
    """A heap a scope; score = stamp of the K-th last use, 0 with fewer."""

    order: Heap
    history: Ints
    """(keys * (k - 1),) ring of the stamps before the last one, of each key; 0 for none."""
    oldest: Ints
    """(keys,) place of the oldest in the ring."""
    clock: Ints
    earlier: int
    """k - 1."""
    scope_of: Ints


@dataclass(frozen=True)
class LruK(EvictionPolicy):
    """Expert whose K-th last use is the oldest leaves first."""

    name: ClassVar[str] = "lru-k"
    source: ClassVar[str] = "O'Neil et al., SIGMOD 1993"
    compiled: ClassVar[bool] = True

    k: Annotated[int, Within(1, 1024)] = 2

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> LruKState:
        """No use seen."""
        return LruKState(
            heap(alloc, pool),
            alloc.ints(pool.keys * (self.k - 1)),
            alloc.ints(pool.keys, most=self.k),
            alloc.ints(1),
            self.k - 1,
            pool.scope_of,
        )

    @staticmethod
    def learn(state: LruKState, event: Event) -> None:
        """The oldest stamp in the ring is now the K-th last, and gives its place to this one."""
        order = state.order
        for key in event.keys:
            state.clock[0] += 1
            order.score[key] = float(state.clock[0])
            if state.earlier > 0:
                at = key * state.earlier + state.oldest[key]
                order.score[key] = float(state.history[at])
                state.history[at] = state.clock[0]
                state.oldest[key] = state.oldest[key] + 1 if state.oldest[key] + 1 < state.earlier else 0
            order.stamp[key] = state.clock[0]
            if order.place[key] >= 0:
                heap_fix(order, state.scope_of[key], key)

    @staticmethod
    def insert(state: LruKState, key: int) -> None:
        """Join the heap."""
        heap_push(state.order, state.scope_of[key], key)

    @staticmethod
    def remove(state: LruKState, key: int) -> None:
        """Leave it; the history stays."""
        heap_remove(state.order, state.scope_of[key], key)

    @staticmethod
    def victim(state: LruKState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Oldest K-th last use, then older last use."""
        return heap_first_free(state.order, scope, guard, tick)
