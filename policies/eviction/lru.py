"""Least recently used.

    learn:  stamp every member of the event in the order of its last row; residents move to the back
    insert: to the back (members of one event stay in row order)
    victim: the first from the front that is not protected

Source: textbook. One stamp a look-up, so that experts of one event keep the order of their rows; this
reproduces an engine's residency column exactly (Helldez/BigMoeOnEdge, 2026-07-15-route-trace).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Future, Ints, Pool
from expert_residency.policies.structures import (
    Links,
    first_free,
    links,
    move_to_back,
    push_back,
    push_by_stamp,
    unlink,
)


class LruState(NamedTuple):
    """Recency lists, one a scope, oldest in front."""

    order: Links
    stamp: Ints
    clock: Ints
    """[last stamp given, last stamp before the current event]."""
    scope_of: Ints


@dataclass(frozen=True)
class Lru(EvictionPolicy):
    """Least recently used expert leaves first."""

    name: ClassVar[str] = "lru"
    source: ClassVar[str] = "textbook; row order as in Helldez/BigMoeOnEdge"
    compiled: ClassVar[bool] = True

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> LruState:
        """Empty lists."""
        return LruState(links(alloc, pool.keys, pool.scopes), alloc.ints(pool.keys), alloc.ints(2), pool.scope_of)

    @staticmethod
    def learn(state: LruState, event: Event) -> None:
        """Stamp members in row order; residents move to the back."""
        order, stamp, clock = state.order, state.stamp, state.clock
        home = order.home
        now = clock[0]
        clock[1] = now
        for key in event.keys:
            now += 1
            stamp[key] = now
            if home[key] >= 0:
                move_to_back(order, key)
        clock[0] = now

    @staticmethod
    def insert(state: LruState, key: int) -> None:
        """A member of the event keeps its row's place; any other key comes in as the newest."""
        if state.stamp[key] > state.clock[1]:
            push_by_stamp(state.order, state.scope_of[key], key, state.stamp)
        else:
            state.clock[0] += 1
            state.stamp[key] = state.clock[0]
            push_back(state.order, state.scope_of[key], key)

    @staticmethod
    def remove(state: LruState, key: int) -> None:
        """Forget its place; its stamp stays."""
        unlink(state.order, key)

    @staticmethod
    def victim(state: LruState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Oldest that is not protected."""
        return first_free(state.order, scope, guard, tick)
