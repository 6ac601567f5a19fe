"""Sweep files: what varies, what stays, what is left out.

A file names traces, gives constants, and lists the values of each axis; the cells are all combinations but the
excluded ones, the last axis changing fastest::

    [traces]
    chat = "chat.parquet"                          # or { path = ..., format = ..., model = ... }
    drawn = "synthetic:gpt-oss-20b:tokens=300"     # or { synthetic = { style = ..., tokens = ... }, model = ... }

    [constants]
    trace = "chat"
    miss = "fetch"

    [axes]
    hardware = ["rtx-5070", ["tesla-p40", "tesla-p40"]]
    capacity = ["2GiB", "25%", "32/layer", "auto"] # in the words of `sim.choices.capacity`
    eviction = ["lru", "random:seed={seed}"]
    seed = [1, 2, 3]                               # of synthetic traces, and where a choice says {seed}

    [[exclude]]                                    # every cell that agrees with all of these
    hardware = "rtx-5070"
    capacity = ["4GiB"]

    [scenarios.slow-disk]                          # a bundle of choices, chosen by `scenario = "slow-disk"`
    host = "mmap"
    start = "cold"

A cell on which the seed has no bearing (a recorded trace, no `{seed}` in a choice) is there once, not once a seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from expert_residency.errors import SimError, SweepError
from expert_residency.sim.choices.spec import CHOICES as RUN_CHOICES
from expert_residency.sim.choices.synthetic import PREFIX, table_of
from expert_residency.text import problems
from expert_residency.toml import load
from expert_residency.traces import RoutingTrace

OWN = ("trace", "scenario", "passes", "model", "cold", "seed")
"""Choices that are the sweep's own: which trace, how many of its passes, with which model's byte sizes, whether
each request starts cold, and the seed of what is drawn."""
MOST_SEED = (1 << 31) - 1
CHOICES = (*OWN, *RUN_CHOICES)
"""Everything that may be an axis, a constant, part of a scenario, or of an exclusion."""

Choices = dict[str, Any]


class TraceRef(BaseModel):
    """A trace file, with what its format may need; or a synthetic trace, by its table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = ""
    format: str | None = None
    model: str | None = None
    reading: dict[str, Any] = Field(default_factory=dict)
    synthetic: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> TraceRef:
        if bool(self.path) == (self.synthetic is not None):
            raise ValueError("give a path, or a table `synthetic`")
        if self.synthetic is not None and (self.format or self.reading):
            raise ValueError("format and reading are of a file; a synthetic trace has neither")
        return self

    @property
    def drawn(self) -> bool:
        """Whether it is another trace with another seed."""
        return self.synthetic is not None and "seed" not in self.synthetic


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
        if not isinstance(ref, str):
            return ref
        return TraceRef(synthetic=table_of(ref)) if ref.startswith(PREFIX) else TraceRef(path=ref)

    def chosen_trace(self, choices: Choices) -> str | None:
        """Name of the trace of a cell: the only one where none is chosen; None where that is not said."""
        name: str | None = choices.get("trace")
        return name or (next(iter(self.traces)) if len(self.traces) == 1 else None)

    def draws(self, choices: Choices) -> bool:
        """Whether another seed is another run."""
        name = self.chosen_trace(choices)
        ref = self.trace_ref(name) if name in self.traces else None
        return (isinstance(ref, TraceRef) and ref.drawn) or any(names_seed(value) for value in choices.values())


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
    for name in sweep.traces:
        try:
            sweep.trace_ref(name)
        except SimError as error:
            found.append(f"traces.{name}: {error}")
    for key in ("trace", "scenario"):
        named = [*sweep.axes.get(key, []), sweep.constants.get(key, "")]
        found += [f"{key} = {value!r}: expected a name" for value in named if not isinstance(value, str)]
    for value in [*sweep.axes.get("seed", []), sweep.constants.get("seed", 0)]:
        if type(value) is not int or not 0 <= value <= MOST_SEED:
            found.append(f"seed is {value!r}, expected a whole number from 0 to {MOST_SEED:,}")
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
    some = drawn = False
    once: set[str] = set()
    for values in product(*sweep.axes.values()):
        choices = sweep.constants | dict(zip(sweep.axes, values, strict=True))
        choices = sweep.scenarios.get(choices.get("scenario", ""), {}) | choices
        matching = [i for i, rule in enumerate(sweep.exclude) if _matches(choices, rule)]
        for i in matching:
            used[i] = True
        if matching:
            continue
        some = True
        if "seed" in choices and not sweep.draws(choices):
            del choices["seed"]
            if (words := repr(sorted(choices.items()))) in once:
                continue
            once.add(words)
        drawn |= "seed" in choices
        yield choices
    problems = [f"exclude {i + 1} matches no cell: {sweep.exclude[i]}" for i, hit in enumerate(used) if not hit]
    if not some:
        problems.append("the exclusions leave no cell")
    if some and not drawn and "seed" in (*sweep.axes, *sweep.constants):
        problems.append("seed: no cell has a synthetic trace without a seed of its own, or {seed} in a choice")
    if problems:
        raise SweepError("sweep", problems)


def filled(value: Any, values: Mapping[str, Any]) -> Any:
    """A choice with values instead of their `{name}`; values may name others."""
    if isinstance(value, Mapping):
        return {key: filled(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, values) for item in value]
    for name, chosen in values.items():
        if isinstance(value, str) and f"{{{name}}}" in value:
            alone = value == f"{{{name}}}"
            return filled(chosen if alone else value.replace(f"{{{name}}}", str(chosen)), values)
    return value


def names_seed(value: Any) -> bool:
    """Whether a choice says `{seed}`."""
    return filled(value, {"seed": 0}) != value if isinstance(value, str | list | Mapping) else False


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
    "filled",
    "load_sweep",
    "names_seed",
]
