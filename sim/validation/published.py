"""Published rows of the engine Strata predicted from preset and profile.

A row prints how many routed experts of a window the card, the processor and the link served (or a hit rate), and a
time. The prediction is the engine's formula on averages: every layer alike, the longer of card and processor,
the fixed parts of a window. As the constants stand, no row of the machine is in it, but for numbers of profile or
preset that were derived from the row's own report: `hwmodels/runs/published/constants.csv` names them, and such
rows are reported apart. Beside that stands what a fit on half of the machine's rows gives (`fit` and `unseen`
alternate in file order): one number for every two fit rows, four at most, none for a machine with one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.runs import ConstantSource, StrataRun, load_constant_sources, load_strata_runs
from expert_residency.hwmodels.units import ns_for_bytes
from expert_residency.sim.choices.preset import EnginePreset, load_engine
from expert_residency.sim.runs.interval import Interval, around
from expert_residency.sim.runs.interval import Machine as Drawn
from expert_residency.sim.timed.costs import Costs
from expert_residency.sim.timed.machine import Machine
from expert_residency.sim.validation.fitting import search
from expert_residency.sim.validation.rows import (
    MODELS,
    TOKENS_A_WINDOW,
    Window,
    missing,
    quant_of,
    source_of,
    window_of,
)
from expert_residency.traces import ModelGeometry, load_model

UNIONS = {1: 1.0, 2: 1.75, 3: 2.4, 4: 3.05}
"""Distinct misses of a window of so many rows, in those of one row (Niko1221/Strata)."""
TOKENS_SD = 0.13
"""Standard deviation of the logarithm of tokens a window: 2.4 to 3.6 over the rows that print them."""
KNOBS = ("tokens a window", "fixed part", "processor rate", "time of a row")
"""What may be fitted, in this order; the first only where rows do not print it."""


def union(rows: float) -> float:
    """Distinct misses of a window in those of one row, straight lines between the published points."""
    if rows >= 4:
        return UNIONS[4] + (rows - 4) * (UNIONS[4] - UNIONS[3])
    below = math.floor(rows)
    return UNIONS[below] + (rows - below) * (UNIONS.get(below + 1, UNIONS[4]) - UNIONS[below])


def predict_ms(
    window: Window, costs: Costs, profile: HardwareProfile, geometry: ModelGeometry, preset: EnginePreset,
    *, fixed: float = 1.0, processor: float = 1.0, row: float = 1.0,
) -> float:  # fmt: skip
    """Time of one window, in ms.

    Parameters
    ----------
    window, costs, profile, geometry, preset
        The row; tables of its machine.
    fixed, processor, row
        Factors on the fixed part of a layer and pass, on the processor's rate, on the time of one more row.

    Returns
    -------
    float
        Ms.
    """
    layers, size, preset = geometry.n_layers, geometry.expert_bytes[0], preset.on(profile.gpu)
    once = union(window.rows) / window.rows
    rate = processor * profile.cpu.expert_mb_per_s(source_of(window.run), geometry.quant_family)
    link = float(profile.link.h2d_mb_per_s)
    if window.pcie:
        slowed = max(1.0, (rate + link) / profile.dram.shared_mb_per_s)
        rate, link = rate / slowed, link / slowed
    cpu_bytes, pcie_bytes, hit_bytes = (once * n / layers * size for n in (window.cpu, window.pcie, window.vram))
    host_ns = (costs.dispatch_ns + ns_for_bytes(round(cpu_bytes), max(1, round(rate)))) if cpu_bytes else 0
    card_ns = ns_for_bytes(round(hit_bytes + pcie_bytes), costs.expert_mb_per_s[0]) + costs.expert_launch_ns[0]
    card_ns += ns_for_bytes(round(pcie_bytes), max(1, round(link)))
    dense = sum(costs.dense_ns) / layers + costs.sync_ns[0] + preset.plan_ns + preset.combine_ns
    extra = row * (window.rows - 1) * (layers * preset.row_ns + preset.draft_ns)
    stages = len(costs.machine.cards) - 1
    whole = fixed * (layers * dense + costs.head_ns + preset.pass_ns) + layers * max(host_ns, card_ns) + extra
    return (whole + stages * costs.handoff(1, round(window.rows)) if stages else whole) / 1e6


@dataclass(frozen=True)
class Prediction:
    """One row with what came out.

    Parameters
    ----------
    window
        The row.
    tok_s
        As profile and preset stand, tokens a window assumed if no row prints them.
    fitted_tok_s
        After fitting on half of the machine's rows; None if nothing was fitted.
    seen_by
        Numbers of profile and preset that were derived from the row's own report.
    """

    window: Window
    tok_s: float
    fitted_tok_s: float | None
    seen_by: tuple[ConstantSource, ...]

    @property
    def error(self) -> float:
        """Predicted over measured speed, less 1, nothing fitted."""
        return self.tok_s / (self.window.run.tok_s or math.nan) - 1

    @property
    def fitted_error(self) -> float | None:
        """The same after fitting."""
        return None if self.fitted_tok_s is None else self.fitted_tok_s / (self.window.run.tok_s or math.nan) - 1


@dataclass(frozen=True)
class Group:
    """One machine: what was fitted on its `fit` rows, and all its rows."""

    name: str
    fitted: dict[str, float]
    rows: tuple[Prediction, ...]

    def median_error(self, use: str | None = None) -> float | None:
        """Median absolute error: of all rows as the constants stand, or after fitting of the rows of one use."""
        errors = [
            abs(error)
            for row in self.rows
            if (error := row.error if use is None else row.fitted_error) is not None
            and use in (None, row.window.run.use)
        ]
        return statistics.median(errors) if errors else None


@dataclass(frozen=True)
class Left:
    """A row that cannot be predicted, and what is missing."""

    run: StrataRun
    reason: str


_Item = tuple[Window, Costs, ModelGeometry, EnginePreset]


def engine_of(run: StrataRun) -> EnginePreset:
    """Preset of a row."""
    return load_engine("strata-reference" if "spec-corrupt" in run.flags else "strata")


def item_of(run: StrataRun, profile: HardwareProfile, preset: EnginePreset) -> _Item:
    """What a row's prediction is made of.

    Parameters
    ----------
    run, profile, preset
        The row, its machine and its engine.

    Returns
    -------
    (Window, Costs, ModelGeometry, EnginePreset)
        Its window, times, model and engine.
    """
    geometry = load_model(MODELS[run.model], quant_of(run))
    first = geometry.n_layers // run.n_gpus
    split = (first,) * (run.n_gpus - 1) + (geometry.n_layers - first * (run.n_gpus - 1),)
    machine = Machine.split((profile,) * run.n_gpus, split)
    window = window_of(run, preset, profile, geometry)
    return window, Costs.of(geometry, machine, preset), geometry, preset


def interval_of(made: Prediction) -> Interval:
    """Where 90 % of rows like this one lie; of a row that prints no tokens a window, theirs is in it."""
    run = made.window.run

    def speed(drawn: Drawn) -> float:
        window, costs, geometry, preset = item_of(run, drawn[0][0], drawn[1])
        return 1.0 / predict_ms(window, costs, drawn[0][0], geometry, preset)

    workload = TOKENS_SD if made.window.tokens is None else 0.0
    return around(made.tok_s, speed, ((load_profile(run.profile),), engine_of(run)), workload=workload)


def predict_group(name: str, runs: Sequence[StrataRun]) -> Group:
    """Predictions of one machine's rows, in none of which anything is missing.

    Parameters
    ----------
    name
        Of the machine.
    runs
        Its rows, one or more.
    """
    profile = load_profile(runs[0].profile)
    constants = load_constant_sources()
    items = [item_of(run, profile, engine_of(run)) for run in runs]
    chosen = [item for item in items if item[0].run.use == "fit"]
    free = [KNOBS[0]] if any(window.tokens is None for window, *_ in items) else []
    free += [knob for knob in KNOBS[1:] if knob != "processor rate" or any(w.cpu for w, *_ in items)]
    free = free[: min(4, len(chosen) // 2)]

    def speed(item: _Item, knobs: dict[str, float]) -> float:
        window, costs, geometry, preset = item
        tokens = window.tokens or TOKENS_A_WINDOW * knobs.get(KNOBS[0], 1.0)
        ms = predict_ms(
            window, costs, profile, geometry, preset, fixed=knobs.get(KNOBS[1], 1.0),
            processor=knobs.get(KNOBS[2], 1.0), row=knobs.get(KNOBS[3], 1.0),
        )  # fmt: skip
        return 1000 * tokens / ms

    def loss(factors: Sequence[float]) -> float:
        knobs = dict(zip(free, factors, strict=True))
        return sum(math.log(speed(item, knobs) / (item[0].run.tok_s or 1.0)) ** 2 for item in chosen)

    fitted = dict(zip(free, search(loss, [1.0] * len(free)), strict=True)) if free else {}
    return Group(
        name,
        fitted,
        tuple(
            Prediction(
                item[0],
                speed(item, {}),
                speed(item, fitted) if fitted else None,
                tuple(
                    one
                    for one in constants
                    if one.where in (profile.name, item[3].name) and one.report in item[0].run.source
                ),
            )
            for item in items
        ),
    )


def predict_published(runs: Sequence[StrataRun] | None = None) -> tuple[list[Group], list[Left]]:
    """All machines with a row that can be predicted, and the rows that cannot, with what is missing."""
    groups: dict[str, list[StrataRun]] = {}
    left: list[Left] = []
    for run in runs if runs is not None else load_strata_runs():
        if (reason := missing(run)) is not None:
            left.append(Left(run, reason))
        else:
            groups.setdefault(run.group or f"{run.n_gpus}x {run.profile}", []).append(run)
    return [predict_group(name, members) for name, members in groups.items()], left
