"""Intervals over requests: how far a ratio of speeds may lie elsewhere on other requests of the same kind.

Both runs serve the same requests, so each request gives a pair of times. Requests are drawn with replacement, the
same ones for both, and the ratio of speeds is taken over all that was drawn (tokens over time, not a mean of
ratios). The interval lies between percentiles of these ratios (Efron 1979). Passes of one request depend on each
other and are never drawn apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DRAWS, SEED, LEVEL = 2_000, 1, 0.95
FEWEST = 5
"""Below so many requests percentiles of a bootstrap are too narrow to be called an interval."""


def ratio_interval(
    ns: Sequence[int], base_ns: Sequence[int], *, draws: int = DRAWS, seed: int = SEED
) -> tuple[float, float] | None:
    """Interval of `base_ns` over `ns`, the speed of a run over that of a baseline.

    Parameters
    ----------
    ns, base_ns : (requests,)
        Time of each request in either run, in the same order, above 0.
    draws, seed
        Of the bootstrap.

    Returns
    -------
    tuple[float, float] | None
        Its ends; None with fewer than `FEWEST` requests.
    """
    n = len(ns)
    if n < FEWEST or n != len(base_ns):
        return None
    drawn = np.random.default_rng(seed).integers(0, n, (draws, n))
    sums = np.array([ns, base_ns], dtype=float)[:, drawn].sum(axis=2)
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(sums[1] / sums[0], [tail, 100 - tail])
    return float(low), float(high)
