"""Sweep files: what varies, what stays, what is left out.

A file names traces, gives constants, and lists the values of each axis; the cells are all combinations but the
excluded ones, the last axis changing fastest::

    [traces]
    chat = "chat.parquet"                          # or { path = ..., format = ..., model = ... }

    [constants]
    trace = "chat"
    miss = "fetch"

    [axes]
    hardware = ["rtx-5070", ["tesla-p40", "tesla-p40"]]
    capacity = ["2GiB", "25%", "32/layer", "auto"] # in the words of `sim.choices.capacity`
    eviction = ["lru", "lfu"]

    [[exclude]]                                    # every cell that agrees with all of these
    hardware = "rtx-5070"
    capacity = ["4GiB"]

    [scenarios.slow-disk]                          # a bundle of choices, chosen by `scenario = "slow-disk"`
    host = "mmap"
    start = "cold"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from expert_residency.errors import SimError, SweepError
from expert_residency.sim.choices.spec import CHOICES as RUN_CHOICES
from expert_residency.text import problems
from expert_residency.toml import load
from expert_residency.traces import RoutingTrace

OWN = ("trace", "scenario", "passes", "model", "cold")
"""Choices that are the sweep's own: which trace, how many of its passes, with which model's byte sizes, and
whether each request starts cold."""
CHOICES = (*OWN, *RUN_CHOICES)
"""Everything that may be an axis, a constant, part of a scenario, or of an exclusion."""

Choices = dict[str, Any]


class TraceRef(BaseModel):
    """A trace file, with what its format may need."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    format: str | None = None
    model: str | None = None
    reading: dict[str, Any] = Field(default_factory=dict)


class SweepFile(BaseModel):
    """A sweep as written.

    Parameters
    ----------
    name
        Title of the report.
    misfits
        Cells whose cache or arena is too large for the machine: `refuse` the sweep, or `record` them as such.
    traces
        Files (relative to the sweep file), `bundled:NAME` or, from Python, traces, by the name that cells use.
    scenarios, constants, axes, exclude
        As in the module's example.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    name: str = ""
    misfits: Literal["refuse", "record"] = "refuse"
    traces: dict[str, TraceRef | str | RoutingTrace] = Field(min_length=1)
    scenarios: dict[str, Choices] = Field(default_factory=dict)
    constants: Choices = Field(default_factory=dict)
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    exclude: list[Choices] = Field(default_factory=list)

    def trace_ref(self, name: str) -> TraceRef | RoutingTrace:
        """Trace by name."""
        ref = self.traces[name]
        return TraceRef(path=ref) if isinstance(ref, str) else ref


def load_sweep(source: str | Path | Mapping[str, Any]) -> tuple[SweepFile, str, Path]:
    """Read a sweep file, or take its content as a mapping.

    Returns
    -------
    sweep, where, base
        `where` names it in messages; trace paths are relative to `base`.

    Raises
    ------
    SweepError
        Not TOML, a key or value that is not valid, or names that clash; all of them at once.
    """
    if isinstance(source, Mapping):
        data, where, base = dict(source), "sweep", Path()
    else:
        path = Path(source)
        where, base = str(path), path.parent
        try:
            data = load(path)
        except SimError as error:
            raise SweepError(where, [str(error).removeprefix(f"{where}: ")]) from None
    try:
        sweep = SweepFile.model_validate(data)
    except ValidationError as error:
        raise SweepError(where, problems(error, SweepFile)) from None
    if clashes := _clashes(sweep):
        raise SweepError(where, clashes)
    return sweep, where, base


def _clashes(sweep: SweepFile) -> list[str]:
    """Unknown choices, and choices that are given twice."""
    found = []
    tables: list[tuple[str, Mapping[str, Any]]] = [("constants", sweep.constants), ("axes", sweep.axes)]
    tables += [(f"scenarios.{name}", choices) for name, choices in sweep.scenarios.items()]
    tables += [(f"exclude {number + 1}", rule) for number, rule in enumerate(sweep.exclude)]
    for table, choices in tables:
        found += [
            f"{table}: unknown choice {key!r} (known: {', '.join(CHOICES)})"
            for key in choices
            if key not in CHOICES or (key == "scenario" and table.startswith("scenarios."))
        ]
    for key in ("trace", "scenario"):
        named = [*sweep.axes.get(key, []), sweep.constants.get(key, "")]
        found += [f"{key} = {value!r}: expected a name" for value in named if not isinstance(value, str)]
    for axis, values in sweep.axes.items():
        if not values:
            found.append(f"axes.{axis}: no values")
        if axis in sweep.constants:
            found.append(f"{axis} is both an axis and a constant")
        found += [f"axes.{axis}: {v!r} is listed twice" for i, v in enumerate(values) if v in values[:i]]
    for name, choices in sweep.scenarios.items():
        outside = [key for key in choices if key in sweep.axes or key in sweep.constants]
        found += [f"{key} is set by scenario {name} and again outside it" for key in outside]
    return found


def expand(sweep: SweepFile) -> Iterator[Choices]:
    """Choices of each cell, in order, exclusions left out.

    Raises
    ------
    SweepError
        If no cell is left, or an exclusion leaves nothing out (most likely a misspelt value).
    """
    used = [False] * len(sweep.exclude)
    some = False
    for values in product(*sweep.axes.values()):
        choices = sweep.constants | dict(zip(sweep.axes, values, strict=True))
        choices = sweep.scenarios.get(choices.get("scenario", ""), {}) | choices
        matching = [i for i, rule in enumerate(sweep.exclude) if _matches(choices, rule)]
        for i in matching:
            used[i] = True
        if not matching:
            some = True
            yield choices
    problems = [f"exclude {i + 1} matches no cell: {sweep.exclude[i]}" for i, hit in enumerate(used) if not hit]
    if not some:
        problems.append("the exclusions leave no cell")
    if problems:
        raise SweepError("sweep", problems)


def _matches(choices: Choices, rule: Choices) -> bool:
    """Whether the cell agrees with every entry; a list in a rule means any of its values, or the list itself."""
    return all(
        key in choices and (choices[key] == value or (isinstance(value, list) and choices[key] in value))
        for key, value in rule.items()
    )


__all__ = [
    "CHOICES",
    "OWN",
    "Choices",
    "SweepError",
    "SweepFile",
    "TraceRef",
    "expand",
    "load_sweep",
]
