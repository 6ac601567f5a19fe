"""CLOCK, or second chance: a ring of residents with one bit each.

    learn:  set the bit of every resident member
    insert: behind the hand, with the bit `insert_bit`
    victim: advance the hand; a set bit is cleared and passed over; the first clear one leaves
    protected residents are passed over with their bit as it is

Source: textbook; second chance as in libCacheSim `Clock`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from expert_residency.policies.parameters import Within
from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Future, Ints, Pool
from expert_residency.policies.structures import Links, front, links, move_to_back, push_back, unlink


class ClockState(NamedTuple):
    """Rings, one a scope: the hand stands before the front, and passing over means moving to the back."""

    ring: Links
    bit: Ints
    insert_bit: int
    scope_of: Ints


@dataclass(frozen=True)
class Clock(EvictionPolicy):
    """First expert in the ring that was not used since the hand last passed leaves."""

    name: ClassVar[str] = "clock"
    source: ClassVar[str] = "textbook; libCacheSim"
    compiled: ClassVar[bool] = True

    insert_bit: Annotated[int, Within(0, 1)] = 0

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> ClockState:
        """Empty rings."""
        bit = alloc.ints(pool.keys, most=1)
        return ClockState(links(alloc, pool.keys, pool.scopes), bit, int(self.insert_bit != 0), pool.scope_of)

    @staticmethod
    def learn(state: ClockState, event: Event) -> None:
        """Set bits."""
        for key in event.keys:
            if state.ring.home[key] >= 0:
                state.bit[key] = 1

    @staticmethod
    def insert(state: ClockState, key: int) -> None:
        """Behind the hand."""
        state.bit[key] = state.insert_bit
        push_back(state.ring, state.scope_of[key], key)

    @staticmethod
    def remove(state: ClockState, key: int) -> None:
        """Leave the ring."""
        unlink(state.ring, key)

    @staticmethod
    def victim(state: ClockState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Two turns of the hand find any resident that is not protected."""
        for _ in range(2 * state.ring.size[scope]):
            key = front(state.ring, scope)
            if guard[key] < tick:
                if state.bit[key] == 0:
                    return key
                state.bit[key] = 0
            move_to_back(state.ring, key)
        return -1
