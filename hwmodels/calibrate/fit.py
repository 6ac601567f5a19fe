"""From readings to the figures of a profile. Each fit is made for every round apart: median, lowest and highest.

Rates are slopes over the number of experts, set-up times the intercepts beyond the bare layer, so that a
figure means what the simulator makes of it:

=============================== ====================================================================
gpu.dense_gb_per_s              a large dense part alone
gpu.sync_us                     the bare layer less its dense bytes: launch, router, ids on the host
engine.pass_us                  what a pass of one layer takes beyond that layer and the head's bytes
gpu.launch_us, expert_gb_per_s  intercept and slope of layers with 1 to 8 resident experts
link.copy_t0_us, h2d_gb_per_s   intercept and slope of layers with 1 to 8 demand copies, their compute
                                taken off; the rate holds at this size of expert (small copies are slower)
engine.send_us                  what a layer with one copy and else residents takes beyond these lines
engine.ahead_us                 what copies for later add to a layer with half of its experts on the CPU
cpu.dispatch_us, expert rates   intercept and slope of layers (or events) with 1 to 8 experts on the CPU
dram.stream_gb_per_s            what pool and link reach together, if less than the sum of both alone
disk                            reads of a cold file by one reader; several lanes past the page cache
=============================== ====================================================================
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hwmodels.calibrate.layers import COUNTS
from hwmodels.calibrate.pool import COUNTS as POOL_COUNTS
from hwmodels.calibrate.readings import Readings
from hwmodels.errors import HardwareError
from hwmodels.live.card import LiveSizes

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
    """(intercept, slope) of the least-squares line.

    Raises
    ------
    HardwareError
        A slope that is not positive: the machine was too noisy to be measured.
    """
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - mean_x) ** 2 for x in xs
    )
    if slope <= 0:
        raise HardwareError(
            "more work took less time: the machine is too busy to be calibrated; try again when idle"
        )
    return mean_y - slope * mean_x, slope


def _us(ns: float) -> float:
    return max(LEAST_US, ns / 1e3)


def fit_layers(sizes: LiveSizes, dense_gb_per_s: float, *, cpu: bool) -> Callable[[Round], dict[str, float]]:
    """Fit of one round of `layer_benches`."""
    expert, layers = sizes.expert_bytes[0], len(sizes.expert_bytes)

    def fit(reading: Round) -> dict[str, float]:
        def layer(now: int = 0, copies: int = 0, cpu: int = 0) -> float:
            return reading[f"layer now={now} copies={copies} cpu={cpu} ahead=0"]

        one, bare = reading["one layer"], layer()
        alone = (bare * layers - one) / max(1, layers - 1)
        launch, each = line(COUNTS, [layer(now=n) - bare for n in COUNTS])
        setup, copied = line(COUNTS, [layer(copies=n) - bare for n in COUNTS])
        found = {
            "gpu.sync_us": _us(alone - sizes.dense_bytes[0] / dense_gb_per_s),
            "gpu.launch_us": _us(launch),
            "gpu.expert_gb_per_s.default": expert / each,
            "link.copy_t0_us": _us(setup - launch),
            "link.h2d_gb_per_s": expert / max(1.0, copied - each),
            "engine.pass_us": _us(one - alone - sizes.head_bytes / dense_gb_per_s),
        }
        if cpu:
            dispatch, computed = line(COUNTS, [layer(cpu=n) - bare for n in COUNTS])
            found |= {"cpu.dispatch_us": _us(dispatch), "cpu.expert_gb_per_s.pinned.default": expert / computed}
        return found

    return fit


def fit_sending(reading: Round) -> dict[str, float]:
    """Fit of one round of mixed `layer_benches`: what the host's sending adds to the lines of `fit_layers`."""

    def layer(now: int = 0, copies: int = 0, cpu: int = 0, ahead: int = 0) -> float:
        return reading[f"layer now={now} copies={copies} cpu={cpu} ahead={ahead}"]

    bare, most = layer(), COUNTS[-1]
    launch, each = line(COUNTS, [layer(now=n) - bare for n in COUNTS])
    setup, copied = line(COUNTS, [layer(copies=n) - bare for n in COUNTS])
    dispatch, computed = line(COUNTS, [layer(cpu=n) - bare for n in COUNTS])
    residents = launch + (most - 1) * each
    fetched = max(residents, setup - launch + copied - each) + launch + each
    beside = max(launch + 4 * each, dispatch + 4 * computed)
    return {
        "engine.send_us": _us(layer(now=most - 1, copies=1) - bare - fetched),
        "engine.ahead_us": _us(layer(now=4, cpu=4, ahead=4) - bare - beside),
    }


def fit_links(expert_bytes: int) -> Callable[[Round], dict[str, float]]:
    """Fit of one round of copies alone and of the ceilings."""

    def fit(reading: Round) -> dict[str, float]:
        def rate(kind: str, source: str) -> float:
            return expert_bytes / reading[f"{kind} queued source={source} bytes={expert_bytes}"]

        return {
            "link.d2h_gb_per_s": rate("d2h", "pinned"),
            "link.h2d_pageable_gb_per_s": rate("h2d", "page_cache"),
            "link.submit_us": _us(reading[f"h2d submit source=pinned bytes={expert_bytes}"]),
            "gpu.dense_gb_per_s.default": 1e9 / reading["card dense"],
            "gpu.mem_gb_per_s": 1e9 / reading["card copy"],
            "gpu.compute_tflops": 1e9 / reading["card product"],
        }

    return fit


def fit_sharing(
    expert_bytes: int, workers: int, experts: int, copy_bytes: int
) -> Callable[[Round], dict[str, float]]:
    """Fit of one round of pool and link together."""

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
    """Fit of one round of `pool_benches`: rates by source with all workers, by workers from the first source."""

    def fit(reading: Round) -> dict[str, float]:
        def slope(source: str, count: int) -> tuple[float, float]:
            keys = [f"cpu source={source} workers={count} experts={n}" for n in POOL_COUNTS]
            return line(POOL_COUNTS, [reading[key] for key in keys])

        out = {
            f"cpu.expert_gb_per_s.{source}.default": expert_bytes / slope(source, most)[1] for source in sources
        }
        for count in workers:
            out[f"cpu.expert_gb_per_s_by_workers.{count}"] = expert_bytes / slope(sources[0], count)[1]
        out["cpu.dispatch_us"] = _us(slope(sources[0], most)[0])
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
            "disk.latency_us": _us(small),
            "disk.lane_gb_per_s": lane,
            "disk.seq_gb_per_s": max([lane, *rates]),
            "disk.read_ahead_gb_per_s": expert_bytes / large,
            "disk.warm_read_gb_per_s": expert_bytes / warm,
        }
        if faults:
            out["disk.mmap_fault_gb_per_s"] = expert_bytes * counts[0] / faults[0]
        return out

    return fit


def fit_cardless(sizes: LiveSizes, dense_rows: int, latency_ns: float) -> Callable[[Round], dict[str, float]]:
    """Fit of one round of `dense_benches` and `reader_benches`: dense rate and disk without a card."""
    expert = sizes.expert_bytes[0]

    def fit(reading: Round) -> dict[str, float]:
        nbytes = 2 * sizes.hidden * dense_rows
        _, dense = line(
            [nbytes, 4 * nbytes], [reading[f"cpu dense rows={n}"] for n in (dense_rows, 4 * dense_rows)]
        )
        _, warm = line([1, 8], [reading[f"reader state=warm reads={n}"] for n in (1, 8)])
        _, cold = line([1, 8], [reading[f"reader state=cold reads={n}"] for n in (1, 8)])
        lane = expert / max(1.0, cold - warm - latency_ns)
        return {"gpu.dense_gb_per_s.default": 1 / dense, "disk.lane_gb_per_s": lane, "disk.seq_gb_per_s": lane}

    return fit


def fit_rounds(readings: Readings, fit: Callable[[Round], dict[str, float]], how: str) -> dict[str, Figure]:
    """Fit every round, and put the rounds together."""
    fitted = [fit(reading) for reading in readings.rounds]
    return {
        name: Figure(
            statistics.median(found[name] for found in fitted),
            min(found[name] for found in fitted),
            max(found[name] for found in fitted),
            how,
        )
        for name in fitted[0]
    }
