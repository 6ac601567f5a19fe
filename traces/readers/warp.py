"""warp's trace JSONL: one line a token, `{"tok": n, "layers": [[ids of layer 0], [ids of layer 1], ...]}`.

Source of the format: github.com/sqliteai/warp, tests. Ids of a layer are in order of their number, not of rank. No
phase: every token is a decode pass of one request.
"""

from __future__ import annotations

from pathlib import Path

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.checks import check_size, need_fields, need_model, whole_number, whole_numbers
from expert_residency.traces.readers.files import json_lines
from expert_residency.traces.readers.rows import rows_of, trace_of
from expert_residency.traces.trace import RoutingTrace

name = "warp"
description = "warp JSONL: {tok, layers: [[ids], ...]} (needs --model)"
marks = ("tok", "layers")


def sniff(head: bytes, path: Path) -> bool:
    """First line begins with the two fields."""
    line = head.lstrip()[:200]
    return line.startswith(b"{") and b'"tok"' in line and b'"layers"' in line and b"[[" in line.replace(b" ", b"")


def read(path: Path, model: ModelGeometry | None = None, partial: bool = False) -> RoutingTrace:
    """Read with the geometry of `model`; k is the file's."""
    geometry = need_model(path, model)
    said = ["ids of a row are in order of their number: ranks are not known"]
    lines: list[int] = []
    layers: list[int] = []
    tokens: list[int] = []
    ids: list[list[int]] = []
    for number, data in json_lines(path, partial, said):
        place = f"line {number}"
        need_fields(data, ("tok", "layers"), path, place)
        token, rows = whole_number(data["tok"], "tok", path, place), data["layers"]
        if not isinstance(rows, list):
            raise TraceError("layers is not a list", path=path, place=place)
        check_size(len(rows), geometry.n_layers, f"layers, {geometry.label}", path, place)
        ids += [whole_numbers(row, f"layer {i}", path, place) for i, row in enumerate(rows)]
        layers += geometry.layer_ids
        tokens += [token] * len(rows)
        lines += [number] * len(rows)
    made = rows_of(layers, ids, lambda i: f"line {lines[i]}", token=tokens, position=tokens)
    return trace_of(made, geometry, path, "warp", *said, partial=partial)
