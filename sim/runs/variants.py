"""Scenarios of several variants, run in order on one machine whose page cache lives on from variant to variant.

    hardware = "rtx-5060ti"          # what all variants share
    [[variants]]
    name = "mapped, warm"
    host = "mmap"
    start = "warm"
    [[variants]]
    name = "mapped, after two budget runs"
    host = "mmap"
    start = "carry"

A variant's keys replace those of the file. `measured_tok_s` and `note` stand beside the result and decide nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expert_residency.errors import SimError
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.scenario import Scenario, build_scenario, from_folder, open_scenario_trace
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.timed.page_cache import PageCache
from expert_residency.sim.timed.result import RunResult
from expert_residency.toml import Shelf
from expert_residency.traces import RoutingTrace

SCENARIOS = Shelf("expert_residency.sim.choices", "scenarios", "case")
"""Where scenario files are."""


@dataclass(frozen=True)
class Variant:
    """One run of a scenario, and what a real machine gave for it."""

    name: str
    scenario: Scenario
    measured_tok_s: float | None = None
    note: str = ""


@dataclass(frozen=True)
class VariantResult:
    """A variant and what came out."""

    variant: Variant
    result: RunResult

    @property
    def error(self) -> float | None:
        """Predicted over measured speed, less 1."""
        speed, measured = self.result.tokens_per_s, self.variant.measured_tok_s
        return speed / measured - 1 if speed is not None and measured is not None else None


def list_scenarios() -> list[str]:
    """Names of the scenario files that come with the package."""
    return SCENARIOS.names()


def load_variants(path: str | Path) -> tuple[Variant, ...]:
    """Variants of a scenario file or of a packaged one (`case:NAME`); a file without variants is one variant.

    Raises
    ------
    SimError
        No such file, not TOML, or a variant that is not valid: the message names the file and the variant.
    """
    packaged = str(path).startswith("case:")
    data = SCENARIOS.load(str(path).removeprefix("case:") if packaged else Path(path))
    folder = Path() if packaged else Path(path).parent
    if "arms" in data:
        raise SimError(f"{path}: [[arms]] is written [[variants]]")
    variants = data.pop("variants", [{}])
    if not isinstance(variants, list) or not variants or not all(isinstance(one, dict) for one in variants):
        raise SimError(f"{path}: variants must be tables, one or more, as in [[variants]]")
    return tuple(_variant(data, dict(own), number, path, folder) for number, own in enumerate(variants, start=1))


def _variant(shared: dict[str, Any], own: dict[str, Any], number: int, path: str | Path, folder: Path) -> Variant:
    name = str(own.pop("name", f"variant {number}"))
    measured, note = own.pop("measured_tok_s", None), str(own.pop("note", ""))
    if measured is not None and (not isinstance(measured, int | float) or measured <= 0):
        raise SimError(f"{path}: variant {name!r}: measured_tok_s is {measured!r}, expected a speed above 0")
    scenario = build_scenario(shared | own, f"{path}: variant {name!r}")
    return Variant(name, from_folder(scenario, folder), measured, note)


def run_variants(
    variants: Sequence[Variant],
    *,
    traces: Callable[[Scenario], RoutingTrace] = open_scenario_trace,
    done: Callable[[VariantResult], None] | None = None,
    simulator: str = "auto",
) -> list[VariantResult]:
    """Run variants in order; one page cache for all.

    Parameters
    ----------
    variants
        What to run.
    traces
        Opens the trace of a scenario; variants that name the same one share it.
    done
        Called after each variant.
    simulator
        As for `sim.runs.simulate.simulate`.
    """
    opened: dict[str, RoutingTrace] = {}
    found: list[VariantResult] = []
    cache: PageCache | None = None
    for variant in variants:
        chosen = variant.scenario
        key = json.dumps(
            [
                chosen.trace,
                chosen.format,
                chosen.model,
                chosen.passes,
                chosen.synthetic,
                chosen.windows,
                chosen.chunk,
                chosen.reading and chosen.reading.to_table(),
            ]
        )
        if key not in opened:
            opened[key] = traces(chosen)
        if cache is None:
            cache = PageCache(0, load_profile(chosen.spec.hardware[0]).disk.page_bytes.count)
        found.append(
            VariantResult(
                variant,
                simulate(
                    opened[key],
                    chosen.spec,
                    page_cache=cache,
                    simulator=simulator,
                    runs=len(variants),
                    cold=chosen.cold or "trace",
                ),
            )
        )
        if done is not None:
            done(found[-1])
    return found
