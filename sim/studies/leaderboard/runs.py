"""The runs of a leaderboard: a sweep over every entrant in every case, and what cannot run.

A *case* is a trace, a machine, a capacity and a miss mode (and whatever else was given several values). Entrants
are compared within cases only, so one that fails in a single case has no place in the ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from expert_residency.errors import MisfitError, SimError, UserError
from expert_residency.sim.choices.spec import make_spec
from expert_residency.sim.runs.basis import Basis
from expert_residency.sim.studies.leaderboard.field import BASELINE, Entrant
from expert_residency.sim.sweep import SweepResult, load_sweep, sweep
from expert_residency.sim.sweep.cells import begin
from expert_residency.sim.sweep.spec import expand
from expert_residency.sim.timed.result import CAUSES
from expert_residency.traces import RoutingTrace

if TYPE_CHECKING:
    import pandas as pd

AXES: dict[str, Sequence[Any]] = {
    "hardware": ("rtx-5070", "rtx-5060ti", "tesla-p40"),
    "capacity": ("10%", "25%", "50%"),
    "miss": ("fetch", "cpu", "hybrid"),
}
"""Machines, shares of all experts, and who serves a miss, where nothing else is asked for. `stream` is none of
them: every miss then passes through the card without taking a slot, so that nothing is left to decide."""
HEADINGS = {"trace": "trace", "hardware": "machine", "capacity": "cache", "miss": "misses"}


def shortened(trace: RoutingTrace, passes: int | None) -> RoutingTrace:
    """The first whole requests of a trace with so many passes together; of one longer request its first passes."""
    if passes is None or trace.n_passes <= passes:
        return trace
    ends = np.flatnonzero(np.diff(trace.pass_request)) + 1
    whole = ends[ends <= passes]
    return trace.select_passes(np.arange(trace.n_passes) < (int(whole[-1]) if len(whole) else passes))


@dataclass(frozen=True)
class Runs:
    """What was run.

    Parameters
    ----------
    cells
        One row a run: `entrant` (label), the axes in words, `model`, `ns` by request, `time_ns`, `bound_ns`,
        `hit_rate`, and milliseconds a token of each of `CAUSES`.
    axes
        Those with their values, in words; `trace` first.
    entrants
        Those that ran in every case that fits, the baseline first.
    left_out
        Labels of the others, with the reason.
    misfits
        Reasons with the cases that they concern, in words, whatever the miss mode.
    result
        The sweep.
    """

    cells: pd.DataFrame
    axes: dict[str, list[str]]
    entrants: list[Entrant]
    left_out: dict[str, str]
    misfits: dict[str, list[str]]
    result: SweepResult


def run_all(
    traces: Mapping[str, RoutingTrace],
    field: Sequence[Entrant],
    choices: Mapping[str, Sequence[Any]],
    *,
    out: Path | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Runs:
    """Run every entrant in every case.

    Parameters
    ----------
    traces
        By the names that they are to have.
    field
        Who runs, the baseline among them.
    choices
        Values of further choices of a run; the hardware, capacity and miss modes of `AXES` where they are not
        among them.
    out
        Folder that keeps the runs; those that are there are not run again.
    workers, progress
        As `sweep` has them.

    Returns
    -------
    Runs
        Of all entrants that ran everywhere, and what did not.

    Raises
    ------
    SimError
        The baseline cannot run, or no case fits its machine.
    SweepError
        As `sweep`.
    """
    axes = {"trace": list(traces)} | {k: list(v) for k, v in {**AXES, **choices}.items()}
    left_out: dict[str, str] = {}
    for entrant in field:
        if reason := _refusal(entrant, traces, axes):
            if entrant == BASELINE:
                raise SimError(reason)
            left_out[entrant.label] = reason
    running = [entrant for entrant in field if entrant.label not in left_out]
    source = {
        "name": "leaderboard", "misfits": "record", "traces": dict(traces),
        "axes": axes | {"scenario": [entrant.label for entrant in running]},
        "scenarios": {entrant.label: entrant.choices for entrant in running},
    }  # fmt: skip
    result = sweep(source, out, workers=workers, resume=out is not None, progress=progress)
    cells = _cells(result.frame, source, axes)
    failed = cells[cells["status"] == "failed"]
    for label in map(str, failed["entrant"].unique()):
        own = failed[failed["entrant"] == label]
        if label == BASELINE.label:
            raise SimError(f"{label}: {own['reason'].iloc[0]}")
        left_out[label] = f"failed in {len(own)} of {len(cells) // len(running)} cases: {own['reason'].iloc[0]}"
    misfits: dict[str, list[str]] = {}
    kept = [axis for axis in axes if axis != "miss"]
    for row in cells[(cells["status"] == "misfit") & (cells["entrant"] == BASELINE.label)].to_dict("records"):
        cases, case = misfits.setdefault(str(row["reason"]), []), " ".join(str(row[axis]) for axis in kept)
        cases += [case] * (case not in cases)
    ran = cells[(cells["status"] == "ok") & ~cells["entrant"].isin(left_out)]
    if ran.empty:
        raise SimError(f"no case fits its machine: {next(iter(misfits))}")
    words = {
        axis: [value for value in map(word, values) if value in set(ran[axis])] for axis, values in axes.items()
    }
    return Runs(ran, words, [e for e in running if e.label not in left_out], left_out, misfits, result)


def word(value: Any) -> str:
    """A value of an axis in words."""
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _refusal(
    entrant: Entrant, traces: Mapping[str, RoutingTrace], axes: Mapping[str, Sequence[Any]]
) -> str | None:
    """Why an entrant cannot run on every trace; None if it can, or no machine is large enough to tell."""
    constants = {name: values[0] for name, values in axes.items() if name not in ("trace", "hardware", "capacity")}
    for name, trace in traces.items():
        first = trace.select_passes(np.arange(trace.n_passes) < 1)
        rooms = [(machine, room) for machine in axes["hardware"] for room in axes["capacity"]]
        for machine, room in rooms:
            try:
                begin(first, make_spec(constants | {"hardware": machine, "capacity": room} | entrant.choices))
            except MisfitError:
                continue
            except UserError as error:
                return str(error) if len(traces) == 1 else f"{error} (trace {name})"
            break
    return None


def _cells(frame: pd.DataFrame, source: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Rows of the sweep with the words that each was asked for by."""
    asked = list(expand(load_sweep(source)[0]))
    cells = frame[["status", "reason", "model", "bound_ns", "hit_rate"]].copy()
    for axis in axes:
        cells[axis] = [word(asked[number][axis]) for number in frame["cell"]]
    cells["entrant"] = [asked[number]["scenario"] for number in frame["cell"]]
    cells["time_ns"] = frame["decode_ns"].where(frame["decode_ns"] > 0, frame["total_ns"])
    cells["ns"] = frame["request_ns"]
    for cause in CAUSES:
        cells[cause] = frame[f"{cause}_ms_per_token"]
    return cells


def basis_of(traces: Mapping[str, RoutingTrace]) -> dict[str, Basis]:
    """What each trace stands on."""
    return {name: Basis.of(trace) for name, trace in traces.items()}
