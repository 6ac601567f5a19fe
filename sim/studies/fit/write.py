"""What a fit determined, as files that take the rest from the machine's and the engine's own."""

from __future__ import annotations

from typing import Any

from expert_residency.hwmodels.calibrate.write import given, put, to_toml
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.sim.studies.fit.fit import FitResult, Fitted


def _limited(one: Fitted, profile: HardwareProfile) -> bool:
    """Whether a constant cannot be above the rate of the card's memory."""
    path = one.constant.path
    return one.constant.card == 0 and path[0] == "gpu" and path[1] in profile.gpu.limited_by_memory


def profile_toml(result: FitResult, base: str, source: str) -> str:
    """The machine: `base` with its constants at their most likely values; what is not determined says so.

    Parameters
    ----------
    result
        The fit.
    base
        What the runs were fitted from: NAME, card, parts or path.
    source
        File of the runs.

    Returns
    -------
    str
        TOML.
    """
    profile = result.profiles[0]
    tables: dict[str, Any] = {"base": base, "name": f"{profile.name}-fitted", "aliases": []}
    tables["summary"] = f"{profile.summary}; fitted to {len(result.checked)} runs of {source}"
    found = _replaced(result, 0, source)
    reads = [one.value for one in result.fitted if _limited(one, profile)]
    if max(reads, default=0.0) > profile.gpu.mem_gb_per_s.value:  # as it was: no run feels it
        put(found, "gpu.mem_gb_per_s", given(float(f"{max(reads):.5g}"), "derived", "the fastest read of it"))
    return to_toml(tables | found)


def preset_toml(result: FitResult, base: str, source: str) -> str:
    """The engine: `base` with its constants at their most likely values.

    Parameters
    ----------
    result
        The fit.
    base
        Preset that the runs were fitted from.
    source
        File of the runs.

    Returns
    -------
    str
        TOML; empty if the runs feel no constant of the engine.
    """
    found = _replaced(result, None, source)
    return to_toml({"base": base, "name": f"{result.preset.name}-fitted"} | found) if found else ""


def _replaced(result: FitResult, card: int | None, source: str) -> dict[str, Any]:
    tables: dict[str, Any] = {}
    for one in result.fitted:
        if one.constant.card == card:
            put(tables, ".".join(one.constant.path), _number(one, source, len(result.checked)))
    return tables


def _number(one: Fitted, source: str, runs: int) -> dict[str, Any]:
    before = f"was {one.constant.value:g}, {one.constant.kind}"
    if one.verdict == "determined":
        kind, said = "measured", f"residency fit: {runs} runs of {source}; {before}"
    else:
        kind = "assumed" if one.constant.kind == "assumed" else "derived"
        said = f"residency fit: {one.verdict}, {runs} runs of {source} do not determine it alone; {before}"
    spread = [min(one.low, one.value), max(one.high, one.value)]
    return given(float(f"{one.value:.5g}"), kind, said) | {
        "spread": [float(f"{spread[0] * 0.999:.4g}"), float(f"{spread[1] * 1.001:.4g}")]
    }
