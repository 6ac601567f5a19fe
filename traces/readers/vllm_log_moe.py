"""vLLM patches that log routing: a `meta` line, then `{"type": "route", req_id, token_idx, layer, topk_ids, ...}`.

Rows come forward pass by forward pass; `token_idx` begins again at 0 for each layer of a pass. The first passes
are vLLM's own profile and warm-up runs, with thousands of dummy rows (`skip_passes` leaves them out). Often only
some layers are logged: such a trace is partial. Phases are inferred from the number of rows; weights are the
softmax's, before they are scaled.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.checks import need_fields, need_model, numbers, whole_number, whole_numbers
from expert_residency.traces.readers.files import json_lines
from expert_residency.traces.readers.rows import Rows, rows_of, trace_of
from expert_residency.traces.trace import RoutingTrace

name = "vllm-log-moe"
description = "vLLM LOG_MOE JSONL: type route with token_idx, layer, topk_ids (needs --model)"
marks = ("topk_ids", "topk_weights", "req_id", "token_idx", "layers_logged")


def sniff(head: bytes, path: Path) -> bool:
    """A route, or the meta line that names the layers logged."""
    lines = head.lstrip().split(b"\n", 2)[:2]
    return head.lstrip().startswith(b"{") and any(
        b'"topk_ids"' in line and b'"token_idx"' in line for line in lines
    )


def read(
    path: Path, model: ModelGeometry | None = None, skip_passes: int = 0, partial: bool = False
) -> RoutingTrace:
    """Read with the geometry of `model`; k is the file's.

    Parameters
    ----------
    path
        The file, gzipped or not.
    model
        Shape and sizes.
    skip_passes
        How many passes at the start are vLLM's profile and warm-up runs.
    partial
        Take the layers that the file has, and the whole passes of one that is cut off.

    Returns
    -------
    RoutingTrace
        The trace.

    Raises
    ------
    TraceError
        Lines that are no routes, or layers that are missing.
    """
    geometry = need_model(path, model)
    said: list[str] = []
    lines: list[int] = []
    layers: list[int] = []
    tokens: list[int] = []
    ids: list[list[int]] = []
    weights: list[list[float]] = []
    for number, data in json_lines(path, partial, said):
        if data.get("type") == "meta":
            continue
        place = f"line {number}"
        need_fields(data, ("layer", "token_idx", "topk_ids"), path, place)
        chosen, gates = whole_numbers(data["topk_ids"], "topk_ids", path, place), data.get("topk_weights")
        if ids and (gates is None) == bool(weights):
            raise TraceError("topk_weights on some records and not on others", path=path, place=place)
        if gates is not None:
            weights.append(numbers(gates, len(chosen), "topk_weights", path, place))
        lines.append(number)
        layers.append(whole_number(data["layer"], "layer", path, place))
        tokens.append(whole_number(data["token_idx"], "token_idx", path, place))
        ids.append(chosen)
    rows = rows_of(layers, ids, lambda i: f"line {lines[i]}", weights=weights or None)
    token, layer = np.asarray(tokens), rows.layer
    begins = np.concatenate([[True], (token[1:] <= token[:-1]) | (layer[1:] != layer[:-1])])
    new_pass = begins & np.concatenate([[True], layer[1:] <= layer[:-1]])
    number_of = np.cumsum(new_pass) - 1
    kept = np.flatnonzero(number_of >= skip_passes)
    if not len(kept):
        raise TraceError(f"skip_passes={skip_passes} leaves none of {int(number_of[-1]) + 1} passes", path=path)
    if skip_passes:
        said.append(f"{skip_passes} passes at the start are left out, as was asked")
    made: Rows = rows.take(kept)
    made = Rows(**{**vars(made), "new_event": begins[kept]})
    return trace_of(made, geometry, path, "vLLM LOG_MOE", *said, partial=partial)
