"""MoE Atlas JSONL: one object a text, whose `activations` have one entry for each routed expert.

Source of the format: github.com/DJLougen/MoE-Atlas. An entry is `{layer, token_idx, expert_idx, gate_weight}`;
entries of one (token, layer) are in rank order. No phase: every token is a decode pass, every line a request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.checks import check_size, named_model, need_fields, whole_number
from expert_residency.traces.readers.files import json_lines
from expert_residency.traces.readers.rows import rows_of, trace_of
from expert_residency.traces.trace import RoutingTrace

name = "atlas"
description = "MoE Atlas JSONL: activations with layer, token_idx, expert_idx, gate_weight"
marks = ("activations", "token_idx", "expert_idx", "gate_weight")

_ENTRY = ("layer", "token_idx", "expert_idx")


def sniff(head: bytes, path: Path) -> bool:
    """A first object with these fields."""
    start = head.lstrip()
    return (
        start.startswith(b"{")
        and b'"expert_idx"' in start
        and (b'"activations"' in start and b'"num_experts"' in start)
    )


def read(path: Path, model: ModelGeometry | None = None, partial: bool = False) -> RoutingTrace:
    """Read with the geometry of `model`, or of the packaged model of the file's name."""
    said: list[str] = []
    geometry: ModelGeometry | None = None
    places: list[str] = []
    keys: list[tuple[int, int, int]] = []
    ids: list[list[int]] = []
    weights: list[list[float]] = []
    for request, (number, data) in enumerate(json_lines(path, partial, said)):
        place = f"line {number}"
        need_fields(data, ("num_layers", "num_experts", "activations"), path, place)
        if geometry is None:
            geometry = named_model(path, str(data.get("model_id", "")).rsplit("/", 1)[-1], model)
        check_size(
            whole_number(data["num_layers"], "num_layers", path, place), geometry.n_layers, "layers", path, place
        )
        experts = whole_number(data["num_experts"], "num_experts", path, place)
        check_size(experts, geometry.experts, "experts", path, place)
        if not isinstance(data["activations"], list):
            raise TraceError("activations is not a list", path=path, place=place)
        for i, entry in enumerate(data["activations"]):
            at = f"{place}, activation {i}"
            key, expert, gate = _entry(entry, path, at)
            if not keys or keys[-1] != (request, *key):
                keys.append((request, *key))
                places.append(at)
                ids.append([])
                weights.append([])
            ids[-1].append(expert)
            weights[-1].append(gate)
    if geometry is None or not keys:
        raise TraceError("the trace has no routing rows", path=path)
    rows = rows_of(
        [layer for _, layer, _ in keys],
        ids,
        lambda i: places[i],
        weights=weights,
        request=[request for request, _, _ in keys],
        token=[token for _, _, token in keys],
        position=[token for _, _, token in keys],
    )
    return trace_of(rows, geometry, path, "MoE Atlas", *said, partial=partial)


def _entry(entry: Any, path: Path, place: str) -> tuple[tuple[int, int], int, float]:
    if not isinstance(entry, dict):
        raise TraceError("expected an object", path=path, place=place)
    need_fields(entry, _ENTRY, path, place)
    layer, token, expert = (whole_number(entry[name], name, path, place) for name in _ENTRY)
    gate = entry.get("gate_weight")
    if gate is None:
        gate = float("nan")
    if isinstance(gate, bool) or not isinstance(gate, int | float):
        raise TraceError("gate_weight is not a number", path=path, place=place)
    return (layer, token), expert, float(gate)
