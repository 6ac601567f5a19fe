"""lattice `moe_admission_sim` JSONL: one object for each (layer, token).

`{"layer_idx", "token_idx", "selected_ids": [k], "gate_weights": [k]}`; weights are optional, unknown fields
and blank lines are ignored. No phase and no request: every token is a decode pass of one request.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.base import read_text, source_meta
from expert_residency.traces.readers.checks import check_experts, check_size, layer_indices, need_model, row_table
from expert_residency.traces.trace import Phase, RoutingTrace, assemble

name = "lattice"
description = "lattice JSONL, one record for each layer and token (needs --model)"

_FIELDS = ("layer_idx", "token_idx", "selected_ids")


def sniff(head: bytes, path: Path) -> bool:
    """First line names the fields."""
    line = head.lstrip().split(b"\n", 1)[0]
    return line.startswith(b"{") and all(f'"{field}"'.encode() in line for field in _FIELDS)


def read(path: Path, model: ModelGeometry | None = None) -> RoutingTrace:
    """Read with the geometry of `model`; k is the file's."""
    geometry = need_model(path, model)
    lines: list[int] = []
    keys: list[tuple[int, int]] = []
    ids: list[list[int]] = []
    weights: list[list[float]] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        layer, token, chosen, gates = _record(line, path, f"line {number}")
        if ids:
            check_size(len(chosen), len(ids[0]), "selected_ids", path, f"line {number}")
            if (gates is None) == bool(weights):
                raise TraceError(
                    "gate_weights on some records and not on others", path=path, place=f"line {number}"
                )
        lines.append(number)
        keys.append((layer, token))
        ids.append(chosen)
        if gates is not None:
            weights.append(gates)
    if not ids:
        raise TraceError("the trace has no routing rows", path=path)

    def place(i: int) -> str:
        return f"line {lines[i]}"

    table, experts = np.asarray(keys, dtype=np.int64), np.asarray(ids, dtype=np.int64)
    layer_index = layer_indices(table[:, 0], geometry, path, place)
    check_experts(experts, geometry, path, place)
    token = table[:, 1] - table[:, 1].min()
    if token.max() >= len(token):  # more tokens than records: some are missing
        gap = int(np.flatnonzero(np.diff(np.unique(token)) > 1)[0]) + 1
        raise TraceError(f"token_idx {int(np.unique(table[:, 1])[gap - 1]) + 1} is missing", path=path)
    code = token * geometry.n_layers + layer_index
    order = np.argsort(code, kind="stable")
    same = np.flatnonzero(np.diff(code[order]) == 0)
    if len(same):
        at = int(order[same[0] + 1])
        raise TraceError(f"layer {keys[at][0]}, token {keys[at][1]} is repeated", path=path, place=place(at))
    absent = np.argwhere(
        row_table(np.sort(token), layer_index[np.argsort(token, kind="stable")], geometry.n_layers) == 0
    )
    if len(absent):
        number, index = (int(i) for i in absent[0])
        where = f"token_idx {number + int(table[:, 1].min())}"
        raise TraceError(f"layer {geometry.layer_ids[index]} is missing", path=path, place=where)
    n_passes = int(token.max()) + 1
    return assemble(
        geometry.with_top_k(experts.shape[1]),
        pass_request=np.zeros(n_passes, dtype=np.int64),
        pass_phase=np.full(n_passes, Phase.DECODE),
        pass_emits=np.ones(n_passes, dtype=np.int64),
        row_pass=token,
        row_layer=layer_index,
        row_position=table[:, 1],
        row_counts=np.full(len(token), experts.shape[1]),
        row_experts=experts.reshape(-1),
        row_weights=np.asarray(weights, dtype=np.float32).reshape(-1) if weights else None,
        meta=source_meta(path, "lattice", "the format has no phases: every token is a decode pass"),
    )


def _record(line: str, path: Path, place: str) -> tuple[int, int, list[int], list[float] | None]:
    try:
        data: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"not valid JSON ({error.msg})", path=path, place=place) from None
    if not isinstance(data, dict):
        raise TraceError("expected an object", path=path, place=place)
    missing = [field for field in _FIELDS if field not in data]
    if missing:
        raise TraceError(f"field(s) {', '.join(missing)} missing", path=path, place=place)
    layer, token, chosen, gates = (data.get(field) for field in (*_FIELDS, "gate_weights"))
    if type(layer) is not int or type(token) is not int or token < 0:
        raise TraceError(
            f"layer_idx {layer!r}, token_idx {token!r}: expected whole numbers", path=path, place=place
        )
    if not isinstance(chosen, list) or not chosen or any(type(expert) is not int for expert in chosen):
        raise TraceError("selected_ids is not a list of whole numbers", path=path, place=place)
    if gates is not None and (
        not isinstance(gates, list)
        or len(gates) != len(chosen)
        or any(isinstance(g, bool) or not isinstance(g, (int, float)) for g in gates)
    ):
        raise TraceError(f"gate_weights is not a list of {len(chosen)} numbers", path=path, place=place)
    return layer, token, chosen, gates
