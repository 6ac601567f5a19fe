"""gpt-oss expert fingerprinting JSON: one generation, `router_data` with a record for each decoded token.

Source of the format: github.com/AmanPriyanshu/GPT-OSS-MoE-ExpertFingerprinting. A record is
`{"token_<absolute position>": {"layer_<i>": {"selected_experts": [k], "selected_probs": [k]}}}`. Decode only:
the prompt's routing and that of the last sampled token are not in it. A file is one such object or a list of
them, each a request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry, load_model
from expert_residency.traces.readers.base import source_meta
from expert_residency.traces.readers.checks import check_experts, check_size
from expert_residency.traces.readers.files import load_json
from expert_residency.traces.trace import Phase, RoutingTrace, assemble

name = "gpt-oss-fingerprint"
description = "gpt-oss expert fingerprinting JSON (decode only; gpt-oss-20b unless --model)"

DEFAULT_MODEL = "gpt-oss-20b"


def sniff(head: bytes, path: Path) -> bool:
    """An object (or a list of them) with the project's field names."""
    start = head.lstrip()
    return start[:1] in (b"{", b"[") and (b'"router_data"' in head or b'"finished_successfully"' in head)


def read(path: Path, model: ModelGeometry | None = None) -> RoutingTrace:
    """Read; layers are counted over MoE layers, in the model's order; k is the file's."""
    geometry = model or load_model(DEFAULT_MODEL)
    data = load_json(path)
    generations = data if isinstance(data, list) else [data]
    request: list[int] = []
    positions: list[int] = []
    experts: list[list[int]] = []
    weights: list[list[float]] = []
    for number, generation in enumerate(generations):
        if not isinstance(generation, dict) or not isinstance(generation.get("router_data"), list):
            raise TraceError("router_data is missing", path=path, place=f"generation {number}")
        last = -1
        for index, record in enumerate(generation["router_data"]):
            place = f"generation {number}, router_data[{index}]"
            position, layers = _token(record, path, place)
            if last >= 0 and position != last + 1:
                what = f"token {position}, expected {last + 1} (a token is missing or repeated)"
                raise TraceError(what, path=path, place=place)
            last = position
            request.append(number)
            positions.append(position)
            _layers(layers, geometry, experts, weights, path, f"{place}, token {position}")
    if not experts:
        raise TraceError("the trace has no routing rows", path=path)
    table = np.asarray(experts)
    n_layers, k = geometry.n_layers, table.shape[1]

    def place_of(i: int) -> str:
        return f"token {positions[i // n_layers]}, layer {geometry.layer_ids[i % n_layers]}"

    check_experts(table, geometry, path, place_of)
    n_passes = len(positions)
    return assemble(
        geometry.with_top_k(k),
        pass_request=np.unique(request, return_inverse=True)[1],
        pass_phase=np.full(n_passes, Phase.DECODE),
        pass_emits=np.ones(n_passes, dtype=np.int64),
        row_pass=np.repeat(np.arange(n_passes), n_layers),
        row_layer=np.tile(np.arange(n_layers), n_passes),
        row_position=np.repeat(positions, n_layers),
        row_counts=np.full(n_passes * n_layers, k),
        row_experts=table.reshape(-1),
        row_weights=np.asarray(weights, dtype=np.float32).reshape(-1),
        meta=source_meta(path, "gpt-oss fingerprinting", "decode only: the prompt's routing was not recorded"),
    )


def _token(record: Any, path: Path, place: str) -> tuple[int, dict[str, Any]]:
    if isinstance(record, dict) and len(record) == 1:
        key, layers = next(iter(record.items()))
        if key.startswith("token_") and key[6:].isdecimal() and isinstance(layers, dict):
            return int(key[6:]), layers
    raise TraceError('expected {"token_<position>": {"layer_<i>": ...}}', path=path, place=place)


def _all(kind: type, values: list[Any]) -> bool:
    return all(type(value) is kind or (kind is float and type(value) is int) for value in values)


def _layers(
    layers: dict[str, Any],
    geometry: ModelGeometry,
    experts: list[list[int]],
    weights: list[list[float]],
    path: Path,
    place: str,
) -> None:
    """Append one row for each layer."""
    check_size(len(layers), geometry.n_layers, "layers", path, place)
    for i in range(geometry.n_layers):
        row = layers.get(f"layer_{i}")
        ids, probs = (
            row.get(n) if isinstance(row, dict) else None for n in ("selected_experts", "selected_probs")
        )
        if (
            not isinstance(ids, list)
            or not isinstance(probs, list)
            or not _all(int, ids)
            or not _all(float, probs)
        ):
            what = "selected_experts and selected_probs expected, as lists of numbers"
            raise TraceError(what, path=path, place=f"{place}, layer_{i}")
        check_size(
            len(ids), len(experts[0]) if experts else len(probs), "selected_experts", path, f"{place}, layer_{i}"
        )
        check_size(len(probs), len(ids), "selected_probs", path, f"{place}, layer_{i}")
        experts.append(ids)
        weights.append(probs)
