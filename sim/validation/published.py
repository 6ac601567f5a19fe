"""Published rows of the engine Strata predicted from preset and profile, half of each machine's rows unseen.

A row prints how many routed experts of a window the card, the processor and the link served (or a hit rate), and a
time. The prediction is the engine's formula on averages: every layer alike, the longer of card and processor,
the fixed parts of a window. Rows of a machine alternate `fit, unseen` in file order; what is not known about a
machine is fitted on its first half, four numbers at most, one for every two rows.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from expert_residency.errors import SimError
from expert_residency.hwmodels.profile import ExpertSource, HardwareProfile
from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.runs import StrataRun, load_strata_runs
from expert_residency.hwmodels.units import ns_for_bytes
from expert_residency.sim.choices.preset import EnginePreset, load_engine
from expert_residency.sim.timed.costs import Costs
from expert_residency.sim.timed.machine import Machine
from expert_residency.sim.validation.fitting import search
from expert_residency.traces import ModelGeometry, load_model

UNIONS = {1: 1.0, 2: 1.75, 3: 2.4, 4: 3.05}
"""Distinct misses of a window of so many rows, in those of one row (Niko1221/Strata)."""
ACCEPTANCE = 0.75
"""Drafts accepted of those offered, where a row prints neither; published rates are 0.64 to 0.85."""
TOKENS_A_WINDOW = 2.8
"""Tokens a window, the start of the fit where a machine's rows print neither windows nor tokens a window."""
WIDEST_RANGE = 10.0
"""Rows whose hit rate is a wider range than so many points say too little."""
_PCIE = re.compile(r"PCIe share ([\d.]+)-([\d.]+)% of routed")
MODELS = {"Qwen3.8-Flash-Next": "qwen3.8-flash-next", "Swift 1.5 (Flash-Next fine-tune)": "qwen3.8-flash-next"}
KNOBS = ("tokens a window", "fixed part", "processor rate", "time of a row")
"""What may be fitted, in this order; the first only where rows do not print it."""


@dataclass(frozen=True)
class Window:
    """One row in numbers of a window: rows, tokens, routed experts by where they were served, and its time."""

    run: StrataRun
    rows: float
    tokens: float | None
    cpu: float
    pcie: float
    vram: float
    measured_ms: float

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise SimError(f"{self.run.source}: {self.rows} rows a window")


def union(rows: float) -> float:
    """Distinct misses of a window in those of one row, straight lines between the published points."""
    if rows >= 4:
        return UNIONS[4] + (rows - 4) * (UNIONS[4] - UNIONS[3])
    below = math.floor(rows)
    return UNIONS[below] + (rows - below) * (UNIONS.get(below + 1, UNIONS[4]) - UNIONS[below])


def window_of(
    run: StrataRun, preset: EnginePreset, profile: HardwareProfile, geometry: ModelGeometry
) -> Window | None:
    """A row as a window; None if it prints neither a hit rate nor counts, or no time.

    Parameters
    ----------
    run
        The published row.
    preset
        Its engine.
    profile
        Its machine.
    geometry
        Its model.

    Returns
    -------
    Window | None
        Experts served a window, by tier.
    """
    hits = run.hit_rate_pct
    if run.tok_s is None or hits is None or hits.high - hits.low > WIDEST_RANGE:
        return None
    reference = "spec-corrupt" in run.flags
    tokens = 1.0 if reference else run.tokens_window
    if tokens is None and run.windows and run.ms_window:
        tokens = run.tok_s * run.ms_window / 1000
    rows = run.rows_window or (2.0 if reference else 1 + ((tokens or TOKENS_A_WINDOW) - 1) / ACCEPTANCE)
    per_row = geometry.top_k * geometry.n_layers
    if run.windows and run.routed:
        rows = run.routed / per_row / run.windows
    routed = rows * per_row
    if run.windows and run.cpu_served is not None and run.pcie_served is not None:
        cpu, pcie = run.cpu_served / run.windows, run.pcie_served / run.windows
    else:
        hit, printed = hits.middle / 100, _PCIE.search(run.notes)
        if printed:
            pcie = routed * (float(printed[1]) + float(printed[2])) / 200
            cpu = (1 - hit) * (routed - pcie)
        else:
            share = _share(run, preset, profile)
            missed = routed / (1 + hit * (1 - share) / (1 - hit)) if hit < 1 else 0.0
            cpu, pcie = (1 - share) * missed, share * missed
    time = run.ms_window if run.ms_window else 1000 / run.tok_s * (tokens or TOKENS_A_WINDOW)
    return Window(run, rows, tokens, cpu, pcie, routed - cpu - pcie, time)


def _share(run: StrataRun, preset: EnginePreset, profile: HardwareProfile) -> float:
    """Share of misses over PCIe: the preset's, or what the row's flags ask for; none from a mapped file."""
    if "mmap" in run.mode:
        return 0.0
    asked = re.search(r"pcie[-_]frac ([\d.]+)", run.flags)
    return float(asked[1]) if asked else preset.fetched(256, profile.link.h2d_mb_per_s, 1) / 256


def _source(run: StrataRun) -> ExpertSource:
    """Memory from which the processor reads."""
    return "page_cache" if "mmap" in run.mode else "budget" if "budget" in run.mode else "pinned"


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
    layers, size = geometry.n_layers, geometry.expert_bytes[0]
    once = union(window.rows) / window.rows
    rate = processor * profile.cpu.expert_mb_per_s(_source(window.run), geometry.quant_family)
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
    """One row with what came out, before and after fitting."""

    window: Window
    unfitted_tok_s: float | None
    tok_s: float

    @property
    def error(self) -> float:
        """Predicted over measured speed, less 1."""
        assert self.window.run.tok_s is not None
        return self.tok_s / self.window.run.tok_s - 1


@dataclass(frozen=True)
class Group:
    """One machine: what was fitted on its `fit` rows, and all its rows."""

    name: str
    fitted: dict[str, float]
    rows: tuple[Prediction, ...]

    def median_error(self, use: str) -> float | None:
        """Median absolute error of the rows of one use."""
        errors = [abs(row.error) for row in self.rows if row.window.run.use == use]
        return statistics.median(errors) if errors else None


def predict_group(name: str, runs: Sequence[StrataRun]) -> Group | None:
    """Predictions of one machine's rows; None if none of them can be used, or none is for fitting."""
    profile = load_profile(runs[0].profile)
    windows: list[tuple[Window, Costs, ModelGeometry, EnginePreset]] = []
    for run in runs:
        if run.model not in MODELS:
            continue
        geometry = load_model(MODELS[run.model], run.quant)
        preset = load_engine("strata-reference" if "spec-corrupt" in run.flags else "strata")
        window = window_of(run, preset, profile, geometry)
        if window is None:
            continue
        first = geometry.n_layers // run.n_gpus
        split = (first,) * (run.n_gpus - 1) + (geometry.n_layers - first * (run.n_gpus - 1),)
        machine = Machine.split((profile,) * run.n_gpus, split)
        windows.append((window, Costs.of(geometry, machine, preset), geometry, preset))
    chosen = [item for item in windows if item[0].run.use == "fit"]
    if not chosen:
        return None
    unknown_tokens = any(window.tokens is None for window, *_ in windows)
    free = [KNOBS[0]] if unknown_tokens else []
    free += [knob for knob in KNOBS[1:] if knob != "processor rate" or any(w.cpu for w, *_ in windows)]
    free = free[: max(1, min(4, len(chosen) // 2))]

    def speed(item: tuple[Window, Costs, ModelGeometry, EnginePreset], knobs: dict[str, float]) -> float:
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

    fitted = dict(zip(free, search(loss, [1.0] * len(free)), strict=True))
    return Group(
        name,
        fitted,
        tuple(
            Prediction(item[0], speed(item, {}) if item[0].tokens else None, speed(item, fitted))
            for item in windows
        ),
    )


def predict_published(runs: Sequence[StrataRun] | None = None) -> list[Group]:
    """All machines whose profile ships and whose rows print what the formula needs."""
    groups: dict[str, list[StrataRun]] = {}
    for run in runs if runs is not None else load_strata_runs():
        if run.profile and run.use:
            groups.setdefault(run.group, []).append(run)
    found = [predict_group(name, members) for name, members in groups.items()]
    return [group for group in found if group is not None]
