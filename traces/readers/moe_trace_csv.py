"""llama.cpp `moe-trace` CSV: `layer,expert`, one line for each routed activation and nothing else.

Source of the format: ggml-org/llama.cpp PR 28544 and thecodacus/llama-moe-trace. Tokens are rebuilt: k lines
of one layer are a token, a run of n x k lines is n tokens, and a pass ends when the layer falls. k is the
model's, since the file does not say.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.base import read_text, source_meta
from expert_residency.traces.readers.checks import (
    INFERRED,
    check_complete,
    check_experts,
    infer_phases,
    layer_indices,
    need_model,
    number_passes,
    row_table,
)
from expert_residency.traces.trace import Phase, RoutingTrace, assemble

name = "moe-trace-csv"
description = "llama.cpp moe-trace CSV: layer,expert (needs --model; k is the model's)"


def sniff(head: bytes, path: Path) -> bool:
    """The two column names, and no other, on the first line."""
    return head[:256].split(b"\n", 1)[0].replace(b" ", b"").strip() in (b"layer,expert", b"expert,layer")


def read(path: Path, model: ModelGeometry | None = None) -> RoutingTrace:
    """Read with the geometry and the k of `model`."""
    geometry = need_model(path, model, "expert bytes and no k")
    header, _, body = read_text(path).partition("\n")
    names = [name.strip() for name in header.split(",")]
    if sorted(names) != ["expert", "layer"]:
        raise TraceError(f"expected the columns layer,expert, found {header[:60]!r}", path=path, place="line 1")
    if not body.strip():
        raise TraceError("the trace has no routing rows", path=path)
    if not body.endswith("\n"):
        raise TraceError(
            "the last line has no end: the file is cut off", path=path, place=f"line {body.count(chr(10)) + 2}"
        )
    try:
        values = np.loadtxt(io.StringIO(body), delimiter=",", dtype=np.int64, ndmin=2, comments=None)
    except ValueError:
        values = np.zeros((0, 0), dtype=np.int64)
    if values.shape[1] != 2 or len(values) != body.count("\n"):
        raise _bad_line(body, path)
    layer, expert = values[:, names.index("layer")], values[:, names.index("expert")]

    def place(i: int) -> str:
        return f"line {i + 2}"

    index = layer_indices(layer, geometry, path, place)
    check_experts(expert, geometry, path, place)
    k = geometry.top_k
    start = np.flatnonzero(np.diff(index, prepend=-1))
    length = np.diff(np.append(start, len(index)))
    wrong = np.flatnonzero(length % k)
    if len(wrong):
        at = int(start[wrong[0]])
        what = f"a run of {int(length[wrong[0]])} lines of layer {int(layer[at])}, expected a multiple of k = {k}"
        raise TraceError(
            f"{what} (lines are missing or repeated, or the file is cut off)", path=path, place=place(at)
        )
    rows = expert.reshape(-1, k)
    check_experts(rows, geometry, path, lambda i: place(i * k))
    row_layer = index[::k]
    row_pass = number_passes(row_layer, np.ones(len(row_layer), dtype=bool) if geometry.n_layers == 1 else None)
    first = np.flatnonzero(np.diff(row_pass, prepend=-1))
    rows_at = row_table(row_pass, row_layer, geometry.n_layers)
    phase, request, emits = infer_phases(rows_at[:, 0])
    check_complete(rows_at, geometry, path, lambda p: f"the pass from {place(int(first[p]) * k)}",
                   short_last=phase == Phase.PREFILL)  # fmt: skip
    return assemble(
        geometry,
        pass_request=request,
        pass_phase=phase,
        pass_emits=emits,
        row_pass=row_pass,
        row_layer=row_layer,
        row_position=np.full(len(row_layer), -1),
        row_counts=np.full(len(row_layer), k),
        row_experts=expert,
        meta=source_meta(path, "llama.cpp moe-trace", INFERRED),
    )


def _bad_line(body: str, path: Path) -> TraceError:
    for number, line in enumerate(body.splitlines(), 2):
        cells = line.split(",")
        if len(cells) != 2 or not all(cell.strip().lstrip("-").isdecimal() for cell in cells):
            return TraceError(
                f"expected two whole numbers, found {line[:60]!r}", path=path, place=f"line {number}"
            )
    return TraceError("cannot be parsed as two columns of whole numbers", path=path)
