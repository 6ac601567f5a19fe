"""Knob sweeps of the shipped measured rows: the setting that was best on the machine beside the one advised.

A *sweep* is rows of one report that differ in one knob and nothing else, with three settings or more. Each setting
is run on the compiled engine with the machine by data sheets alone and with constants of other machines; the
advice is the fastest of the settings that were measured. After that the same with constants fitted to at most six
of the machine's rows. What engine, model or machine nobody can run is named.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from expert_residency.hwmodels.datasheet import from_data_sheet
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.runs import MeasuredRun, load_measured_runs, load_strata_runs
from expert_residency.sim.choices.knob import Knob, Value
from expert_residency.sim.choices.preset import EnginePreset, load_engine
from expert_residency.sim.choices.workers import as_set
from expert_residency.sim.runs.constants import Constant, constants_of, scaled
from expert_residency.sim.runs.interval import Machine
from expert_residency.sim.studies.advise.task import Ask
from expert_residency.sim.studies.advise.timed import TimedTask
from expert_residency.sim.studies.advise.workloads import workloads
from expert_residency.sim.studies.fit.fit import Speeds, most_likely
from expert_residency.sim.validation.measured.machines import Rig
from expert_residency.sim.validation.measured.questions import Question, question_of
from expert_residency.sim.validation.measured.tables import of_strata

LEAST = 3
"""Settings of a sweep."""
PAIR = 2
"""Settings that a choice is made between at least."""
APART, FAR = 0.10, 0.20
"""Pairs that are so far apart have an order."""
PASSES = 160
PATTERNS = (
    ("PCIe share", "engine.pcie_share", r"pcie[-_]frac[ =]?(\d*\.?\d+)"),
    ("workers", "workers", r"(\d+) CPU workers|pool-workers (\d+)"),
    ("draft floor", "floor", r"(?:draft floor|min-p) (\d*\.\d+)"),
    ("adaptive tier", "tier", r"expert tier (default|adapt every \d+, \d+ swaps)"),
    ("window", "rows", r"--spec (\d+)"),
    ("layers on the CPU", "cpu_layers", r"ncmoe (\d+)"),
    ("cache", "capacity", r"(?:cache )?(?:(none)|(\d+ slots)?[ ]?([\d.]+)(?: ?[GM]i?B)?)$"),
)
"""Name, what it sets, and how rows write it: in the mode, of caches in the column of their size."""
TIER_DEFAULT = (4, 96)


@dataclass(frozen=True)
class Sweep:
    """One knob on one machine.

    Parameters
    ----------
    knob, sets
        Its name, and what it sets.
    rows
        One a setting, by the value ascending.
    values
        Of the rows.
    tok_s
        Measured; the mean where a setting was run more than once.
    """

    knob: str
    sets: str
    rows: tuple[MeasuredRun, ...]
    values: tuple[Value, ...]
    tok_s: tuple[float, ...]

    @property
    def machine(self) -> str:
        """Card and processor."""
        row = self.rows[0]
        return ", ".join(
            text for text in (f"{row.n_gpus}x {row.gpu}" if row.n_gpus > 1 else row.gpu, row.cpu) if text
        )

    @property
    def name(self) -> str:
        """In one line."""
        row = self.rows[0]
        return f"{row.engine.split()[0]}, {self.machine}: {row.model} {row.quant}".strip()

    @property
    def best(self) -> int:
        """The setting that was fastest."""
        return max(range(len(self.tok_s)), key=self.tok_s.__getitem__)


@dataclass(frozen=True)
class Judged:
    """A sweep beside its prediction.

    Parameters
    ----------
    sweep
        As measured.
    predicted
        Tokens/s of each setting.
    fitted
        The same after a fit on at most six rows of the machine; None where nothing was fitted.
    used
        Settings, by number, that the fit saw.
    """

    sweep: Sweep
    predicted: tuple[float, ...]
    fitted: tuple[float, ...] | None = None
    used: tuple[int, ...] = ()

    def unseen(self) -> Judged | None:
        """The same of settings that the fit did not see; None where fewer than two are left, or without a fit."""
        left = [at for at in range(len(self.predicted)) if at not in self.used]
        if self.fitted is None or len(left) < PAIR:
            return None
        sweep = replace(
            self.sweep, rows=tuple(self.sweep.rows[at] for at in left),
            values=tuple(self.sweep.values[at] for at in left), tok_s=tuple(self.sweep.tok_s[at] for at in left),
        )  # fmt: skip
        return Judged(sweep, tuple(self.predicted[at] for at in left), tuple(self.fitted[at] for at in left))

    def errors(self, speeds: Sequence[float], *, used: bool) -> list[float]:
        """Predicted over measured less 1, of the settings that the fit saw or of the others.

        Parameters
        ----------
        speeds
            Predicted, of each setting.
        used
            Those that it saw.

        Returns
        -------
        list of float
            In the order of the settings.
        """
        pairs = enumerate(zip(speeds, self.sweep.tok_s, strict=True))
        return [speed / measured - 1 for at, (speed, measured) in pairs if (at in self.used) == used]

    def advised(self, speeds: Sequence[float]) -> int:
        """The setting with the highest prediction; of equal ones the one that was slowest on the machine."""
        most = max(speeds) * (1 - 1e-6)
        return min((at for at, speed in enumerate(speeds) if speed >= most), key=self.sweep.tok_s.__getitem__)

    def regret(self, speeds: Sequence[float]) -> float:
        """What the advised setting loses against the best one."""
        return 1 - self.sweep.tok_s[self.advised(speeds)] / self.sweep.tok_s[self.sweep.best]

    def wrong(self, speeds: Sequence[float], apart: float) -> tuple[int, int]:
        """Pairs that are so far apart and predicted in the other order, and how many there are.

        Parameters
        ----------
        speeds
            Predicted, of each setting.
        apart
            Share by which the faster one is measured faster.

        Returns
        -------
        (int, int)
            Wrong ones, and all.
        """
        pairs = [
            (a, b)
            for a in range(len(speeds))
            for b in range(len(speeds))
            if self.sweep.tok_s[a] > self.sweep.tok_s[b] * (1 + apart)
        ]
        return sum(speeds[a] <= speeds[b] for a, b in pairs), len(pairs)


@dataclass(frozen=True)
class NotJudged:
    """A sweep that cannot be run, and what is missing."""

    sweep: Sweep
    missing: str


def find_sweeps(rows: Sequence[MeasuredRun] | None = None) -> list[Sweep]:
    """Sweeps of rows.

    Parameters
    ----------
    rows
        Instead of those that ship.

    Returns
    -------
    list of Sweep
        In the order of the rows; a row may be in sweeps of several knobs.
    """
    found: dict[tuple[str, ...], dict[Value, list[MeasuredRun]]] = {}
    for row in _shipped() if rows is None else rows:
        if row.kind in ("run", "flagged"):
            for knob, sets, pattern in PATTERNS:
                if value := _value(row, sets, pattern):
                    key = (knob, sets, row.source, row.gpu, str(row.n_gpus), row.cpu, row.ram, row.link, row.model,
                           row.quant, row.engine, *value[1])  # fmt: skip
                    found.setdefault(key, {}).setdefault(value[0], []).append(row)
    sweeps = []
    for key, settings in found.items():
        if len(settings) >= LEAST:
            values = sorted(settings, key=lambda value: (isinstance(value, str), value))
            speeds = tuple(statistics.mean(row.tok_s for row in settings[value]) for value in values)
            sweeps.append(Sweep(key[0], key[1], tuple(settings[v][0] for v in values), tuple(values), speeds))
    return sweeps


def _shipped() -> list[MeasuredRun]:
    older = [made for run in load_strata_runs() if (made := of_strata(run)) is not None]
    return [*load_measured_runs(), *older]


def _value(row: MeasuredRun, sets: str, pattern: str) -> tuple[Value, tuple[str, ...]] | None:
    """A row's value of a knob, and the rest of its words; None where it does not say."""
    text = row.cache if sets == "capacity" else row.mode
    match = re.search(pattern, text)
    if match is None:
        return None
    rest = text[: match.start()] + "*" + text[match.end() :]
    words = (row.mode, rest, row.workload) if sets == "capacity" else (rest, row.cache, row.workload)
    said = next(group for group in reversed(match.groups()) if group)
    if sets == "tier":
        return said, words
    return (0.0 if said == "none" else float(said)), words


# ---- prediction -----------------------------------------------------------------------------------


@dataclass
class SweepTask:
    """Runs the settings of one sweep.

    Parameters
    ----------
    sweep, question
        Its rows, and the first of them as a question.
    """

    sweep: Sweep
    question: Question
    _tasks: dict[int, TimedTask] = field(default_factory=dict, init=False)

    @cached_property
    def profile(self) -> HardwareProfile:
        """The machine by data sheets."""
        return sheet(self.question.machine)

    @cached_property
    def preset(self) -> EnginePreset:
        """The engine, its knobs those that a row sets."""
        preset = load_engine(self.question.knobs.engine)
        own = preset.knobs.get("pcie-share")
        clears = own.clears if own else ()
        knobs = {
            "share": Knob(sets="engine.pcie_share", values=(0.0, 1.0), clears=clears),
            "workers": Knob(sets="workers", values=(0.5, 1.0)), "window": Knob(sets="rows", values=(1, 2)),
            "floor": Knob(sets="floor", values=(0.0, 0.5)),
            "every": Knob(sets="admission.every", values=(1, 4)),
            "swaps": Knob(sets="admission.swaps", values=(0, 96)),
        }  # fmt: skip
        return preset.model_copy(update={"knobs": knobs})

    @cached_property
    def task(self) -> TimedTask:
        """The compiled engine on the machine."""
        geometry = self.question.geometry
        made = workloads(f"{geometry.name}/{geometry.quant}", [], None, PASSES)[:1]
        cards = self.question.machine.cards
        ask = Ask(
            self.question.knobs.engine, self.preset, (self.profile,) * cards, ("machine",) * cards, made, 4096,
            self.preset.kv_type,
        )  # fmt: skip
        task = TimedTask(ask, {"depth": min(self.question.knobs.depth, 16_384)})
        room = self.question.knobs.slots * sum(geometry.expert_bytes) // geometry.n_layers
        task.room = (room // cards,) * cards  # equal cards, equal layers
        return task

    def speed(self, value: Value, machine: Machine | None = None) -> float:
        """Tokens/s of a setting.

        Parameters
        ----------
        value
            Of the sweep's knob.
        machine
            Profiles and preset instead of those by data sheets.

        Returns
        -------
        float
            Tokens/s.
        """
        knobs = self.question.knobs
        share = 0.55 if knobs.pcie_share is None else knobs.pcie_share
        every, swaps = TIER_DEFAULT
        swaps = 0 if "no adaptation" in self.sweep.rows[0].mode else swaps
        setting: dict[str, Any] = {
            "engine.pcie_share": share,
            "workers": knobs.workers or self.profile.cpu.workers.count,
            "rows": knobs.window if knobs.window > 1 else 4,
            "floor": knobs.floor or 0.5,
            "admission.every": every,
            "admission.swaps": swaps,
        }
        if self.sweep.sets == "tier":
            if found := re.match(r"adapt every (\d+), (\d+) swaps", str(value)):
                setting |= {"admission.every": int(found[1]), "admission.swaps": int(found[2])}
        else:
            setting[self.sweep.sets] = int(value) if self.sweep.sets in ("workers", "rows") else value
        controls = self.task.controls
        found_speed = self.task.speed(tuple(setting[c.knob.sets] for c in controls), machine)
        return found_speed or math.nan


def sheet(rig: Rig) -> HardwareProfile:
    """A machine of a measured row by its data sheets, with the link's rate where the row prints it."""
    profile = from_data_sheet(
        rig.name, gpu=rig.card.label, gpu_gb_per_s=rig.card.mem_gb_per_s, cpu=rig.cpu.label if rig.cpu else "",
        cores=rig.cores, ram_gb_per_s=rig.ram_gb_per_s,
    )  # fmt: skip
    link = as_set(rig.link_gb_per_s, "the row's probe, or generation and lanes")
    return profile.model_copy(
        update={
            "link": profile.link.model_copy(update={"h2d_gb_per_s": link, "d2h_gb_per_s": link}),
            "cpu": profile.cpu.model_copy(update={"workers": as_set(rig.workers or rig.cores)}),
        }
    )


RUNNABLE = ("engine.pcie_share", "workers", "floor", "tier", "rows")
"""What a sweep of an engine that keeps single experts can be run for."""


def task_of(sweep: Sweep) -> SweepTask | str:
    """What runs a sweep, or what is missing for it."""
    question = question_of(sweep.rows[0])
    if not isinstance(question, Question):
        return question.missing
    if question.knobs.where != "slots" or not question.knobs.slots:
        return "it is not said how many experts the card holds"
    if sweep.sets not in RUNNABLE:
        return f"{sweep.knob} of the engine {sweep.rows[0].engine} is not simulated"
    return SweepTask(sweep, question)


def judge(
    sweeps: Sequence[Sweep] | None = None, *, fit: bool = True, progress: Callable[[str], None] | None = None
) -> tuple[list[Judged], list[NotJudged]]:
    """Every sweep beside its prediction.

    Parameters
    ----------
    sweeps
        Instead of those of the shipped rows.
    fit
        Whether constants are fitted too.
    progress
        Told what is done next.

    Returns
    -------
    judged, not_judged
        Those that can be run, and the others with what is missing.
    """
    say = progress or (lambda _: None)
    tasks: list[SweepTask] = []
    left: list[NotJudged] = []
    for sweep in find_sweeps() if sweeps is None else sweeps:
        task = task_of(sweep)
        if isinstance(task, str):
            left.append(NotJudged(sweep, task))
        else:
            tasks.append(task)
    judged = []
    for machine in dict.fromkeys(task.sweep.machine for task in tasks):
        own = [task for task in tasks if task.sweep.machine == machine]
        say(f"{machine}: {len(own)} sweeps")
        fitted = fit_machine(own, say) if fit else None
        saw = fitting_rows(own) if fit else []
        for task in own:
            before = tuple(task.speed(value) for value in task.sweep.values)
            after = tuple(task.speed(value, fitted) for value in task.sweep.values) if fitted else None
            judged.append(Judged(task.sweep, before, after, tuple(at for one, at in saw if one is task)))
    return judged, left


# ---- after a fit ----------------------------------------------------------------------------------

MOST_RUNS = 6
NOISE = 0.04
"""Of a measured speed: one setting of the RTX 4090 Laptop was measured four times, 70.3 to 76.1 tokens/s."""


class _OfSweeps(Speeds[tuple[SweepTask, int]]):
    """Speeds of settings of sweeps of one machine."""

    def __init__(self, first: SweepTask) -> None:
        self.first = first
        self.cards = first.task.ask.profiles
        self.constants = constants_of(self.cards, first.preset, frozenset({"pcie_share"}))

    def machine(self, logs: Mapping[Constant, float]) -> Machine:
        """The machine with constants moved."""
        factors = {one: math.exp(x) for one, x in logs.items() if x}
        return scaled(self.cards, self.first.preset, factors)

    def speed(self, run: tuple[SweepTask, int], logs: Mapping[Constant, float]) -> float:
        """Tokens/s of a setting of a sweep.

        Parameters
        ----------
        run
            The sweep, and which of its settings.
        logs
            Logarithms by which constants are moved.

        Returns
        -------
        float
            Tokens/s.
        """
        task, at = run
        return task.speed(task.sweep.values[at], self.machine(logs))


def fitting_rows(tasks: Sequence[SweepTask]) -> list[tuple[SweepTask, int]]:
    """Rows that a machine's fit takes: both ends of each knob's first sweep, six at most."""
    first = {task.sweep.knob: task for task in reversed(tasks) if task.sweep.sets != "tier"}
    order = [task for task in tasks if first.get(task.sweep.knob) is task]
    return [(task, at) for task in order for at in (0, len(task.sweep.values) - 1)][:MOST_RUNS]


def fit_machine(tasks: Sequence[SweepTask], say: Callable[[str], None]) -> Machine:
    """The machine with constants fitted to at most six of its rows."""
    model, runs = _OfSweeps(tasks[0]), fitting_rows(tasks)
    before = model.logs(runs, {})
    measured = np.log([task.sweep.tok_s[at] for task, at in runs])
    likely = most_likely(model, runs, measured, before, NOISE, say)
    return model.machine(dict(zip(likely.chosen, likely.at, strict=True)))


def by_knob(sweeps: Sequence[Sweep]) -> Mapping[str, int]:
    """How many sweeps there are of each knob."""
    counts: dict[str, int] = {}
    for sweep in sweeps:
        counts[sweep.knob] = counts.get(sweep.knob, 0) + 1
    return counts
