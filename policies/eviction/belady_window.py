"""Belady with a horizon: exact next uses within W tokens, decayed frequency beyond.

    learn:  note every member's next use and count it with weight 2^(pass / half-life); the horizon moves on, and
            residents whose next use it now covers become known
    insert: known or unknown, by its next use
    victim: of the residents with no use inside the horizon the least decayed count (ties: older, lower key);
            if there are none, the furthest next use

The horizon is counted in events, W x layers ahead: W tokens of one-token passes. It models any forecaster of
that reach that is always right.
Source: harshithkantamneni/moe-speed-of-light (windowed Belady, W = 4; half-life 16).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.heaps import (
    Heap,
    decayed_growth,
    decayed_step,
    heap,
    heap_first_free,
    heap_push,
    heap_remove,
)
from expert_residency.policies.parameters import Count, HalfLife
from expert_residency.policies.protocol import (
    Allocator,
    Event,
    EvictionPolicy,
    Floats,
    Future,
    Ints,
    Pool,
    require_future,
)


class BeladyWindowState(NamedTuple):
    """Two heaps a scope: residents with a known next use, and the others."""

    known: Heap
    unknown: Heap
    next_of: Ints
    """(keys,) event of the next use, whether inside the horizon or not."""
    horizon: Ints
    """[first event that cannot be seen]."""
    increment: Floats
    clock: Ints
    """[last stamp, last pass]."""
    growth: float
    reach: int
    next_use: Sequence[int]
    event_offsets: Sequence[int]
    keys: Sequence[int]
    scope_of: Ints


@dataclass(frozen=True)
class BeladyWindow(EvictionPolicy):
    """Perfect foresight over some tokens, decayed frequency beyond them."""

    name: ClassVar[str] = "belady-window"
    source: ClassVar[str] = "harshithkantamneni/moe-speed-of-light"
    compiled: ClassVar[bool] = True
    needs_future: ClassVar[bool] = True

    window_tokens: Count = 4
    half_life_tokens: HalfLife = 16.0

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> BeladyWindowState:
        """Nothing counted; first uses are known as far as the horizon reaches."""
        future = require_future(future, f"policy {self.name}")
        next_of = alloc.ints(pool.keys)
        for key in range(pool.keys):
            next_of[key] = future.first_use[key]
        reach = self.window_tokens * pool.layers
        return BeladyWindowState(
            heap(alloc, pool),
            heap(alloc, pool),
            next_of,
            alloc.ints(1, reach),
            alloc.floats(1, 1.0),
            alloc.ints(2),
            decayed_growth(self.half_life_tokens),
            reach,
            future.next_use,
            future.event_offsets,
            future.keys,
            pool.scope_of,
        )

    @staticmethod
    def learn(state: BeladyWindowState, event: Event) -> None:
        """Members, then the events that come into sight."""
        decayed_step(state.unknown, state.increment, state.growth, event.pass_index - state.clock[1])
        state.clock[1] = event.pass_index
        for i in range(len(event.keys)):
            key = event.keys[i]
            state.clock[0] += 1
            state.unknown.stamp[key] = state.clock[0]
            state.known.stamp[key] = state.clock[0]
            state.unknown.score[key] += state.increment[0]
            state.next_of[key] = state.next_use[event.offset + i]
            state.known.score[key] = -float(state.next_of[key])
            if state.known.place[key] >= 0 or state.unknown.place[key] >= 0:
                _leave(state, key)
                _enter(state, key)
        seen = state.horizon[0]
        state.horizon[0] = event.number + 1 + state.reach
        for number in range(max(seen, 0), min(state.horizon[0], len(state.event_offsets) - 1)):
            for look_up in range(state.event_offsets[number], state.event_offsets[number + 1]):
                key = state.keys[look_up]
                if state.unknown.place[key] >= 0 and state.next_of[key] == number:
                    _leave(state, key)
                    _enter(state, key)

    @staticmethod
    def insert(state: BeladyWindowState, key: int) -> None:
        """By its next use."""
        state.known.score[key] = -float(state.next_of[key])
        _enter(state, key)

    @staticmethod
    def remove(state: BeladyWindowState, key: int) -> None:
        """Leave; the count stays."""
        _leave(state, key)

    @staticmethod
    def victim(state: BeladyWindowState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Somebody without a use in sight, else the furthest."""
        found = heap_first_free(state.unknown, scope, guard, tick)
        return found if found >= 0 else heap_first_free(state.known, scope, guard, tick)


def _enter(state: BeladyWindowState, key: int) -> None:
    if state.next_of[key] < state.horizon[0]:
        state.known.score[key] = -float(state.next_of[key])
        heap_push(state.known, state.scope_of[key], key)
    else:
        heap_push(state.unknown, state.scope_of[key], key)


def _leave(state: BeladyWindowState, key: int) -> None:
    if state.known.place[key] >= 0:
        heap_remove(state.known, state.scope_of[key], key)
    else:
        heap_remove(state.unknown, state.scope_of[key], key)
