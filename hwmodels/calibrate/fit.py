"""From readings to the figures of a profile. Fitted are the medians over the rounds; each round gives the range.

Layers of a live engine are fitted in `oncard` and `cardless`; here is what is measured apart from them:

=============================== ====================================================================
gpu.dense_gb_per_s              a large dense part alone
link                            copies alone: down, and the host's part of one
cpu rates                       slopes of events with 1 to 8 experts, by source and by workers
dram.stream_gb_per_s            what pool and link reach together, if less than the sum of both alone
disk                            reads of a cold file by one reader; several lanes past the page cache
=============================== ====================================================================
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.calibrate.pool import COUNTS as POOL_COUNTS
from expert_residency.hwmodels.calibrate.readings import Readings

Round = Mapping[str, float]
LEAST_US = 0.05
"""An intercept that comes out below zero is noise around a small number; this is written instead."""


@dataclass(frozen=True)
class Figure:
    """A fitted number: median over the rounds, its range, and how it was had."""

    value: float
    low: float
    high: float
    how: str

    @property
    def noisy(self) -> bool:
        """Whether the rounds differ by more than a quarter of the median."""
        return self.value > 0 and (self.high - self.low) / self.value > 0.25


def line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """(intercept, slope) of the least-squares line; of times that do not rise, once they are smoothed.

    Raises
    ------
    HardwareError
        Nothing but noise: the most work took no longer than the least, even smoothed.
    """
    slope = _slope(xs, ys)
    if slope <= 0:
        ys = rising(ys)
        slope = _slope(xs, ys)
    least = max(ys) / max(xs) / 1000  # what rounding leaves of smoothed times is no slope
    if slope <= max(0.0, least):
        slope = max(ys) / max(xs) / 2  # flat: between all of it being fixed, and none
    if slope <= 0:
        raise HardwareError("work took no time: the machine cannot be calibrated")
    return statistics.fmean(ys) - slope * statistics.fmean(xs), slope


def _slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    top = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return top / sum((x - mean_x) ** 2 for x in xs)


def rising(ys: Sequence[float]) -> list[float]:
    """The nearest numbers that never fall (least squares, pool adjacent violators): more work never takes less."""
    pools: list[tuple[float, int]] = []
    for y in ys:
        mean, count = y, 1
        while pools and pools[-1][0] >= mean:
            before, n = pools.pop()
            mean, count = (before * n + mean * count) / (n + count), n + count
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


def us(ns: float) -> float:
    """Microseconds, not below what noise leaves of nothing."""
    return max(LEAST_US, ns / 1e3)


def fit_links(expert_bytes: int) -> Callable[[Round], dict[str, float]]:
    """Fit of one round of copies alone and of the ceilings."""

    def fit(reading: Round) -> dict[str, float]:
        def rate(kind: str, source: str) -> float:
            return expert_bytes / reading[f"{kind} queued source={source} bytes={expert_bytes}"]

        return {
            "link.d2h_gb_per_s": rate("d2h", "pinned"),
            "link.h2d_pageable_gb_per_s": rate("h2d", "page_cache"),
            "link.submit_us": us(reading[f"h2d submit source=pinned bytes={expert_bytes}"]),
            "gpu.dense_gb_per_s.default": 1e9 / reading["card dense"],
            "gpu.mem_gb_per_s": 1e9 / reading["card copy"],
            "gpu.compute_tflops": 1e9 / reading["card product"],
        }

    return fit


def fit_sharing(
    expert_bytes: int, workers: int, experts: int, copy_bytes: int
) -> Callable[[Round], dict[str, float]]:
    """Fit of one round of pool and link together.

    Parameters
    ----------
    expert_bytes
        Bytes of an expert.
    workers
        CPU threads.
    experts
        Experts of a CPU event.
    copy_bytes
        Bytes of a copy.

    Returns
    -------
    Callable[[Round], dict[str, float]]
        A function from a round's readings (ns) to figures by their path in the profile.
    """

    def fit(reading: Round) -> dict[str, float]:
        event = experts * expert_bytes
        pool_alone = event / reading[f"cpu source=pinned workers={workers} experts={experts}"]
        link_alone = copy_bytes / reading[f"h2d queued source=pinned bytes={copy_bytes} alone=1"]
        pool = event / max(1.0, reading[f"cpu beside copies experts={experts} workers={workers}"])
        link = copy_bytes / reading[f"copies beside cpu bytes={copy_bytes} workers={workers}"]
        shared = pool + link
        # Nothing lost beyond the noise: the memory is wider than both together, by how much nobody saw.
        alone = pool_alone + link_alone
        return {"dram.stream_gb_per_s": max(shared, alone) if shared > 0.95 * alone else shared}

    return fit


def fit_pool(
    expert_bytes: int, sources: Sequence[str], workers: Sequence[int], most: int
) -> Callable[[Round], dict[str, float]]:
    """Fit of one round of `pool_benches`: rates by source with all workers, by workers from the first source.

    Parameters
    ----------
    expert_bytes
        Bytes of an expert.
    sources
        Memories that were measured, the first also by worker counts.
    workers
        Worker counts that were measured.
    most
        All workers.

    Returns
    -------
    Callable[[Round], dict[str, float]]
        A function from a round's readings (ns) to figures by their path in the profile.
    """

    def fit(reading: Round) -> dict[str, float]:
        def slope(source: str, count: int) -> tuple[float, float]:
            keys = [f"cpu source={source} workers={count} experts={n}" for n in POOL_COUNTS]
            return line(POOL_COUNTS, [reading[key] for key in keys])

        out = {
            f"cpu.expert_gb_per_s.{source}.default": expert_bytes / slope(source, most)[1] for source in sources
        }
        for count in workers:
            out[f"cpu.expert_gb_per_s_by_workers.{count}"] = expert_bytes / slope(sources[0], count)[1]
        out["cpu.dispatch_us"] = us(slope(sources[0], most)[0])
        return out

    return fit


def fit_disk(expert_bytes: int, lanes: Sequence[int]) -> Callable[[Round], dict[str, float]]:
    """Fit of one round of `storage_benches` and `fault_benches`."""

    def fit(reading: Round) -> dict[str, float]:
        small, large = reading["read cold bytes=4096"], reading[f"read cold bytes={expert_bytes}"]
        warm = reading[f"read warm bytes={expert_bytes}"]
        direct = [reading.get(f"read direct bytes={expert_bytes} lanes={n}", 0.0) for n in lanes]
        rates = [expert_bytes / ns for ns in direct if ns > 0]
        lane = expert_bytes / max(1.0, large - min(small, 0.9 * large))
        faults = [ns for key, ns in reading.items() if key.startswith("cpu faults")]
        counts = [int(key.rsplit("=", 1)[1]) for key in reading if key.startswith("cpu faults")]
        out = {
            "disk.latency_us": us(small),
            "disk.lane_gb_per_s": lane,
            "disk.seq_gb_per_s": max([lane, *rates]),
            "disk.read_ahead_gb_per_s": lane,
            "disk.warm_read_gb_per_s": expert_bytes / warm,
        }
        if faults:
            out["disk.mmap_fault_gb_per_s"] = expert_bytes * counts[0] / faults[0]
        return out

    return fit


def fit_rounds(
    readings: Readings, fit: Callable[[Round], dict[str, float]], how: str, share: float = 0.5
) -> dict[str, Figure]:
    """Fit the medians (or another quantile) of the readings; every round is fitted as well, for the range.

    A slope out of one round may take its ends from two states of the machine (another tenant's load comes and goes
    within seconds), so a middle of such slopes says little; the medians are all of the machine's usual state.

    Parameters
    ----------
    readings
        Ns of every bench in every round.
    fit
        Figures of one round.
    how
        Words for the source of each figure.
    share
        Quantile that is fitted, 0 to 1.

    Returns
    -------
    dict[str, Figure]
        Figures with their range over the rounds, by their path in the profile.

    Raises
    ------
    HardwareError
        Medians that cannot be fitted. A round that cannot be is left out of the range.
    """
    middle = fit(readings.quantiles(share))
    fitted = [middle]
    for reading in readings.means():
        with contextlib.suppress(HardwareError):
            fitted.append(fit(reading))
    return {
        name: Figure(value, min(found[name] for found in fitted), max(found[name] for found in fitted), how)
        for name, value in middle.items()
    }
