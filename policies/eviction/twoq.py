"""2Q: newcomers pass through a FIFO queue; only those wanted again after it enter the main LRU.

    learn:  in Am -> newest of Am; in A1in nothing
    insert: remembered in A1out -> newest of Am; else end of A1in
    remove: from A1in -> remembered in A1out (a bounded FIFO of keys, no bytes); from Am forgotten
    victim: oldest of A1in while that is over its share or Am is empty, else oldest of Am

Source: Johnson and Shasha, VLDB 1994 (full version, Kin 25 %, Kout 50 %); libCacheSim `TwoQ`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.parameters import Ghosts, Share
from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Future, Ints, Pool
from expert_residency.policies.structures import (
    Links,
    drop_front,
    first_free,
    links,
    move_to_back,
    push_back,
    unlink,
)


class TwoQState(NamedTuple):
    """Three lists a scope: 3 * scope + 0 A1in, 1 Am, 2 A1out."""

    order: Links
    room_in: Ints
    room_out: Ints
    scope_of: Ints


@dataclass(frozen=True)
class TwoQ(EvictionPolicy):
    """Experts that are not wanted again soon after they came leave through a FIFO queue."""

    name: ClassVar[str] = "2q"
    source: ClassVar[str] = "Johnson and Shasha, VLDB 1994; libCacheSim"
    compiled: ClassVar[bool] = True

    in_share: Share = 0.25
    out_share: Ghosts = 0.5

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> TwoQState:
        """Empty lists."""
        room_in, room_out = alloc.ints(pool.scopes), alloc.ints(pool.scopes)
        for scope in range(pool.scopes):
            room_in[scope] = max(1, int(pool.slots[scope] * self.in_share))
            room_out[scope] = int(pool.slots[scope] * self.out_share)
        return TwoQState(links(alloc, pool.keys, 3 * pool.scopes), room_in, room_out, pool.scope_of)

    @staticmethod
    def learn(state: TwoQState, event: Event) -> None:
        """Recency in Am only."""
        for key in event.keys:
            home = state.order.home[key]
            if home >= 0 and home % 3 == 1:
                move_to_back(state.order, key)

    @staticmethod
    def insert(state: TwoQState, key: int) -> None:
        """Into Am if it is remembered, else into A1in."""
        scope = state.scope_of[key]
        if state.order.home[key] >= 0:
            unlink(state.order, key)
            push_back(state.order, 3 * scope + 1, key)
        else:
            push_back(state.order, 3 * scope, key)

    @staticmethod
    def remove(state: TwoQState, key: int) -> None:
        """From A1in it is remembered for a while."""
        home = state.order.home[key]
        unlink(state.order, key)
        if home % 3 == 0:
            push_back(state.order, home + 2, key)
            drop_front(state.order, home + 2, state.room_out[home // 3])

    @staticmethod
    def victim(state: TwoQState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """A1in while it is over its share."""
        queue, main = 3 * scope, 3 * scope + 1
        if state.order.size[queue] <= state.room_in[scope] and state.order.size[main] > 0:
            queue, main = main, queue
        found = first_free(state.order, queue, guard, tick)
        return found if found >= 0 else first_free(state.order, main, guard, tick)
