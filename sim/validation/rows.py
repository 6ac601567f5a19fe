"""What a published row of the engine Strata says of one window of its run, and what a prediction lacks in it.

Counts are read from their columns, and where those are empty from the notes that quote the engine's log. Which
misses went over PCIe is counted, or else the share that the flags or the preset ask for, of those experts that lay
in page-locked memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from expert_residency.errors import SimError, UserError
from expert_residency.hwmodels.profile import ExpertSource, HardwareProfile
from expert_residency.hwmodels.runs import StrataRun
from expert_residency.hwmodels.units import GIB
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.traces import ModelGeometry, load_model

ACCEPTANCE = 0.75
"""Drafts accepted of those offered, where a row prints neither; published rates are 0.64 to 0.85."""
TOKENS_A_WINDOW = 2.8
"""Tokens a window where neither the row nor any other of its machine prints them."""
WIDEST_RANGE = 10.0
"""Rows whose hit rate is a wider range than so many points say too little."""
MODELS = {
    "Qwen3.8-Flash-Next": "qwen3.8-flash-next",
    "Swift 1.5 (Flash-Next fine-tune)": "qwen3.8-flash-next",
    "Swift 1.5": "qwen3.8-flash-next",
    "orcarouter Flash-Next Uncensored": "qwen3.8-flash-next",
    "Qwen3.8-Flash-Next Coder": "qwen3.8-flash-next-coder",
    "Coder": "qwen3.8-flash-next-coder",
}
"""Packaged models of the shape that a row names; fine-tunes have that of their base."""
_RANGE = re.compile(r"PCIe share ([\d.]+)-([\d.]+)% of routed")
_ASKED = re.compile(r"pcie[-_]frac[ =]([\d.]+)")
_PINNED = re.compile(r"([\d.]+) GiB pinned|pinned ([\d.]+) GiB")
_BUDGET = re.compile(r"budget[ -]?(?:gib)?[ =]?([\d.]+)")
_NOTES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("vram_hits", "lookups"), r"hits/lookups (\d+)/(\d+)"),
    (("vram_hits",), r"VRAM hits (\d+)"),
    (("lookups",), r"(?:^|; )lookups (\d+)"),
    (("cpu_served",), r"CPU-served (\d+)"),
    (("pcie_served",), r"PCIe-served (\d+)"),
    (("pcie_served",), r"PCIe share \(derived\) (\d+)"),
    (("routed",), r"routed (?:\(derived\) )?(\d+)"),
    (("drafts_accepted", "drafts_offered"), r"drafts (\d+)/(\d+)"),
    (("windows",), r"windows[ ~](\d+)"),
)
"""Columns and how the notes write them."""


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


def with_counts(run: StrataRun) -> StrataRun:
    """The row, counts that stand only in its notes put into their columns."""
    found: dict[str, Any] = {}
    for columns, pattern in _NOTES:
        if match := re.search(pattern, run.notes):
            for column, text in zip(columns, match.groups(), strict=True):
                found.setdefault(column, int(text))
    found = {column: value for column, value in found.items() if getattr(run, column) is None}
    run = run.model_copy(update=found)
    if run.pcie_served is None and "pcie share not used" in run.flags:
        run = run.model_copy(update={"pcie_served": 0})
    if run.cpu_served is None and run.lookups is not None and run.vram_hits is not None:
        run = run.model_copy(update={"cpu_served": run.lookups - run.vram_hits})
    if run.routed is None and run.lookups is not None and run.pcie_served is not None:
        run = run.model_copy(update={"routed": run.lookups + run.pcie_served})
    return run


def quant_of(run: StrataRun) -> str:
    """The quantization without what a row adds to its name, as in `Coder IQ1_M (256 of 512 experts kept)`."""
    return run.quant.removeprefix("Coder ").partition(" (")[0]


def missing(run: StrataRun) -> str | None:
    """What a prediction of the row lacks, in words; None if nothing."""
    if run.tok_s is None:
        return "no speed printed"
    if " + " in run.gpu:
        return f"cards of different kinds ({run.gpu})"
    if not run.profile:
        return f"no profile of {run.gpu} with {run.cpu or 'a processor that is not named'}"
    if run.model not in MODELS:
        return f"no sizes of the model {run.model}"
    try:
        load_model(MODELS[run.model], quant_of(run))
    except UserError:
        return f"no sizes of {run.model} in {run.quant or 'a quantization that is not named'}"
    run = with_counts(run)
    if run.windows and run.cpu_served is not None and run.pcie_served is not None:
        return None
    if run.hit_rate_pct is None:
        return "neither hit rate nor counts printed"
    if (width := run.hit_rate_pct.high - run.hit_rate_pct.low) > WIDEST_RANGE:
        return f"hit rate only as a range of {width:.0f} points"
    return None


def window_of(run: StrataRun, preset: EnginePreset, profile: HardwareProfile, geometry: ModelGeometry) -> Window:
    """A row as a window.

    Parameters
    ----------
    run
        The published row; `missing` has found nothing.
    preset
        Its engine.
    profile
        Its machine.
    geometry
        Its model.

    Returns
    -------
    Window
        Experts served a window, by tier.
    """
    given, run = run, with_counts(run)
    assert run.tok_s is not None
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
        assert run.hit_rate_pct is not None
        cpu, pcie = _by_rate(run, routed, preset, profile, geometry)
    time = run.ms_window if run.ms_window else 1000 / run.tok_s * (tokens or TOKENS_A_WINDOW)
    return Window(given, rows, tokens, cpu, pcie, routed - cpu - pcie, time)


def _by_rate(
    run: StrataRun, routed: float, preset: EnginePreset, profile: HardwareProfile, geometry: ModelGeometry
) -> tuple[float, float]:
    """Experts of a window served by the CPU and over PCIe, by the hit rate (which leaves the latter out)."""
    assert run.hit_rate_pct is not None
    hit = run.hit_rate_pct.middle / 100
    if printed := _RANGE.search(run.notes):
        pcie = routed * (float(printed[1]) + float(printed[2])) / 200
        return (1 - hit) * (routed - pcie), pcie
    if hit >= 1:
        return 0.0, 0.0
    share = pcie_share(run, preset, profile, geometry)
    missed = routed / (1 + hit * (1 - share) / (1 - hit))
    pcie = share * missed
    if preset.pcie_per_layer is not None:
        pcie = min(pcie, float(preset.pcie_per_layer.count * geometry.n_layers))
    return (1 - hit) * (routed - pcie), pcie


def pcie_share(run: StrataRun, preset: EnginePreset, profile: HardwareProfile, geometry: ModelGeometry) -> float:
    """Share of a row's misses that goes over PCIe.

    Parameters
    ----------
    run, preset, profile, geometry
        The row, its engine, machine and model.

    Returns
    -------
    float
        What the row's flags or the preset ask for, of the experts in page-locked memory.
    """
    asked = _ASKED.search(run.flags)
    share = float(asked[1]) if asked else preset.share_256ths(profile.link.h2d_mb_per_s) / 256
    return share * (pinned_share(run, profile, geometry) if preset.pcie_pinned_only else 1.0)


def pinned_share(run: StrataRun, profile: HardwareProfile, geometry: ModelGeometry) -> float:
    """Share of the experts outside VRAM that lie in page-locked memory.

    Parameters
    ----------
    run, profile, geometry
        The row, its machine and model.

    Returns
    -------
    float
        0 for a mapped file; else what the row prints, or what the machine lets be page-locked.
    """
    whole, limit = geometry.all_expert_bytes / GIB, profile.ram.pin_limit_bytes / GIB
    if budget := _BUDGET.search(run.mode):
        beside = whole * (1 - (run.slots or 0) / geometry.n_experts)
        return min(1.0, float(budget[1]) / beside, limit / beside) if beside > 0 else 1.0
    if "mmap" in run.mode or "mapped" in run.mode or "in place" in run.mode:
        return 0.0
    printed = _PINNED.search(run.mode)
    return min(1.0, (float(printed[1] or printed[2]) if printed else limit) / whole)


def source_of(run: StrataRun) -> ExpertSource:
    """Memory from which the processor reads."""
    return "page_cache" if "mmap" in run.mode else "budget" if "budget" in run.mode else "pinned"
