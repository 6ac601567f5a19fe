"""Copies to the card through the driver's own entry points, prepared beforehand and sent in one call.

A tensor's `copy_` costs the host more than the copy of a small expert takes. `cuMemcpyBatchAsync` (driver 12.8 and
later) takes a whole layer's copies at once; where it is missing or refuses, `cuMemcpyHtoDAsync` is called for
each. Copies of one stream are carried out in the order sent.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from expert_residency.errors import HardwareError

STREAM_ORDER = 1
"""`CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("access_order", ctypes.c_int),
        ("source", _Location),
        ("target", _Location),
        ("flags", ctypes.c_uint),
    )


class Batch(NamedTuple):
    """Copies to be sent together: (to, from, bytes), and the same as C arrays with their addresses."""

    triples: tuple[tuple[int, int, int], ...]
    arrays: Any
    targets: int
    sources: int
    sizes: int


def prepare(triples: Sequence[tuple[int, int, int]]) -> Batch:
    """Batch of (to, from, bytes)."""
    arrays = np.ascontiguousarray(np.asarray(triples, dtype=np.uint64).reshape(-1, 3).T)
    address, row = int(arrays.ctypes.data), arrays.strides[0]
    return Batch(tuple(triples), arrays, address, address + row, address + 2 * row)


class Copier:
    """Sends batches.

    Parameters
    ----------
    batched
        Whether the batch call may be used (memory that is not page-locked goes one by one).
    """

    def __init__(self, *, batched: bool = True) -> None:
        self._one = entry_point("cuMemcpyHtoDAsync_v2", "ppsp")
        self._many: Callable[..., int] | None = None
        if batched:
            with suppress(HardwareError):
                self._many = entry_point("cuMemcpyBatchAsync_v2", "pppsppsp")
        self._attributes = _Attributes(STREAM_ORDER, _Location(0, 0), _Location(0, 0), 0)
        self._first = ctypes.c_size_t(0)
        self._where = (ctypes.addressof(self._attributes), ctypes.addressof(self._first))

    @property
    def batched(self) -> bool:
        """Whether batches go out in one call; known after the first."""
        return self._many is not None

    def send(self, batch: Batch, stream: int) -> None:
        """Queue all copies of a batch on a stream (its handle).

        Raises
        ------
        HardwareError
            If the driver refuses a copy.
        """
        if self._many is not None and len(batch.triples) > 1:
            attributes, first = self._where
            code = self._many(
                batch.targets, batch.sources, batch.sizes, len(batch.triples), attributes, first, 1, stream
            )
            if code == 0:
                return
            self._many = None
        for to, source, nbytes in batch.triples:
            code = self._one(to, source, nbytes, stream)
            if code:
                raise HardwareError(f"the driver refused a copy of {nbytes} bytes (error {code})")


def entry_point(name: str, kinds: str) -> Callable[..., int]:
    """A function of the CUDA driver; arguments are p (pointers and handles) or s (sizes).

    Raises
    ------
    HardwareError
        No driver on this machine, or one without this function.
    """
    try:
        function: Any = getattr(ctypes.CDLL("libcuda.so.1"), name)
    except (OSError, AttributeError):
        raise HardwareError(f"the CUDA driver of this machine has no {name}") from None
    function.argtypes = [ctypes.c_uint64 if kind == "p" else ctypes.c_size_t for kind in kinds]
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]
