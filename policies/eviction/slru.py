"""Segmented LRU: a newcomer is on probation until it is used again.

    learn:  probation -> newest of protected; protected -> newest of protected
            when protected is over its share, its oldest falls back to the newest of probation
    insert: newest of probation
    victim: oldest of probation, else oldest of protected

Source: Karedla et al. 1994; protected share of 80 % as in Infernix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.parameters import Share
from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Future, Ints, Pool
from expert_residency.policies.structures import Links, first_free, front, links, move_to_back, push_back, unlink


class SlruState(NamedTuple):
    """Two recency lists a scope: 2 * scope is probation, 2 * scope + 1 protected."""

    order: Links
    room: Ints
    """(scopes,) experts in protected."""
    scope_of: Ints


@dataclass(frozen=True)
class Slru(EvictionPolicy):
    """Oldest expert that was used only once leaves first."""

    name: ClassVar[str] = "slru"
    source: ClassVar[str] = "Karedla et al. 1994; Infernix"
    compiled: ClassVar[bool] = True

    protected_share: Share = 0.8

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> SlruState:
        """Empty lists."""
        room = alloc.ints(pool.scopes)
        for scope in range(pool.scopes):
            room[scope] = int(pool.slots[scope] * self.protected_share)
        return SlruState(links(alloc, pool.keys, 2 * pool.scopes), room, pool.scope_of)

    @staticmethod
    def learn(state: SlruState, event: Event) -> None:
        """Promote residents."""
        order = state.order
        for key in event.keys:
            home = order.home[key]
            if home < 0:
                continue
            if home % 2 == 1:
                move_to_back(order, key)
                continue
            unlink(order, key)
            push_back(order, home + 1, key)
            if order.size[home + 1] > state.room[home // 2]:
                oldest = front(order, home + 1)
                unlink(order, oldest)
                push_back(order, home, oldest)

    @staticmethod
    def insert(state: SlruState, key: int) -> None:
        """On probation."""
        push_back(state.order, 2 * state.scope_of[key], key)

    @staticmethod
    def remove(state: SlruState, key: int) -> None:
        """Forget it."""
        unlink(state.order, key)

    @staticmethod
    def victim(state: SlruState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Probation first."""
        found = first_free(state.order, 2 * scope, guard, tick)
        return found if found >= 0 else first_free(state.order, 2 * scope + 1, guard, tick)
