"""Headers of safetensors files: 8 bytes of length, then JSON with each tensor's type, shape and place."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from expert_residency.errors import TraceError
from expert_residency.traces.weights.gguf import Tensor

MAX_HEADER_BYTES = 100_000_000
"""What the format itself allows."""
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


def read_tensors(path: Path) -> list[Tensor]:
    """Tensors of one file; only its header need be there.

    Raises
    ------
    TraceError
        The header is cut off, no JSON, of an unknown type, or contradicts itself.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
            if len(start) < 8:
                raise TraceError("the header is cut off (not even its length is there)", path=path, place="byte 0")
            (nbytes,) = struct.unpack("<Q", start)
            if nbytes > MAX_HEADER_BYTES:
                raise TraceError(
                    f"not a safetensors file (a header of {nbytes:,} bytes)", path=path, place="byte 0"
                )
            raw = file.read(nbytes)
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror})", path=path) from None
    if len(raw) < nbytes:
        raise TraceError(
            f"the header is cut off: {nbytes:,} bytes, {len(raw):,} are there", path=path, place="byte 8"
        )
    try:
        table = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"the header is not valid JSON ({error})", path=path, place="byte 8") from None
    if not isinstance(table, dict):
        raise TraceError("the header is no table of tensors", path=path, place="byte 8")
    return [_tensor(name, entry, path) for name, entry in table.items() if name != "__metadata__"]


def _tensor(name: str, entry: Any, path: Path) -> Tensor:
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        good = isinstance(kind, str) and all(type(n) is int and n >= 0 for n in [*shape, begin, end])
    except (TypeError, KeyError, ValueError):
        good = False
    if not good or end < begin:
        raise TraceError("dtype, shape or data_offsets are missing or damaged", path=path, place=f"tensor {name}")
    if kind not in _BITS:
        raise TraceError(f"dtype {kind} is not known", path=path, place=f"tensor {name}")
    tensor = Tensor(name, tuple(shape), kind, end - begin)
    if (tensor.numbers * _BITS[kind] + 7) // 8 != tensor.nbytes:
        raise TraceError(
            f"{' x '.join(map(str, shape)) or 'one number'} of {kind} are not the {tensor.nbytes:,} bytes that "
            "its place has",
            path=path,
            place=f"tensor {name}",
        )
    return tensor
