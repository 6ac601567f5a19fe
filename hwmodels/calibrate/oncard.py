"""The live engine on a card: whole layers of it, and what they come to.

The engine that carries out recorded runs carries out programs of equal events, so many that the host's own data is
as cold as in a run; a program's figure is the median of its passes after the first quarter. With bare = a layer of
nothing but dense part and router, G(n) = what n residents add to it, most = 8:

============================ ===========================================================================
gpu.sync_us                  the bare layer less its dense bytes: launch, router, ids on the host
gpu.group_us_by_bytes        G(1) to G(8); launch_us and expert_gb_per_s are its line
engine.start_us              host time to launch a group, by its clock: 4 residents, a demand, one on the CPU
link.h2d_gb_per_s            layers bound by copies for the next one (or the slope over demands, if higher)
link.copy_t0_us, copy_us     intercept and slope of what n demands add beyond G(n) and their bytes at that rate
link.h2d_pageable_gb_per_s   the same layers over a mapped file: time beyond G(n) and copy_t0_us, a copy
engine.send_us               7 residents and a demand, less what they would take if nobody had to send
engine.beside_us             8 residents and a copy for later, less G(8), or what the host takes to send it
engine.ahead_us              a resident and n copies for later, less the bare layer, n copy_us and beside_us
engine.fill_us, fill_copy_us intercept and slope of what it adds to copy what the CPU has computed, less beside_us
cpu.dispatch_us, rates       intercept and slope of layers with 1 to 8 experts on the CPU; page_cache: mapped file
engine.pass_us               what a pass of one layer takes beyond that layer and the head's bytes
============================ ===========================================================================
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from expert_residency.hwmodels.calibrate.fit import Round, line, us
from expert_residency.hwmodels.calibrate.layers import program_of
from expert_residency.hwmodels.calibrate.readings import Bench
from expert_residency.hwmodels.executor.card import LiveSizes
from expert_residency.hwmodels.executor.engine import CardEngine, HostExperts
from expert_residency.hwmodels.executor.steps import Program

COUNTS = (1, 2, 4, 8)
FEW = (1, 2, 4)
MAPPED_COPIES = 48
"""Copies of a layer in a program over a mapped file, in which each waits for the processor."""


def counts_of(sizes: LiveSizes) -> list[int]:
    """Numbers of experts in a layer that are measured."""
    return [n for n in COUNTS if n <= sizes.experts]


def few_of(sizes: LiveSizes) -> list[int]:
    """Numbers of experts that are copied for later."""
    return [n for n in FEW if n <= sizes.experts]


def piped(program: Program) -> Program:
    """The same copies for later, sent when the router is known, which the next event's residents wait for."""
    steps = [
        step._replace(ahead_router=step.ahead_done, ahead_done=(), needs=number - 1, pending=min(number, 1))
        for number, step in enumerate(program.steps)
    ]
    return replace(program, steps=steps)


def card_benches(engine: CardEngine, arena: HostExperts, sizes: LiveSizes) -> list[Bench]:
    """Time of a layer, the head's share in it; `one layer` is a pass of one layer.

    Parameters
    ----------
    engine
        The live engine.
    arena
        Experts in page-locked memory.
    sizes
        Bytes of the model.

    Returns
    -------
    list[Bench]
        Benches in ns a layer.
    """
    layers, counts = len(sizes.expert_bytes), counts_of(sizes)
    most = counts[-1]

    def layer(now: int = 0, copies: int = 0, cpu: int = 0, ahead: int = 0) -> Bench:
        program = program_of(sizes, now=now, copies=copies, cpu=cpu, ahead=ahead)
        shown = {"now": now, "copies": copies, "cpu": cpu, "ahead": ahead}
        return _bench(engine, arena, "layer", program, layers, shown)

    half, few = max(1, most // 2), few_of(sizes)
    mixed = program_of(sizes, now=half, copies=1, cpu=1)

    def launch() -> float:
        """Host time to launch one of the two groups of a layer."""
        engine.use(arena)
        engine.load(mixed)
        return float(np.median(engine.run().start_ns)) / layers / 2

    return [
        _bench(engine, arena, "one layer", program_of(sizes, layers=1), 1, {}),
        layer(),
        *(layer(now=n) for n in range(1, most + 1)),
        *(layer(copies=n) for n in counts),
        *(layer(cpu=n) for n in counts),
        layer(now=most - 1, copies=1),
        *(layer(now=1, ahead=n) for n in few),
        layer(now=most, ahead=1),
        *(layer(now=half, cpu=n) for n in few),
        *(
            _bench(
                engine, arena, "layer filled", program_of(sizes, now=half, cpu=n, fill=True), layers, {"cpu": n}
            )
            for n in few
        ),
        _bench(
            engine, arena, "layer piped", piped(program_of(sizes, now=1, ahead=most)), layers, {"copies": most}
        ),
        Bench("launch", {}, launch),
    ]


def mapped_benches(engine: CardEngine, mapped: HostExperts, sizes: LiveSizes) -> list[Bench]:
    """The same over a mapped file in the page cache: copies out of it, and experts on the CPU.

    Parameters
    ----------
    engine
        The live engine.
    mapped
        Experts in a mapped file.
    sizes
        Bytes of the model.

    Returns
    -------
    list[Bench]
        Benches in ns a layer.
    """

    def layer(kind: str, n: int) -> Bench:
        copies, cpu = (n, 0) if kind == "copies" else (0, n)
        program = program_of(sizes, copies=copies, cpu=cpu, passes=max(12, MAPPED_COPIES // n))
        return _bench(engine, mapped, "layer mapped", program, len(sizes.expert_bytes), {kind: n})

    return [layer(kind, n) for kind in ("copies", "cpu") for n in counts_of(sizes)]


def _bench(
    engine: CardEngine, host: HostExperts, name: str, program: Program, layers: int, params: dict[str, int]
) -> Bench:
    def run() -> float:
        engine.use(host)
        engine.load(program)
        spent = engine.run().pass_ns
        return float(np.median(spent[len(spent) // 4 :])) / layers

    return Bench(name, params, run)


def fit_card(sizes: LiveSizes, dense_gb_per_s: float) -> Callable[[Round], dict[str, float]]:
    """Fit of one round of `card_benches` and `mapped_benches`."""
    expert, layers, counts = sizes.expert_bytes[0], len(sizes.expert_bytes), counts_of(sizes)
    most = counts[-1]
    half, few = max(1, most // 2), few_of(sizes)

    def fit(reading: Round) -> dict[str, float]:
        def added(now: int = 0, copies: int = 0, cpu: int = 0, ahead: int = 0) -> float:
            return reading[f"layer now={now} copies={copies} cpu={cpu} ahead={ahead}"] - bare

        def mapped(kind: str, n: int) -> float:
            return reading[f"layer mapped {kind}={n}"] - bare

        one, bare = reading["one layer"], reading["layer now=0 copies=0 cpu=0 ahead=0"]
        alone = (bare * layers - one) / max(1, layers - 1)
        groups = [0.0]
        for n in range(1, most + 1):  # more residents never take less; what says so is noise
            groups.append(max(groups[-1], added(now=n)))
        launch, each = line(range(1, most + 1), groups[1:])
        landed = [added(copies=n) - groups[n] for n in counts]
        copy = min(line(counts, landed)[1], reading[f"layer piped copies={most}"] / most)
        sending, set_up = (
            float(v) for v in np.polyfit(counts, [ns - n * copy for n, ns in zip(counts, landed, strict=True)], 1)
        )
        sent = added(now=most - 1, copies=1) - max(groups[most - 1], set_up + sending + copy) - groups[1]
        ahead = statistics.fmean(added(now=1, ahead=n) - n * sending for n in few)
        beside = max(0.0, added(now=most, ahead=1) - max(groups[most], ahead + sending))
        filled = [reading[f"layer filled cpu={n}"] - bare - added(now=half, cpu=n) for n in few]
        fill_copy, fill = (float(v) for v in np.polyfit(few, filled, 1))
        paged = statistics.median((mapped("copies", n) - groups[n] - set_up) / n for n in counts)
        dispatch, computed = line(counts, [added(cpu=n) for n in counts])
        _, from_file = line(counts, [mapped("cpu", n) for n in counts])
        return {
            "gpu.sync_us": us(alone - sizes.dense_bytes[0] / dense_gb_per_s),
            "gpu.launch_us": us(launch),
            "gpu.expert_gb_per_s.default": expert / each,
            **{f"gpu.group_us_by_bytes.{n * expert}": us(groups[n]) for n in range(1, most + 1)},
            "link.copy_t0_us": us(set_up),
            "link.h2d_gb_per_s": expert / copy,
            "link.h2d_pageable_gb_per_s": expert / max(1.0, paged),
            "cpu.dispatch_us": us(dispatch),
            "cpu.expert_gb_per_s.pinned.default": expert / computed,
            "cpu.expert_gb_per_s.page_cache.default": expert / from_file,
            "engine.pass_us": us(one - alone - sizes.head_bytes / dense_gb_per_s),
            "engine.start_us": us(reading["launch"]),
            "engine.send_us": us(sent),
            "engine.ahead_us": us(ahead - beside),
            "engine.copy_us": us(sending),
            "engine.fill_us": us(fill - beside),
            "engine.fill_copy_us": us(fill_copy),
            "engine.beside_us": us(beside),
        }

    return fit
