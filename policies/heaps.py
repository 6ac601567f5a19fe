"""Min-heaps over integer keys, one a scope, ordered by (score, stamp, key), with update and removal of any key.

Like `policies.structures` they run alike on Python lists and on numpy arrays. Counts that decay are kept in
the scores of a heap, by letting the increment grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from policies.protocol import Allocator, Floats, Ints, PolicyError, Pool
from policies.structures import packed


class Heap(NamedTuple):
    """Min-heaps over (score, stamp, key), one a scope, stored in one array."""

    items: Ints
    place: Ints
    base: Ints
    size: Ints
    score: Floats
    """(keys,) set by the owner, followed by `heap_fix` where the key is a member."""
    stamp: Ints
    """(keys,) breaks ties, older first; likewise."""


def heap(alloc: Allocator, pool: Pool) -> Heap:
    """Empty heaps."""
    flat = packed(alloc, pool)
    return Heap(*flat, alloc.floats(pool.keys), alloc.ints(pool.keys))


def _less(s: Heap, a: int, b: int) -> bool:
    if s.score[a] != s.score[b]:
        return s.score[a] < s.score[b]
    if s.stamp[a] != s.stamp[b]:
        return s.stamp[a] < s.stamp[b]
    return a < b


def _sift_up(s: Heap, base: int, i: int) -> int:
    key = s.items[base + i]
    while i > 0:
        parent = (i - 1) >> 1
        other = s.items[base + parent]
        if not _less(s, key, other):
            break
        s.items[base + i] = other
        s.place[other] = base + i
        i = parent
    s.items[base + i] = key
    s.place[key] = base + i
    return i


def _sift_down(s: Heap, base: int, i: int, n: int) -> None:
    key = s.items[base + i]
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and _less(s, s.items[base + child + 1], s.items[base + child]):
            child += 1
        other = s.items[base + child]
        if not _less(s, other, key):
            break
        s.items[base + i] = other
        s.place[other] = base + i
        i = child
    s.items[base + i] = key
    s.place[key] = base + i


def heap_push(s: Heap, scope: int, key: int) -> None:
    """Add a key whose score and stamp are set."""
    base = s.base[scope]
    n = s.size[scope]
    s.items[base + n] = key
    s.size[scope] = n + 1
    _sift_up(s, base, n)


def heap_fix(s: Heap, scope: int, key: int) -> None:
    """Restore order after a member's score or stamp changed."""
    base = s.base[scope]
    at = _sift_up(s, base, s.place[key] - base)
    _sift_down(s, base, at, s.size[scope])


def heap_remove(s: Heap, scope: int, key: int) -> None:
    """Remove any member."""
    base = s.base[scope]
    at = s.place[key] - base
    n = s.size[scope] - 1
    s.size[scope] = n
    s.place[key] = -1
    if at < n:
        moved = s.items[base + n]
        s.items[base + at] = moved
        s.place[moved] = base + at
        _sift_down(s, base, _sift_up(s, base, at), n)


def heap_rebuild(s: Heap, scope: int) -> None:
    """Restore order after any number of scores changed."""
    n = s.size[scope]
    for i in range(n):
        s.size[scope] = i
        heap_push(s, scope, s.items[s.base[scope] + i])


def heap_first_free(s: Heap, scope: int, guard: Sequence[int], tick: int) -> int:
    """Least member that is not protected, or -1.

    Protected members above it are set aside and put back: at most as many as there are protected ones.
    """
    base = s.base[scope]
    full = s.size[scope]
    found = -1
    # Protected tops move to the free end of the heap's own array, then come back.
    while s.size[scope] > 0:
        top = s.items[base]
        if guard[top] < tick:
            found = top
            break
        n = s.size[scope] - 1
        last = s.items[base + n]
        s.items[base] = last
        s.place[last] = base
        s.items[base + n] = top
        s.place[top] = base + n
        s.size[scope] = n
        if n > 0:
            _sift_down(s, base, 0, n)
    while s.size[scope] < full:
        n = s.size[scope]
        s.size[scope] = n + 1
        _sift_up(s, base, n)
    return found


SCALE = 2.0**-300


def decayed_growth(half_life: float, policy: str) -> float:
    """Factor by which a new use outweighs one of the pass before."""
    if half_life <= 0:
        raise PolicyError(f"policy {policy}: half_life_tokens is {half_life}, expected more than 0")
    return float(2.0 ** (1.0 / half_life))


def decayed_step(s: Heap, increment: Floats, growth: float, passes: int) -> None:
    """Let `passes` go by for decayed counts kept in a heap's scores.

    Weighing new uses more is the same as letting old ones fade; a power of two takes all numbers back into range.
    """
    for _ in range(passes):
        increment[0] *= growth
        if increment[0] * SCALE > 1.0:
            increment[0] *= SCALE
            for key in range(len(s.score)):
                s.score[key] *= SCALE
            for scope in range(len(s.size)):
                heap_rebuild(s, scope)
