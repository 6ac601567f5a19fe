"""The best possible hits of a tiny trace, by trying everything: what the bounds are checked against."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations


def best_hits(events: Sequence[Sequence[int]], slots: int, *, bypass: bool) -> int:
    """Most hits that any policy can have with `slots` experts of equal size.

    Parameters
    ----------
    events
        Sets of keys; without `bypass` none larger than `slots`.
    slots
        Capacity.
    bypass
        Whether a miss may be served without being admitted, and members of the event may leave after it.

    Returns
    -------
    int
        Hits, each key once an event.
    """
    reached: dict[frozenset[int], int] = {frozenset(): 0}
    for wanted in events:
        event = frozenset(wanted)
        following: dict[frozenset[int], int] = {}
        for resident, hits in reached.items():
            now = hits + len(resident & event)
            for kept in _choices(resident, event, slots, bypass):
                following[kept] = max(following.get(kept, -1), now)
        reached = following
    return max(reached.values())


def _choices(resident: frozenset[int], event: frozenset[int], slots: int, bypass: bool) -> list[frozenset[int]]:
    """Residencies that may follow an event; to keep less than fits never helps."""
    if bypass:
        together = resident | event
        return [frozenset(kept) for kept in combinations(sorted(together), min(slots, len(together)))]
    others = resident - event
    room = min(slots - len(event), len(others))
    return [event | frozenset(kept) for kept in combinations(sorted(others), room)]
