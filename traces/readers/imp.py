"""imp `diagnostics.moe_expert_trace`: JSON, a list of `[layer, e0 .. ek-1]`, decode tokens with their layers in
turn.

The list may stand under `trace`, `entries` or `data` beside `top_k`, or be flat with a stride of k + 1. Decode
only.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.checks import need_model, whole_numbers
from expert_residency.traces.readers.files import load_json
from expert_residency.traces.readers.rows import rows_of, trace_of
from expert_residency.traces.trace import Phase, RoutingTrace

name = "imp"
description = "imp moe_expert_trace JSON: [[layer, e0, ...], ...], decode only (needs --model)"

_HOLDERS = ("trace", "entries", "data")
_FLAT = re.compile(rb"\[\s*(\[\s*)?\d+\s*(,\s*\d+\s*){2,}[\],]")


def sniff(head: bytes, path: Path) -> bool:
    """A list of whole numbers, or of one list of them after another, perhaps in an object with `top_k`."""
    text = head.lstrip()[:4096]
    holder = re.match(rb'\{[^\[\]{}]*"(trace|entries|data)"\s*:\s*', text)
    return _FLAT.match(text[holder.end() :] if holder else text) is not None


def read(path: Path, model: ModelGeometry | None = None, top_k: int = 0) -> RoutingTrace:
    """Read with the geometry of `model`.

    Parameters
    ----------
    path
        The file, gzipped or not.
    model
        Shape and sizes.
    top_k
        Of a flat list that does not say it; 0: the file's, or the model's.

    Returns
    -------
    RoutingTrace
        The trace.

    Raises
    ------
    TraceError
        Entries that are no lists of whole numbers.
    """
    geometry = need_model(path, model)
    data: Any = load_json(path)
    if isinstance(data, dict):
        top_k = top_k or (data["top_k"] if type(data.get("top_k")) is int else 0)
        data = next((data[key] for key in _HOLDERS if key in data), None)
    if not isinstance(data, list) or not data:
        raise TraceError("no list of [layer, e0, ...]", path=path)
    if all(type(item) is int for item in data):
        stride = (top_k or geometry.top_k) + 1
        if len(data) % stride:
            raise TraceError(
                f"{len(data)} numbers are no multiple of {stride} (layer and k experts); say k with -o top_k=",
                path=path,
            )
        data = np.asarray(data).reshape(-1, stride).tolist()
    for i, entry in enumerate(data):
        if len(whole_numbers(entry, "entry", path, f"entry {i}")) < 2:
            raise TraceError("a layer without experts", path=path, place=f"entry {i}")
    rows = rows_of(
        [entry[0] for entry in data],
        [entry[1:] for entry in data],
        lambda i: f"entry {i}",
        phase=[int(Phase.DECODE)] * len(data),
    )
    return trace_of(rows, geometry, path, "imp", "decode only: prompts were not recorded")
