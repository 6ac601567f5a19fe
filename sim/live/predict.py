"""Live runs predicted: each row of a table of arms simulated with the profile calibrated in the same session.

A row says everything that decides its run (`sim.live.variants.COLUMNS`): trace and number of passes, slots,
policies, miss mode, where the experts lie. Profile and preset are those of its group, from the calibrator alone;
no row is used in a fit. As in the table, the first `warmup` passes are not counted.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from io import StringIO
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from expert_residency.errors import SimError
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import EnginePreset, load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.live.context import from_cell
from expert_residency.sim.live.variants import ADDED, decode_window, in_windows, scaled
from expert_residency.sim.runs.interval import Machine, draws, shortened
from expert_residency.sim.runs.simulate import simulate
from expert_residency.traces import RoutingTrace, read_trace
from expert_residency.traces.bundled import load

FEW_LOOK_UPS = 2_000
GROUPS = (
    "h200-x1",
    "h200-x4",
    "h200-x1-d16384",
    *(f"h200-x1-r{rows}" for rows in (2, 4, 16, 64, 512)),
    "epyc2-cardless",
)
"""Groups that ship."""


@dataclass(frozen=True)
class LiveRun:
    """One measured arm.

    Parameters
    ----------
    group
        Its table; profile and preset are `GROUP.toml` and `GROUP.engine.toml` beside it.
    trace, folder
        A bundled trace, or `TRACE.parquet` in the table's folder.
    label, kind
        Its choices in a line, and which of the kinds of arm it is (those of the documentation's table).
    spec
        The same run for the simulator.
    factor
        Bytes of an expert in those of the trace's own.
    fill, pcie_share
        Of the arm, in the place of the preset's.
    tok_s
        Measured, the median of its rounds.
    rows
        Of a pass.
    kv
        What a context occupies, if passes attend over one (`sim.live.context.from_cell`).
    """

    group: str
    label: str
    kind: str
    spec: RunSpec
    trace: str
    folder: Path
    factor: int
    passes: int
    warmup: int
    fill: bool
    pcie_share: float | None
    tok_s: float
    rows: int = 1
    kv: str = ""


def load_live_runs(group: str, folder: Path | None = None) -> list[LiveRun]:
    """Rows of `live-GROUP.csv` in `folder`, or as shipped.

    Raises
    ------
    SimError
        A file that is missing, empty or lacks a column, a cell that is no number: file and line.
    """
    where = folder or Path(str(resources.files("expert_residency.hwmodels.runs.own")))
    path = where / f"live-{group}.csv"
    if not path.is_file():
        raise SimError(f"{path}: no such table of live runs")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SimError(f"{path}: not a text file") from None
    with StringIO(text) as file:
        table = csv.DictReader(file)
        missing = sorted(
            {*ADDED, "tok_s", "expert_blob_bytes"}.difference({"rows", "depth", "kv"}, table.fieldnames or ())
        )
        if missing:
            raise SimError(f"{path}: line 1: column {missing[0]!r} is missing")
        runs = []
        for row in table:
            try:
                runs.append(_run(group, where, row))
            except (TypeError, ValueError) as error:
                raise SimError(f"{path}: line {table.line_num}: {error}") from None
    if not runs:
        raise SimError(f"{path}: no run in it")
    return runs


def _run(group: str, where: Path, row: dict[str, str]) -> LiveRun:
    scope: Literal["global", "layer"] = "layer" if row["scope"] == "layer" else "global"
    spec = RunSpec(
        (str(where / f"{group}.toml"),),
        Capacity(slots_per_layer=int(row["slots_per_layer"]), scope=scope),
        eviction=row["eviction"],
        prefetch=row["prefetch"],
        placement=row["placement"] or None,
        engine=str(where / f"{group}.engine.toml"),
        miss=row["miss"],
        host=row["host"],
        start="cold" if row["start"] == "cold" else "warm",
        depth=int(row.get("depth") or 0),
    )
    share, fill = row["pcie_share"], row["fill"] == "1"
    label = f"{row['trace']} {row['slots_per_layer']} {row['eviction']} {row['miss']} {row['prefetch']}"
    label += (
        f" {row['host']} {row['start']}"
        + (f" {row['rows']} rows" if row.get("rows", "1") != "1" else "")
        + (" fill" if fill else "")
        + (f" {share}" if share else "")
        + (f" depth {row['depth']}" if row.get("depth") else "")
    )
    own = load_trace(row["trace"], where).geometry.expert_bytes[0]
    factor, rest = divmod(int(row["expert_blob_bytes"]), own)
    if rest:
        raise SimError(f"experts of {row['expert_blob_bytes']} bytes are no multiple of the trace's {own}")
    return LiveRun(
        group, label, kind_of(row), spec, row["trace"], where, factor,
        int(row["passes"]), int(row["warmup"]), fill, float(share) if share else None, float(row["tok_s"]),
        int(row.get("rows") or 1), row.get("kv") or "",
    )  # fmt: skip


def kind_of(row: dict[str, str]) -> str:
    """Kind of an arm by what costs it time."""
    if row["host"] == "mmap":
        work = "on the CPU" if row["miss"] == "cpu" else "fetched"
        ahead = ", oracle" if row["prefetch"] != "none" else ""
        return f"mapped memory, {work}, {row['start']}{ahead}"
    if row["miss"] == "cpu":
        return "misses on the CPU, slots filled afterwards" if row["fill"] == "1" else "misses on the CPU"
    if row["miss"] in ("hybrid", "stream"):
        return str(row["miss"])
    if row["prefetch"].startswith("oracle"):
        return "oracle ahead"
    return "fetch without prefetch" if row["prefetch"] == "none" else "half-wrong predictor, look-ahead gates"


@cache
def load_trace(name: str, folder: Path) -> RoutingTrace:
    """Trace of a table in `folder`, read once."""
    own = folder / f"{name}.parquet"
    return read_trace(own) if own.is_file() else load(name)


@cache
def _window(name: str, folder: Path, passes: int, factor: int, rows: int, kv: str) -> RoutingTrace:
    window = in_windows(decode_window(load_trace(name, folder), passes * rows), rows)
    geometry = replace(scaled(window.geometry, factor), session=from_cell(kv) if kv else None)
    return replace(window, geometry=geometry)


def _preset(run: LiveRun) -> EnginePreset:
    preset = load_engine(run.spec.engine).model_copy(update={"fill": run.fill})
    if run.pcie_share is not None:
        share = Quantity(value=run.pcie_share, kind="measured", source="the arm's own")
        preset = preset.model_copy(update={"pcie_share": share})
    return preset


def predict(run: LiveRun) -> float:
    """Tokens a second of a run, simulated.

    Raises
    ------
    SimError, PolicyError, HardwareError
        A row that is not a valid run.
    """
    trace = _window(run.trace, run.folder, run.passes, run.factor, run.rows, run.kv)
    found = simulate(trace, run.spec, preset=_preset(run))
    return 1e9 * run.rows / float(found.pass_ns[run.warmup :].mean())


def moved(run: LiveRun) -> npt.NDArray[np.float64]:
    """(draws,) logarithm of what drawn constants make of the speed of a run's first passes."""
    trace = shortened(_window(run.trace, run.folder, run.passes, run.factor, run.rows, run.kv), FEW_LOOK_UPS)
    machine = tuple(load_profile(name) for name in run.spec.hardware), _preset(run)

    def ns(drawn: Machine) -> float:
        return float(simulate(trace, run.spec, profiles=drawn[0], preset=drawn[1]).pass_ns.sum())

    base = ns(machine)
    return np.log([base / ns(drawn) for drawn in draws(*machine)])
