"""The sweep for somebody who has a trace and no sweep file yet."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from expert_residency.errors import SimError, UserError
from expert_residency.sim.choices.capacity import Auto
from expert_residency.sim.choices.spec import CAPACITY_WAYS
from expert_residency.sim.choices.synthetic import PREFIX, table_of
from expert_residency.sim.choices.trace import NO_FILE
from expert_residency.sim.sweep.spec import load_sweep
from expert_residency.sim.sweep.stored import load_trace
from expert_residency.traces import RoutingTrace

AXES: dict[str, Sequence[Any]] = {
    "hardware": ("rtx-5070", "rtx-5060ti", "tesla-p40"),
    "capacity": ("10%", "25%", "40%", "60%", "80%"),
    "eviction": ("lru", "lfu", "lfru", "min"),
    "prefetch": ("none", "previous-token", "oracle"),
    "miss": ("fetch", "cpu"),
}
LEFT = (10, 25, 50, 75, 100)
"""Capacities in percent of what a card really has room for, so that every machine has so many."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")
PASSES = 4_000
"""Enough for rankings to settle (`sim.runs.basis`), few enough for minutes."""


def default_sweep(
    trace: str | Sequence[str],
    *,
    format: str | None = None,  # noqa: A002 - the word that users type
    model: str | None = None,
    passes: int | None = PASSES,
    cold: str = "trace",
    reading: Mapping[str, Any] | None = None,
    seeds: int | None = None,
    opened: Sequence[RoutingTrace] = (),
    **choices: Sequence[Any],
) -> str:
    """Text of a sweep file over machines, capacities and policies.

    Parameters
    ----------
    trace, format, model
        The trace or traces (files, `bundled:NAME`, `synthetic:STYLE`), and what their formats may need.
    passes
        First so many; None for all.
    cold
        `trace` or `request`, as `sim.runs.simulate.simulate` has it.
    reading
        Table of `sim.choices.trace.Reading`.
    seeds
        How many seeds, from 1, what is drawn is drawn with; None for its own.
    opened
        The traces themselves, where they are at hand: capacities are then shares of what each card has room for
        beside dense weights, the longest context and its reserve, not of all experts.
    choices
        Alternatives of any choice of a run; this module's where there are none. Several make an axis.

    Returns
    -------
    str
        TOML.

    Raises
    ------
    SimError
        A trace that is listed twice, or words of a synthetic one that are not valid.
    """
    sources = [trace] if isinstance(trace, str) else list(trace)
    given = {key: list(values) for key, values in choices.items() if values}
    named = given.keys() & CAPACITY_WAYS.keys()
    axes = {key: values for key, values in AXES.items() if not (named and key == "capacity")} | given
    if "capacity" in axes and "capacity" not in given and opened:
        axes["capacity"] = _of_what_is_left(opened, max(given.get("depth", [0])))
    constants = {key: axes.pop(key)[0] for key in [*axes] if key not in AXES and len(axes[key]) == 1}
    names = _names(sources)
    if len(names) > 1:
        axes = {"trace": names} | axes
    if seeds is not None:
        axes["seed"] = list(range(1, seeds + 1))
    title = " and ".join(Path(source).name for source in sources)
    lines = [f"name = {_toml(title)}", 'misfits = "record"']
    for name, source in zip(names, sources, strict=True):
        lines += _trace(name, source, format, model, dict(reading or {}))
    constants = {key: value for key, value in constants.items() if key not in axes}
    lines += ["", "[constants]", *(f"{key} = {_toml(value)}" for key, value in constants.items())]
    lines += [f"passes = {passes}"] if passes else []
    lines += [f"cold = {_toml(cold)}"] if cold != "trace" else []
    lines += ["", "[axes]", *(f"{axis} = {_toml(list(values))}" for axis, values in axes.items())]
    return "\n".join(lines) + "\n"


def built_in(trace: Sequence[str], **asked: Any) -> tuple[str, dict[str, Any]]:
    """Text of the built-in sweep, and its content with every trace that was opened for it.

    Parameters
    ----------
    trace, asked
        As for `default_sweep`.

    Returns
    -------
    text, content
        A trace that cannot be opened is left as it is written, for the sweep to say what is wrong.
    """
    content = tomllib.loads(default_sweep(trace, **asked))
    file, _, base = load_sweep(content)
    opened: dict[str, RoutingTrace] = {}
    with suppress(UserError):
        for name in file.traces:
            opened[name] = load_trace(file.trace_ref(name), base)
        text = default_sweep(trace, opened=list(opened.values()), **asked)
        content = tomllib.loads(text)
        recorded = {name: one for name, one in opened.items() if not one.synthetic}
        return text, content | {"traces": content["traces"] | recorded}
    return default_sweep(trace, **asked), content


def _of_what_is_left(traces: Sequence[RoutingTrace], depth: int) -> Sequence[str]:
    """Capacities that each card has room for; shares of all experts where the dense weights are not known."""
    if not all(any(trace.geometry.dense_bytes) for trace in traces):
        return [str(words) for words in AXES["capacity"]]
    longest = max((int(trace.row_position.max()) + 1 for trace in traces if len(trace.row_position)), default=0)
    context = f",context={longest + depth}" if longest + depth > Auto.context else ""
    if any(trace.geometry.session_shape is None for trace in traces):
        context = ",session=0B"
    return [f"auto:percent={percent}{context}" for percent in LEFT]


def _names(sources: Sequence[str]) -> list[str]:
    """`trace` for the only one; of several their own, with a number where two are alike."""
    if len(sources) == 1:
        return ["trace"]
    if twice := [source for i, source in enumerate(sources) if source in sources[:i]]:
        raise SimError(f"--trace {twice[0]} is given twice")
    bare = [
        source.split(":")[1] if source.startswith(NO_FILE) else Path(source).name.partition(".")[0]
        for source in sources
    ]
    return [f"{name}-{i + 1}" if bare.count(name) > 1 else name for i, name in enumerate(bare)]


def _trace(name: str, source: str, fmt: str | None, model: str | None, reading: dict[str, Any]) -> list[str]:
    """Lines of one trace."""
    path = source if source.startswith(NO_FILE) else str(Path(source).absolute())
    tables: dict[str, Mapping[str, Any]] = {"": {"path": path, "format": fmt, "model": model}}
    if source.startswith(PREFIX):
        tables = {"": {"format": fmt, "model": model}, ".synthetic": table_of(source)}
    tables |= {".reading": {k: v for k, v in reading.items() if k != "options"},
               ".reading.options": reading.get("options", {})}  # fmt: skip
    head = f"traces.{name if _BARE.fullmatch(name) else _toml(name)}"
    lines = []
    for table, values in tables.items():
        known = {key: value for key, value in values.items() if value is not None}
        if known or not table:
            lines += ["", f"[{head}{table}]", *(f"{key} = {_toml(value)}" for key, value in known.items())]
    return lines


def _toml(value: Any) -> str:
    # Strings, numbers, flags and lists of them look the same in JSON and TOML, but for one letter.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
