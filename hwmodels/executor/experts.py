"""The CPU pool: SwiGLU experts in bfloat16, one event at a call.

An expert is three matrices in one blob: gate (width x hidden), up (the same), down (hidden x width). The rows of
all experts of an event are split over the workers; weights are widened to float32 in registers, so that the bytes
read are those of the blob. Two fork-joins an event (gate and up, then down), no Python in between.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import HardwareError

Weights = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ExpertShape:
    """Shape of a bfloat16 expert of a given size: the widest that fits into `nbytes`."""

    hidden: int
    width: int
    nbytes: int

    @classmethod
    def of(cls, nbytes: int, hidden: int) -> ExpertShape:
        """Shape for `nbytes` bytes.

        Raises
        ------
        HardwareError
            If not one row fits, or the size is odd.
        """
        width = nbytes // (6 * hidden) if hidden > 0 else 0
        if width < 1 or nbytes % 2:
            raise HardwareError(f"an expert of {nbytes} bytes cannot be a bfloat16 one of hidden size {hidden}")
        return cls(hidden, width, nbytes)


def random_weights(nbytes: int, seed: int = 0) -> Weights:
    """`nbytes` of finite bfloat16 numbers of either sign and a magnitude about 0.01, as their bits."""
    block = np.random.default_rng(seed).integers(0, 1 << 16, size=min(nbytes // 2, 1 << 22), dtype=np.uint16)
    block = (block & np.uint16(0x80FF)) | np.uint16(0x3C00)
    return np.resize(block, nbytes // 2)


def max_workers() -> int:
    """Workers that numba can start here."""
    import numba

    return int(getattr(numba.config, "NUMBA_NUM_THREADS"))  # noqa: B009 - set at import, unknown to type checkers


class CpuExperts:
    """Computes experts with a fixed number of workers.

    Parameters
    ----------
    hidden
        Width of the rows.
    workers
        Threads, the calling one included.

    Raises
    ------
    HardwareError
        More workers than the machine has.
    """

    def __init__(self, hidden: int, workers: int) -> None:
        if not 1 <= workers <= max_workers():
            raise HardwareError(f"{workers} workers asked for; this machine has 1 to {max_workers()}")
        self.hidden = hidden
        self.workers = workers
        self._experts, self._matvec = _kernels()
        self._inner = np.zeros(0, dtype=np.float32)

    def __call__(
        self, weights: Weights, offsets: npt.NDArray[np.int64], width: int, x: Floats, out: Floats
    ) -> None:
        """Sum of the experts at `offsets` (in elements of `weights`) on rows `x` (R, hidden), into `out`."""
        import numba

        numba.set_num_threads(self.workers)
        size = len(offsets) * len(x) * width
        if len(self._inner) < size:
            self._inner = np.zeros(size, dtype=np.float32)
        self._experts(weights, offsets, width, x, self._inner[:size].reshape(len(offsets), len(x), width), out)

    def matvec(self, weights: Weights, offset: int, rows: int, x: Floats, out: Floats) -> None:
        """A dense part: `rows` rows of a matrix at `offset`, times the first row of `x`.

        Parameters
        ----------
        weights
            (elements,) bfloat16 as bits.
        offset
            Element at which the matrix begins.
        rows
            Rows of the matrix.
        x
            (tokens, hidden) activations.
        out
            (at least `rows`,) written.
        """
        import numba

        numba.set_num_threads(self.workers)
        self._matvec(weights, offset, rows, x[0], out)


@functools.cache
def _kernels() -> tuple[Callable[..., None], Callable[..., None]]:
    """Compile (or load from numba's cache) the two kernels."""
    from llvmlite import ir
    from numba import njit, prange, types
    from numba.extending import intrinsic

    def widening(_context: Any, _bits: Any) -> Any:
        """Float32 whose upper half are the bits given: what a bfloat16 number means."""

        def generate(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
            word = builder.shl(builder.zext(args[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
            return builder.bitcast(word, ir.FloatType())

        return types.float32(types.uint16), generate

    widen: Any = intrinsic(widening)

    @njit(fastmath=True, inline="always")
    def dot(weights: Any, at: Any, x: Any) -> Any:
        total = np.float32(0.0)
        row = weights[at : at + len(x)]  # a slice from 0, or the index checks keep the loop from being vectorized
        for j in range(len(x)):
            total += widen(row[j]) * x[j]
        return total

    @njit(parallel=True, fastmath=True, nogil=True)
    def experts(weights: Any, offsets: Any, width: Any, x: Any, inner: Any, out: Any) -> None:
        n, rows, hidden = len(offsets), x.shape[0], x.shape[1]
        for item in prange(n * width):
            e = item // width
            i = item - e * width
            for r in range(rows):
                gate = dot(weights, offsets[e] + i * hidden, x[r])
                up = dot(weights, offsets[e] + (width + i) * hidden, x[r])
                inner[e, r, i] = gate / (np.float32(1.0) + np.exp(-gate)) * up
        for o in prange(hidden):
            for r in range(rows):
                total = np.float32(0.0)
                for e in range(n):
                    total += dot(weights, offsets[e] + (2 * hidden + o) * width, inner[e, r])
                out[r, o] = total

    @njit(parallel=True, fastmath=True, nogil=True)
    def matvec(weights: Any, offset: Any, rows: Any, x: Any, out: Any) -> None:
        for i in prange(rows):
            out[i] = dot(weights, offset + i * len(x), x)

    return experts, matvec
