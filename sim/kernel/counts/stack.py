"""LRU at every capacity in one pass (Mattson's stack algorithm), event-atomic, in the compiled subset.

Under the event-atomic contract an LRU of C slots holds, between events, the C keys last wanted, *if* every event
fits: then a look-up hits exactly in the caches with more slots than there are keys wanted since its last use. So
one pass that counts those keys (its *depth*) answers for every C that is at least the largest event of its scope.
With fewer slots members of one event displace each other and the rule no longer holds; nor does it hold for
unequal sizes in one scope, with a placement, or with any admission but `always`.

Depths come from a Fenwick tree a scope over the order of last uses, whose positions are renumbered when they run
out: a logarithm of the scope's keys for each look-up.
Source: Mattson et al. 1970; Olken 1981 (tree).
"""

# ruff: noqa: TC004  (names of the seam are there at run time, but not by import)

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from expert_residency.policies.protocol import Ints

if TYPE_CHECKING:
    from expert_residency.sim.kernel.counts.seam import job_state


class Trees(NamedTuple):
    """One Fenwick tree a scope, side by side; positions of a scope count from 1."""

    base: Ints
    """(scopes,) place of position 0."""
    span: Ints
    """(scopes,) positions, a power of two."""
    sums: Ints
    owner: Ints
    """Key last used at a position, or -1."""
    last: Ints
    """(scopes,) newest position."""
    live: Ints
    """(scopes,) keys seen."""
    position: Ints
    """(keys,) position of the last use, 0 if never used."""


class StackJob(NamedTuple):
    """Steps as in `sim.kernel.counts.loop`, and the histograms to fill."""

    offsets: Ints
    passes: Ints
    keys: Ints
    rows: Ints
    phase_of: Ints
    scope_of: Ints
    trees: Trees
    distinct: Ints
    """(phases x scopes x depths,) look-ups by depth; the last depth: never wanted before."""
    routed: Ints
    """The same, once a row."""
    scopes: int
    depths: int


def count_depths(table: Ints) -> None:
    """Fill both histograms."""
    job = job_state(table)
    trees, keys = job.trees, job.keys
    position, live = trees.position, trees.live
    for e in range(len(job.passes)):
        lo, hi = job.offsets[e], job.offsets[e + 1]
        scope = job.scope_of[keys[lo]]
        if trees.last[scope] + hi - lo > trees.span[scope]:
            _renumber(trees, scope)
        at = (job.phase_of[job.passes[e]] * job.scopes + scope) * job.depths
        for i in range(lo, hi):
            depth = job.depths - 1
            if position[keys[i]] > 0:
                depth = live[scope] - _older(trees, scope, position[keys[i]])
            job.distinct[at + depth] += 1
            job.routed[at + depth] += job.rows[i]
        for i in range(lo, hi):
            _use(trees, scope, keys[i])


def _older(trees: Trees, scope: int, position: int) -> int:
    """Keys last used at `position` or before."""
    sums, base = trees.sums, trees.base[scope]
    total = 0
    while position > 0:
        total += sums[base + position]
        position &= position - 1
    return total


def _use(trees: Trees, scope: int, key: int) -> None:
    """Move a key to the newest position."""
    base, old = trees.base[scope], trees.position[key]
    if old > 0:
        trees.owner[base + old] = -1
        _add(trees, scope, old, -1)
    else:
        trees.live[scope] += 1
    new = trees.last[scope] + 1
    trees.last[scope] = new
    trees.position[key] = new
    trees.owner[base + new] = key
    _add(trees, scope, new, 1)


def _add(trees: Trees, scope: int, position: int, change: int) -> None:
    sums, base, span = trees.sums, trees.base[scope], trees.span[scope]
    while position <= span:
        sums[base + position] += change
        position += position & -position


def _renumber(trees: Trees, scope: int) -> None:
    """Give the keys of a scope the first positions, in the same order."""
    base, span = trees.base[scope], trees.span[scope]
    n = 0
    for old in range(1, span + 1):
        key = trees.owner[base + old]
        if key >= 0:
            n += 1
            trees.owner[base + old] = -1
            trees.owner[base + n] = key
            trees.position[key] = n
    for at in range(1, span + 1):
        trees.sums[base + at] = min(at, n) - min(at - (at & -at), n)
    trees.last[scope] = n
