"""Least frequently recently used: frequency over age.

    learn:  f += 1, last = now for every member; now counts events
    insert: nothing more
    victim: least f / (now - last + 1) that is not protected; ties: lower key

f is kept after eviction. Scores change with time, so every resident of the scope is looked at.
Source: arXiv 2608.07911 (LFRU) and Infernix; clock = layer-call tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from policies.protocol import Allocator, Event, EvictionPolicy, Future, Ints, Pool
from policies.structures import Packed, packed, packed_add, packed_remove


class LfruState(NamedTuple):
    """Counts and last uses of all keys, residents side by side."""

    members: Packed
    uses: Ints
    last: Ints
    now: Ints
    scope_of: Ints


@dataclass(frozen=True)
class Lfru(EvictionPolicy):
    """Expert with the least uses per age leaves first."""

    name: ClassVar[str] = "lfru"
    source: ClassVar[str] = "arXiv 2608.07911; Infernix"

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> LfruState:
        """No use seen."""
        return LfruState(
            packed(alloc, pool), alloc.ints(pool.keys), alloc.ints(pool.keys), alloc.ints(1), pool.scope_of
        )

    @staticmethod
    def learn(state: LfruState, event: Event) -> None:
        """Count and date every member."""
        state.now[0] = event.number
        for key in event.keys:
            state.uses[key] += 1
            state.last[key] = event.number

    @staticmethod
    def insert(state: LfruState, key: int) -> None:
        """Join the residents."""
        packed_add(state.members, state.scope_of[key], key)

    @staticmethod
    def remove(state: LfruState, key: int) -> None:
        """Leave them; the count stays."""
        packed_remove(state.members, state.scope_of[key], key)

    @staticmethod
    def victim(state: LfruState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Least uses / age; compared by cross-multiplication, so that it is exact."""
        members = state.members
        now = state.now[0] + 1
        best = -1
        best_uses, best_age = 0, 1
        base = members.base[scope]
        for i in range(base, base + members.size[scope]):
            key = members.items[i]
            if guard[key] >= tick:
                continue
            uses, age = state.uses[key], now - state.last[key]
            left, right = uses * best_age, best_uses * age
            if best < 0 or left < right or (left == right and key < best):
                best, best_uses, best_age = key, uses, age
        return best
