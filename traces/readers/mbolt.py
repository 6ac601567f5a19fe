"""mbolt `MBOLT_TRACE`: little-endian 32-bit integers, `MBLT`, version 1 and the number of experts, then records.

Source of the format: github.com/doramirdor/mbolt (patch of llama.cpp). A record is layer, k, tokens and tokens x k
ids. A pass ends when the layer falls; phases are inferred from the number of rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.base import read_bytes
from expert_residency.traces.readers.checks import check_size, need_model
from expert_residency.traces.readers.rows import Rows, trace_of
from expert_residency.traces.trace import RoutingTrace

name = "mbolt"
description = "mbolt MBOLT_TRACE binary of a patched llama.cpp (needs --model)"

_MAGIC = b"MBLT"


def sniff(head: bytes, path: Path) -> bool:
    """The magic bytes, whatever the version."""
    return head.startswith(_MAGIC)


def read(path: Path, model: ModelGeometry | None = None, partial: bool = False) -> RoutingTrace:
    """Read with the geometry of `model`; k is the file's."""
    geometry = need_model(path, model)
    data = read_bytes(path, partial=partial)
    words = np.frombuffer(data[: len(data) // 4 * 4], dtype="<i4").astype(np.int64)
    if not data.startswith(_MAGIC) or len(words) < 3:
        raise TraceError("not an mbolt trace: it does not begin with MBLT, version and experts", path=path)
    if words[1] != 1:
        raise TraceError(f"mbolt version {int(words[1])}, expected 1", path=path, place="byte 4")
    check_size(int(words[2]), geometry.experts, f"experts, {geometry.label}", path, "byte 8")
    said: list[str] = []
    layers: list[np.ndarray] = []
    starts: list[np.ndarray] = []
    ids: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    at = 3
    while at < len(words):
        layer, k, tokens = (int(w) for w in words[at : at + 3]) if at + 3 <= len(words) else (0, 1, len(words))
        if not 0 < k <= geometry.experts or tokens <= 0:
            why = f"{tokens} tokens of k = {k}, expected k of 1..{geometry.experts}"
            raise TraceError(why, path=path, place=f"byte {4 * at}")
        end = at + 3 + k * tokens
        if end > len(words) or (end == len(words) and len(data) % 4):
            if not partial:
                raise TraceError("half a record: the file is cut off", path=path, place=f"byte {4 * at}")
            said.append("the last record, which the end of the file cuts off, is left out")
            break
        layers.append(np.full(tokens, layer))
        starts.append(4 * (at + 3 + k * np.arange(tokens)))
        counts.append(np.full(tokens, k))
        ids.append(words[at + 3 : end])
        at = end
    if not layers:
        raise TraceError("the trace has no routing rows", path=path)
    where = np.concatenate(starts)
    begins = np.concatenate([np.arange(len(part)) == 0 for part in layers])
    rows = Rows(
        layer=np.concatenate(layers),
        counts=np.concatenate(counts),
        experts=np.concatenate(ids),
        place=lambda i: f"byte {int(where[i])}",
        new_event=begins,
    )
    return trace_of(rows, geometry, path, "mbolt", *said, partial=partial)
