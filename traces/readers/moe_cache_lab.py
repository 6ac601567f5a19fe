"""moe-cache-lab `routing-jsonl` version 1: a metadata record, then a `routing_selection` for each (layer, token).

Source of the format: github.com/birkansit/moe-cache-lab. Layer by layer within the prompt; phase (`prompt` or
`generated`) and token position are given. Prompt tokens that follow one another are one pass.
"""

from __future__ import annotations

from pathlib import Path

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.checks import (
    check_size,
    named_model,
    need_fields,
    numbers,
    whole_number,
    whole_numbers,
)
from expert_residency.traces.readers.files import json_lines
from expert_residency.traces.readers.rows import rows_of, trace_of
from expert_residency.traces.trace import Phase, RoutingTrace

name = "moe-cache-lab"
description = "moe-cache-lab routing JSONL v1, with phases and positions"
marks = ("record_type", "routing_selection", "selected_experts", "selected_probabilities", "token_position")

_FORMAT = "moe-cache-lab.routing-jsonl"
_FIELDS = ("phase", "layer", "token_position", "selected_experts")
_PHASES = {"prompt": Phase.PREFILL, "generated": Phase.DECODE}


def sniff(head: bytes, path: Path) -> bool:
    """The metadata record's name of the format."""
    return head.lstrip().startswith(b"{") and _FORMAT.encode() in head.lstrip().split(b"\n", 1)[0]


def read(path: Path, model: ModelGeometry | None = None, partial: bool = False) -> RoutingTrace:
    """Read with the geometry of `model`, or of the packaged model of the file's name."""
    said: list[str] = []
    geometry = model
    lines: list[int] = []
    layers: list[int] = []
    positions: list[int] = []
    phases: list[int] = []
    ids: list[list[int]] = []
    weights: list[list[float]] = []
    for number, data in json_lines(path, partial, said):
        place = f"line {number}"
        if data.get("record_type") == "metadata":
            if data.get("format") != _FORMAT or data.get("format_version") != 1:
                found = f"{data.get('format')!r} version {data.get('format_version')!r}"
                raise TraceError(f"{found}, expected {_FORMAT} version 1", path=path, place=place)
            geometry = named_model(path, str(data.get("model_id", "")).rsplit("/", 1)[-1], model)
            experts = whole_number(data.get("num_experts", geometry.experts), "num_experts", path, place)
            check_size(experts, geometry.experts, f"experts, {geometry.label}", path, place)
            continue
        if data.get("record_type") != "routing_selection":
            continue
        need_fields(data, _FIELDS, path, place)
        if data["phase"] not in _PHASES:
            raise TraceError(f"phase {data['phase']!r}, expected {' or '.join(_PHASES)}", path=path, place=place)
        chosen = whole_numbers(data["selected_experts"], "selected_experts", path, place)
        gates = data.get("selected_probabilities")
        if ids and bool(gates) != bool(weights):
            raise TraceError("selected_probabilities on some records and not on others", path=path, place=place)
        if gates:
            weights.append(numbers(gates, len(chosen), "selected_probabilities", path, place))
        lines.append(number)
        phases.append(int(_PHASES[data["phase"]]))
        layers.append(whole_number(data["layer"], "layer", path, place))
        positions.append(whole_number(data["token_position"], "token_position", path, place))
        ids.append(chosen)
    if geometry is None:
        raise TraceError("no metadata record, so no model: give --model", path=path)
    rows = rows_of(
        layers, ids, lambda i: f"line {lines[i]}", weights=weights or None, token=positions, position=positions,
        phase=phases,
    )  # fmt: skip
    return trace_of(rows, geometry, path, "moe-cache-lab", *said, partial=partial)
