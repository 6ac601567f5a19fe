"""`calibrate`: measure this machine for one model's sizes and write its profile.

With a card everything is measured. Without one there are two uses: a profile whose card, link and page-locked
rates come from a named profile and whose CPU, page cache and disk are this machine's; or (`cardless`) one whose
*card* is this machine's RAM and CPU, which is what the live engine without a card needs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.calibrate import fit
from expert_residency.hwmodels.calibrate.card import BIG_COPY, CopyLoop, ceiling_benches, together_benches
from expert_residency.hwmodels.calibrate.cardless import USUAL, cold_benches, fit_cardless, warm_benches
from expert_residency.hwmodels.calibrate.oncard import USUAL as ON_CARD
from expert_residency.hwmodels.calibrate.oncard import card_benches, fit_card, mapped_benches
from expert_residency.hwmodels.calibrate.pool import dense_benches, pool_benches, worker_counts
from expert_residency.hwmodels.calibrate.readings import Bench, Readings, measure
from expert_residency.hwmodels.calibrate.storage import fault_benches, storage_benches
from expert_residency.hwmodels.calibrate.write import Tables, given, put, quantity, to_toml
from expert_residency.hwmodels.executor.card import LiveSizes, has_card, require_card
from expert_residency.hwmodels.executor.cardless import CardlessEngine, State
from expert_residency.hwmodels.executor.engine import CardEngine, HostExperts
from expert_residency.hwmodels.executor.experts import ExpertShape, max_workers, random_weights
from expert_residency.hwmodels.executor.files import ExpertFile

LANES = (1, 2, 4, 8)
COPY_SIZES = (1 << 16, 1 << 20, 1 << 22, 1 << 25)
LEAST_BYTES, MOST_BYTES = 1 << 28, 1 << 31
ARENA_BYTES = 1 << 32
KINDS = ("pinned", "pageable", "page_cache")
Between = Callable[[State], None]
FiguresOf = Callable[[Readings, Readings], dict[str, fit.Figure]]
"""Figures from the rounds of what was measured first, and of page cache and disk."""


@dataclass(frozen=True)
class OnCard:
    """Engine and host memory that runs use too, so that both compute in one pool; and the slots of the runs."""

    engine: CardEngine
    arena: HostExperts
    mapped: HostExperts
    slots: int = 0


@dataclass(frozen=True)
class Calibration:
    """What was measured and what was made of it."""

    readings: Readings
    figures: dict[str, fit.Figure]
    profile_toml: str
    engine_toml: str
    """Preset of the live engine on this machine."""
    of_rounds: Callable[[slice], Calibration]
    """The same made of some of the rounds only: two halves tell how certain it is."""

    @property
    def noisy(self) -> list[str]:
        """Figures whose rounds differ too much."""
        return [name for name, figure in self.figures.items() if figure.noisy]


def calibrate(
    sizes: LiveSizes,
    folder: Path,
    *,
    name: str,
    family: str = "bf16",
    like: str | None = None,
    cardless: bool = False,
    workers: int | None = None,
    rounds: int = 5,
    progress: Callable[[str], None] | None = None,
    between: Between | None = None,
    turns: int = 1,
    on: OnCard | None = None,
) -> Calibration:
    """Measure and fit.

    Parameters
    ----------
    sizes
        Bytes of the model for which rates are wanted; its first layer counts.
    folder
        On the drive to be measured; an expert file is made there and taken away again.
    name
        Of the profile.
    family
        Quantization family that the model is run in; recorded in the sources.
    like
        Profile for what cannot be measured here; needed without a card, unless `cardless`.
    cardless
        The card of the profile is this machine's RAM and CPU.
    workers
        CPU threads; see `default_workers`.
    rounds
        Rounds of every measurement.
    progress
        Told what is measured next.
    between
        With a card or `cardless`, called in every round: live runs that are to meet the same machine. It is
        told the state of the page cache that is measured: with a card always warm; without one first warm, then
        cold, since a machine that has just dropped its page cache is slower for a while.
    turns
        How often it is called in a round with a card, among the measurements.
    on
        With a card: where the runs compute; made anew by default.

    Returns
    -------
    Calibration
        Readings, figures, and the text of profile and preset.

    Raises
    ------
    HardwareError
        No card and no `like`; a machine too busy to measure; no room for the file.
    """
    with_card = has_card() and not cardless
    if not with_card and not cardless and like is None:
        raise HardwareError("no CUDA card here: name a profile for the card (--like rtx-5070), or use --cardless")
    most = workers or default_workers(card=with_card)
    expert = sizes.expert_bytes[0]
    shape = sizes.shapes()[0]
    total = min(MOST_BYTES, max(LEAST_BYTES, sizes.experts * sum(sizes.expert_bytes)))
    with ExpertFile(folder / f"calibrate-{os.getpid()}.bin", total // expert * expert) as file:
        try:
            file.random_access()
            session = _Session(sizes, shape, file, most, rounds, progress)
            if with_card:
                first, figures_of = session.with_card(between, turns, on)
            else:
                first, figures_of = session.cardless(between) if cardless else session.without()
            second = session.storage()
        finally:
            file.path.unlink()

    def of_rounds(which: slice) -> Calibration:
        some = Readings(first.rounds[which])
        figures = figures_of(some, second)
        tables = _profile(sizes, figures, name, family, like, most, cardless, with_card)
        engine = to_toml(_engine(figures, name, cardless))
        return Calibration(_joined(some, second), figures, to_toml(tables), engine, of_rounds)

    return of_rounds(slice(None))


def on_card(sizes: LiveSizes, folder: Path, workers: int, ends: contextlib.ExitStack, slots: int = 0) -> OnCard:
    """Engine, page-locked memory and a mapped file of a model, not larger than shows what caches cannot hold.

    Parameters
    ----------
    sizes
        The model.
    folder
        Where the expert file goes.
    workers
        CPU threads.
    ends
        Gives memory and file back.
    slots
        Of the runs that are to come.

    Returns
    -------
    OnCard
        Nothing has been computed in it.
    """
    arena = HostExperts(sizes, "arena", most_bytes=ARENA_BYTES)
    ends.callback(arena.close)
    mapped = HostExperts(sizes, "mmap", folder, MOST_BYTES)
    ends.callback(mapped.close)
    engine = CardEngine(sizes, arena, workers)
    if slots:
        engine.reserve(slots)
    return OnCard(engine, arena, mapped, slots)


def default_workers(*, card: bool) -> int:
    """Threads that compute experts: two cores are left to the host and the driver, or one to the reader."""
    return max(1, max_workers() - (2 if card else 1))


class _Session:
    """One machine, one model, one set of measurements; how they are fitted comes back with them."""

    def __init__(
        self, sizes: LiveSizes, shape: ExpertShape, file: ExpertFile, most: int, rounds: int,
        progress: Callable[[str], None] | None,
    ) -> None:  # fmt: skip
        self.sizes, self.shape, self.file = sizes, shape, file
        self.most, self.rounds, self.progress = most, rounds, progress
        self.counts = worker_counts(most)
        self.expert = sizes.expert_bytes[0]
        self.disk_sizes = (4096, self.expert)
        self.how = f"experts of {self.expert} bytes, {rounds} interleaved rounds"

    def storage(self) -> Readings:
        """Page cache and disk."""
        benches = storage_benches(self.file, self.disk_sizes, LANES)
        return measure(
            benches + fault_benches(self.file, self.shape, self.most), min(3, self.rounds), self.progress
        )

    def with_card(self, between: Between | None, turns: int, on: OnCard | None) -> tuple[Readings, FiguresOf]:
        """Everything."""
        with tempfile.TemporaryDirectory(dir=self.file.path.parent) as folder, contextlib.ExitStack() as hosts:
            on = on or on_card(self.sizes, Path(folder), self.most, hosts)
            taken = measure(self._card(on), self.rounds, self.progress, _in_state(between, "warm"), turns)

        def figures_of(first: Readings, storage: Readings) -> dict[str, fit.Figure]:
            figures = {
                **self._host(first, storage, KINDS),
                **self._fit(first, fit.fit_links(self.expert)),
                **self._fit(first, fit.fit_sharing(self.expert, self.most, 8, BIG_COPY)),
            }
            names = ("gpu.dense_gb_per_s.default", "gpu.compute_tflops", "dram.stream_gb_per_s")
            rates = (figures[name].value for name in names)
            return figures | _smoothed(fit.fit_rounds(first, fit_card(self.sizes, *rates), self.how, ON_CARD))

        return taken, figures_of

    def _card(self, on: OnCard) -> list[Bench]:
        """Layers of the engine, copies alone, the card's ceilings, the pool, and pool and link together."""
        engine, arena, mapped = on.engine, on.arena, on.mapped
        mapped.prepare(cold=False)
        self.file.warm()  # a file of its own, since that of the runs is dropped between rounds
        pinned, from_file = arena.weights(), self.file.mapped()
        sources = dict(zip(KINDS, (pinned, random_weights(from_file.nbytes), from_file), strict=True))
        room = min(array.nbytes for array in sources.values())
        copies = CopyLoop({name: int(array.ctypes.data) for name, array in sources.items()}, room)
        return [
            *card_benches(engine, arena, self.sizes, on.slots),
            *mapped_benches(engine, mapped, self.sizes, on.slots),
            *copies.benches(sorted({*COPY_SIZES, self.expert})),
            *ceiling_benches(),
            *pool_benches(self.shape, sources, self.counts, all_workers=self.most),
            *together_benches(engine.cpu, self.shape, pinned, 8),
        ]

    def without(self) -> tuple[Readings, FiguresOf]:
        """CPU, page cache and disk."""
        pageable = random_weights(self.file.nbytes)
        benches = pool_benches(self.shape, {"pageable": pageable}, self.counts, all_workers=self.most)
        return measure(benches, self.rounds, self.progress), self._host

    def cardless(self, between: Between | None) -> tuple[Readings, FiguresOf]:
        """The same, and the layers of the engine without a card."""
        pageable = random_weights(self.file.nbytes)
        rows = max(1, self.sizes.dense_bytes[0] // 2 // self.sizes.hidden)
        engine = CardlessEngine(self.sizes, self.file.path.parent, self.most)
        try:
            benches = [
                *warm_benches(engine, self.sizes),
                *dense_benches(self.shape, pageable, rows, self.most),
                *pool_benches(self.shape, {"pageable": pageable}, self.counts, all_workers=self.most),
            ]
            warm = measure(benches, self.rounds, self.progress, _in_state(between, "warm"))
            cold = measure(
                cold_benches(engine, self.sizes), self.rounds, self.progress, _in_state(between, "cold")
            )
        finally:
            engine.close()
            engine.file.path.unlink()

        def figures_of(first: Readings, storage: Readings) -> dict[str, fit.Figure]:
            figures = self._host(first, storage)
            layers = fit_cardless(self.sizes, rows, figures["disk.latency_us"].value * 1e3)
            figures |= fit.fit_rounds(first, layers, self.how, USUAL)
            return figures | {"link.h2d_pageable_gb_per_s": figures["link.h2d_gb_per_s"]}

        return _joined(warm, cold), figures_of

    def _host(
        self, pool: Readings, storage: Readings, sources: Sequence[str] = ("pageable",)
    ) -> dict[str, fit.Figure]:
        return {
            **self._fit(pool, fit.fit_pool(self.expert, sources, self.counts, self.most)),
            **self._fit(storage, fit.fit_disk(self.expert, LANES)),
        }

    def _fit(self, readings: Readings, how: Callable[[fit.Round], dict[str, float]]) -> dict[str, fit.Figure]:
        return fit.fit_rounds(readings, how, self.how)


def _smoothed(figures: dict[str, fit.Figure]) -> dict[str, fit.Figure]:
    """Groups of experts that were smoothed into their neighbours say so: no two readings are equal."""
    groups = [name for name in figures if name.startswith("gpu.group_us_by_bytes.")]
    groups.sort(key=lambda name: int(name.rsplit(".", 1)[1]))
    values = [figures[name].value for name in groups]
    same = [one == other for one, other in itertools.pairwise(values)]
    changed = [
        name for name, before, after in zip(groups, [False, *same], [*same, False], strict=True) if before or after
    ]
    how = "; smoothed: more bytes were measured to take less time"
    return figures | {name: replace(figures[name], how=figures[name].how + how) for name in changed}


def _in_state(between: Between | None, state: State) -> Callable[[], None] | None:
    return None if between is None else functools.partial(between, state)


def _joined(first: Readings, second: Readings) -> Readings:
    """Rounds of both side by side; where one had fewer, its later rounds lack them."""
    pairs = itertools.zip_longest(first.rounds, second.rounds)
    return Readings([(one or {}) | (two or {}) for one, two in pairs])


def _profile(
    sizes: LiveSizes, figures: dict[str, fit.Figure], name: str, family: str, like: str | None, most: int,
    cardless: bool, card: bool,
) -> Tables:  # fmt: skip
    """Tables of the profile: figures, then what is read off the system, then what stays another profile's."""
    cpu = cpu_name()
    tables: Tables = {"base": like or "_generic", "name": name, "summary": ""}
    for path, figure in figures.items():
        if not path.startswith("engine.") and path != "disk.warm_read_gb_per_s":
            put(tables, path, quantity(figure))
    put(tables, "cpu.name", cpu)
    put(tables, "cpu.cores", given(os.cpu_count() or 1, "measured", "the operating system"))
    put(tables, "cpu.workers", given(most, "measured", "the workers that the rates were measured with"))
    pageable = tables["cpu"]["expert_gb_per_s"]["pageable"]
    rates = tables["cpu"]["expert_gb_per_s"]
    for source in ("pinned", "page_cache"):
        if source not in rates and like is None:
            rates[source] = pageable
    total, reserve = _memory_gib(), 2.0
    put(tables, "ram.total_gib", given(total, "measured", "MemTotal of this machine"))
    put(tables, "ram.os_reserve_gib", given(reserve, "assumed", "a Linux server without a desktop"))
    put(tables, "ram.pin_limit_gib", given(round(max(0.1, total - reserve), 2), "assumed", "no limit was met"))
    put(tables, "disk.name", "the drive of the calibration folder")
    put(tables, "disk.lanes", given(1, "measured", "the live engine reads with one thread, or faults as one"))
    if card:
        _describe_card(tables)
        _memory_rate(tables, figures)
        tables["summary"] = (
            f"{tables['gpu']['name']}, {cpu}; measured for {family} experts of {sizes.expert_bytes[0]} B"
        )
    elif cardless:
        _describe_ram(tables, figures, total, cpu)
        _memory_rate(tables, figures)
        tables["summary"] = f"RAM of {cpu} as the card; measured for {family} experts of {sizes.expert_bytes[0]} B"
    else:
        tables["summary"] = f"CPU, page cache and disk of {cpu}; card and link of {like}, not measured here"
    if "dram" not in tables and like is None:
        put(
            tables,
            "dram.stream_gb_per_s",
            _derived(4 * pageable["default"]["value"], "four times one pool's rate"),
        )
    if like is None:
        put(
            tables,
            "dram.theory_gb_per_s",
            _derived(tables["dram"]["stream_gb_per_s"]["value"], "not known; as stream"),
        )
        put(tables, "dram.shared_fraction", given(1.0, "measured", "the figure above is what both reach together"))
    return tables


def _memory_rate(tables: Tables, figures: dict[str, fit.Figure]) -> None:
    """The card's memory is as fast as the fastest read of it; a copy, which measures it, may be slower.

    A slope of groups' times is no rate of the memory: what is read again comes out of a cache.
    """
    slope = any(name.startswith("gpu.group_us_by_bytes") for name in figures)
    kinds = ("gpu.dense_gb_",) if slope else ("gpu.dense_gb_", "gpu.expert_gb_")
    reads = [figure.value for name, figure in figures.items() if name.startswith(kinds)]
    known = tables["gpu"].get("mem_gb_per_s", {}).get("value", 0.0)
    if max(reads, default=0.0) > known:
        put(tables, "gpu.mem_gb_per_s", _derived(max(reads), "the fastest read of it"))


def _derived(value: float, source: str) -> dict[str, Any]:
    return given(float(f"{value:.5g}"), "derived", source)


def _describe_card(tables: Tables) -> None:
    torch = require_card()
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    del free
    put(tables, "gpu.name", properties.name)
    put(tables, "gpu.compute_capability", f"sm_{properties.major}{properties.minor}")
    put(tables, "gpu.vram_total_gib", given(round(total / 2**30, 2), "measured", "CUDA"))
    put(
        tables, "gpu.vram_usable_gib", given(round(total / 2**30 - 2, 2), "derived", "total less 2 GiB of context")
    )
    put(tables, "link.pcie", _pcie())


def _describe_ram(tables: Tables, figures: dict[str, fit.Figure], total: float, cpu: str) -> None:
    rate = figures["gpu.expert_gb_per_s.default"].value
    put(tables, "gpu.compute_tflops", _derived(rate / 1e3, "two operations a weight at the rate of experts"))
    put(tables, "gpu.name", f"RAM and CPU of {cpu}")
    put(tables, "gpu.compute_capability", "none")
    put(tables, "gpu.vram_total_gib", given(total, "measured", "MemTotal of this machine"))
    put(tables, "gpu.vram_usable_gib", given(round(total / 2, 2), "assumed", "half of the RAM for slots"))
    put(tables, "link.pcie", "none: reads of a file")
    put(tables, "link.d2h_gb_per_s", _derived(tables["link"]["h2d_gb_per_s"]["value"], "as reads; not used"))
    put(tables, "link.submit_us", given(0.5, "assumed", "an entry in a queue"))


def _engine(figures: dict[str, fit.Figure], name: str, cardless: bool) -> Tables:
    """The live engine's preset: nothing is launched or planned beyond what the profile's figures hold."""
    inside = given(
        0.0, "measured", "inside the profile's sync_us and launch_us, which were measured on whole layers"
    )
    passes = figures.get("engine.pass_us")
    sending = {
        name: quantity(figures[f"engine.{name}"])
        for name in ("start_us", "send_us", "ahead_us", "copy_us", "fill_us", "fill_copy_us", "beside_us")
        if f"engine.{name}" in figures
    }
    return {
        "name": f"live-{name}",
        "summary": "The live executor of sim/live" + (" without a card" if cardless else ""),
        "source": "residency calibrate",
        "miss": "fetch",
        "fill": False,
        "in_flight": "wait",
        "overlap": True,
        "copy_unit": "layer",
        "copy_order": "asked",
        "reads": "link",
        "plan_us": inside,
        "combine_us": inside,
        "dense_launches": inside,
        "expert_launches": given(1, "measured", "one graph a group; launch_us is that of the graph"),
        "pass_us": quantity(passes) if passes else given(0.0, "assumed", "not measured"),
        **sending,
    }


def cpu_name() -> str:
    """Model name as the kernel gives it, or the architecture."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text("utf-8"))
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()


def _memory_gib() -> float:
    found = re.search(r"MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text("utf-8"))
    if found is None:
        raise HardwareError("the system does not say how much memory it has", path="/proc/meminfo")
    return round(int(found[1]) / 2**20, 2)


def _pcie() -> str:
    """Generation and width that the link has negotiated, as the driver tells."""
    query = ["nvidia-smi", "--query-gpu=pcie.link.gen.current,pcie.link.width.current", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "not known"
    parts = [part.strip() for part in answer.strip().splitlines()[0].split(",")]
    return f"{parts[0]}.0 x{parts[1]}" if len(parts) == 2 and parts[0].isdigit() else "not known"
