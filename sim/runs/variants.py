"""Scenarios of several arms, run in order on one machine whose page cache lives on from arm to arm.

    hardware = "rtx-5060ti"          # what all arms share
    [[arms]]
    name = "mapped, warm"
    host = "mmap"
    start = "warm"
    [[arms]]
    name = "mapped, after two budget runs"
    host = "mmap"
    start = "carry"

An arm's keys replace those of the file. `measured_tok_s` and `note` stand beside the result and decide nothing.
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
class Arm:
    """One run of a scenario, and what a real machine gave for it."""

    name: str
    scenario: Scenario
    measured_tok_s: float | None = None
    note: str = ""


@dataclass(frozen=True)
class ArmResult:
    """An arm and what came out."""

    arm: Arm
    result: RunResult

    @property
    def error(self) -> float | None:
        """Predicted over measured speed, less 1."""
        speed, measured = self.result.tokens_per_s, self.arm.measured_tok_s
        return speed / measured - 1 if speed is not None and measured is not None else None


def list_scenarios() -> list[str]:
    """Names of the scenario files that come with the package."""
    return SCENARIOS.names()


def load_arms(path: str | Path) -> tuple[Arm, ...]:
    """Arms of a scenario file or of a packaged one (`case:NAME`); a file without arms is one arm.

    Raises
    ------
    SimError
        No such file, not TOML, or an arm that is not valid: the message names the file and the arm.
    """
    packaged = str(path).startswith("case:")
    data = SCENARIOS.load(str(path).removeprefix("case:") if packaged else Path(path))
    folder = Path() if packaged else Path(path).parent
    arms = data.pop("arms", [{}])
    if not isinstance(arms, list) or not all(isinstance(arm, dict) for arm in arms):
        raise SimError(f"{path}: arms must be tables, as in [[arms]]")
    return tuple(_arm(data, dict(own), number, path, folder) for number, own in enumerate(arms, start=1))


def _arm(shared: dict[str, Any], own: dict[str, Any], number: int, path: str | Path, folder: Path) -> Arm:
    name = str(own.pop("name", f"arm {number}"))
    measured, note = own.pop("measured_tok_s", None), str(own.pop("note", ""))
    if measured is not None and (not isinstance(measured, int | float) or measured <= 0):
        raise SimError(f"{path}: arm {name!r}: measured_tok_s is {measured!r}, expected a speed above 0")
    scenario = build_scenario(shared | own, f"{path}: arm {name!r}")
    return Arm(name, from_folder(scenario, folder), measured, note)


def run_arms(
    arms: Sequence[Arm],
    *,
    traces: Callable[[Scenario], RoutingTrace] = open_scenario_trace,
    done: Callable[[ArmResult], None] | None = None,
    simulator: str = "auto",
) -> list[ArmResult]:
    """Run arms in order; one page cache for all.

    Parameters
    ----------
    arms
        What to run.
    traces
        Opens the trace of a scenario; arms that name the same one share it.
    done
        Called after each arm.
    simulator
        As for `sim.runs.simulate.simulate`.
    """
    opened: dict[str, RoutingTrace] = {}
    found: list[ArmResult] = []
    cache: PageCache | None = None
    for arm in arms:
        chosen = arm.scenario
        key = json.dumps(
            [
                chosen.trace,
                chosen.format,
                chosen.model,
                chosen.passes,
                chosen.synthetic,
                chosen.windows,
                chosen.chunk,
            ]
        )
        if key not in opened:
            opened[key] = traces(chosen)
        if cache is None:
            cache = PageCache(0, load_profile(chosen.spec.hardware[0]).disk.page_bytes.count)
        found.append(
            ArmResult(
                arm, simulate(opened[key], chosen.spec, page_cache=cache, simulator=simulator, runs=len(arms))
            )
        )
        if done is not None:
            done(found[-1])
    return found
