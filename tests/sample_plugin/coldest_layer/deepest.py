"""Experts of late layers leave first: early layers cannot be prefetched in time.

    learn, insert: note the time of use
    victim:        deepest layer, then least recently used, then lower key, that is not protected

Source: the bound on what look-ahead can hide, made into an order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from expert_residency.policies import Event, EvictionPolicy, Future, Pool
from expert_residency.policies.protocol import Allocator


@dataclass
class State:
    """Any object will do for a policy that is not compiled."""

    pool: Pool
    members: set[int] = field(default_factory=set)
    last: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class DeepestFirst(EvictionPolicy):
    """Experts of late layers leave first."""

    name: ClassVar[str] = "deepest-first"
    source: ClassVar[str] = "sample"

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> State:
        """Nobody is resident."""
        return State(pool)

    @staticmethod
    def learn(state: State, event: Event) -> None:
        """Note the time of use."""
        for key in event.keys:
            state.last[key] = event.number

    @staticmethod
    def insert(state: State, key: int) -> None:
        """Join the residents."""
        state.members.add(key)

    @staticmethod
    def remove(state: State, key: int) -> None:
        """Leave them."""
        state.members.discard(key)

    @staticmethod
    def victim(state: State, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Deepest layer, then least recently used."""
        pool = state.pool
        free = [key for key in state.members if pool.scope_of[key] == scope and guard[key] < tick]
        return min(free, key=lambda key: (-(key // pool.experts), state.last.get(key, -1), key), default=-1)
