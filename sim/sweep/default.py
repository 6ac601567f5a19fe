"""The sweep for somebody who has a trace and no sweep file yet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from expert_residency.sim.choices.spec import CAPACITY_WAYS

AXES: dict[str, Sequence[Any]] = {
    "hardware": ("rtx-5070", "rtx-5060ti", "tesla-p40"),
    "capacity": ("10%", "25%", "40%", "60%", "80%"),
    "eviction": ("lru", "lfu", "lfru", "min"),
    "prefetch": ("none", "previous-token", "oracle"),
}
MISS = "fetch"
PASSES = 4_000
"""Enough for rankings to settle (`sim.runs.basis`), few enough for minutes."""


def default_sweep(
    trace: str,
    *,
    format: str | None = None,  # noqa: A002 - the word that users type
    model: str | None = None,
    passes: int | None = PASSES,
    cold: str = "trace",
    reading: Mapping[str, Any] | None = None,
    **choices: Sequence[Any],
) -> str:
    """Text of a sweep file over machines, capacities and policies.

    Parameters
    ----------
    trace, format, model
        The trace, and what its format may need.
    passes
        First so many; None for all.
    cold
        `trace` or `request`, as `sim.runs.simulate.simulate` has it.
    reading
        Table of `sim.choices.trace.Reading`.
    choices
        Alternatives of any choice of a run; this module's where there are none. Several make an axis.

    Returns
    -------
    str
        TOML.
    """
    path = trace if trace.startswith("bundled:") else str(Path(trace).absolute())
    ref = {
        key: value for key, value in (("path", path), ("format", format), ("model", model)) if value is not None
    }
    given = {key: list(values) for key, values in choices.items() if values}
    named = given.keys() & CAPACITY_WAYS.keys()
    axes = {key: values for key, values in AXES.items() if not (named and key == "capacity")} | given
    constants = {"miss": MISS} | {
        key: axes.pop(key)[0] for key in [*axes] if key not in AXES and len(axes[key]) == 1
    }
    lines = [f"name = {_toml(Path(trace).name)}", 'misfits = "record"', "", "[traces.trace]"]
    lines += [f"{key} = {_toml(value)}" for key, value in ref.items()]
    own = dict(reading or {})
    for table, values in (("reading", {k: v for k, v in own.items() if k != "options"}),
                          ("reading.options", own.get("options", {}))):  # fmt: skip
        if values:
            lines += ["", f"[traces.trace.{table}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    constants = {key: value for key, value in constants.items() if key not in axes}
    lines += ["", "[constants]", *(f"{key} = {_toml(value)}" for key, value in constants.items())]
    lines += [f"passes = {passes}"] if passes else []
    lines += [f"cold = {_toml(cold)}"] if cold != "trace" else []
    lines += ["", "[axes]", *(f"{axis} = {_toml(list(values))}" for axis, values in axes.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    # Strings, numbers, flags and lists of them look the same in JSON and TOML, but for one letter.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
