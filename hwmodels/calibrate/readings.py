"""Repeated measurements: every round takes each one once, so that a drift of the machine meets all alike.

A measurement gives one time or those of several passes. What disturbs a machine comes and goes within seconds, so
over the rounds each pass is taken by itself, and the passes are put together afterwards; the arms of a live
experiment are treated in the same way (`sim.live.variants.Outcome`), or the two would not mean the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
NOISY = 0.25
"""A figure whose middle half of rounds spreads over more than this share of the median is marked."""


class Bench(NamedTuple):
    """One measurement: a name, what was varied, and a function that returns ns, of each pass or of all."""

    name: str
    params: dict[str, Any]
    run: Callable[[], float | Floats]

    @property
    def key(self) -> str:
        """`name param=value ...`"""
        return " ".join([self.name, *(f"{k}={v}" for k, v in self.params.items())])


@dataclass
class Readings:
    """Rounds of readings in ns, (P,) for P passes, by key."""

    rounds: list[dict[str, Floats]] = field(default_factory=list)

    def _taken(self, key: str) -> list[Floats]:
        return [reading[key] for reading in self.rounds if key in reading]

    def samples(self, key: str) -> list[float]:
        """Mean reading of each round, in order."""
        return [float(taken.mean()) for taken in self._taken(key)]

    def means(self) -> list[dict[str, float]]:
        """The rounds, each measurement with its mean."""
        return [{key: float(taken.mean()) for key, taken in reading.items()} for reading in self.rounds]

    def keys(self) -> list[str]:
        """Everything that was measured."""
        return list(self.rounds[0]) if self.rounds else []

    def quantiles(self, share: float) -> dict[str, float]:
        """The quantile over the rounds of each pass, and of these the mean, by key."""
        return {key: float(usual_ns(self._taken(key), share)) for key in self.keys()}

    def table(self, share: float = 0.25) -> list[dict[str, Any]]:
        """Of each the quantile over the rounds, median, lowest and highest, and whether it is noisy."""
        rows, usual = [], self.quantiles(share)
        for key in self.keys():
            found = self.samples(key)
            rows.append(
                {
                    "measurement": key,
                    "usual_us": round(usual[key] / 1e3, 3),
                    "median_us": round(statistics.median(found) / 1e3, 3),
                    "low_us": round(min(found) / 1e3, 3),
                    "high_us": round(max(found) / 1e3, 3),
                    "noisy": is_noisy(found),
                }
            )
        return rows


def usual_ns(rounds: Sequence[npt.NDArray[Any]], share: float) -> float:
    """Time of a pass out of rounds of (P,) passes: each pass's quantile over the rounds, and of these the mean.

    Quantiles by Hyndman and Fan's eighth definition (The American Statistician 50, 1996), whose level does not
    depend on how many rounds there are.
    """
    return float(np.quantile(np.asarray(rounds), share, axis=0, method="median_unbiased").mean())


def is_noisy(found: Sequence[float]) -> bool:
    """Whether the middle half of the readings spreads too far."""
    middle = statistics.median(found)
    if len(found) < 3 or middle <= 0:
        return False
    ordered = sorted(found)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / middle > NOISY


def measure(
    benches: Iterable[Bench],
    rounds: int,
    progress: Callable[[str], None] | None = None,
    between: Callable[[], None] | None = None,
    turns: int = 1,
) -> Readings:
    """Take all measurements `rounds` times, interleaved; one more round before does not count.

    `between` is called in each that does, so that other work on the machine meets the same states of it.

    Parameters
    ----------
    benches
        What to measure.
    rounds
        How often.
    progress
        Told what is measured next.
    between
        Called in each round that counts: once at its end, or `turns` times among the measurements.
    turns
        Calls in a round.

    Returns
    -------
    Readings
        Ns of every bench in every round.
    """
    benches = list(benches)
    readings = Readings()
    for number in range(rounds + 1):
        taken = {}
        done = 0
        for count, bench in enumerate(benches, 1):
            if progress is not None:
                progress(f"round {number} of {rounds}: {bench.key}")
            taken[bench.key] = np.atleast_1d(np.asarray(bench.run(), dtype=np.float64))
            while number > 0 and between is not None and done < count * turns // len(benches):
                between()
                done += 1
        if number > 0:
            readings.rounds.append(taken)
    return readings


def repeat_ns(work: Callable[[], object], times: int) -> float:
    """Median ns of `times` calls."""
    found = []
    for _ in range(times):
        start = time.perf_counter_ns()
        work()
        found.append(time.perf_counter_ns() - start)
    return float(statistics.median(found))
