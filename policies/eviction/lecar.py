"""LeCaR: learns from regret whether recency or frequency should choose the victim.

    learn:  resident: newest, count + 1; remembered victim of a rule: the *other* rule's weight is multiplied by
            exp(rate * discount^age), age in look-ups since it left, then both are normalised
    insert: newest; count 1, or the remembered count + 1
    remove: the victim is remembered under the rule that chose it (not if both chose it); slots keys a rule
    victim: draw a rule by weight; LRU: oldest; LFU: least count, ties older

Source: Vietri et al., HotStorage 2018; libCacheSim `LeCaR` (rate 0.45, discount 0.005^(1/slots), 0.5 each).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from expert_residency.policies.parameters import Share, Within
from expert_residency.policies.protocol import Allocator, Event, EvictionPolicy, Floats, Future, Ints, Pool
from expert_residency.policies.structures import (
    MODULUS,
    Links,
    draw,
    drop_front,
    first_free,
    links,
    move_to_back,
    push_back,
    seeded,
    unlink,
)
from expert_residency.policies.tally import (
    Tally,
    tally,
    tally_add,
    tally_first_free,
    tally_remove,
    tally_used,
    tally_wait,
)

LRU, LFU, BOTH = 1, 2, 0


class LecarState(NamedTuple):
    """Three lists a scope: 3 * scope residents by recency, + LRU and + LFU the victims of each rule."""

    order: Links
    counts: Tally
    weight: Floats
    """(scopes,) of the LRU rule; the LFU rule has the rest."""
    discount: Floats
    left: Ints
    """(keys,) look-up at which a key left."""
    clock: Ints
    """[last look-up, last one before the event]."""
    chosen: Ints
    """(scopes,) rule that named the last victim."""
    drawn: Ints
    rate: float
    slots: Ints
    scope_of: Ints


@dataclass(frozen=True)
class Lecar(EvictionPolicy):
    """Least recent or least frequent, whichever was regretted less."""

    name: ClassVar[str] = "lecar"
    source: ClassVar[str] = "Vietri et al., HotStorage 2018; libCacheSim"
    compiled: ClassVar[bool] = True

    learning_rate: Annotated[float, Within(0, 100)] = 0.45
    discount_base: Share = 0.005
    seed: int = 1

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> LecarState:
        """Equal weights."""
        discount = alloc.floats(pool.scopes)
        for scope in range(pool.scopes):
            discount[scope] = self.discount_base ** (1.0 / pool.slots[scope])
        return LecarState(
            links(alloc, pool.keys, 3 * pool.scopes),
            tally(alloc, pool),
            alloc.floats(pool.scopes, 0.5),
            discount,
            alloc.ints(pool.keys),
            alloc.ints(2),
            alloc.ints(pool.scopes),
            seeded(alloc, self.seed),
            self.learning_rate,
            pool.slots,
            pool.scope_of,
        )

    @staticmethod
    def learn(state: LecarState, event: Event) -> None:
        """Recency and counts of residents; regret for those that were sent away."""
        state.clock[1] = state.clock[0]
        counts = state.counts.waiting
        for key in event.keys:
            state.clock[0] += 1
            counts.stamp[key] = state.clock[0]
            home = state.order.home[key]
            if home < 0:
                continue
            scope, rule = home // 3, home % 3
            if rule == BOTH:
                move_to_back(state.order, key)
                counts.score[key] += 1.0
                tally_used(state.counts, scope, key)
                continue
            regret = state.discount[scope] ** (state.clock[0] - state.left[key])
            grown = math.exp(state.rate * regret)
            lru, lfu = state.weight[scope], 1.0 - state.weight[scope]
            if rule == LRU:
                lfu *= grown
            else:
                lru *= grown
            state.weight[scope] = lru / (lru + lfu)

    @staticmethod
    def insert(state: LecarState, key: int) -> None:
        """Newest; a remembered key keeps its count."""
        scope, counts = state.scope_of[key], state.counts.waiting
        if state.order.home[key] >= 0:
            unlink(state.order, key)
            counts.score[key] += 1.0
        else:
            counts.score[key] = 1.0
        push_back(state.order, 3 * scope, key)
        if counts.stamp[key] > state.clock[1]:
            tally_add(state.counts, scope, key)
        else:
            tally_wait(state.counts, scope, key)

    @staticmethod
    def remove(state: LecarState, key: int) -> None:
        """Remembered under the rule that named it."""
        scope = state.scope_of[key]
        unlink(state.order, key)
        tally_remove(state.counts, scope, key)
        rule = state.chosen[scope]
        state.chosen[scope] = BOTH
        if rule != BOTH:
            state.left[key] = state.clock[0]
            push_back(state.order, 3 * scope + rule, key)
            drop_front(state.order, 3 * scope + rule, state.slots[scope])

    @staticmethod
    def victim(state: LecarState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """The drawn rule's choice."""
        oldest = first_free(state.order, 3 * scope, guard, tick)
        rarest = tally_first_free(state.counts, scope, guard, tick)
        by_recency = draw(state.drawn) < state.weight[scope] * MODULUS
        if oldest == rarest:
            state.chosen[scope] = BOTH
        else:
            state.chosen[scope] = LRU if by_recency else LFU
        return oldest if by_recency else rarest
