"""colibri `ROUTE_TRACE`: text, one line for each (MoE call, batch row): `call row layer id:gate id:gate ...`.

A pass ends when the layer falls. `call` only tells calls apart (one of its engines always writes 0), `row`
counts from 0 in each. Phases are inferred from the number of rows.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.base import read_text, source_meta
from expert_residency.traces.readers.checks import (
    INFERRED,
    check_complete,
    check_experts,
    check_size,
    infer_phases,
    layer_indices,
    need_model,
    number_passes,
    row_table,
)
from expert_residency.traces.trace import Phase, RoutingTrace, assemble

name = "colibri"
description = "colibri ROUTE_TRACE text: call row layer id:gate ... (needs --model)"

_LINE = re.compile(r"\d+ \d+ \d+( \d+:\S+)+\s*")


def sniff(head: bytes, path: Path) -> bool:
    """First line has the form."""
    return _LINE.fullmatch(head[:4096].split(b"\n", 1)[0].decode("latin-1")) is not None


def read(path: Path, model: ModelGeometry | None = None) -> RoutingTrace:
    """Read with the geometry of `model`; k is the file's."""
    geometry = need_model(path, model)
    text = read_text(path)
    head: list[tuple[int, int, int, int]] = []
    ids: list[list[int]] = []
    weights: list[list[float]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f"line {number}"
        if not _LINE.fullmatch(line):
            raise TraceError(f"expected 'call row layer id:gate ...', found {line[:60]!r}", path=path, place=place)
        call, row, layer, *pairs = line.split()
        try:
            chosen = [(int(i), float(gate)) for i, _, gate in (pair.partition(":") for pair in pairs)]
        except ValueError:
            raise TraceError(f"a gate in {line[:60]!r} is not a number", path=path, place=place) from None
        check_size(len(chosen), len(ids[0]) if ids else len(chosen), "experts", path, place)
        head.append((int(call), int(row), int(layer), number))
        ids.append([i for i, _ in chosen])
        weights.append([gate for _, gate in chosen])
    if not text.endswith("\n"):
        raise TraceError("the last line has no end: the file is cut off", path=path, place=f"line {head[-1][3]}")
    if not ids:
        raise TraceError("the trace has no routing rows", path=path)
    table, experts = np.asarray(head, dtype=np.int64), np.asarray(ids, dtype=np.int64)

    def place_of(i: int) -> str:
        return f"line {int(table[i, 3])}"

    layer_index = layer_indices(table[:, 2], geometry, path, place_of)
    check_experts(experts, geometry, path, place_of)
    begins = (table[:, 1] == 0) | (np.diff(table[:, 0], prepend=-1) != 0) | (np.diff(table[:, 2], prepend=-1) != 0)
    start = np.flatnonzero(begins)
    expected = np.arange(len(table)) - np.repeat(start, np.diff(np.append(start, len(table))))
    wrong = np.flatnonzero(table[:, 1] != expected)
    if len(wrong):
        at = int(wrong[0])
        what = f"row {int(table[at, 1])}, expected {int(expected[at])} (a line is missing or repeated)"
        raise TraceError(what, path=path, place=place_of(at))
    row_pass = number_passes(layer_index, begins)
    first = np.flatnonzero(np.diff(row_pass, prepend=-1))
    rows_at = row_table(row_pass, layer_index, geometry.n_layers)
    phase, request, emits = infer_phases(rows_at[:, 0])
    check_complete(rows_at, geometry, path, lambda p: f"the pass from {place_of(int(first[p]))}",
                   short_last=phase == Phase.PREFILL)  # fmt: skip
    return assemble(
        geometry.with_top_k(experts.shape[1]),
        pass_request=request,
        pass_phase=phase,
        pass_emits=emits,
        row_pass=row_pass,
        row_layer=layer_index,
        row_position=np.full(len(table), -1),
        row_counts=np.full(len(table), experts.shape[1]),
        row_experts=experts.reshape(-1),
        row_weights=np.asarray(weights, dtype=np.float32).reshape(-1),
        meta=source_meta(path, "colibri", INFERRED),
    )
