r"""k3-out-of-core's K3ROUTE version 1: binary frames with request, batch, phase, position, and a checksum.

Little-endian: `K3ROUTE\0`, u32 version, u32 header length, header (GGUF name, size, revisions, run id, then u32
experts, k and routed layers). A frame is u32 `RECD`, u32 length, u64 ordinal, request and ubatch, u32 phase (1
prefill, 2 decode), i32 layer, u32 row, i32 position, u32 n, n sequence ids, u32 k, k ids in rank order, k weights.
The trailer is `K3DONE\0\0`, u64 count, u32 CRC-32 of all before it, u32 0. The most complete format there is.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.base import read_bytes
from expert_residency.traces.readers.checks import check_size, need_model
from expert_residency.traces.readers.rows import rows_of, trace_of
from expert_residency.traces.trace import Phase, RoutingTrace

name = "k3route"
description = "K3ROUTE v1 binary of k3-out-of-core: request, phase, position, weights, checksum (needs --model)"

_MAGIC, _END = b"K3ROUTE\0", b"K3DONE\0\0"
_FRAME, _HEAD = struct.Struct("<IIQQQIiIiI"), struct.Struct("<QII")
_RECORD = 0x44434552
_PHASES = {1: Phase.PREFILL, 2: Phase.DECODE}


def sniff(head: bytes, path: Path) -> bool:
    """The magic bytes, whatever the version."""
    return head.startswith(_MAGIC)


def read(path: Path, model: ModelGeometry | None = None, partial: bool = False) -> RoutingTrace:
    """Read with the geometry of `model`; k is each row's."""
    geometry = need_model(path, model)
    data = read_bytes(path, partial=partial)
    if len(data) < 16 or not data.startswith(_MAGIC):
        raise TraceError("not a K3ROUTE file: it does not begin so", path=path)
    version, length = struct.unpack_from("<II", data, 8)
    at = 16 + length
    if version != 1 or length < 12 or at > len(data):
        raise TraceError(f"version {version} with a header of {length} bytes, expected version 1", path=path)
    experts, _, layers = struct.unpack_from("<III", data, at - 12)
    check_size(experts, geometry.experts, f"experts, {geometry.label}", path, f"byte {at - 12}")
    check_size(layers, geometry.n_layers, f"routed layers, {geometry.label}", path, f"byte {at - 4}")
    said: list[str] = []
    columns: dict[str, list[int]] = {n: [] for n in ("layer", "request", "pass", "phase", "position", "byte")}
    ids: list[list[int]] = []
    weights: list[list[float]] = []
    while not data.startswith(_END, at):
        frame = _frame(data, at, len(ids), path)
        if frame is None:
            if not partial:
                raise TraceError(
                    "half a frame, and no trailer: the file is cut off", path=path, place=f"byte {at}"
                )
            said.append("the file has no trailer: it is cut off, and its checksum was not checked")
            break
        for key, value in zip(columns, frame[:5], strict=False):
            columns[key].append(value)
        columns["byte"].append(at)
        ids.append(frame[5])
        weights.append(frame[6])
        at = frame[7]
    else:
        _check_trailer(data, at, len(ids), path)
    places = columns["byte"]
    rows = rows_of(
        columns["layer"], ids, lambda i: f"byte {places[i]}", weights=weights, request=columns["request"],
        pass_number=columns["pass"], phase=columns["phase"], position=columns["position"],
    )  # fmt: skip
    return trace_of(rows, geometry, path, "k3-out-of-core", *said, partial=partial)


Frame = tuple[int, int, int, int, int, list[int], list[float], int]


def _frame(data: bytes, at: int, expected: int, path: Path) -> Frame | None:
    """Layer, request, batch, phase, position, ids, weights, next frame's place; None where it is cut off."""
    place = f"byte {at}"
    if at + _FRAME.size > len(data):
        return None
    mark, size, ordinal, request, ubatch, phase, layer, _, position, sequences = _FRAME.unpack_from(data, at)
    if mark != _RECORD:
        raise TraceError("neither a frame nor the trailer", path=path, place=place)
    if ordinal != expected:
        raise TraceError(f"frame {ordinal}, expected {expected}", path=path, place=place)
    if phase not in _PHASES:
        raise TraceError(f"phase {phase}, expected 1 or 2", path=path, place=place)
    end, inner = at + 8 + size, at + _FRAME.size + 4 * sequences
    if end > len(data):
        return None
    k = struct.unpack_from("<I", data, inner)[0] if inner + 4 <= end else 0
    if not k or inner + 4 + 8 * k != end or max(request, ubatch) >= 1 << 62:
        raise TraceError(f"a frame of {size} bytes with k = {k} and {sequences} sequences", path=path, place=place)
    ids = np.frombuffer(data, "<i4", k, inner + 4).tolist()
    gates = np.frombuffer(data, "<f4", k, inner + 4 + 4 * k).tolist()
    return layer, request, ubatch, int(_PHASES[phase]), max(position, -1), ids, gates, end


def _check_trailer(data: bytes, at: int, n: int, path: Path) -> None:
    if at + 8 + _HEAD.size > len(data):
        raise TraceError("the trailer is cut off", path=path, place=f"byte {at}")
    count, crc, _ = _HEAD.unpack_from(data, at + 8)
    if count != n:
        raise TraceError(f"{n} frames, the trailer says {count}", path=path, place=f"byte {at}")
    if crc != zlib.crc32(data[:at]):
        raise TraceError("the checksum is wrong: the file is damaged", path=path, place=f"byte {at}")
