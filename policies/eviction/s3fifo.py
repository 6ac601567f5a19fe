"""S3-FIFO: a small queue filters newcomers, a main queue keeps what was used meanwhile.

    learn:  count each resident member; a member remembered in the ghost queue is taken out and will return
    insert: returning -> main; else small (main, while the cache was never full and small is); count 0
    victim: from main if that is over its share or small is empty, else from small
            small: count >= threshold -> main with count 0; else it leaves and is remembered
            main: count > 0 -> back of main with min(count, 3) - 1; else it leaves

Source: Yang et al., SOSP 2023; shares and threshold as in libCacheSim `S3FIFO` (10 %, 90 %, 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.parameters import Count, Ghosts, Share
from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Future, Ints, Pool
from expert_residency.policies.structures import Links, drop_front, links, move_to_back, push_back, unlink

SMALL, MAIN, GHOST = 0, 1, 2


class S3FifoState(NamedTuple):
    """Three queues a scope: 3 * scope + SMALL, MAIN, GHOST."""

    order: Links
    uses: Ints
    returning: Ints
    was_full: Ints
    room_small: Ints
    room_main: Ints
    room_ghost: Ints
    threshold: int
    scope_of: Ints


@dataclass(frozen=True)
class S3Fifo(EvictionPolicy):
    """Experts that are not used in a small first queue leave fast."""

    name: ClassVar[str] = "s3fifo"
    source: ClassVar[str] = "Yang et al., SOSP 2023; libCacheSim"
    compiled: ClassVar[bool] = True

    small_share: Share = 0.1
    ghost_share: Ghosts = 0.9
    threshold: Count = 2

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> S3FifoState:
        """Empty queues; the small one has at least one slot."""
        small, main, ghost = alloc.ints(pool.scopes), alloc.ints(pool.scopes), alloc.ints(pool.scopes)
        for scope in range(pool.scopes):
            slots = pool.slots[scope]
            small[scope] = max(1, int(slots * self.small_share))
            main[scope] = slots - small[scope]
            ghost[scope] = int(slots * self.ghost_share)
        return S3FifoState(
            links(alloc, pool.keys, 3 * pool.scopes),
            alloc.ints(pool.keys),
            alloc.ints(pool.keys, most=1),
            alloc.ints(pool.scopes, most=1),
            small,
            main,
            ghost,
            self.threshold,
            pool.scope_of,
        )

    @staticmethod
    def learn(state: S3FifoState, event: Event) -> None:
        """Count residents; note who returns."""
        for key in event.keys:
            home = state.order.home[key]
            if home < 0:
                continue
            if home % 3 == GHOST:
                unlink(state.order, key)
                state.returning[key] = 1
            else:
                state.uses[key] += 1

    @staticmethod
    def insert(state: S3FifoState, key: int) -> None:
        """Into small or main."""
        scope = state.scope_of[key]
        small = 3 * scope + SMALL
        filling = state.was_full[scope] == 0 and state.order.size[small] >= state.room_small[scope]
        if state.order.home[key] >= 0:  # remembered, and fetched without being wanted
            unlink(state.order, key)
        push_back(state.order, 3 * scope + MAIN if state.returning[key] == 1 or filling else small, key)
        state.returning[key] = 0
        state.uses[key] = 0

    @staticmethod
    def remove(state: S3FifoState, key: int) -> None:
        """From small it is remembered for a while."""
        home = state.order.home[key]
        unlink(state.order, key)
        if home % 3 == SMALL:
            push_back(state.order, home + GHOST, key)
            drop_front(state.order, home + GHOST, state.room_ghost[home // 3])

    @staticmethod
    def victim(state: S3FifoState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Main if it is over its share, else small; the other if nobody there may leave."""
        state.was_full[scope] = 1
        found = -1
        if state.order.size[3 * scope + MAIN] <= state.room_main[scope]:
            found = _from_small(state, scope, guard, tick)
        if found < 0:
            found = _from_main(state, scope, guard, tick)
        return found if found >= 0 else _from_small(state, scope, guard, tick)


def _from_small(state: S3FifoState, scope: int, guard: Sequence[int], tick: int) -> int:
    """Oldest with too few uses; those with enough move to main."""
    small = 3 * scope + SMALL
    end = len(state.order.home) + small
    node = state.order.next[end]
    while node != end:
        following = state.order.next[node]
        if guard[node] < tick:
            if state.uses[node] < state.threshold:
                return node
            unlink(state.order, node)
            push_back(state.order, small + MAIN, node)
            state.uses[node] = 0
        node = following
    return -1


def _from_main(state: S3FifoState, scope: int, guard: Sequence[int], tick: int) -> int:
    """Oldest without uses; the others go round with one use less. Four rounds empty any count."""
    main = 3 * scope + MAIN
    end = len(state.order.home) + main
    node = state.order.next[end]
    for _ in range(4 * state.order.size[main]):
        following = state.order.next[node]
        if guard[node] < tick:
            if state.uses[node] == 0:
                return node
            state.uses[node] = min(state.uses[node], 3) - 1
            move_to_back(state.order, node)
        if following == end:
            following = state.order.next[end]
        node = following
    return -1
