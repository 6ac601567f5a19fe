"""The sweep for somebody who has a trace and no sweep file yet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HARDWARE = ("rtx-5070", "rtx-5060ti", "tesla-p40")
CAPACITY = ("10%", "25%", "40%", "60%", "80%")
EVICTION = ("lru", "lfu", "lfru", "min")
PREFETCH = ("none", "previous-token", "oracle")
PASSES = 200
"""Enough for rankings to settle, few enough for minutes."""


def default_sweep(
    trace: str,
    *,
    format: str | None = None,  # noqa: A002 - the word that users type
    model: str | None = None,
    hardware: Sequence[str] = (),
    capacity: Sequence[str] = (),
    eviction: Sequence[str] = (),
    prefetch: Sequence[str] = (),
    miss: str = "fetch",
    passes: int | None = PASSES,
) -> str:
    """Text of a sweep file over machines, capacities and policies; empty choices take this module's defaults."""
    path = trace if trace.startswith("bundled:") else str(Path(trace).absolute())
    ref = {
        key: value for key, value in (("path", path), ("format", format), ("model", model)) if value is not None
    }
    axes = {
        "hardware": hardware or HARDWARE,
        "capacity": capacity or CAPACITY,
        "eviction": eviction or EVICTION,
        "prefetch": prefetch or PREFETCH,
    }
    lines = ['name = "' + Path(trace).name.replace('"', "'") + '"', 'misfits = "record"', "", "[traces.trace]"]
    lines += [f"{key} = {_toml(value)}" for key, value in ref.items()]
    lines += ["", "[constants]", f"miss = {_toml(miss)}"]
    lines += [f"passes = {passes}"] if passes else []
    lines += ["", "[axes]", *(f"{axis} = {_toml(list(values))}" for axis, values in axes.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    # Strings and lists of strings look the same in JSON and TOML.
    return json.dumps(value, ensure_ascii=False)
