"""Arrays out of files that strangers wrote: npy, npz, safetensors and `.pt`, without running anything of theirs.

Sizes are checked before memory is taken: an array must fill exactly the bytes that the file has for it, and no
file unpacks to far more than traces do. Of a `.pt` only what makes up dicts, lists, numbers, texts and tensors
is carried out, by an unpickler whose every other instruction is an error; PyTorch is not needed.
"""

from __future__ import annotations

import ast
import collections
import io
import json
import math
import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.readers.base import read_bytes
from expert_residency.traces.sizes import check_unpacked

Array = npt.NDArray[Any]
_TENSORS_LIMIT = 4 << 30
"""Bytes of all tensors of a `.pt`, of which several may share a storage."""
_PICKLE_LIMIT = 256 << 20
_ZIP = b"PK\x03\x04"
_NPY = b"\x93NUMPY"


def npy_shape(head: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int] | None:
    """Type, shape and offset of the data of an npy file that begins so; None if it is none. Never raises."""
    if not head.startswith(_NPY) or len(head) < 12:
        return None
    wide = head[6] > 1
    length = int.from_bytes(head[8:12] if wide else head[8:10], "little")
    start = 12 if wide else 10
    if head[6] not in (1, 2, 3) or length > 10_000:
        return None
    try:
        fields = ast.literal_eval(head[start : start + length].decode("latin-1").strip())
        shape, dtype = tuple(int(n) for n in fields["shape"]), np.dtype(fields["descr"])
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        return None
    if fields.get("fortran_order") or min(shape, default=0) < 0:
        return None
    return dtype, shape, start + length


def npy(data: bytes, path: Path, what: str = "the array") -> Array:
    """The array of an npy file.

    Parameters
    ----------
    data
        Bytes of the file.
    path
        The file, gzipped or not; named in messages.
    what
        The array, in words.

    Returns
    -------
    Array
        The result.

    Raises
    ------
    TraceError
        A header that cannot be read, objects, or fewer or more bytes than the shape needs.
    """
    found = npy_shape(data)
    if found is None:
        raise TraceError(f"{what} has a header that cannot be read (C order, NPY 1 to 3)", path=path)
    dtype, shape, start = found
    if dtype.hasobject:
        raise TraceError(f"{what} holds pickled objects, which are not read", path=path)
    if math.prod(shape) * dtype.itemsize != len(data) - start:
        why = f"{len(data) - start} bytes for {dtype} {shape}: the file is cut off or damaged"
        raise TraceError(f"{what} has {why}", path=path)
    return np.frombuffer(data, dtype=dtype, offset=start).reshape(shape)


@contextmanager
def _zipped(data: bytes, path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            check_unpacked(sum(member.file_size for member in file.infolist()), len(data), path)
            yield file
    except TraceError:
        raise
    except ValueError:  # a seek to before the file's begin
        raise TraceError(
            "the zip is cut off or damaged (its directory points outside the file)", path=path
        ) from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        KeyError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise TraceError(f"the zip is cut off or damaged ({error})", path=path) from None


def npz(data: bytes, path: Path) -> dict[str, Array]:
    """Arrays of an npz file by name.

    Raises
    ------
    TraceError
        Not a whole zip, too large, or an array that `npy` refuses.
    """
    with _zipped(data, path) as file:
        return {
            name.removesuffix(".npy"): npy(file.read(name), path, f"array {name.removesuffix('.npy')}")
            for name in file.namelist()
            if name.endswith(".npy")
        }


_SAFE = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
    "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "?", "BF16": "bf16",
}  # fmt: skip


def safetensors_header(head: bytes) -> dict[str, Any] | None:
    """Header of a safetensors file, or None if it is none or longer than what is given. Never raises."""
    size = int.from_bytes(head[:8], "little")
    if len(head) < 10 or head[8:9] != b"{" or not 2 <= size <= len(head) - 8:
        return None
    try:
        header = json.loads(head[8 : 8 + size])
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) else None


def safetensors(data: bytes, path: Path) -> dict[str, Array]:
    """Arrays of a safetensors file by name.

    Raises
    ------
    TraceError
        A header that cannot be read, or an array that is not all there.
    """
    header = safetensors_header(data)
    if header is None:
        raise TraceError("the safetensors header cannot be read, or the file is cut off", path=path)
    body = memoryview(data)[8 + int.from_bytes(data[:8], "little") :]
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            kind, shape = _SAFE[entry["dtype"]], tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        except (KeyError, TypeError, ValueError):
            whole = False
        size = 2 if whole and kind == "bf16" else np.dtype(kind).itemsize if whole else 0
        if not whole or not begin <= end <= len(body) or end - begin != math.prod(shape) * size:
            raise TraceError(f"tensor {name[:60]!r} is of an unknown type, or not all there", path=path)
        found[name] = _values(body[begin:end], kind).reshape(shape)
    return found


def _values(data: bytes | memoryview, kind: str) -> Array:
    """Numbers of a buffer; bfloat16 becomes float32."""
    if kind != "bf16":
        return np.frombuffer(data, dtype=kind)
    return np.asarray((np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32))


_STORAGES = {
    "DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "BFloat16Storage": "bf16",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1",
    "BoolStorage": "?",
}  # fmt: skip


class _Kind:
    """Stands for a storage class."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind


def torch_file(data: bytes, path: Path) -> Any:
    """What a `.pt` file holds: dicts, lists, numbers, texts, and tensors as arrays.

    Raises
    ------
    TraceError
        Not a zip of `torch.save`, cut off, or a pickle that does anything but build such values.
    """
    if not data.startswith(_ZIP):
        raise TraceError("not a .pt of torch.save as PyTorch 1.6 and later write it (a zip)", path=path)
    with _zipped(data, path) as file:
        members = {name.partition("/")[2]: name for name in file.namelist()}
        if "data.pkl" not in members:
            raise TraceError("the zip has no data.pkl, so it is no .pt of torch.save", path=path)
        if "byteorder" in members and file.read(members["byteorder"]).strip() != b"little":
            raise TraceError("its numbers are big-endian, which is not read", path=path)
        program = file.read(members["data.pkl"])
        if len(program) > _PICKLE_LIMIT:
            raise TraceError(f"its pickle has {len(program)} bytes, more than {_PICKLE_LIMIT}", path=path)

        def storage(key: str) -> bytes:
            if f"data/{key}" not in members:
                raise TraceError(f"storage {key[:20]!r} is missing: the file is cut off", path=path)
            return file.read(members[f"data/{key}"])

        return _load(program, storage, path)


def _load(program: bytes, storage: Callable[[str], bytes], path: Path) -> Any:
    try:
        return _Builder(program, storage).load()
    except TraceError as error:
        raise TraceError(str(error), path=path) from None
    except RecursionError:
        raise TraceError("its pickle is nested too deeply", path=path) from None
    except Exception as error:  # whatever a damaged pickle makes of the machine
        raise TraceError(f"its pickle is damaged ({type(error).__name__})", path=path) from None


_UNPICKLER: Any = pickle._Unpickler  # in Python: its memo cannot be made to take memory


class _Builder(_UNPICKLER):  # type: ignore[misc]
    """Unpickler that knows containers, numbers, texts and tensors; any other instruction is refused."""

    allowed: ClassVar[frozenset[bytes]] = frozenset(
        bytes([op])
        for op in b"".join((
            pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.DUP,
            pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.INT, pickle.BININT, pickle.BININT1,
            pickle.BININT2, pickle.LONG, pickle.LONG1, pickle.FLOAT, pickle.BINFLOAT, pickle.BINUNICODE,
            pickle.SHORT_BINUNICODE, pickle.UNICODE, pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.EMPTY_DICT,
            pickle.EMPTY_LIST, pickle.EMPTY_TUPLE, pickle.DICT, pickle.LIST, pickle.TUPLE, pickle.TUPLE1,
            pickle.TUPLE2, pickle.TUPLE3, pickle.APPEND, pickle.APPENDS, pickle.SETITEM, pickle.SETITEMS,
            pickle.GET, pickle.BINGET, pickle.LONG_BINGET, pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT,
            pickle.MEMOIZE, pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BINPERSID,
        ))
    )  # fmt: skip

    def __init__(self, program: bytes, storage: Callable[[str], bytes]) -> None:
        super().__init__(io.BytesIO(program))
        self.storage = storage
        self.stored: dict[str, Array] = {}
        self.unpacked = 0
        self.dispatch = {op: do for op, do in _UNPICKLER.dispatch.items() if bytes([op]) in self.allowed}

    def find_class(self, module: str, name: str) -> Any:
        """Only what stands in for tensors; anything else would run code."""
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch" and name in _STORAGES:
            return _Kind(_STORAGES[name])
        raise TraceError(f"its pickle asks for {f'{module}.{name}'[:60]!r}, which would run code: not read")

    def persistent_load(self, saved: Any) -> Array:
        """A storage: all numbers of one file of the zip."""
        what, kind, key, _, count = saved
        if what != "storage" or not isinstance(kind, _Kind) or not isinstance(key, str) or type(count) is not int:
            raise TraceError("its pickle has a storage of a form that is not known")
        if key not in self.stored:
            data = self.storage(key)
            size = 2 if kind.kind == "bf16" else np.dtype(kind.kind).itemsize
            if count < 0 or len(data) != count * size:
                raise TraceError(f"storage {key[:20]!r} has {len(data)} bytes, expected {count * size}")
            self.stored[key] = _values(data, kind.kind)
        return self.stored[key]

    def _tensor(self, storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> Array:
        """A strided view of a storage, copied; it must lie in the storage."""
        numbers = (offset, *shape, *stride)
        if not isinstance(storage, np.ndarray) or any(type(n) is not int or n < 0 for n in numbers):
            raise TraceError("its pickle has a tensor of a form that is not known")
        if len(shape) != len(stride) or len(shape) > 8:
            raise TraceError(f"a tensor has {len(shape)} sizes and {len(stride)} strides")
        if 0 in shape:
            return np.zeros(shape, dtype=storage.dtype)
        last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
        self.unpacked += math.prod(shape) * storage.dtype.itemsize
        if last >= len(storage) or self.unpacked > _TENSORS_LIMIT:
            raise TraceError(f"a tensor of shape {tuple(shape)} does not lie in its storage, or is too large")
        steps = tuple(step * storage.dtype.itemsize for step in stride)
        return np.lib.stride_tricks.as_strided(storage[offset:], tuple(shape), steps).copy()


def members(head: bytes) -> list[str]:
    """Names of members that a zip begins with, as far as they are in sight. Never raises."""
    names = []
    at = 0
    while head[at : at + 4] == _ZIP and len(head) >= at + 30:
        n, extra = (
            int.from_bytes(head[at + 26 : at + 28], "little"),
            int.from_bytes(head[at + 28 : at + 30], "little"),
        )
        names.append(head[at + 30 : at + 30 + n].decode("latin-1"))
        size = int.from_bytes(head[at + 18 : at + 22], "little")
        if size in (0, 0xFFFFFFFF) or head[at + 6] & 8:  # sizes follow the data, or stand in the extra field
            following = head.find(_ZIP, at + 30)
            if following < 0:
                break
            at = following
        else:
            at += 30 + n + extra + size
    return names


def any_arrays(path: Path) -> Any:
    """Whatever arrays a file holds: one array (npy), arrays by name (npz, safetensors), or what a `.pt` holds.

    Raises
    ------
    TraceError
        None of these, or as the format's own function raises.
    """
    data = read_bytes(path)
    if data.startswith(_NPY):
        return npy(data, path)
    if data.startswith(_ZIP):
        with _zipped(data, path) as file:
            names = file.namelist()
        return torch_file(data, path) if any(n.endswith("/data.pkl") for n in names) else npz(data, path)
    if data[8:9] == b"{":
        return safetensors(data, path)
    raise TraceError("neither npy, npz, safetensors nor .pt", path=path)
