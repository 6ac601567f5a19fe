"""Strata `--dump-routing`: a headerless little-endian stream of int32 layer, k, k ids and k float32 weights.

Source of the format: github.com/Niko1221/Strata, docs and sources. Two writers produce it:

- the token path writes layers 0..L-1 for each position, with router weights; prompt positions are included
  where the prompt goes through it (teacher forced);
- the verify-window path writes all T rows of layer 0, then all T of layer 1, ...; weights are zeros. T is the
  last accepted token and its drafts, rejected ones included without a mark; prompts are absent but for short
  tails and the last prompt token.

Both are read by one rule: a pass ends when the layer falls, and T is its number of layer-0 records.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.base import read_bytes, source_meta
from expert_residency.traces.readers.checks import (
    check_complete,
    check_experts,
    layer_indices,
    need_model,
    number_passes,
    row_table,
)
from expert_residency.traces.trace import IntArray, Phase, RoutingTrace, assemble

name = "strata"
description = "Strata --dump-routing binary, token path and verify windows (needs --model)"

_MAX_K = 64
_MAX_LAYER = 1024
_MAX_EXPERT = 1 << 15


def sniff(head: bytes, path: Path) -> bool:
    """By structure: the records in sight have one k, plausible layers and ids, and layers that rise from 0."""
    if len(head) < 16:
        return False
    layer, k = np.frombuffer(head[:8], dtype="<i4")
    if layer != 0 or not 0 < k <= _MAX_K:
        return False
    size = 8 + 8 * int(k)
    records = np.frombuffer(head[: len(head) // size * size], dtype="<i4").reshape(-1, size // 4)
    ids = records[:, 2 : 2 + int(k)]
    return bool(
        len(records)
        and (records[:, 1] == k).all()
        and ((records[:, 0] >= 0) & (records[:, 0] < _MAX_LAYER)).all()
        and ((ids >= 0) & (ids < _MAX_EXPERT)).all()
    )


def read(path: Path, model: ModelGeometry | None = None, prompt_tokens: int = 0) -> RoutingTrace:
    """Read with the geometry of `model`; k is the file's.

    Parameters
    ----------
    path
        The file, gzipped or not.
    model
        Shape and sizes, which the format lacks.
    prompt_tokens
        How many rows at the start are the prompt (token path, teacher forced): each such pass is prefill,
        and positions count from 0. The format itself cannot tell.

    Returns
    -------
    RoutingTrace
        The trace.

    Raises
    ------
    TraceError
        No model, records that are cut off, or ids out of range.
    """
    geometry = need_model(path, model, "geometry")
    data = read_bytes(path)
    if len(data) < 8:
        raise TraceError(f"{len(data)} bytes are less than one record", path=path)
    k = int(np.frombuffer(data[4:8], dtype="<i4")[0])
    if not 0 < k <= geometry.experts:
        raise TraceError(f"k = {k}, expected 1..{geometry.experts}", path=path, place="byte 4")
    size = 8 + 8 * k

    whole = len(data) // size * size
    table = np.frombuffer(data[:whole], dtype="<i4").reshape(-1, size // 4)
    other = np.flatnonzero(table[:, 1] != k)
    if len(other):
        at = int(other[0])
        raise TraceError(f"k = {int(table[at, 1])}, expected {k} as in the first record", path=path,
                         place=f"byte {at * size + 4}")  # fmt: skip
    if whole < len(data):
        raise TraceError(f"{len(data) - whole} bytes after the last whole record of {size}: the file is cut off",
                         path=path, place=f"byte {whole}")  # fmt: skip

    kept = np.flatnonzero(table[:, 0] <= geometry.layer_ids[-1])
    notes = [] if len(kept) == len(table) else [f"{len(table) - len(kept)} records of draft layers are left out"]
    records = table[kept]

    def place(i: int) -> str:
        return f"byte {int(kept[i]) * size}"

    if not len(records):
        raise TraceError(f"no record of a layer of {geometry.label}", path=path)
    layer = layer_indices(records[:, 0], geometry, path, place)
    experts = records[:, 2 : 2 + k]
    check_experts(experts, geometry, path, place)
    row_pass = number_passes(layer, np.ones(len(layer), dtype=bool) if geometry.n_layers == 1 else None)
    first = np.flatnonzero(np.diff(row_pass, prepend=-1))
    rows_at = row_table(row_pass, layer, geometry.n_layers)
    check_complete(rows_at, geometry, path, lambda p: f"window {p} from {place(int(first[p]))}",
                   short_last=np.zeros(len(rows_at), dtype=bool))  # fmt: skip
    phase, emits = _phases(rows_at[:, 0], prompt_tokens, path)
    if (phase == Phase.VERIFY).any():
        notes.append("tokens emitted by verify passes are unknown and counted as 1")
    known_positions = prompt_tokens > 0 and bool((rows_at[:, 0] == 1).all())
    weights = np.ascontiguousarray(records[:, 2 + k :]).view("<f4")
    return assemble(
        geometry.with_top_k(k),
        pass_request=np.zeros(len(first), dtype=np.int64),
        pass_phase=phase,
        pass_emits=emits,
        row_pass=row_pass,
        row_layer=layer,
        row_position=row_pass if known_positions else np.full(len(records), -1),
        row_counts=np.full(len(records), k),
        row_experts=experts.reshape(-1),
        row_weights=weights.reshape(-1) if weights.any() else None,
        meta=source_meta(path, "Strata", *notes),
    )


def _phases(rows: IntArray, prompt_tokens: int, path: Path) -> tuple[IntArray, IntArray]:
    phase = np.where(rows == 1, Phase.DECODE, Phase.VERIFY)
    emits = np.ones(len(rows), dtype=np.int64)
    if prompt_tokens:
        ends = np.cumsum(rows)
        n = int(np.searchsorted(ends, prompt_tokens)) + 1
        if n > len(rows) or ends[n - 1] != prompt_tokens:
            raise TraceError(
                f"no pass ends after {prompt_tokens} prompt tokens (the file has {ends[-1]} rows)", path=path
            )
        phase[:n], emits[: n - 1] = Phase.PREFILL, 0
    return phase, emits
