"""Headers of GGUF files: metadata and the list of tensors, of one file or of all files of a split.

Only the header is read, so that a file cut off behind it (partly downloaded, or headers alone) will do. Every
count and length is checked against the bytes that are left before anything is made of it. Arrays of strings
(vocabularies) are passed over.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.weights.ggml_types import TYPES

MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_STEP_BYTES = 1 << 20
_MAX_KEPT = 1 << 16
"""Longest array of numbers, and longest string, whose value is kept; a value of each layer is far shorter."""
_MAX_DIMS = 4
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)

Value = int | float | bool | str | list[int | float | bool] | None
"""A value of the metadata; None for what is passed over."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file.

    Parameters
    ----------
    name
        As the file has it.
    shape
        Its dimensions; in GGUF the row length first, in safetensors last.
    type
        Name of its type.
    nbytes
        Bytes of its data.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int

    @property
    def numbers(self) -> int:
        """Numbers that it holds as stored."""
        total = 1
        for n in self.shape:
            total *= n
        return total


@dataclass(frozen=True)
class Header:
    """Metadata and tensors of a model, over all its files; `path` is the first of `files`."""

    path: Path
    metadata: dict[str, Value]
    tensors: tuple[Tensor, ...]
    files: int = 1


class _Reader:
    """Bytes of a header, read as far as they are asked for."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self.file, self.path, self.size = file, path, size
        self.data = b""
        self.at = 0
        self.start = 0
        self.endian = "<"
        self.wide = True

    @property
    def place(self) -> str:
        return f"byte {self.start + self.at:,}"

    def fail(self, why: str) -> TraceError:
        return TraceError(why, path=self.path, place=self.place)

    def need(self, nbytes: int, what: str) -> None:
        """See that the next bytes are there."""
        if self.start + self.at + nbytes > self.size:
            raise self.fail(
                f"the header is cut off or damaged: {what} takes {nbytes:,} bytes, the file ends at {self.size:,}"
            )
        missing = self.at + nbytes - len(self.data)
        if missing > 0:
            kept = self.data[self.at :]
            self.start += self.at
            self.at = 0
            more = self.file.read(max(missing, _STEP_BYTES))
            if len(more) < missing:
                raise self.fail(f"the file ended while it was read ({what})")
            self.data = kept + more

    def skip(self, nbytes: int, what: str) -> None:
        """Pass over bytes."""
        if nbytes <= _STEP_BYTES:
            self.need(nbytes, what)
            self.at += nbytes
            return
        if self.start + self.at + nbytes > self.size:
            self.need(nbytes, what)
        self.start += self.at + nbytes
        self.at, self.data = 0, b""
        self.file.seek(self.start)

    def number(self, form: str, what: str) -> int | float | bool:
        size = struct.calcsize(form)
        self.need(size, what)
        value: int | float | bool = struct.unpack_from(self.endian + form, self.data, self.at)[0]
        self.at += size
        return value

    def count(self, what: str) -> int:
        """A length or count: 64 bits, in version 1 of the format 32."""
        return int(self.number("Q" if self.wide else "I", what))

    def string(self, what: str) -> str:
        nbytes = self.count(f"the length of {what}")
        if nbytes > _MAX_KEPT:
            self.skip(nbytes, what)
            return ""
        self.need(nbytes, what)
        raw = self.data[self.at : self.at + nbytes]
        self.at += nbytes
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int, key: str) -> Value:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], key)
        if kind == _STRING:
            return self.string(f"the value of {key}")
        if kind != _ARRAY:
            raise self.fail(f"{key} is of kind {kind}, which GGUF does not have")
        of = int(self.number("I", key))
        n = self.count(f"the length of {key}")
        if of == _STRING:
            self._pass_strings(n, key)
            return None
        if of not in _SCALARS:
            raise self.fail(f"{key} is an array of kind {of}, which is not supported")
        form = _SCALARS[of]
        nbytes = n * struct.calcsize(form)
        if n > _MAX_KEPT:
            self.skip(nbytes, key)
            return None
        self.need(nbytes, key)
        values = struct.unpack_from(f"{self.endian}{n}{form}", self.data, self.at)
        self.at += nbytes
        return list(values)

    def _pass_strings(self, n: int, key: str) -> None:
        width = 8 if self.wide else 4
        if n * width > self.size - self.start - self.at:
            raise self.fail(
                f"the header is cut off or damaged: {key} has {n:,} strings, the file ends at {self.size:,}"
            )
        form = struct.Struct(self.endian + ("Q" if self.wide else "I"))
        for _ in range(n):
            if self.at + width > len(self.data):
                self.need(width, key)
            (nbytes,) = form.unpack_from(self.data, self.at)
            self.at += width
            if self.at + nbytes > len(self.data):
                self.skip(nbytes, f"a string of {key}")
            else:
                self.at += nbytes


def read_header(path: Path) -> Header:
    """Metadata and tensors of a GGUF file; of a split model all its files, whichever of them is given.

    Raises
    ------
    TraceError
        Not GGUF, cut off inside the header, damaged, of an unknown tensor type, or a file of a split is missing.
    """
    own = _read_one(path)
    count = own.metadata.get("split.count")
    named = _SHARD.fullmatch(path.name)
    if not isinstance(count, int) or count <= 1:
        if named and int(named[3]) > 1 and "split.count" not in own.metadata:
            count = int(named[3])
        else:
            return own
    if not named:
        raise TraceError(
            f"one of {count} files of a model, but its name does not say which: NAME-00001-of-{count:05}.gguf",
            path=path,
        )
    if int(named[3]) != count:
        raise TraceError(f"its name says {int(named[3])} files, its header {count}", path=path)
    paths = [path.with_name(f"{named[1]}-{i:05}-of-{count:05}{path.suffix}") for i in range(1, count + 1)]
    absent = [p.name for p in paths if not p.is_file()]
    if absent:
        more = f" and {len(absent) - 3} more" if absent[3:] else ""
        raise TraceError(
            f"{len(absent)} of the model's {count} files {'is' if len(absent) == 1 else 'are'} missing beside it: "
            f"{', '.join(absent[:3])}{more}",
            path=path,
        )
    headers = [own if p == path else _read_one(p) for p in paths]
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    expected = next((n for h in headers if isinstance(n := h.metadata.get("split.tensors.count"), int)), None)
    if expected is not None and expected != len(tensors):
        raise TraceError(
            f"the model's {count} files have {len(tensors):,} tensors, they should be {expected:,}", path=path
        )
    _refuse_repeats(tensors, path)
    metadata = {key: value for header in reversed(headers) for key, value in header.metadata.items()}
    return Header(paths[0], metadata, tensors, count)


def read_floats(path: Path, wanted: Callable[[str], object]) -> dict[str, npt.NDArray[np.float32]]:
    """Values of the float32 tensors whose names are `wanted`, of a file in one part.

    Raises
    ------
    TraceError
        As `read_header`, a tensor of another type, or one that is not all there.
    """
    found = {}
    size = path.stat().st_size if path.is_file() else 0
    try:
        with path.open("rb") as file:
            reader = _Reader(file, path, size)
            header, offsets = _parse(reader)
            step = header.metadata.get("general.alignment", 32)
            aligned = step if type(step) is int and 0 < step <= 1 << 20 else 32
            start = -(-(reader.start + reader.at) // aligned) * aligned
            for tensor, offset in zip(header.tensors, offsets, strict=True):
                if not wanted(tensor.name):
                    continue
                if tensor.type.upper() != "F32" or reader.endian != "<":
                    raise TraceError(f"tensor {tensor.name} is {tensor.type}, expected F32", path=path)
                if start + offset + tensor.nbytes > size:
                    raise TraceError(f"tensor {tensor.name} is not all there: the file is cut off", path=path)
                file.seek(start + offset)
                found[tensor.name] = np.frombuffer(file.read(tensor.nbytes), dtype="<f4")
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror})", path=path) from None
    if not found:
        raise TraceError("none of its tensors is an expert tensor's counts", path=path)
    return found


def _read_one(path: Path) -> Header:
    try:
        with path.open("rb") as file:
            return _parse(_Reader(file, path, path.stat().st_size))[0]
    except FileNotFoundError:
        raise TraceError("no such file", path=path) from None
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror})", path=path) from None


def _parse(reader: _Reader) -> tuple[Header, list[int]]:
    """The header, and where each tensor's data begins after it."""
    reader.need(8, "the beginning")
    if reader.data[:4] != MAGIC:
        raise TraceError("not a GGUF file (it does not begin with GGUF)", path=reader.path)
    reader.at = 4
    version = int(reader.number("I", "the version"))
    if version in (1 << 24, 2 << 24, 3 << 24):
        reader.endian, version = ">", version >> 24
    if version not in (1, 2, 3):
        raise reader.fail(f"GGUF version {version} is not known (1 to 3 are)")
    reader.wide = version > 1
    n_tensors, n_keys = reader.count("the number of tensors"), reader.count("the number of keys")
    smallest = 24 * n_tensors + 12 * n_keys if reader.wide else 20 * n_tensors + 8 * n_keys
    if smallest > reader.size:
        raise reader.fail(
            f"{n_tensors:,} tensors and {n_keys:,} keys do not fit into a file of {reader.size:,} bytes"
        )
    metadata: dict[str, Value] = {}
    for i in range(n_keys):
        key = reader.string(f"the name of key {i}")
        metadata[key] = reader.value(int(reader.number("I", key)), key)
    tensors: list[Tensor] = []
    offsets: list[int] = []
    for i in range(n_tensors):
        tensor, offset = _tensor(reader, i)
        tensors.append(tensor)
        offsets.append(offset)
    _refuse_repeats(tuple(tensors), reader.path)
    _refuse_overlaps(tensors, offsets, reader.path)
    return Header(reader.path, metadata, tuple(tensors)), offsets


def _tensor(reader: _Reader, index: int) -> tuple[Tensor, int]:
    name = reader.string(f"the name of tensor {index}")
    dims = int(reader.number("I", name))
    if not 0 < dims <= _MAX_DIMS:
        raise reader.fail(f"tensor {name} has {dims} dimensions (1 to {_MAX_DIMS} can be)")
    shape = tuple(reader.count(f"a dimension of {name}") for _ in range(dims))
    if min(shape) < 1 or max(shape) >= 1 << 63:
        raise reader.fail(f"tensor {name} has the impossible shape {' x '.join(map(str, shape))}")
    number = int(reader.number("I", name))
    if number not in TYPES:
        raise reader.fail(f"tensor {name} is of type {number}, whose size is not known")
    offset = int(reader.number("Q", name))
    try:
        return Tensor(name, shape, TYPES[number].name, TYPES[number].size(shape)), offset
    except TraceError as error:
        raise reader.fail(f"tensor {name}: {error}") from None


def _refuse_repeats(tensors: tuple[Tensor, ...], path: Path) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise TraceError(f"tensor {tensor.name} is there twice", path=path)
        seen.add(tensor.name)


def _refuse_overlaps(tensors: list[Tensor], offsets: list[int], path: Path) -> None:
    """A wrong size of a type, or a damaged header, shows as tensors that lie on each other."""
    order = sorted(range(len(tensors)), key=offsets.__getitem__)
    for a, b in pairwise(order):
        if offsets[a] + tensors[a].nbytes > offsets[b]:
            raise TraceError(
                f"tensor {tensors[a].name} of {tensors[a].nbytes:,} bytes ({tensors[a].type}) runs into "
                f"{tensors[b].name}, which begins {offsets[b] - offsets[a]:,} bytes after it",
                path=path,
            )
