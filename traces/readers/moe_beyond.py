"""MoE-Beyond CSV: `Layer ID,Batch Number,Token,Activated Expert IDs`, all tokens of one layer, then of the next.

The token is its text, so the number of a row within its (batch, layer) tells tokens apart. Ids are in no order.
Each batch is a request, each token a decode pass.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.base import read_text
from expert_residency.traces.readers.checks import need_model
from expert_residency.traces.readers.rows import rows_of, trace_of
from expert_residency.traces.trace import RoutingTrace

name = "moe-beyond"
description = "MoE-Beyond CSV: Layer ID,Batch Number,Token,Activated Expert IDs (needs --model)"
marks = ("Layer", "Batch", "Number", "Activated")

_COLUMNS = ["Layer ID", "Batch Number", "Token", "Activated Expert IDs"]
_IDS = re.compile(r"\s*\[\s*\d{1,9}(\s*,\s*\d{1,9})*\s*\]\s*")


def sniff(head: bytes, path: Path) -> bool:
    """The column names."""
    return head.split(b"\n", 1)[0].strip() == ",".join(_COLUMNS).encode()


def read(path: Path, model: ModelGeometry | None = None) -> RoutingTrace:
    """Read with the geometry of `model`; k is the file's."""
    geometry = need_model(path, model)
    lines: list[int] = []
    layers: list[int] = []
    batches: list[int] = []
    ids: list[list[int]] = []
    table = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        if next(table, None) != _COLUMNS:
            raise TraceError(f"expected the columns {','.join(_COLUMNS)}", path=path, place="line 1")
        for row in table:
            place = f"line {table.line_num}"
            if len(row) != 4 or not (row[0].isdecimal() and row[1].isdecimal() and _IDS.fullmatch(row[3])):
                raise TraceError(
                    f"expected layer, batch, token, [ids], found {str(row)[:60]}", path=path, place=place
                )
            lines.append(table.line_num)
            layers.append(int(row[0][:9]))
            batches.append(int(row[1][:9]))
            ids.append([int(i) for i in re.findall(r"\d+", row[3])])
    except csv.Error as error:
        raise TraceError(f"cannot be read as CSV ({error})", path=path, place=f"line {table.line_num}") from None
    if not ids:
        raise TraceError("the trace has no routing rows", path=path)
    key = np.stack([np.asarray(batches), np.asarray(layers)], axis=1)
    group = np.unique(key, axis=0, return_inverse=True)[1].reshape(-1)
    order = np.argsort(group, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(group))])[:-1]
    token = np.empty(len(group), dtype=np.int64)
    token[order] = np.arange(len(group)) - starts[group[order]]
    rows = rows_of(
        layers, ids, lambda i: f"line {lines[i]}", request=batches, token=token.tolist(), position=token.tolist()
    )
    return trace_of(rows, geometry, path, "MoE-Beyond", "ids of a row are in no order: ranks are not known")
