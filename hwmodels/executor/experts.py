"""What an expert is, and the CPU pool: SwiGLU experts, one event at a call.

An expert is three matrices in one blob: gate (width x hidden), up (the same), down (hidden x width), in one of
three forms. `bf16`: numbers. `q8_0` and `q4_0`, in the manner of GGUF's types of these names: blocks of 32 weights
of a row, signed bytes or nibbles less 8 (the low ones are a block's first half), and a factor a block; first all
integers of the three matrices, then all factors, which are bfloat16 here. The bytes are GGUF's, 34 and 18 a block.
Of `q4_0` four rows are interleaved, block by block, integers and factors alike, as engines repack them: what wants
the same columns of many rows then reads whole lines.

The rows of all experts of an event are split over the workers; weights are widened to float32 in registers, so
that the bytes read are those of the blob. Two fork-joins an event (gate and up, then down), no Python in between.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from expert_residency.errors import HardwareError

Weights = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]


Form = Literal["bf16", "q8_0", "q4_0"]
BLOCK = 32
"""Weights of a row that share a factor."""
TOGETHER: dict[Form, int] = {"bf16": 1, "q8_0": 1, "q4_0": 4}
"""Rows that are interleaved block by block."""
BITS: dict[Form, float] = {"bf16": 16, "q8_0": 8.5, "q4_0": 4.5}
"""Bits a weight, factors included."""


def form_of(family: str, hidden: int) -> Form:
    """Form that stands in for a quantization family: four bits or eight in blocks, or bfloat16."""
    if hidden % BLOCK:
        return "bf16"
    if family in ("q8", "int8", "fp8", "q6", "iq6"):
        return "q8_0"
    return "bf16" if family in ("bf16", "fp16", "fp32", "unknown", "default") else "q4_0"


@dataclass(frozen=True)
class ExpertShape:
    """Shape of an expert of a given size: the widest that fits into `nbytes`, in whole blocks or 16-byte lines."""

    hidden: int
    width: int
    nbytes: int
    form: Form = "bf16"

    @classmethod
    def of(cls, nbytes: int, hidden: int, form: Form = "bf16") -> ExpertShape:
        """Shape for `nbytes` bytes.

        Parameters
        ----------
        nbytes
            Of the expert.
        hidden
            Width of the rows.
        form
            Of the weights.

        Returns
        -------
        ExpertShape
            The shape.

        Raises
        ------
        HardwareError
            If not one row fits, or the size is odd.
        """
        width = int(nbytes * 8 // (3 * BITS[form] * hidden)) if hidden > 0 else 0
        unit = (8 if width >= 8 else 1) if form == "bf16" else BLOCK
        width = width // unit * unit
        if width < 1 or nbytes % 2:
            raise HardwareError(f"an expert of {nbytes} bytes cannot be a {form} one of hidden size {hidden}")
        return cls(hidden, width, nbytes, form)

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one matrix without its factors."""
        bits = {"bf16": 16, "q8_0": 8, "q4_0": 4}[self.form]
        return self.hidden * self.width * bits // 8

    @property
    def factor_bytes(self) -> int:
        """Bytes of the factors of one matrix."""
        return 0 if self.form == "bf16" else self.hidden * self.width // BLOCK * 2


def random_weights(nbytes: int, seed: int = 0) -> Weights:
    """`nbytes` of finite bfloat16 numbers of either sign and a magnitude about 0.01, as their bits.

    As integers and factors of a quantized form they are as good as any.
    """
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
    form
        Of the experts.

    Raises
    ------
    HardwareError
        More workers than the machine has.
    """

    def __init__(self, hidden: int, workers: int, form: Form = "bf16") -> None:
        if not 1 <= workers <= max_workers():
            raise HardwareError(f"{workers} workers asked for; this machine has 1 to {max_workers()}")
        self.hidden = hidden
        self.workers = workers
        self._experts, self._matvec = _kernels(form)
        self._inner = np.zeros((2, 0), dtype=np.float32)

    def __call__(
        self, weights: Weights, offsets: npt.NDArray[np.int64], width: int, x: Floats, out: Floats
    ) -> None:
        """Sum of the experts at `offsets` (in elements of `weights`) on rows `x` (R, hidden), into `out`."""
        import numba

        numba.set_num_threads(self.workers)
        size = len(offsets) * len(x) * width
        if self._inner.shape[1] < size:
            self._inner = np.zeros((2, size), dtype=np.float32)
        gate, up = (part[:size].reshape(len(offsets), len(x), width) for part in self._inner)
        self._experts(weights, offsets, width, x, gate, up, out)

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
def _dots(form: Form) -> tuple[Any, Any]:
    """Compiled: adds to some numbers the products of rows and a vector; the product of two rows of numbers."""
    from llvmlite import ir
    from numba import njit, types
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

    @njit(fastmath=True, inline="always")
    def plain(weights: Any, base: Any, factors: Any, row: Any, x: Any, out: Any) -> Any:
        out[row] += dot(weights, base + row * len(x), x)

    if form == "bf16":
        return plain, dot
    add_rows, block_bytes, together = _rows_of_blocks(form), {"q8_0": 32, "q4_0": 16}[form], TOGETHER[form]

    @njit(inline="always")
    def add(weights: Any, base: Any, factors: Any, group: Any, x: Any, out: Any) -> Any:
        before = group * (len(x) // 32) * together
        start = np.int64(weights.ctypes.data)
        line, scales = start + 2 * base + before * block_bytes, start + 2 * (factors + before)
        to = np.int64(out.ctypes.data) + 4 * together * group
        add_rows(line, scales, np.int64(x.ctypes.data), np.int64(len(x) // 32), to)

    return add, dot


def _rows_of_blocks(form: Form) -> Any:
    """Adds the products of interleaved rows and a vector, by the addresses of integers, factors, vector and sums.

    Sixteen sums a row go through all of it and are added up once; a compiler adds them up once a block, which
    takes five times as long. The vector is loaded once for all rows.
    """
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    byte, half, word, long, real = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
    bytes_, reals = ir.VectorType(byte, 16), ir.VectorType(real, 16)
    fast = ("fast",)
    declare: Any = cgutils.get_or_insert_function
    block_bytes, together = {"q8_0": 32, "q4_0": 16}[form], TOGETHER[form]

    def rows_of_blocks(_context: Any, _line: Any, _factors: Any, _x: Any, _blocks: Any, _to: Any) -> Any:
        def generate(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
            line, factors, x, blocks, to = args
            before = builder.block
            loop, done = builder.append_basic_block("blocks"), builder.append_basic_block("summed")
            builder.branch(loop)
            builder.position_at_end(loop)
            b, sums = builder.phi(long), [builder.phi(reals) for _ in range(together)]
            b.add_incoming(ir.Constant(long, 0), before)
            for one in sums:
                one.add_incoming(ir.Constant(reals, [0.0] * 16), before)

            def load(kind: Any, start: Any, stride: int, offset: int, align: int) -> Any:
                at = builder.add(builder.mul(b, ir.Constant(long, stride)), ir.Constant(long, offset))
                found = builder.load(builder.inttoptr(builder.add(start, at), kind.as_pointer()))
                found.align = align
                return found

            halves = [load(reals, x, 128, offset, 4) for offset in (0, 64)]

            def times(values: Any, half: int) -> Any:
                return builder.fmul(builder.sitofp(values, reals), halves[half], flags=fast)

            def each(value: int) -> Any:
                return ir.Constant(bytes_, [value] * 16)

            def product(row: int) -> Any:
                """Of one block of a row, with its factor."""
                stride, at = together * block_bytes, row * block_bytes
                if form == "q4_0":
                    pairs = load(bytes_, line, stride, at, 1)
                    low = builder.sub(builder.and_(pairs, each(15)), each(8))
                    high = builder.sub(builder.lshr(pairs, each(4)), each(8))
                else:
                    low, high = load(bytes_, line, stride, at, 1), load(bytes_, line, stride, at + 16, 1)
                both = builder.fadd(times(low, 0), times(high, 1), flags=fast)
                own = load(half, factors, 2 * together, 2 * row, 2)
                bits = builder.shl(builder.zext(own, word), ir.Constant(word, 16))
                empty, first = ir.Constant(reals, ir.Undefined), ir.Constant(word, 0)
                single = builder.insert_element(empty, builder.bitcast(bits, real), first)
                factor = builder.shuffle_vector(single, empty, ir.Constant(ir.VectorType(word, 16), [0] * 16))
                return builder.fmul(both, factor, flags=fast)

            added = [builder.fadd(one, product(row), flags=fast) for row, one in enumerate(sums)]
            following = builder.add(b, ir.Constant(long, 1))
            b.add_incoming(following, loop)
            for one, more in zip(sums, added, strict=True):
                one.add_incoming(more, loop)
            builder.cbranch(builder.icmp_signed("<", following, blocks), loop, done)
            builder.position_at_end(done)
            kind = ir.FunctionType(real, [real, reals])
            total = declare(builder.module, kind, "llvm.vector.reduce.fadd.v16f32")
            for row, one in enumerate(added):
                at = builder.inttoptr(builder.add(to, ir.Constant(long, 4 * row)), real.as_pointer())
                builder.store(builder.call(total, [builder.load(at), one], fastmath=fast), at)
            return builder.add(to, ir.Constant(long, 0))

        return types.int64(*[types.int64] * 5), generate

    return intrinsic(rows_of_blocks)


@functools.cache
def _kernels(form: Form) -> tuple[Callable[..., None], Callable[..., None]]:
    """The two kernels for experts of a form, compiled at the first call."""
    from numba import njit, prange

    add, dot = _dots(form)
    shift = {"bf16": 0, "q8_0": 1, "q4_0": 2}[form]
    together = TOGETHER[form]

    @njit(parallel=True, fastmath=True, nogil=True)
    def experts(weights: Any, offsets: Any, width: Any, x: Any, inner: Any, up: Any, out: Any) -> None:
        n, rows, hidden = len(offsets), x.shape[0], x.shape[1]
        matrix = (width * hidden) >> shift
        blocks = width * hidden // 32
        groups = width // together
        for item in prange(n * groups):
            e = item // groups
            i = item - e * groups
            at = offsets[e]
            for r in range(rows):
                for j in range(i * together, (i + 1) * together):
                    inner[e, r, j] = np.float32(0.0)
                    up[e, r, j] = np.float32(0.0)
                add(weights, at, at + 3 * matrix, i, x[r], inner[e, r])
                add(weights, at + matrix, at + 3 * matrix + blocks, i, x[r], up[e, r])
                for j in range(i * together, (i + 1) * together):
                    gate = inner[e, r, j]
                    inner[e, r, j] = gate / (np.float32(1.0) + np.exp(-gate)) * up[e, r, j]
        for o in prange(hidden // together):
            for r in range(rows):
                for j in range(o * together, (o + 1) * together):
                    out[r, j] = np.float32(0.0)
                for e in range(n):
                    at = offsets[e]
                    add(weights, at + 2 * matrix, at + 3 * matrix + 2 * blocks, o, inner[e, r], out[r])

    @njit(parallel=True, fastmath=True, nogil=True)
    def matvec(weights: Any, offset: Any, rows: Any, x: Any, out: Any) -> None:
        for i in prange(rows):
            out[i] = dot(weights, offset + i * len(x), x)

    return experts, matvec
