"""W-TinyLFU: a window for newcomers, and a main part that is entered only by those wanted more often.

    learn:  count every member (saturating at 15, all halved every 10 x slots counts); residents become the newest
            of their list, those on probation of protected (whose oldest falls back when it is over its share)
    insert: newest of the window; what then overflows it goes to probation
    victim: with the window full, its oldest against the oldest of main: the one with fewer counts leaves, the
            window's on a tie; with room in the window, the oldest of main

Counts are exact, one a key, where the original has a sketch: the keys are few and known.
Source: Einziger et al. 2017; Caffeine; window 1 % as in libCacheSim, but at least top-k + 1 experts, for an
event must fit into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.parameters import AtLeastOne, Share
from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Future, Ints, Pool
from expert_residency.policies.structures import Links, first_free, front, links, move_to_back, push_back, unlink

WINDOW, PROBATION, PROTECTED = 0, 1, 2
MOST = 15


class WTinyLfuState(NamedTuple):
    """Three recency lists a scope: 3 * scope + WINDOW, PROBATION, PROTECTED."""

    order: Links
    uses: Ints
    counted: Ints
    """[counts since the last halving]."""
    sample: int
    room_window: Ints
    room_protected: Ints
    scope_of: Ints


@dataclass(frozen=True)
class WTinyLfu(EvictionPolicy):
    """Experts leave a small window for the main cache only if wanted more often than its oldest."""

    name: ClassVar[str] = "wtinylfu"
    source: ClassVar[str] = "Einziger et al. 2017; Caffeine; libCacheSim"
    compiled: ClassVar[bool] = True

    window_share: Share = 0.01
    protected_share: Share = 0.8
    sample_factor: AtLeastOne = 10

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> WTinyLfuState:
        """Empty lists."""
        window, protected = alloc.ints(pool.scopes), alloc.ints(pool.scopes)
        slots = 0
        for scope in range(pool.scopes):
            slots += pool.slots[scope]
            window[scope] = max(pool.top_k + 1, int(pool.slots[scope] * self.window_share))
            protected[scope] = int((pool.slots[scope] - window[scope]) * self.protected_share)
        return WTinyLfuState(
            links(alloc, pool.keys, 3 * pool.scopes),
            alloc.ints(pool.keys),
            alloc.ints(1),
            self.sample_factor * slots,
            window,
            protected,
            pool.scope_of,
        )

    @staticmethod
    def learn(state: WTinyLfuState, event: Event) -> None:
        """Count members, promote residents, age the counts."""
        order, uses = state.order, state.uses
        for key in event.keys:
            uses[key] = min(MOST, uses[key] + 1)
            home = order.home[key]
            if home < 0:
                continue
            if home % 3 != PROBATION:
                move_to_back(order, key)
                continue
            unlink(order, key)
            push_back(order, home + 1, key)
            if order.size[home + 1] > state.room_protected[home // 3]:
                oldest = front(order, home + 1)
                unlink(order, oldest)
                push_back(order, home, oldest)
        state.counted[0] += len(event.keys)
        if state.counted[0] >= state.sample:
            state.counted[0] = 0
            for key in range(len(uses)):
                uses[key] >>= 1

    @staticmethod
    def insert(state: WTinyLfuState, key: int) -> None:
        """Into the window; its oldest makes room for it in probation."""
        scope = state.scope_of[key]
        window = 3 * scope + WINDOW
        push_back(state.order, window, key)
        if state.order.size[window] > state.room_window[scope]:
            oldest = front(state.order, window)
            unlink(state.order, oldest)
            push_back(state.order, window + PROBATION, oldest)

    @staticmethod
    def remove(state: WTinyLfuState, key: int) -> None:
        """Forget its place; the count stays."""
        unlink(state.order, key)

    @staticmethod
    def victim(state: WTinyLfuState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Contest between the window's oldest and main's oldest."""
        base = 3 * scope
        candidate = first_free(state.order, base + WINDOW, guard, tick)
        settled = first_free(state.order, base + PROBATION, guard, tick)
        if settled < 0:
            settled = first_free(state.order, base + PROTECTED, guard, tick)
        if settled < 0:
            return candidate
        if candidate < 0 or state.order.size[base + WINDOW] < state.room_window[scope]:
            return settled
        return settled if state.uses[candidate] > state.uses[settled] else candidate
