"""Scenario files: the choices of one run as TOML, checked before anything starts.

    trace = "mine.parquet"            # or "bundled:NAME", or "synthetic:STYLE:tokens=300"
    hardware = "rtx-5070"             # or a list, or "a+b", one a card
    capacity = "4000MiB"              # or "25%", "32/layer", "auto", ["16GiB", "16GiB"]: `sim.choices.capacity`
    eviction = "lfru"
    prefetch = "oracle:window=4"
    miss = "fetch"

Every word of `sim.choices.spec.CHOICES` may be set; a key that is none of them is refused, with the valid ones.
What is not set comes from the engine's preset, if it names it.

    trace = "synthetic"
    synthetic = { style = "qwen3.8-flash-next", tokens = 300, seed = 1 }   # the generator's arguments; needs model
    windows = { rows = 3.5, emitted = 2.6 }     # decode passes merged into verify windows
    chunk = 512                                 # prompts in passes of so many tokens
    vram = { context = 4096, kv = "int8", kv_resident = 20480, draft = true }   # the same as capacity auto
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from expert_residency.errors import SimError
from expert_residency.sim.choices.spec import CHOICES, RunSpec, make_spec, refuse_unknown
from expert_residency.sim.choices.synthetic import is_number, synthetic_trace
from expert_residency.sim.choices.trace import NO_FILE, Reading
from expert_residency.traces import RoutingTrace

_MOST = (1 << 31) - 1
"""Passes of a trace, and tokens of a chunk."""
TRACE_KEYS = ("trace", "format", "model", "passes", "synthetic", "windows", "chunk", "reading", "cold")


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A trace to open and the run to make of it.

    `reading` is how the trace is read and which of it (`sim.choices.trace.Reading`). `passes` limits the run to
    the first so many passes; `synthetic`, `windows` and `chunk` are the file's tables.
    """

    trace: str
    spec: RunSpec
    format: str | None = None
    model: str | None = None
    passes: int | None = None
    synthetic: dict[str, Any] | None = None
    windows: dict[str, float] | None = None
    chunk: int | None = None
    reading: Reading | None = None
    cold: str | None = None
    """As `sim.runs.simulate.simulate` has it; `trace` if None."""


def build_scenario(data: dict[str, Any], where: object = None) -> Scenario:
    """Scenario from plain data.

    Parameters
    ----------
    data
        Keys of a scenario file, or options of the command line.
    where
        The file, for messages.

    Raises
    ------
    SimError
        An unknown or missing key, a value of the wrong type, a capacity without a unit.
    """
    try:
        return _build(data)
    except SimError as error:
        if where is None:
            raise
        raise SimError(f"{where}: {error}") from None


def _build(data: dict[str, Any]) -> Scenario:
    refuse_unknown(data, [*TRACE_KEYS, *CHOICES])
    if "trace" not in data:
        raise SimError("trace is missing")
    for key in ("passes", "chunk"):
        if (given := data.get(key)) is not None and (type(given) is not int or not 1 <= given <= _MOST):
            raise SimError(f"{key} is {given!r}, expected a whole number from 1 to {_MOST:,}")
    windows = data.get("windows", {"rows": 1, "emitted": 1})
    if not isinstance(windows, dict) or {*windows} != {"rows", "emitted"} or not _numbers(*windows.values()):
        raise SimError(f"windows is {windows!r}, expected a table of two numbers, rows and emitted")
    for key in ("trace", "format", "model"):
        if not isinstance(data.get(key, ""), str):
            raise SimError(f"{key} is {data[key]!r}, expected a name")
    if data.get("cold", "trace") not in ("trace", "request"):
        raise SimError(f"cold is {data['cold']!r}, expected trace or request")
    spec = make_spec({key: value for key, value in data.items() if key in CHOICES})
    about: dict[str, Any] = {key: data.get(key) for key in TRACE_KEYS}
    about["reading"] = Reading.of_table(about["reading"])
    return Scenario(spec=spec, **about)


def open_scenario_trace(scenario: Scenario) -> RoutingTrace:
    """The trace of a scenario, with its windows and chunks made and cut to its passes.

    Raises
    ------
    SimError, TraceError
        A file that no reader takes, a generator or window table that is not valid.
    """
    from expert_residency.sim.choices.trace import open_trace
    from expert_residency.traces.windows import chunk_prefill, compose_windows

    if scenario.synthetic is not None or scenario.trace == "synthetic":
        if not isinstance(scenario.synthetic, dict) or scenario.model is None:
            raise SimError('trace "synthetic" needs a table `synthetic` and a `model`')
        trace = synthetic_trace(scenario.synthetic, scenario.model)
    else:
        trace = open_trace(scenario.trace, scenario.format, scenario.model, scenario.reading)
    if scenario.chunk is not None:
        trace = chunk_prefill(trace, scenario.chunk)
    if scenario.windows is not None:
        trace = compose_windows(trace, **scenario.windows)
    if scenario.passes is not None and scenario.passes < trace.n_passes:
        trace = trace.select_passes(np.arange(trace.n_passes) < scenario.passes)
    return trace


def _numbers(*values: Any) -> bool:
    return all(map(is_number, values))


def from_folder(scenario: Scenario, folder: Path) -> Scenario:
    """A relative trace path is taken from the file's folder."""
    source = scenario.trace
    own = source == "synthetic" or source.startswith(NO_FILE)
    if not own and not Path(source).is_absolute():
        scenario = dataclasses.replace(scenario, trace=str(folder / source))
    return scenario
