"""ARC: balances recency (T1, seen once) against frequency (T2) by what it regrets having evicted.

    learn:  resident -> newest of T2; remembered in B1: p grows by max(1, B2 / B1); in B2: p shrinks by
            max(1, B1 / B2); p stays between 0 and the slots
    insert: remembered -> newest of T2; else newest of T1
    remove: from T1 -> B1, from T2 -> B2 (keys only); T1 + B1 <= slots, all four <= 2 x slots
    victim: oldest of T1 if T1 > p, or if T1 = p and the newcomer is in B2; else oldest of T2

Source: Megiddo and Modha, FAST 2003; a real p as in libCacheSim `ARC`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Floats, Future, Ints, Pool
from expert_residency.policies.structures import (
    Links,
    drop_front,
    first_free,
    links,
    move_to_back,
    push_back,
    unlink,
)

T1, T2, B1, B2 = 0, 1, 2, 3


class ArcState(NamedTuple):
    """Four recency lists a scope: 4 * scope + T1, T2, B1, B2."""

    order: Links
    target: Floats
    """(scopes,) p, the wanted length of T1."""
    slots: Ints
    scope_of: Ints


@dataclass(frozen=True)
class Arc(EvictionPolicy):
    """Adaptive replacement between experts used once and experts used more often."""

    name: ClassVar[str] = "arc"
    source: ClassVar[str] = "Megiddo and Modha, FAST 2003; libCacheSim"
    compiled: ClassVar[bool] = True

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> ArcState:
        """Empty lists, p = 0."""
        return ArcState(
            links(alloc, pool.keys, 4 * pool.scopes), alloc.floats(pool.scopes), pool.slots, pool.scope_of
        )

    @staticmethod
    def learn(state: ArcState, event: Event) -> None:
        """Promote residents; adapt p to what was evicted too early."""
        order, size = state.order, state.order.size
        for key in event.keys:
            home = order.home[key]
            if home < 0:
                continue
            scope = home // 4
            base = 4 * scope
            which = home - base
            if which == T1:
                unlink(order, key)
                push_back(order, base + T2, key)
            elif which == T2:
                move_to_back(order, key)
            elif which == B1:
                grown = state.target[scope] + max(1.0, size[base + B2] / size[base + B1])
                state.target[scope] = min(float(state.slots[scope]), grown)
            else:
                shrunk = state.target[scope] - max(1.0, size[base + B1] / size[base + B2])
                state.target[scope] = max(0.0, shrunk)

    @staticmethod
    def insert(state: ArcState, key: int) -> None:
        """Into T2 if it is remembered, else into T1."""
        order, scope = state.order, state.scope_of[key]
        base = 4 * scope
        if order.home[key] >= 0:
            unlink(order, key)
            push_back(order, base + T2, key)
        else:
            push_back(order, base + T1, key)
        slots = state.slots[scope]
        drop_front(order, base + B1, max(0, slots - order.size[base + T1]))
        others = order.size[base + T1] + order.size[base + T2] + order.size[base + B1]
        drop_front(order, base + B2, max(0, 2 * slots - others))

    @staticmethod
    def remove(state: ArcState, key: int) -> None:
        """Remembered in B1 or B2."""
        home = state.order.home[key]
        unlink(state.order, key)
        push_back(state.order, home + 2, key)

    @staticmethod
    def victim(state: ArcState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """T1 while it is longer than p."""
        base = 4 * scope
        first, other = base + T1, base + T2
        length, target = state.order.size[first], state.target[scope]
        in_b2 = incoming >= 0 and state.order.home[incoming] == base + B2
        if length < target or (length == target and not in_b2):
            first, other = other, first
        found = first_free(state.order, first, guard, tick)
        return found if found >= 0 else first_free(state.order, other, guard, tick)
