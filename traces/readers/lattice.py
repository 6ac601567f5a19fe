"""lattice `moe_admission_sim` JSONL: one object for each (layer, token).

`{"layer_idx", "token_idx", "selected_ids": [k], "gate_weights": [k]}`; weights are optional, unknown fields
and blank lines are ignored. No phase and no request: every token is a decode pass of one request.
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

name = "lattice"
description = "lattice JSONL, one record for each layer and token (needs --model)"
marks = ("layer_idx", "token_idx", "selected_ids", "gate_weights")

_FIELDS = ("layer_idx", "token_idx", "selected_ids")


def sniff(head: bytes, path: Path) -> bool:
    """First line names the fields."""
    line = head.lstrip().split(b"\n", 1)[0]
    return line.startswith(b"{") and all(f'"{field}"'.encode() in line for field in _FIELDS)


def read(path: Path, model: ModelGeometry | None = None, partial: bool = False) -> RoutingTrace:
    """Read with the geometry of `model`; k is the file's."""
    geometry = need_model(path, model)
    said: list[str] = []
    lines: list[int] = []
    layers: list[int] = []
    tokens: list[int] = []
    ids: list[list[int]] = []
    weights: list[list[float]] = []
    for number, data in json_lines(path, partial, said):
        place = f"line {number}"
        need_fields(data, _FIELDS, path, place)
        layers.append(whole_number(data["layer_idx"], "layer_idx", path, place))
        tokens.append(whole_number(data["token_idx"], "token_idx", path, place))
        chosen, gates = whole_numbers(data["selected_ids"], "selected_ids", path, place), data.get("gate_weights")
        if ids:
            check_size(len(chosen), len(ids[0]), "selected_ids", path, place)
            if (gates is None) == bool(weights):
                raise TraceError("gate_weights on some records and not on others", path=path, place=place)
        lines.append(number)
        ids.append(chosen)
        if gates is not None:
            weights.append(numbers(gates, len(chosen), "gate_weights", path, place))
    rows = rows_of(
        layers, ids, lambda i: f"line {lines[i]}", weights=weights or None, token=tokens, position=tokens
    )
    return trace_of(rows, geometry, path, "lattice", *said, partial=partial)
