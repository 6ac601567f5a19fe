"""Match what this token has used so far with what earlier tokens used in all layers.

    matrix:  rows wanted of each (layer, expert), summed over `passes` passes; the last `matrices` are kept
    learn:   add the event to the current matrix, and to its inner product with each kept one
    propose: when an event is done, sum the `matches` kept matrices with the highest cosine; each later
             layer's row normalised, times 1 - distance / layers; the `width` best experts with a positive
             value of each of the next `depth` layers, highest first (width 0 stands for the model's top-k)

Published: up to about 120 matrices (3 % of the requests suffice); a matrix there covers a request, and all
experts of all later layers with a positive value are prefetched. A policy is not told where requests begin, so
a matrix covers passes here; `depth`, `width` and `matches` bound the copies and have no published value.
Source: MoE-Infinity, arXiv 2401.14361 v3 (activation matrices, their collection, pEAM).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from expert_residency.policies.parameters import Ahead, AtLeastOne, Count, Within
from expert_residency.policies.protocol import (
    Allocator,
    Event,
    Floats,
    Future,
    Ints,
    Pool,
    PrefetchPolicy,
)


class ActivationMatchState(NamedTuple):
    """Kept matrices (`matrices` x keys), their squared norms, and the current one with its inner products."""

    book: Ints
    norm: Ints
    product: Ints
    current: Ints
    value: Floats
    best: Ints
    counters: Ints
    """Matrices kept, next to overwrite, last pass seen, passes in the current matrix."""
    keys: int
    layers: int
    experts: int
    matrices: int
    passes: int
    depth: int
    width: int
    matches: int


KEPT, NEXT, PASS, FILLED = range(4)


@dataclass(frozen=True)
class ActivationMatch(PrefetchPolicy):
    """Experts of the most similar earlier tokens are fetched for the layers ahead."""

    name: ClassVar[str] = "activation-match"
    source: ClassVar[str] = "MoE-Infinity, arXiv 2401.14361"
    compiled: ClassVar[bool] = True
    at_layer: ClassVar[bool] = True

    matrices: Annotated[int, Within(1, 65536)] = 120
    passes: AtLeastOne = 1
    depth: Ahead = 1
    width: Count = 0
    matches: Annotated[int, Within(1, 65536)] = 3

    def start(self, pool: Pool, alloc: Allocator, future: Future | None, predictions: Any) -> ActivationMatchState:
        """Nothing kept."""
        return ActivationMatchState(
            alloc.ints(self.matrices * pool.keys), alloc.ints(self.matrices), alloc.ints(self.matrices),
            alloc.ints(pool.keys), alloc.floats(pool.keys), alloc.ints(self.matches), alloc.ints(4), pool.keys,
            pool.layers, pool.experts, self.matrices, self.passes, min(self.depth, pool.layers),
            self.width or pool.top_k, self.matches,
        )  # fmt: skip

    @staticmethod
    def learn(state: ActivationMatchState, event: Event) -> None:
        """Add the event; file the current matrix when its last pass is over."""
        counters = state.counters
        if event.pass_index != counters[PASS]:
            counters[PASS] = event.pass_index
            counters[FILLED] += 1
            if counters[FILLED] == state.passes:
                file_current(state)
        for i in range(len(event.keys)):
            key, rows = event.keys[i], event.rows[i]
            state.current[key] += rows
            for m in range(counters[KEPT]):
                state.product[m] += rows * state.book[m * state.keys + key]

    @staticmethod
    def propose(state: ActivationMatchState, event: Event, keys: Ints, deadlines: Ints) -> int:
        """Experts of the best matches, layer by layer, then by value."""
        n_best = best_matches(state)
        if n_best == 0:
            return 0
        n = 0
        for distance in range(1, min(state.depth, state.layers - 1 - event.layer) + 1):
            base = (event.layer + distance) * state.experts
            total = 0.0
            for key in range(base, base + state.experts):
                state.value[key] = 0.0
                for b in range(n_best):
                    state.value[key] += state.book[state.best[b] * state.keys + key]
                total += state.value[key]
            if total == 0.0:
                continue
            near = (1.0 - distance / state.layers) / total
            first = n
            for key in range(base, base + state.experts):
                state.value[key] *= near
                if state.value[key] > 0.0:
                    n = insert_by_value(state.value, key, keys, first, n, first + state.width)
            for i in range(first, n):
                insert_by_value(state.value, keys[i], keys, 0, i, n)
        for i in range(n):
            deadlines[i] = event.number + keys[i] // state.experts - event.layer
        return n


def insert_by_value(value: Floats, key: int, keys: Ints, first: int, n: int, limit: int) -> int:
    """Insert `key` into `keys[first:n]`, highest value first, at most up to `limit`; the new end.

    Parameters
    ----------
    value
        (keys,) what decides.
    key
        To be inserted.
    keys
        Changed in place; `keys[first:n]` is in order.
    first, n
        Begin and end of the part.
    limit
        The end may not come behind this.

    Returns
    -------
    int
        The end of the part now, `n` or `n + 1`.
    """
    if n == limit:
        if value[keys[n - 1]] >= value[key]:
            return n
        n -= 1
    i = n
    while i > first and value[keys[i - 1]] < value[key]:
        keys[i] = keys[i - 1]
        i -= 1
    keys[i] = key
    return n + 1


def file_current(state: ActivationMatchState) -> None:
    """Keep the current matrix, instead of the oldest if there is no room, and begin a new one."""
    counters = state.counters
    slot = counters[NEXT]
    counters[NEXT] = (slot + 1) % state.matrices
    counters[KEPT] = min(counters[KEPT] + 1, state.matrices)
    counters[FILLED] = 0
    norm = 0
    for key in range(state.keys):
        value = state.current[key]
        state.book[slot * state.keys + key] = value
        state.current[key] = 0
        norm += value * value
    state.norm[slot] = norm
    for m in range(state.matrices):
        state.product[m] = 0


def best_matches(state: ActivationMatchState) -> int:
    """Kept matrices with the highest positive cosine to the current one, best first, into `best`; how many."""
    n = 0
    for m in range(state.counters[KEPT]):
        if state.product[m] == 0:
            continue
        if n < state.matches:
            n += 1
        elif not closer(state, m, state.best[n - 1]):
            continue
        i = n - 1
        while i > 0 and closer(state, m, state.best[i - 1]):
            state.best[i] = state.best[i - 1]
            i -= 1
        state.best[i] = m
    return n


def closer(state: ActivationMatchState, a: int, b: int) -> bool:
    """Whether matrix `a` has the higher cosine: products squared over squared norms (the current norm cancels).

    Parameters
    ----------
    state
        Products of kept matrices with the current one, and their squared norms.
    a, b
        Numbers of kept matrices.

    Returns
    -------
    bool
        Whether `a` is closer than `b`.
    """
    left = float(state.product[a]) * state.product[a] * state.norm[b]
    right = float(state.product[b]) * state.product[b] * state.norm[a]
    return left > right
