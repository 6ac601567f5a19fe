"""Files of models for tests: headers as the formats have them, and a hole where the weights would be."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from expert_residency.traces.weights.ggml_types import TYPES

NUMBERS = {kind.name: number for number, kind in TYPES.items()}
Shapes = Sequence[tuple[str, tuple[int, ...], str]]
"""Name, shape (row length first) and type of each tensor."""


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
    if value and isinstance(value[0], bool):
        return struct.pack("<IIQ", 9, 7, len(value)) + struct.pack(f"<{len(value)}?", *value)
    if value and isinstance(value[0], float):
        return struct.pack("<IIQ", 9, 6, len(value)) + struct.pack(f"<{len(value)}f", *value)
    return struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)


def header(metadata: Mapping[str, Any], tensors: Shapes) -> tuple[bytes, int]:
    """Bytes of a header, and of the data that follows."""
    keys = b"".join(_string(key) + _value(value) for key, value in metadata.items())
    infos, offset = b"", 0
    for name, shape, kind in tensors:
        number = NUMBERS[kind]
        infos += _string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        infos += struct.pack("<IQ", number, offset)
        offset += -(-TYPES[number].size(shape) // 32) * 32
    return b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + keys + infos, offset


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Shapes, *, hole: bool = True) -> Path:
    """A GGUF file whose weights take no room on the drive; without `hole` it ends with its header."""
    head, nbytes = header(metadata, tensors)
    with path.open("wb") as file:
        file.write(head)
        if hole:
            file.truncate(-(-len(head) // 32) * 32 + nbytes)
    return path


def write_split(path: Path, metadata: Mapping[str, Any], tensors: Shapes, files: int) -> list[Path]:
    """The same as several files, as `llama-gguf-split` makes them: the metadata stand in the first."""
    paths = []
    for i in range(files):
        own = {"split.no": i, "split.count": files, "split.tensors.count": len(tensors)}
        shapes = tensors[i * len(tensors) // files : (i + 1) * len(tensors) // files]
        name = path.with_name(f"{path.stem}-{i + 1:05}-of-{files:05}.gguf")
        paths.append(write_gguf(name, own | (dict(metadata) if i == 0 else {}), shapes))
    return paths


DTYPE_BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I32": 4}


def write_safetensors(
    path: Path, tensors: Sequence[tuple[str, tuple[int, ...], str]], *, hole: bool = True
) -> Path:
    """A safetensors file (shapes in its own order, row length last)."""
    table, at = {}, 0
    for name, shape, kind in tensors:
        nbytes = DTYPE_BYTES[kind]
        for n in shape:
            nbytes *= n
        table[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    raw = json.dumps({"__metadata__": {"format": "pt"}, **table}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        if hole:
            file.truncate(8 + len(raw) + at)
    return path
