"""Members in order of (count, stamp, key), where nearly every change is one use more: a constant for each.

Members of equal count stand in one list, oldest stamp first, and the lists in use in order of their counts. A use
makes a member the newest of the next list. Who comes without a use (placed, prefetched, swapped in) would have to
be sorted in among others of its count: it waits in a heap until its first use.
Source: lists of equal counts as in Shah, Mitra and Matani 2010, "An O(1) algorithm for implementing the LFU cache
eviction scheme".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from expert_residency.policies.heaps import Heap, before, heap, heap_first_free, heap_push, heap_remove
from expert_residency.policies.protocol import Allocator, Pool
from expert_residency.policies.structures import (
    Links,
    first_free,
    links,
    push_back,
    push_before,
    push_by_stamp,
    unlink,
)


class Tally(NamedTuple):
    """Lists by count and a heap, a scope; counts are `waiting.score`, stamps `waiting.stamp`, of all keys."""

    waiting: Heap
    """Members that were not used since they came."""
    members: Links
    """The others, in lists numbered at will."""
    lists: Links
    """Numbers of lists: one list a scope, ascending by count; those not in use in a last list."""


def tally(alloc: Allocator, pool: Pool) -> Tally:
    """No members; a list for each of them is enough."""
    made = Tally(heap(alloc, pool), links(alloc, pool.keys, pool.keys), links(alloc, pool.keys, pool.scopes + 1))
    for number in range(pool.keys):
        push_back(made.lists, pool.scopes, number)
    return made


def tally_used(s: Tally, scope: int, key: int) -> None:
    """A member's count has gone up by one, and its stamp is newer than all others.

    Parameters
    ----------
    s
        The members, changed in place.
    scope
        Number of the part.
    key
        A member, whose new count and stamp are in `s.waiting`.
    """
    own = s.members.home[key]
    if own < 0:
        heap_remove(s.waiting, scope, key)
        tally_add(s, scope, key)
        return
    above = s.lists.next[own]
    if _count(s, above) == s.waiting.score[key]:
        _leave(s, key)
        push_back(s.members, above, key)
    elif s.members.size[own] > 1:
        unlink(s.members, key)
        push_back(s.members, _new_list(s, scope, above), key)
    # Alone in its list, and nobody to join: the list now stands for the new count.


def tally_add(s: Tally, scope: int, key: int) -> None:
    """Add a key that the current event wants: few members have newer stamps.

    Parameters
    ----------
    s
        The members, changed in place.
    scope
        Number of the part.
    key
        A key that is no member, whose count and stamp are in `s.waiting`.
    """
    count = s.waiting.score[key]
    at = s.lists.next[len(s.members.home) + scope]
    while _count(s, at) < count:
        at = s.lists.next[at]
    if _count(s, at) != count:
        at = _new_list(s, scope, at)
    push_by_stamp(s.members, at, key, s.waiting.stamp)


def tally_wait(s: Tally, scope: int, key: int) -> None:
    """Add any other key.

    Parameters
    ----------
    s
        The members, changed in place.
    scope
        Number of the part.
    key
        A key that is no member.
    """
    heap_push(s.waiting, scope, key)


def tally_remove(s: Tally, scope: int, key: int) -> None:
    """Remove any member.

    Parameters
    ----------
    s
        The members, changed in place.
    scope
        Number of the part.
    key
        A member.
    """
    if s.members.home[key] >= 0:
        _leave(s, key)
    else:
        heap_remove(s.waiting, scope, key)


def tally_first_free(s: Tally, scope: int, guard: Sequence[int], tick: int) -> int:
    """Least (count, stamp, key) that is not protected, or -1.

    Parameters
    ----------
    s
        The members.
    scope
        Number of the part.
    guard
        (keys,) event up to which each key is protected.
    tick
        Protected is a key with `guard[key] >= tick`.

    Returns
    -------
    int
        A key, or -1.
    """
    found = -1
    at = s.lists.next[len(s.members.home) + scope]
    while found < 0 and at < len(s.members.home):
        found = first_free(s.members, at, guard, tick)
        at = s.lists.next[at]
    if s.waiting.size[scope] > 0:
        other = heap_first_free(s.waiting, scope, guard, tick)
        if found < 0:
            return other
        score, stamp = s.waiting.score[found], s.waiting.stamp[found]
        if other >= 0 and not before(s.waiting, score, stamp, found, s.waiting.place[other]):
            return other
    return found


def _count(s: Tally, which: int) -> float:
    """Count of a list's members; behind the last list more than any."""
    keys = len(s.members.home)
    return s.waiting.score[s.members.prev[keys + which]] if which < keys else math.inf


def _new_list(s: Tally, scope: int, after: int) -> int:
    """Number of an empty list that stands before `after`."""
    fresh = s.lists.next[len(s.members.home) + len(s.lists.size) - 1]
    unlink(s.lists, fresh)
    push_before(s.lists, scope, fresh, after)
    return fresh


def _leave(s: Tally, key: int) -> None:
    """Leave a list; an empty one is free again."""
    own = s.members.home[key]
    unlink(s.members, key)
    if s.members.size[own] == 0:
        unlink(s.lists, own)
        unused = len(s.lists.size) - 1
        push_before(s.lists, unused, own, s.lists.next[len(s.members.home) + unused])
