"""Least frequently recently used: frequency over age.

    learn:  f += 1, last = now for every member; now counts events
    insert: nothing more
    victim: least f / (now - last + 1) that is not protected; ties: lower key

f is kept after eviction. Among residents of equal f the one with the oldest last use is the candidate, so a
list for each frequency is kept in order of (last, key), and the lists in order of f: as f grows no score can
be below f / (now + 1), which ends the search early.
Source: arXiv 2608.07911 (LFRU) and Infernix; clock = layer-call tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Future, Ints, Pool
from expert_residency.policies.structures import Links, first_free, links, push_before, push_by_stamp, unlink


class LfruState(NamedTuple):
    """Counts and last uses of all keys; residents in lists of equal count."""

    members: Links
    """Residents; one list a bucket."""
    buckets: Links
    """Buckets in use, ascending by count; one list a scope, and the free ones in a last list."""
    count_of: Ints
    """(keys,) count that a bucket stands for."""
    uses: Ints
    last: Ints
    now: Ints
    scope_of: Ints


@dataclass(frozen=True)
class Lfru(EvictionPolicy):
    """Expert with the least uses per age leaves first."""

    name: ClassVar[str] = "lfru"
    source: ClassVar[str] = "arXiv 2608.07911; Infernix"
    compiled: ClassVar[bool] = True

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> LfruState:
        """No use seen; a bucket for every resident is enough."""
        buckets = links(alloc, pool.keys, pool.scopes + 1)
        for bucket in range(pool.keys):
            push_before(buckets, pool.scopes, bucket, pool.keys + pool.scopes)
        return LfruState(
            links(alloc, pool.keys, pool.keys),
            buckets,
            alloc.ints(pool.keys),
            alloc.ints(pool.keys),
            alloc.ints(pool.keys),
            alloc.ints(1),
            pool.scope_of,
        )

    @staticmethod
    def learn(state: LfruState, event: Event) -> None:
        """Count and date every member; residents move to the list of their new count."""
        state.now[0] = event.number
        uses, home = state.uses, state.members.home
        for key in event.keys:
            uses[key] += 1
            state.last[key] = event.number
            bucket = home[key]
            if bucket >= 0:
                after = state.buckets.next[bucket]
                unlink(state.members, key)
                if state.members.size[bucket] == 0:
                    _free(state, bucket)
                _join(state, state.scope_of[key], key, after)

    @staticmethod
    def insert(state: LfruState, key: int) -> None:
        """Join the residents of the same count."""
        scope = state.scope_of[key]
        after = state.buckets.next[len(state.uses) + scope]
        while after < len(state.uses) and state.count_of[after] < state.uses[key]:
            after = state.buckets.next[after]
        _join(state, scope, key, after)

    @staticmethod
    def remove(state: LfruState, key: int) -> None:
        """Leave them; the count stays."""
        bucket = state.members.home[key]
        unlink(state.members, key)
        if state.members.size[bucket] == 0:
            _free(state, bucket)

    @staticmethod
    def victim(state: LfruState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Least uses / age; compared by cross-multiplication, so that it is exact."""
        now = state.now[0] + 1
        best = -1
        best_uses, best_age = 0, 1
        end = len(state.uses) + scope
        bucket = state.buckets.next[end]
        while bucket != end:
            uses = state.count_of[bucket]
            if best >= 0 and uses * best_age > best_uses * (now + 1):
                break
            key = first_free(state.members, bucket, guard, tick)
            if key >= 0:
                age = now - state.last[key]
                left, right = uses * best_age, best_uses * age
                if best < 0 or left < right or (left == right and key < best):
                    best, best_uses, best_age = key, uses, age
            bucket = state.buckets.next[bucket]
        return best


def _join(state: LfruState, scope: int, key: int, after: int) -> None:
    """Put `key` into the bucket `after`, if that has its count, or into a new one before it."""
    keys = len(state.uses)
    if after >= keys or state.count_of[after] != state.uses[key]:
        fresh = state.buckets.next[keys + len(state.buckets.size) - 1]
        unlink(state.buckets, fresh)
        push_before(state.buckets, scope, fresh, after)
        state.count_of[fresh] = state.uses[key]
        after = fresh
    push_by_stamp(state.members, after, key, state.last)


def _free(state: LfruState, bucket: int) -> None:
    """Return an empty bucket."""
    unlink(state.buckets, bucket)
    last = len(state.buckets.size) - 1
    push_before(state.buckets, last, bucket, len(state.uses) + last)
