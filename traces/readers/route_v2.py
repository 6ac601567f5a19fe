"""Route JSONL of schema `...-route-v2`: a `meta` line, then a `route` line for each (token, layer).

A route has `position`, `layer`, `ids` and `weights` over all candidates, of which the first `effective_k` were
used (`selected_weights` has their weights); ids beyond them are padding. No phase: every position is a decode
pass.
"""

from __future__ import annotations

from pathlib import Path

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.checks import (
    check_size,
    need_fields,
    need_model,
    numbers,
    whole_number,
    whole_numbers,
)
from expert_residency.traces.readers.files import json_lines
from expert_residency.traces.readers.rows import rows_of, trace_of
from expert_residency.traces.trace import RoutingTrace

name = "route-v2"
description = "route-v2 JSONL: type route with position, layer, ids and effective_k (needs --model)"
marks = ("position", "effective_k", "selected_weights", "selected_k")

_FIELDS = ("position", "layer", "ids")


def sniff(head: bytes, path: Path) -> bool:
    """A first line of type meta whose schema ends so, or a route itself."""
    line = head.lstrip().split(b"\n", 1)[0]
    return line.startswith(b"{") and (b'route-v2"' in line or (b'"effective_k"' in line and b'"position"' in line))


def read(path: Path, model: ModelGeometry | None = None, partial: bool = False) -> RoutingTrace:
    """Read with the geometry of `model`; k is each row's `effective_k`."""
    geometry = need_model(path, model)
    said: list[str] = []
    lines: list[int] = []
    layers: list[int] = []
    positions: list[int] = []
    ids: list[list[int]] = []
    weights: list[list[float]] = []
    default_k: int | None = None
    for number, data in json_lines(path, partial, said):
        place = f"line {number}"
        if data.get("type") == "meta":
            for field, expected in (("layers", geometry.n_layers), ("experts", geometry.experts)):
                if field in data:
                    check_size(whole_number(data[field], field, path, place), expected, field, path, place)
            default_k = data.get("selected_k")
            continue
        need_fields(data, _FIELDS, path, place)
        chosen = whole_numbers(data["ids"], "ids", path, place)
        k = whole_number(data.get("effective_k", default_k or len(chosen)), "effective_k", path, place)
        if not 0 < k <= len(chosen):
            raise TraceError(f"effective_k {k} of {len(chosen)} ids", path=path, place=place)
        gates = data.get("selected_weights", data.get("weights"))
        if ids and (gates is None) == bool(weights):
            raise TraceError("weights on some records and not on others", path=path, place=place)
        if gates is not None:
            full = len(chosen) if "selected_weights" not in data else k
            weights.append(numbers(gates, full, "weights", path, place)[:k])
        lines.append(number)
        layers.append(whole_number(data["layer"], "layer", path, place))
        positions.append(whole_number(data["position"], "position", path, place))
        ids.append(chosen[:k])
    rows = rows_of(
        layers, ids, lambda i: f"line {lines[i]}", weights=weights or None, token=positions, position=positions
    )
    return trace_of(rows, geometry, path, "route-v2", *said, partial=partial)
