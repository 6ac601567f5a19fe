"""The live engine on a card: whole layers of it, and what they come to.

The engine that carries out recorded runs carries out programs of equal events, so many that the host's own data is
as cold as in a run; what counts of a program are its passes after the first quarter. Pool, slots, rows and
sizes are those of the runs. With bare = a layer of nothing but dense part and router, G(n) = what n residents add
to it, most = 8:

============================ ===========================================================================
gpu.sync_us                  the bare layer less its dense bytes: launch, router, ids on the host
gpu.group_us_by_bytes        G(1) to G(8), for each size of experts; launch_us and expert_gb_per_s: its line
engine.start_us              host time to launch a group, by its clock: 4 residents, a demand, one on the CPU
link.h2d_gb_per_s            layers bound by copies for the next one (or the slope over demands, if higher)
link.copy_t0_us, copy_us     intercept and slope of what n demands add beyond G(n) and their bytes at that rate
link.h2d_pageable_gb_per_s   the same layers over a mapped file: time beyond G(n) and copy_t0_us, a copy
engine.send_us               7 residents and a demand, less what they would take if nobody had to send
engine.ahead_us              host time to send 1, 2, 4 copies for later, by its clock, less copy_us each
engine.beside_us             layers beside which the link hardly rests, less layers of which one in eight sends a
                             copy, by how many more of them begin beside one
gpu.attention_us_by_bytes    what attending over some cells adds to a bare layer
engine.fill_us, fill_copy_us intercept and slope of what it adds to copy what the CPU has computed, less beside_us
                             and less what pool and link take from each other
cpu.dispatch_us, rates       intercept and slope of layers with 1 to 8 experts on the CPU; page_cache: mapped file
engine.pass_us               what a pass of one layer takes beyond that layer and the head's bytes
============================ ===========================================================================
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.hwmodels.calibrate.fit import Round, line, rising, us
from expert_residency.hwmodels.calibrate.layers import SPACING, program_of, spaced
from expert_residency.hwmodels.calibrate.readings import Bench
from expert_residency.hwmodels.executor.card import LiveSizes
from expert_residency.hwmodels.executor.engine import CardEngine, HostExperts
from expert_residency.hwmodels.executor.steps import Program

COUNTS = (1, 2, 4, 8)
FEW = (1, 2, 4)
MANY = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of residents in passes of several rows."""
USUAL = 0.25
"""Quantile of a reading over the rounds, and of a pass of a run: what disturbs a machine only makes it slower."""
MAPPED_BYTES = 1_000_000_000
"""Of experts in a program over a mapped file, in which each waits for the processor."""


def counts_of(sizes: LiveSizes) -> list[int]:
    """Numbers of experts in a layer that are measured."""
    return [n for n in COUNTS if n <= sizes.experts]


def few_of(sizes: LiveSizes) -> list[int]:
    """Numbers of experts that are copied for later."""
    return [n for n in FEW if n <= sizes.experts]


def most_of(sizes: LiveSizes) -> int:
    """Copies in a batch that keep a fast link busy until the next one is sent."""
    layer_ns, gb_per_s = 45e3, 52.0
    return max(1, min(sizes.experts, round(SPACING * layer_ns * gb_per_s / sizes.mean_expert_bytes + 0.5)))


def groups_of(sizes: LiveSizes) -> list[int]:
    """Numbers of residents that are measured: up to 8, or up to what a pass of several rows can want."""
    most = counts_of(sizes)[-1]
    if sizes.rows == 1:
        return list(range(1, most + 1))
    return [n for n in MANY if n <= max(most, min(sizes.experts, sizes.rows * sizes.top_k // sizes.pairs))]


def piped(program: Program) -> Program:
    """The same copies for later, sent when the router is known, which the next event's residents wait for."""
    steps = [
        step._replace(ahead_router=step.ahead_done, ahead_done=(), needs=number - 1, pending=min(number, 1))
        for number, step in enumerate(program.steps)
    ]
    return replace(program, steps=steps)


def card_benches(engine: CardEngine, arena: HostExperts, sizes: LiveSizes, slots: int = 0) -> list[Bench]:
    """Time of a layer, the head's share in it; `one layer` is a pass of one layer.

    Parameters
    ----------
    engine
        The live engine.
    arena
        Experts in page-locked memory.
    sizes
        Bytes of the model.
    slots
        Of the runs that are to come; 0 if nobody knows.

    Returns
    -------
    list[Bench]
        Benches in ns a layer.
    """
    layers, counts = len(sizes.expert_bytes), counts_of(sizes)
    most = counts[-1]

    def program(**what: Any) -> Program:
        return program_of(sizes, slots=slots, **what)

    def layer(now: int = 0, copies: int = 0, cpu: int = 0, ahead: int = 0) -> Bench:
        shown = {"now": now, "copies": copies, "cpu": cpu, "ahead": ahead}
        order = sizes.missed_static if cpu else ()
        return _bench(engine, arena, "layer", program(**shown, order=order), layers, shown)

    def again(number: int) -> Bench:
        """The bare layer, on which all else rests, once more."""
        return _bench(engine, arena, "layer", program(), layers, {"bare": number})

    def of_size(nbytes: int, now: int) -> Bench:
        own = [number for number, found in enumerate(sizes.expert_bytes) if found == nbytes]
        shown = {"bytes": nbytes, "now": now}
        return _bench(engine, arena, "layer", program(now=now, layers=own), len(own), shown)

    half, few, groups, by_size = max(1, most // 2), few_of(sizes), groups_of(sizes), sizes.distinct_bytes()
    mixed = program(now=half, copies=1, cpu=int(sizes.rows == 1))
    batches = {n: spaced(sizes, n, used=True, slots=slots) for n in few}
    busy = spaced(sizes, most_of(sizes), used=False, slots=slots)
    sent = batches | {most_of(sizes): busy}

    def launch() -> float:
        """Host time to launch one of the two groups of a layer."""
        engine.use(arena)
        engine.load(mixed)
        return float(np.median(engine.run().start_ns)) / layers / 2

    def sending(n: int) -> Bench:
        """Host time to send a batch of copies for later."""

        def run() -> float:
            engine.use(arena)
            engine.load(sent[n])
            sends = sum(bool(step.ahead_done) for step in sent[n].steps)
            return float(engine.run().sent_ns.sum()) / sends

        return Bench("sending", {"ahead": n}, run)

    on_cpu = [
        *(layer(cpu=n) for n in counts),
        *(layer(now=half, cpu=n) for n in few),
        *(
            _bench(
                engine,
                arena,
                "layer filled",
                program(now=half, cpu=n, fill=True, order=sizes.missed_lru),
                layers,
                {"cpu": n},
            )
            for n in few
        ),
    ]
    return [
        _bench(engine, arena, "one layer", program(layers=(0,)), 1, {}),
        layer(),
        *(layer(now=n) for n in groups),
        again(1),
        *(of_size(nbytes, n) for n in groups for nbytes in by_size if len(by_size) > 1),
        *(layer(copies=n) for n in counts),
        again(2),
        layer(now=most - 1, copies=1),
        _bench(engine, arena, "layer spaced", batches[few[0]], layers, {"ahead": few[0]}),
        _bench(engine, arena, "layer beside", busy, layers, {}),
        *(sending(n) for n in sent),
        *(_bench(engine, arena, "layer", program(cells=n), layers, {"cells": n}) for n in sizes.cells),
        _bench(engine, arena, "layer piped", piped(program(now=1, ahead=most)), layers, {"copies": most}),
        Bench("launch", {}, launch),
        *(on_cpu if sizes.rows == 1 else ()),  # the pool computes one row
    ]


def mapped_benches(engine: CardEngine, mapped: HostExperts, sizes: LiveSizes, slots: int = 0) -> list[Bench]:
    """The same over a mapped file in the page cache: copies out of it, and experts on the CPU.

    Parameters
    ----------
    engine
        The live engine.
    mapped
        Experts in a mapped file.
    sizes
        Bytes of the model.
    slots
        Of the runs that are to come; 0 if nobody knows.

    Returns
    -------
    list[Bench]
        Benches in ns a layer.
    """

    def layer(kind: str, n: int) -> Bench:
        copies, cpu = (n, 0) if kind == "copies" else (0, n)
        order = sizes.missed_lru if kind == "copies" else sizes.missed_static
        program = program_of(sizes, copies=copies, cpu=cpu, moved_bytes=MAPPED_BYTES, slots=slots, order=order)
        return _bench(engine, mapped, "layer mapped", program, len(sizes.expert_bytes), {kind: n})

    kinds = ("copies", "cpu") if sizes.rows == 1 else ("copies",)
    return [layer(kind, n) for kind in kinds for n in counts_of(sizes)]


def _bench(
    engine: CardEngine, host: HostExperts, name: str, program: Program, layers: int, params: dict[str, int]
) -> Bench:
    def run() -> npt.NDArray[np.float64]:
        engine.use(host)
        engine.load(program)
        spent = engine.run().pass_ns
        return spent[len(spent) // 4 :] / layers

    return Bench(name, params, run)


def fit_card(
    sizes: LiveSizes, dense_gb_per_s: float, tflops: float = 0.0, dram_gb_per_s: float = 0.0
) -> Callable[[Round], dict[str, float]]:
    """Fit of one round of `card_benches` and `mapped_benches`.

    Parameters
    ----------
    sizes
        Bytes of the model, and rows of a pass.
    dense_gb_per_s, tflops
        What the dense part is read and, with several rows, computed with.
    dram_gb_per_s
        What CPU pool and link reach together; 0 if they do not hinder each other.

    Returns
    -------
    Callable[[Round], dict[str, float]]
        A function from a round's readings (ns) to figures by their path in the profile.
    """
    expert, layers, counts = sizes.mean_expert_bytes, len(sizes.expert_bytes), counts_of(sizes)
    most = counts[-1]
    numbers, by_size = groups_of(sizes), sizes.distinct_bytes()

    def dense_ns(nbytes: float) -> float:
        """As the simulator has it."""
        row_flop = 16 * nbytes / sizes.bits if sizes.bits else 0.0
        return max(
            nbytes / dense_gb_per_s, sizes.rows * row_flop / tflops / 1e3 if tflops and sizes.rows > 1 else 0.0
        )

    def fit(reading: Round) -> dict[str, float]:
        def added(now: int = 0, copies: int = 0, ahead: int = 0) -> float:
            return reading[f"layer now={now} copies={copies} cpu=0 ahead={ahead}"] - bare

        one = reading["one layer"]
        names = ("layer now=0 copies=0 cpu=0 ahead=0", "layer bare=1", "layer bare=2")
        bare = statistics.median(reading[name] for name in names if name in reading)
        alone = (bare * layers - one) / max(1, layers - 1)
        groups = dict(zip((0, *numbers), (0.0, *rising([added(now=n) for n in numbers])), strict=True))
        for n in range(1, most):  # of several rows not each number was measured
            groups.setdefault(n, float(np.interp(n, list(groups), list(groups.values()))))
        points = [(n * expert, groups[n]) for n in numbers]
        if len(by_size) > 1:
            points = _points(reading, sizes, {n: groups[n] for n in numbers}, one - alone)
        launch, each = line([nbytes for nbytes, _ in points], [ns for _, ns in points])
        landed = [added(copies=n) - groups[n] for n in counts]
        copy = min(line(counts, landed)[1], reading[f"layer piped copies={most}"] / most)
        sending, set_up = (
            float(v) for v in np.polyfit(counts, [ns - n * copy for n, ns in zip(counts, landed, strict=True)], 1)
        )
        sent = added(now=most - 1, copies=1) - max(groups[most - 1], set_up + sending + copy) - groups[1]
        ahead, beside = _ahead_figures(reading, sizes, groups, (copy, sending))
        paged = statistics.median(
            (reading[f"layer mapped copies={n}"] - bare - groups[n] - set_up) / n for n in counts
        )
        on_cpu = _cpu_figures(reading, sizes, bare, beside, (copy, dram_gb_per_s)) if sizes.rows == 1 else {}
        return on_cpu | {
            "gpu.sync_us": us(alone - dense_ns(statistics.fmean(sizes.dense_bytes))),
            "gpu.launch_us": us(launch),
            "gpu.expert_gb_per_s.default": 1 / each,
            **{f"gpu.group_us_by_bytes.{round(nbytes)}": us(ns) for nbytes, ns in points},
            **_attention(reading, sizes, bare),
            "link.copy_t0_us": us(set_up),
            "link.h2d_gb_per_s": expert / copy,
            "link.h2d_pageable_gb_per_s": expert / max(1.0, paged),
            "engine.pass_us": us(one - alone - sizes.head_bytes / dense_gb_per_s),
            "engine.start_us": us(reading["launch"]),
            "engine.send_us": us(sent),
            "engine.ahead_us": us(ahead),
            "engine.copy_us": us(sending),
            "engine.beside_us": us(beside),
        }

    return fit


def _ahead_figures(
    reading: Round, sizes: LiveSizes, groups: Mapping[int, float], copy: tuple[float, float]
) -> tuple[float, float]:
    """Ns to send copies for later, beside what each of them adds, and of a layer that begins beside one.

    The host sends while the card computes the event's experts, so that what goes beyond these counts. A layer that
    begins beside a copy takes longer, as many of them as begin before the batch has landed.
    """
    few, most = few_of(sizes), most_of(sizes)
    each, more = copy
    sends = {n: reading[f"sending ahead={n}"] for n in {*few, most}}
    late = {n: max(0.0, ns - groups[1]) for n, ns in sends.items()}
    busy, quiet = reading["layer beside"], reading[f"layer spaced ahead={few[0]}"]
    # Both have a batch every SPACING layers; they differ in how long it takes to send, and beside how many layers.
    begun = min(SPACING, most * each / busy), 1 + few[0] * each // quiet
    beside = (SPACING * (busy - quiet) - late[most] + late[few[0]]) / max(1.0, begun[0] - begun[1])
    return statistics.fmean(sends[n] - n * more for n in few), max(0.0, beside)


def _attention(reading: Round, sizes: LiveSizes, bare: float) -> dict[str, float]:
    """Time of attention by the bytes of a layer's cells, never falling."""
    added = rising([max(0.0, reading[f"layer cells={n}"] - bare) for n in sizes.cells])
    return {
        f"gpu.attention_us_by_bytes.{n * sizes.cell_bytes}": us(ns)
        for n, ns in zip(sizes.cells, added, strict=True)
    }


def _cpu_figures(
    reading: Round, sizes: LiveSizes, bare: float, beside: float, link: tuple[float, float]
) -> dict[str, float]:
    """What layers with experts on the CPU say; `bare`, `beside` in ns, `link` ns of a copy and GB/s of the memory.

    The simulator lets the pool and the copies of the layer before share the memory; that is not counted twice.
    """
    counts, few = counts_of(sizes), few_of(sizes)
    half = max(1, counts[-1] // 2)

    def added(now: int, cpu: int) -> float:
        return reading[f"layer now={now} copies=0 cpu={cpu} ahead=0"] - bare

    dispatch, computed = line(counts, [added(0, n) for n in counts])
    copy, together = link
    expert = sizes.mean_expert_bytes
    slower = max(0.0, (expert / copy + expert / computed) / together - 1) if together else 0.0
    shared = [slower * max(0.0, min(n * computed, n * copy - bare)) for n in few]
    filled = [
        reading[f"layer filled cpu={n}"] - bare - added(half, n) - ns for n, ns in zip(few, shared, strict=True)
    ]
    fill_copy, fill = (float(v) for v in np.polyfit(few, filled, 1))
    if fill_copy < 0:  # nothing a copy, so all of it a layer
        fill_copy, fill = 0.0, statistics.fmean(filled)
    _, from_file = line(counts, [reading[f"layer mapped cpu={n}"] - bare for n in counts])
    return {
        "cpu.dispatch_us": us(dispatch),
        "cpu.expert_gb_per_s.pinned.default": sizes.mean_expert_bytes / computed,
        "cpu.expert_gb_per_s.page_cache.default": sizes.mean_expert_bytes / from_file,
        "engine.fill_us": us(fill - beside),
        "engine.fill_copy_us": us(fill_copy),
    }


def _points(
    reading: Round, sizes: LiveSizes, groups: Mapping[int, float], rest_ns: float
) -> list[tuple[float, float]]:
    """(bytes, ns) of groups of each size, ascending: what a size takes more or less than the mean of all layers.

    Layers of one size were measured apart, those of the same number next to each other, so their differences are
    free of what the host did meanwhile; how much a size more is worth is their line. `rest_ns` of a pass is not in
    its layers.
    """
    by_size, mean = sizes.distinct_bytes(), sizes.mean_expert_bytes
    shares = [rest_ns / sizes.expert_bytes.count(nbytes) for nbytes in by_size]
    found: dict[float, list[float]] = {}
    for n, ns in groups.items():
        times = [
            reading[f"layer bytes={nbytes} now={n}"] - share for nbytes, share in zip(by_size, shares, strict=True)
        ]
        slope = max(0.0, float(np.polyfit(by_size, times, 1)[0]))
        for nbytes in by_size:
            found.setdefault(n * nbytes, []).append(ns + slope * (nbytes - mean))
    ordered = sorted(found)
    return list(zip(ordered, rising([statistics.fmean(found[nbytes]) for nbytes in ordered]), strict=True))
