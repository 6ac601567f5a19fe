"""Constants from rows: Gauss and Newton's steps on logarithms, robust against rows far off, held by priors.

A machine counts as the square root of its rows, so that one report with many rows does not decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from expert_residency.sim.validation.measured.arrays import BoolArray, FloatArray
from expert_residency.sim.validation.measured.constants import PRIORS, SPREADS
from expert_residency.sim.validation.measured.formula import Formula

NOISE = 0.2
"""Of a speed: how far runs alike in all that a row says are apart (logarithm): 4 to 40 % in these reports."""
HITS_NOISE, HITS_WEIGHT = 0.5, 1.0
"""Of the logarithm of the odds of a hit."""
_FAR = 1.2
_STEP = 1e-3


class Fit:
    """Rows that constants may be taken from.

    Parameters
    ----------
    formula
        The rows.
    measured_ms : (rows,)
        A token's time.
    machines
        Of each row.
    """

    def __init__(self, formula: Formula, measured_ms: FloatArray, machines: Sequence[str]) -> None:
        self.formula, self.target = formula, np.log(measured_ms)
        counts = Counter(machines)
        self.weight = np.array([1 / np.sqrt(counts[name]) for name in machines])
        given, generated = formula.hits, formula.generated
        self.counted = formula.windows & (given < 1) & (generated > 0) & (generated < 1)  # not where hits are NaN

    def _off(self, logs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """How far off times and hits are (logarithms), 0 where a row gives no hits."""
        ms, windows = self.formula.ms(PRIORS * np.exp(logs))
        hits, simulated = (np.clip(x, 0.001, 0.999) for x in (windows.hits, windows.simulated))
        odds = np.log(simulated / (1 - simulated)) - np.log(hits / (1 - hits))
        return np.log(ms) - self.target, np.where(self.counted, odds, 0.0)

    def __call__(self, use: BoolArray, start: FloatArray | None = None, most_steps: int = 12) -> FloatArray:
        """Logarithms of constants over priors.

        Parameters
        ----------
        use : (rows,)
            Rows that may be seen.
        start : (constants,)
            Where to begin; the priors by default.
        most_steps
            Steps at most.

        Returns
        -------
        array (constants,)
            0 where the prior stands.
        """
        logs = np.zeros(len(PRIORS)) if start is None else start.copy()
        weight = np.where(use, self.weight, 0.0) / NOISE**2
        hits_weight = HITS_WEIGHT * np.where(use & self.counted, self.weight, 0.0) / HITS_NOISE**2
        damping, now = 1e-3, self._cost(logs, weight, hits_weight)
        for _ in range(most_steps):
            off, odds = self._off(logs)
            slopes, hit_slopes = self._slopes(logs, off, odds)
            trusted = weight * np.minimum(1, _FAR * NOISE / np.maximum(abs(off), 1e-9))
            hit_trusted = hits_weight * np.minimum(1, _FAR * HITS_NOISE / np.maximum(abs(odds), 1e-9))
            curvature = slopes.T @ (trusted[:, None] * slopes) + hit_slopes.T @ (hit_trusted[:, None] * hit_slopes)
            curvature += np.diag(1 / SPREADS**2)
            pull = slopes.T @ (trusted * off) + hit_slopes.T @ (hit_trusted * odds) + logs / SPREADS**2
            for _ in range(8):
                step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), pull)
                tried = logs - np.clip(step, -1, 1)
                cost = self._cost(tried, weight, hits_weight)
                if cost < now:
                    break
                damping *= 4
            else:
                return logs
            better, logs, now, damping = now - cost, tried, cost, damping / 3
            if better < 1e-4 * now:
                break
        return logs

    def _slopes(self, logs: FloatArray, off: FloatArray, odds: FloatArray) -> tuple[FloatArray, FloatArray]:
        slopes, hit_slopes = np.zeros((len(off), len(logs))), np.zeros((len(off), len(logs)))
        for number in range(len(logs)):
            moved = logs.copy()
            moved[number] += _STEP
            there, hits_there = self._off(moved)
            slopes[:, number], hit_slopes[:, number] = (there - off) / _STEP, (hits_there - odds) / _STEP
        return slopes, hit_slopes

    def _cost(self, logs: FloatArray, weight: FloatArray, hits_weight: FloatArray) -> float:
        off, odds = self._off(logs)
        total = weight @ _huber(off, NOISE) + hits_weight @ _huber(odds, HITS_NOISE)
        return float(total + 0.5 * ((logs / SPREADS) ** 2).sum())


def _huber(off: FloatArray, noise: float) -> FloatArray:
    """Half the square of what is near, straight beyond."""
    size, near = abs(off), _FAR * noise
    return np.asarray(np.where(size <= near, off**2 / 2, near * (size - near / 2)))
