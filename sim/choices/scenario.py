"""Scenario files: the choices of one run as TOML, checked before anything starts.

    trace = "mine.parquet"            # or "bundled:NAME"
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
from pydantic import ValidationError

from expert_residency.errors import SimError
from expert_residency.sim.choices.spec import CHOICES, RunSpec, make_spec, refuse_unknown
from expert_residency.sim.choices.trace import Reading
from expert_residency.traces import RoutingTrace, load_model

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
        trace = _generate(scenario)
    else:
        trace = open_trace(scenario.trace, scenario.format, scenario.model, scenario.reading)
    if scenario.chunk is not None:
        trace = chunk_prefill(trace, scenario.chunk)
    if scenario.windows is not None:
        trace = compose_windows(trace, **scenario.windows)
    if scenario.passes is not None and scenario.passes < trace.n_passes:
        trace = trace.select_passes(np.arange(trace.n_passes) < scenario.passes)
    return trace


def _generate(scenario: Scenario) -> RoutingTrace:
    """Synthetic trace of the scenario's model."""
    from expert_residency.traces.synthetic import generate, load_style

    if not isinstance(scenario.synthetic, dict) or scenario.model is None:
        raise SimError('trace "synthetic" needs a table `synthetic` and a `model`')
    table = dict(scenario.synthetic)
    style = load_style(str(table.pop("style", "qwen3.8-flash-next")))
    known = ("tokens", "prompt_tokens", "requests", "seed", "draft_tokens", "acceptance")
    changes = {key: table.pop(key) for key in list(table) if key in type(style).model_fields}
    for key in table:
        if key not in known:
            raise SimError(
                f"synthetic: unknown key {key!r} (known: style, {', '.join(known)}, or one of the style's)"
            )
        if not _numbers(table[key]) or (key != "acceptance" and type(table[key]) is not int):
            wanted = "a number" if key == "acceptance" else "a whole number"
            raise SimError(f"synthetic: {key} is {table[key]!r}, expected {wanted}")
    if "tokens" not in table:
        raise SimError("synthetic: tokens is missing")
    try:
        style = type(style).model_validate(style.model_dump() | changes)
    except ValidationError as error:
        first = error.errors()[0]
        raise SimError(f"synthetic: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None
    return generate(load_model(scenario.model), style, **table)


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def from_folder(scenario: Scenario, folder: Path) -> Scenario:
    """A relative trace path is taken from the file's folder."""
    source = scenario.trace
    if source != "synthetic" and not source.startswith("bundled:") and not Path(source).is_absolute():
        scenario = dataclasses.replace(scenario, trace=str(folder / source))
    return scenario
