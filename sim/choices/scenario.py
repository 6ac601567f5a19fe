"""Scenario files: the choices of one run as TOML, checked before anything starts.

    trace = "mine.parquet"            # or "bundled:NAME"
    hardware = "rtx-5070"             # or a list, one a card
    capacity = "4000MiB"              # or slots_per_layer = 32, or card_capacity = ["16GiB", "16GiB"]
    eviction = "lfru"
    prefetch = "oracle:window=4"
    miss = "fetch"

Every field of `sim.runs.simulate.RunSpec` may be set; a key that is none of them is refused, with the valid ones.
What is not set comes from the engine's preset, if it names it.

    trace = "synthetic"
    synthetic = { style = "qwen3.8-flash-next", tokens = 300, seed = 1 }   # the generator's arguments; needs model
    windows = { rows = 3.5, emitted = 2.6 }     # decode passes merged into verify windows
    chunk = 512                                 # prompts in passes of so many tokens
    vram = { context = 4096, kv = "int8", kv_resident = 20480, draft = true }   # capacity: what the card has left
"""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from expert_residency.errors import SimError
from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.units import parse_size
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.choices.vram import card_budget
from expert_residency.traces import RoutingTrace, load_model

TRACE_KEYS = ("trace", "format", "model", "passes", "synthetic", "windows", "chunk")
CAPACITY_KEYS = ("capacity", "slots_per_layer", "card_capacity", "scope", "vram")
VRAM_KEYS = {"context": "context", "kv": "kv_type", "kv_resident": "kv_resident", "draft": "draft"}


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A trace to open and the run to make of it.

    `passes` limits the run to the first so many passes; `synthetic`, `windows` and `chunk` are the file's tables.
    """

    trace: str
    spec: RunSpec
    format: str | None = None
    model: str | None = None
    passes: int | None = None
    synthetic: dict[str, Any] | None = None
    windows: dict[str, float] | None = None
    chunk: int | None = None


def valid_keys() -> list[str]:
    """Keys of a scenario file."""
    spec = [f.name for f in dataclasses.fields(RunSpec) if f.name != "capacity"]
    return [*TRACE_KEYS, *CAPACITY_KEYS, *spec]


def build_scenario(data: dict[str, Any], where: object = "scenario") -> Scenario:
    """Scenario from plain data.

    Raises
    ------
    SimError
        An unknown or missing key, a value of the wrong type, a capacity without a unit.
    """
    known = valid_keys()
    for key in data:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise SimError(f"{where}: unknown key {key!r}{hint} (known: {', '.join(known)})")
    for key in ("trace", "hardware"):
        if key not in data:
            raise SimError(f"{where}: {key} is missing")
    fields = {f.name: f for f in dataclasses.fields(RunSpec)}
    data = dict(load_engine(str(data.get("engine", "generic"))).policy) | data
    values: dict[str, Any] = {"capacity": _capacity(data, where)}
    for key, value in data.items():
        if key in TRACE_KEYS or key in CAPACITY_KEYS:
            continue
        values[key] = _value(key, value, fields[key], where)
    passes = data.get("passes")
    for key in ("passes", "chunk"):
        if (given := data.get(key)) is not None and (type(given) is not int or given < 1):
            raise SimError(f"{where}: {key} is {given!r}, expected a whole number above 0")
    windows = data.get("windows", {"rows": 1, "emitted": 1})
    if not isinstance(windows, dict) or {*windows} != {"rows", "emitted"} or not _numbers(*windows.values()):
        raise SimError(f"{where}: windows is {windows!r}, expected a table of two numbers, rows and emitted")
    for key in ("trace", "format", "model"):
        if not isinstance(data.get(key, ""), str):
            raise SimError(f"{where}: {key} is {data[key]!r}, expected str")
    return Scenario(
        str(data["trace"]), RunSpec(**values), data.get("format"), data.get("model"), passes,
        data.get("synthetic"), data.get("windows"), data.get("chunk"),
    )  # fmt: skip


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
        trace = open_trace(scenario.trace, scenario.format, scenario.model)
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


def _capacity(data: dict[str, Any], where: object) -> Capacity:
    if "vram" in data:
        return _left_on_card(data, where)
    cards = data.get("card_capacity")
    if cards is not None and not isinstance(cards, list):
        raise SimError(f"{where}: card_capacity is {cards!r}, expected a list of sizes, one a card")
    scope, _, quotas = str(data.get("scope", "global")).partition(":")
    try:
        return Capacity(
            total_bytes=parse_size(data["capacity"]) if "capacity" in data else None,
            slots_per_layer=data.get("slots_per_layer"),
            scope=scope,
            quotas=quotas or "equal",
            card_bytes=tuple(parse_size(size) for size in cards) if cards is not None else None,
        )
    except ValueError as error:
        raise SimError(f"{where}: {error}") from None


def _left_on_card(data: dict[str, Any], where: object) -> Capacity:
    """Capacity that a card has left beside model and context."""
    table, hardware = data["vram"], data["hardware"]
    if not isinstance(table, dict) or not isinstance(hardware, str) or "model" not in data:
        raise SimError(f"{where}: vram is a table, and needs one card in hardware and a model")
    for key in table:
        if key not in VRAM_KEYS:
            raise SimError(f"{where}: vram: unknown key {key!r} (known: {', '.join(VRAM_KEYS)})")
        kinds = {"kv": str, "draft": bool}
        if type(table[key]) is not kinds.get(key, int):
            raise SimError(f"{where}: vram: {key} is {table[key]!r}, expected {kinds.get(key, int).__name__}")
    choices = {VRAM_KEYS[key]: value for key, value in table.items()}
    budget = card_budget(load_model(data["model"]), load_profile(hardware), **choices)
    budget.require()
    scope, _, quotas = str(data.get("scope", "global")).partition(":")
    return Capacity(total_bytes=budget.cache_bytes, scope=scope, quotas=quotas or "equal")


def _value(key: str, value: Any, field: dataclasses.Field[Any], where: object) -> Any:
    """A value in the type that `RunSpec` wants; tuples may be given as one item or a list."""
    kind = str(field.type)
    if "tuple" in kind:
        items = value if isinstance(value, list) else [value]
        wanted: type = int if "int" in kind else str
        if not all(isinstance(item, wanted) for item in items):
            raise SimError(f"{where}: {key} is {value!r}, expected {wanted.__name__} or a list of it")
        return tuple(items)
    kinds: tuple[tuple[str, Any], ...] = (("str", str), ("bool", bool), ("float", (int, float)), ("int", int))
    for name, expected in kinds:
        if name in kind or ("Literal" in kind and name == "str") or (name == "str" and kind in _STR_ALIASES):
            if not isinstance(value, expected) or (isinstance(value, bool) and name != "bool"):
                raise SimError(f"{where}: {key} is {value!r}, expected {name}")
            return value
    return value


_STR_ALIASES = ("HostMode", "StartState")
