"""Repeated measurements: every round takes each one once, so that a drift of the machine meets all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

NOISY = 0.25
"""A figure whose middle half of rounds spreads over more than this share of the median is marked."""


class Bench(NamedTuple):
    """One measurement: a name, what was varied, and a function that returns ns."""

    name: str
    params: dict[str, Any]
    run: Callable[[], float]

    @property
    def key(self) -> str:
        """`name param=value ...`"""
        return " ".join([self.name, *(f"{k}={v}" for k, v in self.params.items())])


@dataclass
class Readings:
    """Rounds of readings in ns, by key."""

    rounds: list[dict[str, float]] = field(default_factory=list)

    def samples(self, key: str) -> list[float]:
        """Readings of one measurement, in order."""
        return [reading[key] for reading in self.rounds if key in reading]

    def keys(self) -> list[str]:
        """Everything that was measured."""
        return list(self.rounds[0]) if self.rounds else []

    def quantiles(self, share: float) -> dict[str, float]:
        """The quantile over the rounds, by key."""
        return {key: float(np.quantile(self.samples(key), share)) for key in self.keys()}

    def table(self) -> list[dict[str, Any]]:
        """Median, lowest and highest of each, and whether it is noisy."""
        rows = []
        for key in self.keys():
            found = self.samples(key)
            rows.append(
                {
                    "measurement": key,
                    "median_us": round(statistics.median(found) / 1e3, 3),
                    "low_us": round(min(found) / 1e3, 3),
                    "high_us": round(max(found) / 1e3, 3),
                    "noisy": is_noisy(found),
                }
            )
        return rows


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
) -> Readings:
    """Take all measurements `rounds` times, interleaved; one more round before does not count.

    `between` is called after each that does, so that other work on the machine meets the same states of it.
    """
    benches = list(benches)
    readings = Readings()
    for number in range(rounds + 1):
        taken = {}
        for bench in benches:
            if progress is not None:
                progress(f"round {number} of {rounds}: {bench.key}")
            taken[bench.key] = bench.run()
        if number > 0:
            readings.rounds.append(taken)
            if between is not None:
                between()
    return readings


def repeat_ns(work: Callable[[], object], times: int) -> float:
    """Median ns of `times` calls."""
    found = []
    for _ in range(times):
        start = time.perf_counter_ns()
        work()
        found.append(time.perf_counter_ns() - start)
    return float(statistics.median(found))
