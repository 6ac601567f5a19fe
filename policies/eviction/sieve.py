"""SIEVE: one queue, one visited bit, one hand that leaves survivors where they are.

    learn:  set the bit of every resident member
    insert: at the head (the new end), bit clear
    victim: from the hand towards the head, clear set bits; the first clear one leaves, the hand stays there
    past the head the hand starts again at the tail; protected residents are passed over untouched

Source: Zhang et al., NSDI 2024; libCacheSim `Sieve`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Future, Ints, Pool
from expert_residency.policies.structures import Links, links, push_back, unlink


class SieveState(NamedTuple):
    """Queues, one a scope, tail in front."""

    order: Links
    bit: Ints
    hand: Ints
    """(scopes,) node at which the search goes on; the list's sentinel: at the tail."""
    scope_of: Ints


@dataclass(frozen=True)
class Sieve(EvictionPolicy):
    """First expert that was not used since the hand last passed leaves; the others keep their place."""

    name: ClassVar[str] = "sieve"
    source: ClassVar[str] = "Zhang et al., NSDI 2024; libCacheSim"
    compiled: ClassVar[bool] = True

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> SieveState:
        """Empty queues, hands at the tail."""
        hand = alloc.ints(pool.scopes, most=pool.keys + pool.scopes)
        for scope in range(pool.scopes):
            hand[scope] = pool.keys + scope
        bit = alloc.ints(pool.keys, most=1)
        return SieveState(links(alloc, pool.keys, pool.scopes), bit, hand, pool.scope_of)

    @staticmethod
    def learn(state: SieveState, event: Event) -> None:
        """Set bits."""
        for key in event.keys:
            if state.order.home[key] >= 0:
                state.bit[key] = 1

    @staticmethod
    def insert(state: SieveState, key: int) -> None:
        """At the head."""
        state.bit[key] = 0
        push_back(state.order, state.scope_of[key], key)

    @staticmethod
    def remove(state: SieveState, key: int) -> None:
        """Leave; a hand that points here moves on."""
        scope = state.scope_of[key]
        if state.hand[scope] == key:
            state.hand[scope] = state.order.next[key]
        unlink(state.order, key)

    @staticmethod
    def victim(state: SieveState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Two turns of the hand find any resident that is not protected."""
        end = len(state.order.home) + scope
        node = state.hand[scope]
        for _ in range(2 * state.order.size[scope] + 2):
            if node != end and guard[node] < tick:
                if state.bit[node] == 0:
                    state.hand[scope] = node
                    return node
                state.bit[node] = 0
            node = state.order.next[node]
        return -1
