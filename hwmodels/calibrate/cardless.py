"""The live engine without a card: whole layers of it over a warm and a cold file, and what they come to.

The *card* of such a profile is the CPU with slots in RAM, its *link* the thread that reads the file. As with a
card the engine itself carries out programs of equal events, and what a part costs is the difference to the bare
layer. A program's figure is the mean of its passes, of each a low quantile over the rounds.

=============================== ====================================================================
gpu.dense_gb_per_s              slope over the rows of a dense part alone
gpu.sync_us                     the bare layer less its dense bytes: router, bookkeeping of the engine
gpu.launch_us, expert_gb_per_s  intercept and slope of layers with 1 to 8 residents
link.copy_t0_us, h2d_gb_per_s   the same with 1 to 8 reads out of the page cache, their compute taken off:
                                hand-over to the reader and back, and a rate that holds at this size
disk.lane_gb_per_s              what 1, 2 or 4 reads take longer (each) over a cold file, less `latency_us`
engine.pass_us                  what a pass of one layer takes beyond that layer and the head's bytes
=============================== ====================================================================
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator

import numpy as np

from expert_residency.hwmodels.calibrate.fit import Round, line, us
from expert_residency.hwmodels.calibrate.readings import Bench, Floats
from expert_residency.hwmodels.executor.card import LiveSizes
from expert_residency.hwmodels.executor.cardless import CardlessEngine, State
from expert_residency.hwmodels.executor.steps import Program, Step

COUNTS, FRESH = (1, 2, 4, 8), (1, 2, 4)
LEAST, MOST, SKIPPED = 5, 16, 2
"""Passes of a program, the more the shorter they are, and those of them that are not counted."""
SLOTS_SHARE = 4
"""Slots for one in so many experts: as in a run of middle size, far more than the processor's caches hold."""
USUAL = 0.1
"""Quantile over the rounds: what disturbs a measurement can only lengthen it."""


def counts_of(sizes: LiveSizes) -> list[int]:
    """Numbers of experts in a layer that are measured."""
    return [n for n in COUNTS if n <= sizes.experts]


def _program(sizes: LiveSizes, keys: Iterator[int], layers: int, passes: int, now: int, copies: int) -> Program:
    """Equal events: `copies` experts of `keys` go to slots in turn, `now` others are drawn from all."""
    slots = max(2 * COUNTS[-1], sizes.experts * len(sizes.expert_bytes) // SLOTS_SHARE)
    places = itertools.cycle(range(slots))
    drawn = np.random.default_rng(0)
    steps = []
    for number in range(passes * layers):
        pairs = tuple((next(keys), next(places)) for _ in range(copies))
        taken = [slot for _, slot in pairs]
        others = np.setdiff1d(np.arange(slots), taken)
        residents = tuple(drawn.choice(others, now, replace=False).tolist())
        steps.append(Step(number % layers, now=residents, copies=pairs, later=tuple(taken)))
    return Program(steps, [p * layers for p in range(passes + 1)], (), slots)


def layer_program(sizes: LiveSizes, *, now: int = 0, copies: int = 0, layers: int | None = None) -> Program:
    """Equal events over all layers, or over the first `layers` in as many more passes.

    Parameters
    ----------
    sizes
        Bytes of the model.
    now
        Residents that an event computes.
    copies
        Experts that an event has copied.
    layers
        Layers in a pass; all if None.

    Returns
    -------
    Program
        The program.
    """
    most = len(sizes.expert_bytes)
    used = layers or most
    drawn = np.random.default_rng(1)
    keys = (int(drawn.integers(sizes.experts * most)) for _ in itertools.count())
    passes = max(LEAST, MOST // max(1, copies))
    return _program(sizes, keys, used, passes * most // used, now, copies)


def fresh_program(sizes: LiveSizes, copies: int) -> Program:
    """Equal events of `copies` reads, each of an expert not read before, until half of all have been."""
    stored = sizes.experts * len(sizes.expert_bytes)
    layers = max(1, min(len(sizes.expert_bytes), stored // (2 * copies)))
    keys = iter(np.random.default_rng(2).permutation(stored).tolist())
    return _program(sizes, keys, layers, stored // (2 * copies * layers), 0, copies)


def warm_benches(engine: CardlessEngine, sizes: LiveSizes) -> list[Bench]:
    """Time of a layer, the head's share in it; `one layer` is a pass of one layer."""

    def layer(now: int = 0, copies: int = 0) -> Bench:
        program = layer_program(sizes, now=now, copies=copies)
        return _bench(engine, "layer", program, {"now": now, "copies": copies}, "warm")

    counts = counts_of(sizes)
    return [
        _bench(engine, "one layer", layer_program(sizes, layers=1), {}, "warm"),
        layer(),
        *(layer(now=n) for n in counts),
        *(layer(copies=n) for n in counts),
    ]


def cold_benches(engine: CardlessEngine, sizes: LiveSizes) -> list[Bench]:
    """The same with reads that are each the first of that expert since the page cache was dropped.

    All passes count: the first reads after a drop take a quarter longer, in a run as well.
    """
    return [
        _bench(engine, "cold layer", fresh_program(sizes, n), {"copies": n}, "cold")
        for n in FRESH
        if n in counts_of(sizes)
    ]


def _bench(engine: CardlessEngine, name: str, program: Program, params: dict[str, object], state: State) -> Bench:
    skipped = SKIPPED if state == "warm" else 0

    def run() -> Floats:
        engine.load(program)
        return engine.run(state).pass_ns[skipped:] / program.pass_steps[1]

    return Bench(name, params, run)


def fit_cardless(sizes: LiveSizes, dense_rows: int, latency_ns: float) -> Callable[[Round], dict[str, float]]:
    """Fit of one round of `warm_benches`, `cold_benches` and `dense_benches`.

    Parameters
    ----------
    sizes
        Bytes of the model.
    dense_rows
        Rows of the smaller dense part that was measured.
    latency_ns
        Of a small read of the cold file.

    Returns
    -------
    Callable[[Round], dict[str, float]]
        A function from a round's readings (ns) to figures by their path in the profile.
    """
    expert, layers, counts = sizes.expert_bytes[0], len(sizes.expert_bytes), counts_of(sizes)

    def fit(reading: Round) -> dict[str, float]:
        def layer(now: int = 0, copies: int = 0) -> float:
            return reading[f"layer now={now} copies={copies}"]

        rows = (dense_rows, 4 * dense_rows)
        _, dense = line([2 * sizes.hidden * n for n in rows], [reading[f"cpu dense rows={n}"] for n in rows])
        one, bare = reading["one layer"], layer()
        alone = (bare * layers - one) / max(1, layers - 1)
        launch, each = line(counts, [layer(now=n) - bare for n in counts])
        setup, copied = line(counts, [layer(copies=n) - bare for n in counts])

        cold = [(reading[f"cold layer copies={n}"] - layer(copies=n)) / n for n in FRESH if n in counts]
        rate = expert / max(1.0, statistics.fmean(cold) - latency_ns)
        return {
            "gpu.dense_gb_per_s.default": 1 / dense,
            "gpu.sync_us": us(alone - sizes.dense_bytes[0] * dense),
            "gpu.launch_us": us(launch),
            "gpu.expert_gb_per_s.default": expert / each,
            "link.copy_t0_us": us(setup - launch),
            "link.h2d_gb_per_s": expert / max(1.0, copied - each),
            "disk.lane_gb_per_s": rate,
            "disk.seq_gb_per_s": rate,
            "disk.read_ahead_gb_per_s": rate,
            "engine.pass_us": us(one - alone - sizes.head_bytes * dense),
        }

    return fit
