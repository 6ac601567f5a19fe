"""What must be fetched at the least: bytes that no choice of residents can spare.

Between two uses of an expert a cache either holds it all the time, or the later use is a *miss*. Those that are
held at one moment fit into the room. Of all choices the one that lets go whoever is wanted last misses fewest
bytes; here it lets go parts of experts, so that it is the optimum for unequal sizes too, of a problem that asks
less than the real one. Nobody must be admitted, and at the start anybody may be there. For equal sizes it is
Belady's MIN with bypass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from expert_residency.traces import RoutingTrace


@dataclass(frozen=True)
class Uses:
    """Look-ups of a trace with their neighbours.

    Parameters
    ----------
    offsets : (events + 1,)
        Look-ups of each event.
    previous, following : (look-ups,)
        Event in which the same expert was wanted before (-1: none) and is wanted next (number of events: none).
    size_of, scope_of : (events,)
        Bytes of each of the event's experts, and the part of the cache that they share.
    """

    offsets: list[int]
    previous: npt.NDArray[np.int64]
    following: npt.NDArray[np.int64]
    size_of: list[int]
    scope_of: list[int]

    @classmethod
    def of(cls, trace: RoutingTrace, scope_of_layer: Sequence[int]) -> Uses:
        """Of a trace whose layers share the cache so."""
        event = np.repeat(np.arange(trace.n_events), np.diff(trace.event_offsets))
        order = np.argsort(trace.keys, kind="stable")
        keys, events = trace.keys[order], event[order]
        same = keys[1:] == keys[:-1]
        previous = np.full(len(event), -1, dtype=np.int64)
        following = np.full(len(event), trace.n_events, dtype=np.int64)
        previous[order[1:][same]] = events[:-1][same]
        following[order[:-1][same]] = events[1:][same]
        sizes = np.asarray(trace.geometry.expert_bytes, dtype=np.int64)
        scopes = np.asarray(scope_of_layer, dtype=np.int64)
        return cls(
            trace.event_offsets.tolist(), previous, following, sizes[trace.event_layer].tolist(),
            scopes[trace.event_layer].tolist(),
        )  # fmt: skip


def least_missed(uses: Uses, room: Sequence[int], first: int, end: int) -> list[int]:
    """Bytes that look-ups of events `first` to `end` miss at the least, whoever is resident at the start.

    Parameters
    ----------
    uses
        The look-ups.
    room : (scopes,)
        Bytes of each part of the cache.
    first, end
        Events, the last one not included.

    Returns
    -------
    list of int (scopes,)
        Bytes; for experts of equal size in whole slots they are whole experts, and some choice reaches them.
    """
    offsets = uses.offsets
    lo, hi = offsets[first], offsets[end]
    wanted_again = uses.following[lo:hi].tolist()
    new = (uses.previous[lo:hi] < first).tolist()
    held: list[list[int]] = [[] for _ in room]
    """Events at which something held is due, negative: the last one first."""
    used = [0] * len(room)
    due = [0] * (end - first)
    """Bytes held until each event."""
    for e in range(first, end):  # the start: whoever is wanted soonest
        scope, size = uses.scope_of[e], uses.size_of[e]
        fits = min(size * sum(new[offsets[e] - lo : offsets[e + 1] - lo]), room[scope] - used[scope])
        if fits > 0:
            used[scope] += fits
            due[e - first] = fits
            heappush(held[scope], -e)
    missed = [0] * len(room)
    for e in range(first, end):
        scope, size, here = uses.scope_of[e], uses.size_of[e], offsets[e + 1] - offsets[e]
        used[scope] -= due[e - first]
        missed[scope] += here * size - due[e - first]
        heap, most, taken = held[scope], room[scope], used[scope]
        for again in wanted_again[offsets[e] - lo : offsets[e + 1] - lo]:
            if again < end:
                if not due[again - first]:
                    heappush(heap, -again)
                due[again - first] += size
                taken += size
        while taken > most:
            last = -heap[0] - first
            gone = min(due[last], taken - most) if last > e - first else 0
            if last <= e - first or gone == due[last]:
                heappop(heap)
            if gone:
                due[last] -= gone
                taken -= gone
        used[scope] = taken
    return missed
