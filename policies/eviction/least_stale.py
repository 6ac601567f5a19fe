"""Least-Stale: what the current pass has not touched goes first.

    learn:  members become the newest; a prefetched member is from now on like any other
    insert: newest; one that no event wanted (a prefetch) waits in a list of its own, by arrival
    victim: stale residents first, oldest first; then those that this pass has used, oldest first; last the
            prefetched ones that still wait. One that has waited for more than a whole pass is stale.

Without prefetching it is LRU, exactly. The published text names the two classes, stale and current; that an
expert fetched for this pass counts as current until it is used is how we read it.
Source: SpecMD, arXiv 2602.03921.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Future, Ints, Pool
from expert_residency.policies.structures import (
    Links,
    first_free,
    links,
    move_to_back,
    push_back,
    push_by_stamp,
    unlink,
)


class LeastStaleState(NamedTuple):
    """Two lists a scope, oldest in front: 2 * scope used, 2 * scope + 1 prefetched and waiting."""

    order: Links
    stamp: Ints
    came: Ints
    """(keys,) pass in which a prefetched key came."""
    clock: Ints
    """[last stamp, last stamp before the current event, current pass]."""
    scope_of: Ints


@dataclass(frozen=True)
class LeastStale(EvictionPolicy):
    """Experts that the current pass has not touched leave first."""

    name: ClassVar[str] = "least-stale"
    source: ClassVar[str] = "SpecMD, arXiv 2602.03921"
    compiled: ClassVar[bool] = True

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> LeastStaleState:
        """Empty lists."""
        return LeastStaleState(
            links(alloc, pool.keys, 2 * pool.scopes),
            alloc.ints(pool.keys),
            alloc.ints(pool.keys),
            alloc.ints(3),
            pool.scope_of,
        )

    @staticmethod
    def learn(state: LeastStaleState, event: Event) -> None:
        """Stamp members in row order; residents become the newest of the used."""
        order = state.order
        state.clock[1] = state.clock[0]
        state.clock[2] = event.pass_index
        for key in event.keys:
            state.clock[0] += 1
            state.stamp[key] = state.clock[0]
            home = order.home[key]
            if home < 0:
                continue
            if home % 2 == 0:
                move_to_back(order, key)
            else:
                unlink(order, key)
                push_back(order, home - 1, key)

    @staticmethod
    def insert(state: LeastStaleState, key: int) -> None:
        """A member of the event keeps its row's place; any other key waits."""
        scope = state.scope_of[key]
        if state.stamp[key] > state.clock[1]:
            push_by_stamp(state.order, 2 * scope, key, state.stamp)
        else:
            state.clock[0] += 1
            state.stamp[key] = state.clock[0]
            state.came[key] = state.clock[2]
            push_back(state.order, 2 * scope + 1, key)

    @staticmethod
    def remove(state: LeastStaleState, key: int) -> None:
        """Forget its place."""
        unlink(state.order, key)

    @staticmethod
    def victim(state: LeastStaleState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """The used list is in order of staleness; a prefetch that waited too long is merged by its stamp."""
        used = first_free(state.order, 2 * scope, guard, tick)
        waiting = first_free(state.order, 2 * scope + 1, guard, tick)
        if used < 0 or waiting < 0:
            return max(used, waiting)
        overdue = state.clock[2] - state.came[waiting] > 1
        return waiting if overdue and state.stamp[waiting] < state.stamp[used] else used
