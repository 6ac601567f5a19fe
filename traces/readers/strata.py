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
from expert_residency.traces.readers.base import read_bytes
from expert_residency.traces.readers.checks import need_model
from expert_residency.traces.readers.rows import Rows, prompt_first, trace_of
from expert_residency.traces.trace import RoutingTrace

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


def read(
    path: Path, model: ModelGeometry | None = None, prompt_tokens: int = 0, partial: bool = False
) -> RoutingTrace:
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
    partial
        Keep the whole passes of a file that is cut off.

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
    data = read_bytes(path, partial=partial)
    if len(data) < 8:
        raise TraceError(f"{len(data)} bytes are less than one record", path=path)
    k = int(np.frombuffer(data[4:8], dtype="<i4")[0])
    if not 0 < k <= geometry.experts:
        raise TraceError(f"k = {k}, expected 1..{geometry.experts}", path=path, place="byte 4")
    size = 8 + 8 * k
    said: list[str] = []

    whole = len(data) // size * size
    table = np.frombuffer(data[:whole], dtype="<i4").reshape(-1, size // 4)
    other = np.flatnonzero(table[:, 1] != k)
    if len(other):
        at = int(other[0])
        raise TraceError(f"k = {int(table[at, 1])}, expected {k} as in the first record", path=path,
                         place=f"byte {at * size + 4}")  # fmt: skip
    if whole < len(data):
        why = f"{len(data) - whole} bytes after the last whole record of {size}"
        if not partial:
            raise TraceError(f"{why}: the file is cut off", path=path, place=f"byte {whole}")
        said.append(f"{why} are left out")
    weights = np.ascontiguousarray(table[:, 2 + k :]).view("<f4")
    rows = Rows(
        layer=table[:, 0].astype(np.int64),
        counts=np.full(len(table), k),
        experts=table[:, 2 : 2 + k].reshape(-1).astype(np.int64),
        place=lambda i: f"byte {i * size}",
        weights=weights.reshape(-1) if weights.any() else None,
    )
    return trace_of(
        rows,
        geometry,
        path,
        "Strata",
        *said,
        drafts=True,
        partial=partial,
        phases=prompt_first(prompt_tokens, path),
    )
