"""Hyperbolic caching: uses over time spent in the cache.

    learn:  n += 1 for every resident member; now counts events
    insert: n = 1, came = now
    victim: least n / (now - came + 1) over a random sample of residents; ties: lower key

Scores of all residents decay at different speeds, which is why a sample is looked at and not a heap; a scope
that is no larger than the sample is looked at whole.
Source: Blankstein et al., ATC 2017 (sample of 64); libCacheSim `Hyperbolic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.parameters import AtLeastOne
from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Future, Ints, Pool
from expert_residency.policies.structures import Packed, draw, packed, packed_add, packed_remove, seeded


class HyperbolicState(NamedTuple):
    """Residents side by side with their uses and arrivals."""

    members: Packed
    uses: Ints
    came: Ints
    now: Ints
    drawn: Ints
    sample: int
    scope_of: Ints


@dataclass(frozen=True)
class Hyperbolic(EvictionPolicy):
    """Expert with the least uses per time in the cache leaves first."""

    name: ClassVar[str] = "hyperbolic"
    source: ClassVar[str] = "Blankstein et al., ATC 2017; libCacheSim"
    compiled: ClassVar[bool] = True

    sample: AtLeastOne = 64
    seed: int = 1

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> HyperbolicState:
        """Nobody in."""
        return HyperbolicState(
            packed(alloc, pool),
            alloc.ints(pool.keys),
            alloc.ints(pool.keys),
            alloc.ints(1),
            seeded(alloc, self.seed),
            self.sample,
            pool.scope_of,
        )

    @staticmethod
    def learn(state: HyperbolicState, event: Event) -> None:
        """Count residents."""
        state.now[0] = event.number
        for key in event.keys:
            if state.members.place[key] >= 0:
                state.uses[key] += 1

    @staticmethod
    def insert(state: HyperbolicState, key: int) -> None:
        """One use, from now."""
        state.uses[key] = 1
        state.came[key] = state.now[0]
        packed_add(state.members, state.scope_of[key], key)

    @staticmethod
    def remove(state: HyperbolicState, key: int) -> None:
        """Forget it."""
        packed_remove(state.members, state.scope_of[key], key)

    @staticmethod
    def victim(state: HyperbolicState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Least rate of the sample; of all residents if the sample held nobody who may leave."""
        base, n = state.members.base[scope], state.members.size[scope]
        best = -1
        if n > state.sample:
            for _ in range(state.sample):
                key = state.members.items[base + draw(state.drawn) % n]
                if guard[key] < tick and (best < 0 or _below(state, key, best)):
                    best = key
        if best < 0:
            for i in range(base, base + n):
                key = state.members.items[i]
                if guard[key] < tick and (best < 0 or _below(state, key, best)):
                    best = key
        return best


def _below(state: HyperbolicState, a: int, b: int) -> bool:
    """Whether a's rate is less than b's, exactly."""
    now = state.now[0] + 1
    left = state.uses[a] * (now - state.came[b])
    right = state.uses[b] * (now - state.came[a])
    return left < right or (left == right and a < b)
