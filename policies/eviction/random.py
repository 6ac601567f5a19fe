"""A random resident leaves: the baseline that any policy must beat.

    victim: uniform over the residents of the scope that are not protected

Source: textbook.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.protocol import Allocator, EvictionPolicy, Future, Ints, Pool
from expert_residency.policies.structures import Packed, draw, packed, packed_add, packed_remove, seeded

TRIES = 64


class RandomState(NamedTuple):
    """Residents side by side, and the generator's last number."""

    members: Packed
    drawn: Ints
    scope_of: Ints


@dataclass(frozen=True)
class Random(EvictionPolicy):
    """Uniformly random expert leaves."""

    name: ClassVar[str] = "random"
    source: ClassVar[str] = "textbook"
    compiled: ClassVar[bool] = True

    seed: int = 1

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> RandomState:
        """Seeded generator."""
        return RandomState(packed(alloc, pool), seeded(alloc, self.seed), pool.scope_of)

    @staticmethod
    def insert(state: RandomState, key: int) -> None:
        """Join the residents."""
        packed_add(state.members, state.scope_of[key], key)

    @staticmethod
    def remove(state: RandomState, key: int) -> None:
        """Leave them."""
        packed_remove(state.members, state.scope_of[key], key)

    @staticmethod
    def victim(state: RandomState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Draw until a resident that is not protected comes; after many tries walk on from the last one."""
        members = state.members
        n = members.size[scope]
        if n == 0:
            return -1
        base = members.base[scope]
        at = 0
        for _ in range(TRIES):
            at = draw(state.drawn) % n
            if guard[members.items[base + at]] < tick:
                return members.items[base + at]
        for step in range(n):
            key = members.items[base + (at + step) % n]
            if guard[key] < tick:
                return key
        return -1
