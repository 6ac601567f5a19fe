"""colibri `ROUTE_TRACE`: text, one line for each (MoE call, batch row): `call row layer id:gate id:gate ...`.

A pass ends when the layer falls. `call` only tells calls apart (one of its engines always writes 0), `row`
counts from 0 in each. Rows may have different numbers of experts (top-p routing), and rows of layers after the
last one are its draft (MTP) layers'. Phases are inferred from the number of rows.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.checks import need_model
from expert_residency.traces.readers.files import text_lines
from expert_residency.traces.readers.rows import Rows, trace_of
from expert_residency.traces.trace import RoutingTrace

name = "colibri"
description = "colibri ROUTE_TRACE text: call row layer id:gate ..., with MTP and top-p rows (needs --model)"

_LINE = re.compile(r"\d{1,18} \d{1,18} \d{1,18}( \d{1,18}:\S+)+\s*")


def sniff(head: bytes, path: Path) -> bool:
    """First line has the form."""
    return _LINE.fullmatch(head[:4096].split(b"\n", 1)[0].decode("latin-1")) is not None


def read(path: Path, model: ModelGeometry | None = None, partial: bool = False) -> RoutingTrace:
    """Read with the geometry of `model`; k is the file's."""
    geometry = need_model(path, model)
    said: list[str] = []
    head: list[tuple[int, int, int, int]] = []
    counts: list[int] = []
    ids: list[int] = []
    weights: list[float] = []
    for number, line in enumerate(text_lines(path, partial, said), 1):
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
        head.append((int(call), int(row), int(layer), number))
        counts.append(len(chosen))
        ids += [i for i, _ in chosen]
        weights += [gate for _, gate in chosen]
    if not ids:
        raise TraceError("the trace has no routing rows", path=path)
    table = np.asarray(head, dtype=np.int64)

    def place_of(i: int) -> str:
        return f"line {int(table[i, 3])}"

    begins = (table[:, 1] == 0) | (np.diff(table[:, 0], prepend=-1) != 0) | (np.diff(table[:, 2], prepend=-1) != 0)
    start = np.flatnonzero(begins)
    expected = np.arange(len(table)) - np.repeat(start, np.diff(np.append(start, len(table))))
    wrong = np.flatnonzero(table[:, 1] != expected)
    if len(wrong):
        at = int(wrong[0])
        what = f"row {int(table[at, 1])}, expected {int(expected[at])} (a line is missing or repeated)"
        raise TraceError(what, path=path, place=place_of(at))
    rows = Rows(
        layer=table[:, 2],
        counts=np.asarray(counts),
        experts=np.asarray(ids, dtype=np.int64),
        place=place_of,
        weights=np.asarray(weights, dtype=np.float32),
        new_event=begins,
    )
    return trace_of(rows, geometry, path, "colibri", *said, drafts=True, partial=partial)
