"""Scenario files: the choices of one run as TOML, checked before anything starts.

    trace = "mine.parquet"            # or "bundled:NAME"
    hardware = "rtx-5070"             # or a list, one a card
    capacity = "4000MiB"              # or slots_per_layer = 32, or card_capacity = ["16GiB", "16GiB"]
    eviction = "lfru"
    prefetch = "oracle:window=4"
    miss = "fetch"

Every field of `sim.run.RunSpec` may be set; a key that is none of them is refused, with the valid ones.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from pathlib import Path
from typing import Any

from hwmodels.units import parse_size
from sim.errors import SimError
from sim.pool import Capacity
from sim.run import RunSpec

TRACE_KEYS = ("trace", "format", "model", "passes")
CAPACITY_KEYS = ("capacity", "slots_per_layer", "card_capacity", "scope")


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A trace to open and the run to make of it; `passes` limits the run to the first so many passes."""

    trace: str
    spec: RunSpec
    format: str | None = None
    model: str | None = None
    passes: int | None = None


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
    values: dict[str, Any] = {"capacity": _capacity(data, where)}
    for key, value in data.items():
        if key in TRACE_KEYS or key in CAPACITY_KEYS:
            continue
        values[key] = _value(key, value, fields[key], where)
    passes = data.get("passes")
    if passes is not None and (not isinstance(passes, int) or passes < 1):
        raise SimError(f"{where}: passes is {passes!r}, expected a whole number above 0")
    return Scenario(str(data["trace"]), RunSpec(**values), data.get("format"), data.get("model"), passes)


def load_scenario(path: str | Path) -> Scenario:
    """Scenario from a TOML file; a relative trace path is taken from the file's folder."""
    path = Path(path)
    if not path.is_file():
        raise SimError(f"{path}: no such scenario file")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SimError(f"{path}: not valid TOML ({error})") from None
    scenario = build_scenario(data, path)
    source = scenario.trace
    if not source.startswith("bundled:") and not Path(source).is_absolute():
        scenario = dataclasses.replace(scenario, trace=str(path.parent / source))
    return scenario


def _capacity(data: dict[str, Any], where: object) -> Capacity:
    cards = data.get("card_capacity")
    try:
        return Capacity(
            total_bytes=parse_size(data["capacity"]) if "capacity" in data else None,
            slots_per_layer=data.get("slots_per_layer"),
            scope=data.get("scope", "global"),
            card_bytes=tuple(parse_size(size) for size in cards) if cards is not None else None,
        )
    except ValueError as error:
        raise SimError(f"{where}: {error}") from None


def _value(key: str, value: Any, field: dataclasses.Field[Any], where: object) -> Any:
    """A value in the type that `RunSpec` wants; tuples may be given as one item or a list."""
    kind = str(field.type)
    if "tuple" in kind:
        items = value if isinstance(value, list) else [value]
        wanted: type = int if "int" in kind else str
        if not all(isinstance(item, wanted) for item in items):
            raise SimError(f"{where}: {key} is {value!r}, expected {wanted.__name__} or a list of it")
        return tuple(items)
    for name, wanted in (("str", str), ("bool", bool), ("float", (int, float)), ("int", int)):
        if name in kind or ("Literal" in kind and name == "str") or (name == "str" and kind in _STR_ALIASES):
            if not isinstance(value, wanted) or (isinstance(value, bool) and name != "bool"):
                raise SimError(f"{where}: {key} is {value!r}, expected {name}")
            return value
    return value


_STR_ALIASES = ("HostMode", "StartState")
