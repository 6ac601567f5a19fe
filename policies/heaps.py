"""Min-heaps over integer keys, one a scope, ordered by (score, stamp, key), with update and removal of any key.

Like `policies.structures` they run alike on Python lists and on numpy arrays. A node has eight children, and what
is compared lies by place in the heap, children side by side: a level costs one line of memory. Counts that decay
are kept in the scores of a heap, by letting the increment grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from expert_residency.policies.protocol import Allocator, Floats, Ints, Pool

ROOT = 7
"""Place of the root in a scope's part; the children of place i stand at 8 (i - 6) and after, in one line."""
LINE = 8
"""Parts of scopes are multiples of this, so that no children are cut by the end of a line."""


class Heap(NamedTuple):
    """Min-heaps over (score, stamp, key), one a scope, stored in one array."""

    items: Ints
    """Keys by place."""
    scores: Floats
    """Their scores and stamps, as they were when the key was pushed or fixed."""
    stamps: Ints
    place: Ints
    """(keys,) index into `items`, or -1."""
    base: Ints
    """(scopes,) first index of each scope's part."""
    size: Ints
    """(scopes,) members."""
    score: Floats
    """(keys,) set by the owner, followed by `heap_fix` where the key is a member."""
    stamp: Ints
    """(keys,) breaks ties, older first; likewise."""


def heap(alloc: Allocator, pool: Pool) -> Heap:
    """Empty heaps."""
    base = alloc.ints(pool.scopes)
    members = [0] * pool.scopes
    for scope in pool.scope_of:
        members[scope] += 1
    total = 0
    for scope in range(pool.scopes):
        base[scope] = total
        total += -(-(members[scope] + ROOT) // LINE) * LINE
    return Heap(
        alloc.ints(total, most=pool.keys), alloc.floats(total), alloc.ints(total),
        alloc.ints(pool.keys, -1, most=total), base, alloc.ints(pool.scopes, most=pool.keys),
        alloc.floats(pool.keys), alloc.ints(pool.keys),
    )  # fmt: skip


def before(s: Heap, score: float, stamp: int, key: int, at: int) -> bool:
    """Whether these stand before the entry at index `at`.

    Parameters
    ----------
    s
        The heaps.
    score, stamp, key
        An entry that need not be in a heap.
    at
        Index into `s.items`.

    Returns
    -------
    bool
        Whether (score, stamp, key) is less than the entry there.
    """
    if score != s.scores[at]:
        return score < s.scores[at]
    if stamp != s.stamps[at]:
        return stamp < s.stamps[at]
    return key < s.items[at]


def _move(s: Heap, source: int, at: int) -> None:
    """Copy an entry to another index."""
    key = s.items[source]
    s.items[at] = key
    s.scores[at] = s.scores[source]
    s.stamps[at] = s.stamps[source]
    s.place[key] = at


def _sift_up(s: Heap, base: int, i: int, score: float, stamp: int, key: int) -> int:
    """Place for an entry, from the hole at place `i` upwards."""
    while i > ROOT:
        parent = (i >> 3) + 6
        if not before(s, score, stamp, key, base + parent):
            break
        _move(s, base + parent, base + i)
        i = parent
    return i


def _sift_down(s: Heap, base: int, i: int, end: int, score: float, stamp: int, key: int) -> int:
    """Place for an entry, from the hole at place `i` downwards; places up to `end` are taken."""
    scores = s.scores
    while True:
        child = 8 * (i - 6)
        if child >= end:
            break
        least = base + child
        value = scores[least]
        for at in range(least + 1, base + min(child + 8, end)):
            other = scores[at]
            if other < value or (other == value and before(s, other, s.stamps[at], s.items[at], least)):
                least = at
                value = other
        if score < value or (score == value and before(s, score, stamp, key, least)):
            break
        _move(s, least, base + i)
        i = least - base
    return i


def _put(s: Heap, at: int, score: float, stamp: int, key: int) -> None:
    s.items[at] = key
    s.scores[at] = score
    s.stamps[at] = stamp
    s.place[key] = at


def heap_push(s: Heap, scope: int, key: int) -> None:
    """Add a key whose score and stamp are set.

    Parameters
    ----------
    s
        The heaps, changed in place.
    scope
        Number of the heap.
    key
        A key that is in no heap.
    """
    base = s.base[scope]
    n = s.size[scope]
    s.size[scope] = n + 1
    score, stamp = s.score[key], s.stamp[key]
    _put(s, base + _sift_up(s, base, ROOT + n, score, stamp, key), score, stamp, key)


def _settle(s: Heap, scope: int, at: int, score: float, stamp: int, key: int) -> None:
    """Find the place of an entry that is to go to index `at` or above or below it."""
    base = s.base[scope]
    hole = at - base
    i = _sift_up(s, base, hole, score, stamp, key)
    if i == hole:
        i = _sift_down(s, base, hole, ROOT + s.size[scope], score, stamp, key)
    _put(s, base + i, score, stamp, key)


def heap_fix(s: Heap, scope: int, key: int) -> None:
    """Restore order after a member's score or stamp changed.

    Parameters
    ----------
    s
        The heaps, changed in place.
    scope
        Number of the heap.
    key
        A member of it.
    """
    _settle(s, scope, s.place[key], s.score[key], s.stamp[key], key)


def heap_remove(s: Heap, scope: int, key: int) -> None:
    """Remove any member.

    Parameters
    ----------
    s
        The heaps, changed in place.
    scope
        Number of the heap.
    key
        A member of it.
    """
    at = s.place[key]
    n = s.size[scope] - 1
    s.size[scope] = n
    s.place[key] = -1
    last = s.base[scope] + ROOT + n
    if at < last:
        _settle(s, scope, at, s.scores[last], s.stamps[last], s.items[last])


def heap_rebuild(s: Heap, scope: int) -> None:
    """Restore order after any number of scores changed."""
    n = s.size[scope]
    for i in range(n):
        s.size[scope] = i
        heap_push(s, scope, s.items[s.base[scope] + ROOT + i])


def heap_first_free(s: Heap, scope: int, guard: Sequence[int], tick: int) -> int:
    """Least member that is not protected, or -1.

    Protected members above it are taken out and put back: at most as many as there are protected ones.

    Parameters
    ----------
    s
        The heaps, the same afterwards.
    scope
        Number of the heap.
    guard
        (keys,) event up to which each key is protected.
    tick
        Protected is a key with `guard[key] >= tick`.

    Returns
    -------
    int
        A key, or -1.
    """
    root = s.base[scope] + ROOT
    full = s.size[scope]
    found = -1
    # Protected tops move to the free end of the heap's own array, then come back.
    while s.size[scope] > 0:
        top = s.items[root]
        if guard[top] < tick:
            found = top
            break
        n = s.size[scope] - 1
        s.size[scope] = n
        score, stamp = s.scores[root], s.stamps[root]
        if n > 0:
            _settle(s, scope, root, s.scores[root + n], s.stamps[root + n], s.items[root + n])
        _put(s, root + n, score, stamp, top)
    while s.size[scope] < full:
        n = s.size[scope]
        s.size[scope] = n + 1
        key, score, stamp = s.items[root + n], s.scores[root + n], s.stamps[root + n]
        at = root - ROOT + _sift_up(s, root - ROOT, ROOT + n, score, stamp, key)
        _put(s, at, score, stamp, key)
    return found


SCALE = 2.0**-300


def decayed_growth(half_life: float) -> float:
    """Factor by which a new use outweighs one of the pass before."""
    return float(2.0 ** (1.0 / half_life))


def decayed_step(s: Heap, increment: Floats, growth: float, passes: int) -> None:
    """Let `passes` go by for decayed counts kept in a heap's scores.

    Weighing new uses more is the same as letting old ones fade; a power of two takes all numbers back into range.

    Parameters
    ----------
    s
        Heaps whose scores are decayed counts.
    increment
        (1,) what a use adds now, changed in place.
    growth
        Factor of the increment a pass, above 1.
    passes
        How many go by.
    """
    for _ in range(passes):
        increment[0] *= growth
        if increment[0] * SCALE > 1.0:
            increment[0] *= SCALE
            for key in range(len(s.score)):
                s.score[key] *= SCALE
            for scope in range(len(s.size)):
                heap_rebuild(s, scope)
