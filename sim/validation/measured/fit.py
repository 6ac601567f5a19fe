"""Constants from rows: Gauss and Newton's steps on logarithms, robust against rows far off, held by priors.

Prices are the product's, so slopes are taken once about the constants that ship, row by row over those that a row
uses; what the other machines make of the constants, with one machine left out, is found on these slopes. A machine
counts as the square root of its rows, so that one report with many rows does not decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from expert_residency.sim.validation.measured.arrays import BoolArray, FloatArray
from expert_residency.sim.validation.measured.constants import CONSTANTS, NAMES, PRIORS, SHIPPED, SPREADS
from expert_residency.sim.validation.measured.price import Price, Priced

NOISE = 0.2
"""Of a speed: how far runs alike in all that a row says are apart (logarithm): 4 to 40 % in these reports."""
HITS_NOISE = 0.5
"""Of the logarithm of the odds of a hit."""
_FAR = 1.2
_STEP = 1e-2
_STEPS = 30


@dataclass(frozen=True)
class RowSlopes:
    """One row about the constants that ship, logarithms.

    Parameters
    ----------
    ms
        Of a token.
    odds
        Simulated over counted odds of a hit, 0 where a row counts none.
    by, odds_by : (constants,)
        What a constant changes of them.
    counts
        Whether the row counts hits.
    """

    ms: float
    odds: float
    by: FloatArray
    odds_by: FloatArray
    counts: bool


@dataclass(frozen=True)
class Slopes:
    """Rows about the constants that ship, logarithms.

    Parameters
    ----------
    off, odds : (rows,)
        Predicted over measured time, and simulated over counted odds of a hit (0 where a row counts none).
    by, odds_by : (rows, constants)
        What a constant changes of them.
    counted : (rows,)
        Rows that count hits.
    """

    off: FloatArray
    odds: FloatArray
    by: FloatArray
    odds_by: FloatArray
    counted: BoolArray


def row_slopes(row: Priced, at: FloatArray = SHIPPED) -> RowSlopes:
    """A row's price, and what each constant does to it, by differences of 1 %."""
    price = row(named(at))
    counts, by, odds_by = _counts(row, price), np.zeros(len(NAMES)), np.zeros(len(NAMES))
    odds = _odds(price.windows.simulated) - _odds(price.windows.hits) if counts and price.windows else 0.0
    for number in row.used:
        values = at.copy()
        values[number] *= np.exp(_STEP)
        moved = row(named(values))
        by[number] = np.log(moved.ms / price.ms) / _STEP
        if counts and moved.windows and price.windows:
            odds_by[number] = (_odds(moved.windows.simulated) - _odds(price.windows.simulated)) / _STEP
    return RowSlopes(float(np.log(price.ms)), odds, by, odds_by, counts)


def slopes(found: Sequence[RowSlopes], measured_ms: FloatArray) -> Slopes:
    """Those of many rows together.

    Parameters
    ----------
    found
        Of each row.
    measured_ms : (rows,)
        Of a token.

    Returns
    -------
    Slopes
        In the same order.
    """
    return Slopes(
        np.array([one.ms for one in found]) - np.log(measured_ms), np.array([one.odds for one in found]),
        np.array([one.by for one in found]), np.array([one.odds_by for one in found]),
        np.array([one.counts for one in found], dtype=np.bool_),
    )  # fmt: skip


def named(values: FloatArray) -> dict[str, float]:
    """Constants by name."""
    return dict(zip(NAMES, values.tolist(), strict=True))


def _counts(row: Priced, price: Price) -> bool:
    found = price.windows
    given = row.knobs.hit_pct is not None and row.knobs.hit_pct < 100
    return found is not None and given and 0 < found.simulated < 1


def _odds(share: float) -> float:
    held = min(max(share, 0.001), 0.999)
    return float(np.log(held / (1 - held)))


def weights(machines: Sequence[str]) -> FloatArray:
    """Of each row: one over the square root of its machine's rows."""
    counts = Counter(machines)
    return np.array([1 / np.sqrt(counts[name]) for name in machines])


def most_likely(found: Slopes, weight: FloatArray, at: FloatArray = SHIPPED) -> FloatArray:
    """Constants by rows of some weight and by their priors.

    Parameters
    ----------
    found
        Slopes about `at`.
    weight : (rows,)
        0: not seen.
    at : (constants,)
        Where slopes were taken.

    Returns
    -------
    array (constants,)
        Logarithms over `at`.
    """
    here = np.zeros(len(CONSTANTS))
    start = np.log(at / PRIORS)
    for _ in range(_STEPS):
        off, odds = found.off + found.by @ here, found.odds + found.odds_by @ here
        trusted = weight / NOISE**2 * np.minimum(1, _FAR * NOISE / np.maximum(abs(off), 1e-9))
        hits = np.where(found.counted, weight, 0.0) / HITS_NOISE**2
        hits *= np.minimum(1, _FAR * HITS_NOISE / np.maximum(abs(odds), 1e-9))
        curvature = found.by.T @ (trusted[:, None] * found.by) + found.odds_by.T @ (hits[:, None] * found.odds_by)
        curvature += np.diag(1 / SPREADS**2)
        pull = found.by.T @ (trusted * off) + found.odds_by.T @ (hits * odds) + (start + here) / SPREADS**2
        step = np.linalg.solve(curvature, pull)
        here = here - np.clip(step, -1, 1)
        if abs(step).max() < 1e-5:
            break
    return here
