"""Containers over integer keys that run alike on Python lists and on numpy arrays.

`Links`: any number of doubly linked lists in which each key stands at most once (front = next to leave).
`Packed`: an unordered set a scope, for policies that look at every resident.
`draw`: a small random generator.

Only scalar indexing and arithmetic are used, so that the kernel can compile these functions as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from expert_residency.policies.protocol import Allocator, Ints, Pool


class Links(NamedTuple):
    """Circular lists with one sentinel each; sentinel of list i is node `keys + i`."""

    prev: Ints
    next: Ints
    size: Ints
    """(lists,) members of each list."""
    home: Ints
    """(keys,) list in which a key stands, or -1."""


def links(alloc: Allocator, keys: int, lists: int) -> Links:
    """Empty lists.

    Parameters
    ----------
    alloc
        Makes the sequences.
    keys
        Keys are 0 to `keys - 1`.
    lists
        How many lists.

    Returns
    -------
    Links
        Lists of nobody.
    """
    nodes = keys + lists
    made = Links(
        alloc.ints(nodes, most=nodes), alloc.ints(nodes, most=nodes), alloc.ints(lists, most=keys),
        alloc.ints(keys, -1, most=nodes),
    )  # fmt: skip
    for node in range(keys, keys + lists):
        made.prev[node] = node
        made.next[node] = node
    return made


def push_back(s: Links, which: int, key: int) -> None:
    """Append `key`, which must stand in no list.

    Parameters
    ----------
    s
        The lists, changed in place.
    which
        Number of the list.
    key
        A key that stands in no list.
    """
    end = len(s.home) + which
    last = s.prev[end]
    s.next[last] = key
    s.prev[key] = last
    s.next[key] = end
    s.prev[end] = key
    s.home[key] = which
    s.size[which] += 1


def push_before(s: Links, which: int, key: int, after: int) -> None:
    """Insert `key` before the node `after` of the same list (the sentinel: at the back).

    Parameters
    ----------
    s
        The lists, changed in place.
    which
        Number of the list.
    key
        A key that stands in no list.
    after
        Node of that list before which it goes.
    """
    before = s.prev[after]
    s.next[before] = key
    s.prev[key] = before
    s.next[key] = after
    s.prev[after] = key
    s.home[key] = which
    s.size[which] += 1


def push_by_stamp(s: Links, which: int, key: int, stamp: Sequence[int]) -> None:
    """Insert `key` so that the list stays ordered by (stamp, key); the back is looked at first.

    Parameters
    ----------
    s
        The lists, changed in place.
    which
        Number of the list, which is in order already.
    key
        A key that stands in no list.
    stamp
        (keys,) what the list is ordered by.
    """
    end = len(s.home) + which
    after = end
    before = s.prev[end]
    while before != end and (stamp[before] > stamp[key] or (stamp[before] == stamp[key] and before > key)):
        after = before
        before = s.prev[before]
    push_before(s, which, key, after)


def move_to_back(s: Links, key: int) -> None:
    """Make a member the last of the list in which it stands."""
    before_of, after_of = s.prev, s.next
    end = len(s.home) + s.home[key]
    last = before_of[end]
    if last == key:
        return
    before, after = before_of[key], after_of[key]
    after_of[before] = after
    before_of[after] = before
    after_of[last] = key
    before_of[key] = last
    after_of[key] = end
    before_of[end] = key


def unlink(s: Links, key: int) -> None:
    """Take `key` out of the list in which it stands."""
    before, after = s.prev[key], s.next[key]
    s.next[before] = after
    s.prev[after] = before
    s.size[s.home[key]] -= 1
    s.home[key] = -1


def front(s: Links, which: int) -> int:
    """First member, or -1."""
    first = s.next[len(s.home) + which]
    return first if first < len(s.home) else -1


def first_free(s: Links, which: int, guard: Sequence[int], tick: int) -> int:
    """First member that is not protected, or -1.

    Parameters
    ----------
    s
        The lists.
    which
        Number of the list.
    guard
        (keys,) event up to which each key is protected.
    tick
        Protected is a key with `guard[key] >= tick`.

    Returns
    -------
    int
        A key, or -1.
    """
    end = len(s.home) + which
    node = s.next[end]
    while node != end and guard[node] >= tick:
        node = s.next[node]
    return node if node != end else -1


def drop_front(s: Links, which: int, longest: int) -> None:
    """Shorten a list to `longest` members, from the front.

    Parameters
    ----------
    s
        The lists, changed in place.
    which
        Number of the list.
    longest
        Members that may stay.
    """
    while s.size[which] > longest:
        unlink(s, s.next[len(s.home) + which])


MODULUS = 2147483647
MULTIPLIER = 48271


def seeded(alloc: Allocator, seed: int) -> Ints:
    """State of a generator (MINSTD, Park and Miller 1988): both engines draw the same numbers."""
    return alloc.ints(1, seed % (MODULUS - 1) + 1)


def draw(drawn: Ints) -> int:
    """Next number, from 1 to MODULUS - 1."""
    drawn[0] = drawn[0] * MULTIPLIER % MODULUS
    return drawn[0]


def last_first(misses: Ints, n: int, wanted: int) -> int:
    """Bring the last `wanted` of `misses[:n]` to the front, in their order; returns how many there are.

    Parameters
    ----------
    misses
        Positions of misses, reordered in place.
    n
        How many of them count.
    wanted
        How many to bring to the front, at most `n`.

    Returns
    -------
    int
        The smaller of `n` and `wanted`, not below 0.
    """
    count = max(0, min(n, wanted))
    for i in range(count):
        misses[i], misses[n - count + i] = misses[n - count + i], misses[i]
    return count


def by_layer(alloc: Allocator, pool: Pool) -> Pool:
    """The same pool with every layer as a scope of its own, for structures that are kept layer by layer."""
    scope_of = alloc.ints(pool.keys, most=pool.layers)
    for key in range(pool.keys):
        scope_of[key] = key // pool.experts
    return pool._replace(scopes=pool.layers, scope_of=scope_of)


def layer_spans(alloc: Allocator, pool: Pool) -> Ints:
    """(scopes + 1,) first layer of each scope; a scope's layers are contiguous."""
    first = alloc.ints(pool.scopes + 1, pool.layers)
    for layer in range(pool.layers - 1, -1, -1):
        first[pool.scope_of[layer * pool.experts]] = layer
    return first


class Packed(NamedTuple):
    """Members of each scope side by side, for full scans."""

    items: Ints
    place: Ints
    """(keys,) index into `items`, or -1."""
    base: Ints
    """(scopes + 1,) first index of each scope."""
    size: Ints


def packed(alloc: Allocator, pool: Pool) -> Packed:
    """Empty sets, one a scope."""
    made = Packed(
        alloc.ints(pool.keys, most=pool.keys), alloc.ints(pool.keys, -1, most=pool.keys),
        alloc.ints(pool.scopes + 1, most=pool.keys), alloc.ints(pool.scopes, most=pool.keys),
    )  # fmt: skip
    for key in range(pool.keys):
        made.base[pool.scope_of[key] + 1] += 1
    for scope in range(pool.scopes):
        made.base[scope + 1] += made.base[scope]
    return made


def packed_add(s: Packed, scope: int, key: int) -> None:
    """Add a key that is not a member.

    Parameters
    ----------
    s
        The sets, changed in place.
    scope
        Number of the set.
    key
        A key that is in no set.
    """
    at = s.base[scope] + s.size[scope]
    s.items[at] = key
    s.place[key] = at
    s.size[scope] += 1


def packed_remove(s: Packed, scope: int, key: int) -> None:
    """Remove a member; the last one takes its place.

    Parameters
    ----------
    s
        The sets, changed in place.
    scope
        Number of the set.
    key
        A member of it.
    """
    at = s.place[key]
    s.size[scope] -= 1
    moved = s.items[s.base[scope] + s.size[scope]]
    s.items[at] = moved
    s.place[moved] = at
    s.place[key] = -1
