"""A small search for a few factors: no gradients, no dependency, the same answer every time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence


def search(
    loss: Callable[[Sequence[float]], float], start: Sequence[float], *, span: float = 4.0, precision: float = 1e-3
) -> list[float]:
    """Positive factors with the least loss, by pattern search in their logarithms.

    Each factor in turn is tried a step up and a step down; when none helps the step is halved.

    Parameters
    ----------
    loss
        To be made small.
    start
        Where to begin.
    span
        No factor leaves `start` by more than this factor.
    precision
        Relative step at which the search ends.

    Returns
    -------
    list of float
        As many factors as `start` has. Source: Hooke and Jeeves (1961), without its pattern moves.
    """
    at = [math.log(value) for value in start]
    low, high = [x - math.log(span) for x in at], [x + math.log(span) for x in at]
    best = loss(list(start))
    step = 0.4
    while step > precision:
        moved = False
        for i in range(len(at)):
            for sign in (1, -1):
                tried = list(at)
                tried[i] = min(high[i], max(low[i], at[i] + sign * step))
                found = loss([math.exp(x) for x in tried])
                if found < best:
                    at, best, moved = tried, found, True
                    break
        if not moved:
            step /= 2
    return [math.exp(x) for x in at]
