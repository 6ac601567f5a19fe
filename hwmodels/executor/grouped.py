"""Experts of a group computed where they lie: kernels that read slots by their number in a table on the card.

Nothing is gathered. A *tile* is (slot, first pair, pairs): the (row, expert) pairs of one expert, in a bfloat16
model of several rows at most `pair_block` of them, since there they fill one side of a matrix unit. A small group
that one row wants is one kernel: a program reads some rows of gate and up and the columns of down that meet them,
all before it needs the first (`way_of`). Other groups are two kernels in one graph: gate and up into `inner`, then
down, added to the rows. The second one is started beside the first (programmatic dependent launch) and has its
weights in registers by the time it may go on.

Quantized forms are multiplied as GGUF's engines do: rows are quantized to signed bytes, a factor a block of 32,
and four products are one instruction; factors come in once a block. The forms are those of `experts.ExpertShape`.

Triton is imported with this module, which only a card imports. `FAST` off computes the same without the card's own
instructions, which Triton's interpreter cannot run.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from expert_residency.hwmodels.executor.experts import ExpertShape
from expert_residency.hwmodels.executor.steps import MANY_ROWS, PAIRS_FEW, PAIRS_MANY

FORMS = {"bf16": 0, "q8_0": 1, "q4_0": 2}
PARTS = 8
"""Sums that programs add to in turn, where a pass has one row."""


@triton.jit
def _expert(pool, stride, table, line, e, tiles):
    """Address, first pair and pairs of tile `e` of the event's line."""
    at = table + (tl.load(line) * tiles + e) * 3
    slot = tl.load(at).to(tl.int64)
    return pool + slot * stride, tl.load(at + 1), tl.load(at + 2)


@triton.jit
def _settled(x, parts, at, inside, size, PARTS: tl.constexpr):
    """Numbers of x with what groups have added to them in parts, which are zero afterwards."""
    v = tl.load(x + at, mask=inside, other=0.0)
    for p in tl.static_range(PARTS):
        v += tl.load(parts + p * size + at, mask=inside, other=0.0)
    for p in tl.static_range(PARTS):
        tl.store(parts + p * size + at, tl.zeros_like(v), mask=inside)
    tl.store(x + at, v, mask=inside)
    return v


@triton.jit
def _settle(x, parts, size, PARTS: tl.constexpr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    _settled(x, parts, at, at < size, size, PARTS)


@triton.jit
def _normalize(
    x, parts, normed, bytes_, factors, x_host, line, size, HIDDEN: tl.constexpr, NB: tl.constexpr,
    QUANT: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Norm of a row, as bfloat16, for the host, and quantized; the event is counted."""
    r = tl.program_id(0)
    if r == 0:
        tl.store(line, tl.load(line) + 1)
    b = tl.arange(0, NB)
    cols = b[:, None] * 32 + tl.arange(0, 32)[None, :]
    inside = cols < HIDDEN
    v = _settled(x, parts, r * HIDDEN + cols, inside, size, PARTS)
    v = v * (1.0 / tl.sqrt(tl.sum(tl.sum(v * v, 1), 0) / HIDDEN + 1e-6))
    tl.store(normed + r * HIDDEN + cols, v.to(tl.bfloat16), mask=inside)
    tl.store(x_host + r * HIDDEN + cols, v, mask=inside)
    if QUANT:
        top = tl.max(tl.abs(v), 1) / 127.0
        n = tl.floor(v / tl.maximum(top, 1e-30)[:, None] + 0.5)
        tl.store(bytes_ + r * HIDDEN + cols, n.to(tl.int8), mask=inside)
        at = factors + r * 2 * (HIDDEN // 32) + b
        tl.store(at, top, mask=b < HIDDEN // 32)
        tl.store(at + HIDDEN // 32, top * tl.sum(n, 1), mask=b < HIDDEN // 32)


@triton.jit
def _row_products(matrix, first, rows, x, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WAIT: tl.constexpr):
    """(BN,) products of rows `first`... of a bfloat16 matrix with K columns and one vector."""
    n = first + tl.arange(0, BN)
    base = matrix.to(tl.pointer_type(tl.bfloat16))
    acc = tl.zeros((BN, BK), tl.float32)
    for k in tl.static_range(0, K, BK):
        cols = k + tl.arange(0, BK)
        inside = (n < rows)[:, None] & (cols < K)[None, :]
        w = tl.load(base + n[:, None] * K + cols[None, :], mask=inside, other=0.0)
        if WAIT and k == 0:
            tl.extra.cuda.gdc_wait()
        v = tl.load(x + cols, mask=cols < K, other=0.0).to(tl.float32)
        acc += w.to(tl.float32) * v[None, :]
    return tl.sum(acc, 1)


@triton.jit
def _two_products(
    gate, up, first, rows, x, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WAIT: tl.constexpr
):
    """The same of two matrices, both of which are under way before the vector is."""
    n = first + tl.arange(0, BN)
    kind = tl.pointer_type(tl.bfloat16)
    gates = tl.zeros((BN, BK), tl.float32)
    ups = tl.zeros((BN, BK), tl.float32)
    for k in tl.static_range(0, K, BK):
        cols = k + tl.arange(0, BK)
        inside = (n < rows)[:, None] & (cols < K)[None, :]
        at = n[:, None] * K + cols[None, :]
        g = tl.load(gate.to(kind) + at, mask=inside, other=0.0)
        u = tl.load(up.to(kind) + at, mask=inside, other=0.0)
        if WAIT and k == 0:
            tl.extra.cuda.gdc_wait()
        v = tl.load(x + cols, mask=cols < K, other=0.0).to(tl.float32)
        gates += g.to(tl.float32) * v[None, :]
        ups += u.to(tl.float32) * v[None, :]
    return tl.sum(gates, 1), tl.sum(ups, 1)


@triton.jit(do_not_specialize=["tiles"])
def _gate_up_row(
    pool, stride, table, line, tiles, x, inner, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, MATRIX: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    blob, first, _count = _expert(pool, stride, table, line, tl.program_id(1), tiles)
    if FAST:
        tl.extra.cuda.gdc_launch_dependents()
    i = tl.program_id(0) * BN
    gate, up = _two_products(blob, blob + MATRIX, i, WIDTH, x, HIDDEN, BN, BK, FAST)
    at = i + tl.arange(0, BN)
    tl.store(inner + first * WIDTH + at, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), mask=at < WIDTH)


@triton.jit(do_not_specialize=["tiles"])
def _down_row(
    pool, stride, table, line, tiles, inner, x, mix, HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    MATRIX: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    blob, first, _count = _expert(pool, stride, table, line, tl.program_id(1), tiles)
    o = tl.program_id(0) * BN
    found = _row_products(blob + 2 * MATRIX, o, HIDDEN, inner + first * WIDTH, WIDTH, BN, BK, FAST)
    at = o + tl.arange(0, BN)
    tl.atomic_add(x + at, found * mix, mask=at < HIDDEN, sem="relaxed")


@triton.jit
def _part(parts, size, e, PARTS: tl.constexpr):
    """Where a program adds: sums of many programs at one address would wait for each other."""
    return parts + (tl.program_id(0) + e) % PARTS * size


@triton.jit(do_not_specialize=["tiles"])
def _whole_row(
    pool, stride, table, line, tiles, x, parts, mix, HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    MATRIX: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NR: tl.constexpr, PARTS: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """Some rows of gate and up, and the columns of down that they meet: nothing waits for another kernel."""
    e = tl.program_id(1)
    blob, _first, _count = _expert(pool, stride, table, line, e, tiles)
    if FAST:
        tl.extra.cuda.gdc_launch_dependents()
    i = tl.program_id(0) * BN
    at = i + tl.arange(0, BN)
    o = tl.arange(0, NR)
    inside = (o < HIDDEN)[:, None] & (at < WIDTH)[None, :]
    down = (blob + 2 * MATRIX).to(tl.pointer_type(tl.bfloat16))
    d = tl.load(down + o[:, None] * WIDTH + at[None, :], mask=inside, other=0.0)
    gate, up = _two_products(blob, blob + MATRIX, i, WIDTH, x, HIDDEN, BN, BK, FAST)
    v = (gate * tl.sigmoid(gate) * up).to(tl.bfloat16).to(tl.float32)
    found = tl.sum(d.to(tl.float32) * v[None, :], 1)
    to = _part(parts, HIDDEN, e, PARTS)
    tl.atomic_add(to + o, found * mix, mask=o < HIDDEN, sem="relaxed")


@triton.jit
def _tile_products(
    matrix, first, rows, x, x_rows, there, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """(BM, BN) products of rows of x (K columns) and rows `first`... of a bfloat16 matrix."""
    n = first + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    base = matrix.to(tl.pointer_type(tl.bfloat16))
    for k in range(0, K, BK):
        cols = k + tl.arange(0, BK)
        inside = (n < rows)[:, None] & (cols < K)[None, :]
        w = tl.load(base + n[:, None] * K + cols[None, :], mask=inside, other=0.0)
        v = tl.load(x + x_rows[:, None] * K + cols[None, :], mask=there[:, None] & (cols < K)[None, :], other=0.0)
        acc = tl.dot(v.to(DOT), tl.trans(w.to(DOT)), acc)
    return acc


@triton.jit(do_not_specialize=["tiles", "pairs"])
def _gate_up_rows(
    pool, stride, table, tokens, line, tiles, pairs, x, inner, HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    MATRIX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    blob, first, count = _expert(pool, stride, table, line, tl.program_id(1), tiles)
    m = tl.arange(0, BM)
    there = m < count
    row = tl.load(tokens + tl.load(line) * pairs + first + m, mask=there, other=0)
    i = tl.program_id(0) * BN
    gate = _tile_products(blob, i, WIDTH, x, row, there, HIDDEN, BM, BN, BK, DOT)
    up = _tile_products(blob + MATRIX, i, WIDTH, x, row, there, HIDDEN, BM, BN, BK, DOT)
    at = i + tl.arange(0, BN)
    to = inner + (first + m)[:, None] * WIDTH + at[None, :]
    tl.store(to, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), mask=there[:, None] & (at < WIDTH)[None, :])


@triton.jit(do_not_specialize=["tiles", "pairs"])
def _down_rows(
    pool, stride, table, tokens, line, tiles, pairs, inner, x, mix, HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    MATRIX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    blob, first, count = _expert(pool, stride, table, line, tl.program_id(1), tiles)
    m = tl.arange(0, BM)
    there = m < count
    row = tl.load(tokens + tl.load(line) * pairs + first + m, mask=there, other=0)
    o = tl.program_id(0) * BN
    found = _tile_products(blob + 2 * MATRIX, o, HIDDEN, inner, first + m, there, WIDTH, BM, BN, BK, DOT)
    at = o + tl.arange(0, BN)
    to = x + row[:, None] * HIDDEN + at[None, :]
    tl.atomic_add(to, found * mix, mask=there[:, None] & (at < HIDDEN)[None, :], sem="relaxed")


@triton.jit
def _dot8(words, x, FAST: tl.constexpr):
    """Products of eight signed bytes each, summed, plus 1.5 * 2^23 as the bits of a float32."""
    if FAST:
        return tl.inline_asm_elementwise(
            """{ .reg .b32 a0, a1, b0, b1, c; mov.b64 {a0, a1}, $1; mov.b64 {b0, b1}, $2;
            mov.b32 c, 0x4B400000; dp4a.s32.s32 c, a0, b0, c; dp4a.s32.s32 $0, a1, b1, c; }""",
            "=r,l,l",
            [words, x],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    total = 0x4B400000
    for i in tl.static_range(8):
        a = (words << (56 - 8 * i)) >> 56
        b = (x << (56 - 8 * i)) >> 56
        total += (a * b).to(tl.int32)
    return total


@triton.jit
def _dot32(first, second, low, low2, high, high2, FAST: tl.constexpr):
    """The same of a block of nibbles, low ones with the bytes of `low`, high ones with those of `high`."""
    if FAST:
        return tl.inline_asm_elementwise(
            """{ .reg .b32 a0, a1, b0, b1, d0, d1, n, c; mov.b32 c, 0x4B400000;
            mov.b64 {a0, a1}, $1; mov.b64 {b0, b1}, $3; mov.b64 {d0, d1}, $5;
            and.b32 n, a0, 0x0F0F0F0F; dp4a.s32.s32 c, n, b0, c; and.b32 n, a1, 0x0F0F0F0F;
            dp4a.s32.s32 c, n, b1, c; shr.u32 n, a0, 4; and.b32 n, n, 0x0F0F0F0F; dp4a.s32.s32 c, n, d0, c;
            shr.u32 n, a1, 4; and.b32 n, n, 0x0F0F0F0F; dp4a.s32.s32 c, n, d1, c;
            mov.b64 {a0, a1}, $2; mov.b64 {b0, b1}, $4; mov.b64 {d0, d1}, $6;
            and.b32 n, a0, 0x0F0F0F0F; dp4a.s32.s32 c, n, b0, c; and.b32 n, a1, 0x0F0F0F0F;
            dp4a.s32.s32 c, n, b1, c; shr.u32 n, a0, 4; and.b32 n, n, 0x0F0F0F0F; dp4a.s32.s32 c, n, d0, c;
            shr.u32 n, a1, 4; and.b32 n, n, 0x0F0F0F0F; dp4a.s32.s32 $0, n, d1, c; }""",
            "=r,l,l,l,l,l,l",
            [first, second, low, low2, high, high2],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    total = 0x4B400000
    for i in tl.static_range(8):
        total += (((first >> (8 * i)) & 15) * ((low << (56 - 8 * i)) >> 56)).to(tl.int32)
        total += (((first >> (8 * i + 4)) & 15) * ((high << (56 - 8 * i)) >> 56)).to(tl.int32)
        total += (((second >> (8 * i)) & 15) * ((low2 << (56 - 8 * i)) >> 56)).to(tl.int32)
        total += (((second >> (8 * i + 4)) & 15) * ((high2 << (56 - 8 * i)) >> 56)).to(tl.int32)
    return total


@triton.jit
def _blocks(matrix, scales, g, b, rows, KB: tl.constexpr, FORM: tl.constexpr):
    """(G, B, R, W) 64-bit words and (G, B, R) factors of blocks b of the rows R g ... R g + R - 1.

    R rows are interleaved (`experts.TOGETHER`): the blocks b of many rows then are whole lines of the memory.
    """
    W: tl.constexpr = 4 if FORM == 1 else 2
    R: tl.constexpr = 1 if FORM == 1 else 4
    inside = (R * g < rows)[:, None] & (b < KB)[None, :]
    at = (g[:, None, None] * KB + b[None, :, None]) * R + tl.arange(0, R)[None, None, :]
    base = matrix.to(tl.pointer_type(tl.int64))
    words = tl.load(
        base + at[:, :, :, None] * W + tl.arange(0, W)[None, None, None, :], mask=inside[:, :, None, None], other=0
    )
    s = tl.load(scales.to(tl.pointer_type(tl.bfloat16)) + at, mask=inside[:, :, None], other=0.0)
    return words, s.to(tl.float32)


@triton.jit
def _rows_of(
    matrix, scales, number, rows, K: tl.constexpr, BN: tl.constexpr, NB: tl.constexpr, FORM: tl.constexpr
):
    """The same of whole rows: the `number`-th BN of them."""
    G: tl.constexpr = BN if FORM == 1 else BN // 4
    return _blocks(matrix, scales, number * G + tl.arange(0, G), tl.arange(0, NB), rows, K // 32, FORM)


@triton.jit
def _products(words, s, low, high, xs, xsum, FORM: tl.constexpr, FAST: tl.constexpr):
    """(G R,) products of the rows with one quantized vector."""
    if FORM == 1:
        found = _dot8(words, tl.broadcast_to(low[None, :, None, :], words.shape), FAST)
        f = found.to(tl.float32, bitcast=True) - 12582912.0
        total = tl.sum(tl.sum(f * (s * xs[None, :, None])[:, :, :, None], 3), 1)
    else:
        first, second = tl.split(words)
        l0, l1 = tl.split(low)
        h0, h1 = tl.split(high)
        found = _dot32(
            first,
            second,
            tl.broadcast_to(l0[None, :, None], first.shape),
            tl.broadcast_to(l1[None, :, None], first.shape),
            tl.broadcast_to(h0[None, :, None], first.shape),
            tl.broadcast_to(h1[None, :, None], first.shape),
            FAST,
        )
        f = found.to(tl.float32, bitcast=True) - 12582912.0
        total = tl.sum((f * xs[None, :, None] - 8.0 * xsum[None, :, None]) * s, 1)
    return tl.reshape(total, (total.shape[0] * total.shape[1],))


@triton.jit
def _vector(q, scale, r, K: tl.constexpr, NB: tl.constexpr, FORM: tl.constexpr):
    """Words, factors and sums of one quantized row."""
    W: tl.constexpr = 4 if FORM == 1 else 2
    KB: tl.constexpr = K // 32
    b = tl.arange(0, NB)
    j = tl.arange(0, W)
    at = (q + r * K).to(tl.pointer_type(tl.int64)) + b[:, None] * 4 + j[None, :]
    there = (b < KB)[:, None]
    low = tl.load(at, mask=there, other=0)
    high = low if FORM == 1 else tl.load(at + 2, mask=there, other=0)
    xs = tl.load(scale + r * 2 * KB + b, mask=b < KB, other=0.0)
    xsum = xs if FORM == 1 else tl.load(scale + r * 2 * KB + KB + b, mask=b < KB, other=0.0)
    return low, high, xs, xsum


@triton.jit
def _packed(v, inverse):
    """(NB, W, 8) numbers to (NB, W) words of eight signed bytes."""
    n = tl.floor(v * inverse[:, None, None] + 0.5).to(tl.int64)
    return tl.sum((n & 255) << (8 * tl.arange(0, 8))[None, None, :], 2), n


@triton.jit
def _quantized(x, K: tl.constexpr, NB: tl.constexpr, FORM: tl.constexpr):
    """The same of a row of bfloat16 numbers, quantized here."""
    KB: tl.constexpr = K // 32
    W: tl.constexpr = 4 if FORM == 1 else 2
    b = tl.arange(0, NB)
    cols = b[:, None, None] * 32 + tl.arange(0, W)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
    there = (b < KB)[:, None, None] & (cols >= 0)
    v = tl.load(x + cols, mask=there, other=0.0).to(tl.float32)
    top = tl.max(tl.max(tl.abs(v), 2), 1)
    if FORM == 2:
        u = tl.load(x + cols + 16, mask=there, other=0.0).to(tl.float32)
        top = tl.maximum(top, tl.max(tl.max(tl.abs(u), 2), 1))
    xs = top / 127.0
    inverse = 1.0 / tl.maximum(xs, 1e-30)
    low, n = _packed(v, inverse)
    high, xsum = low, xs
    if FORM == 2:
        high, k = _packed(u, inverse)
        xsum = xs * tl.sum(tl.sum(n + k, 2), 1).to(tl.float32)
    return low, high, xs, xsum


@triton.jit(do_not_specialize=["tiles", "pairs"])
def _gate_up_quantized(
    pool, stride, table, tokens, line, tiles, pairs, q, factors, inner, HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    MATRIX: tl.constexpr, FACTORS: tl.constexpr, FORM: tl.constexpr, BN: tl.constexpr, NB: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    blob, first, count = _expert(pool, stride, table, line, tl.program_id(1), tiles)
    if FAST:
        tl.extra.cuda.gdc_launch_dependents()
    i = tl.program_id(0) * BN
    scales = blob + 3 * MATRIX
    gw, gs = _rows_of(blob, scales, tl.program_id(0), WIDTH, HIDDEN, BN, NB, FORM)
    uw, us = _rows_of(blob + MATRIX, scales + FACTORS, tl.program_id(0), WIDTH, HIDDEN, BN, NB, FORM)
    token = tokens + tl.load(line) * pairs + first
    if FAST:
        tl.extra.cuda.gdc_wait()
    at = i + tl.arange(0, BN)
    for m in range(count):
        low, high, xs, xsum = _vector(q, factors, tl.load(token + m), HIDDEN, NB, FORM)
        gate = _products(gw, gs, low, high, xs, xsum, FORM, FAST)
        up = _products(uw, us, low, high, xs, xsum, FORM, FAST)
        found = (gate * tl.sigmoid(gate) * up).to(tl.bfloat16)
        tl.store(inner + (first + m) * WIDTH + at, found, mask=at < WIDTH)


@triton.jit(do_not_specialize=["tiles", "pairs"])
def _down_quantized(
    pool, stride, table, tokens, line, tiles, pairs, inner, x, mix, HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    MATRIX: tl.constexpr, FACTORS: tl.constexpr, FORM: tl.constexpr, BN: tl.constexpr, NB: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    blob, first, count = _expert(pool, stride, table, line, tl.program_id(1), tiles)
    o = tl.program_id(0) * BN
    factors = blob + 3 * MATRIX + 2 * FACTORS
    w, s = _rows_of(blob + 2 * MATRIX, factors, tl.program_id(0), HIDDEN, WIDTH, BN, NB, FORM)
    token = tokens + tl.load(line) * pairs + first
    if FAST:
        tl.extra.cuda.gdc_wait()
    at = o + tl.arange(0, BN)
    for m in range(count):
        low, high, xs, xsum = _quantized(inner + (first + m) * WIDTH, WIDTH, NB, FORM)
        found = _products(w, s, low, high, xs, xsum, FORM, FAST)
        tl.atomic_add(x + tl.load(token + m) * HIDDEN + at, found * mix, mask=at < HIDDEN, sem="relaxed")


@triton.jit
def _quantized_here(v, BB: tl.constexpr, FORM: tl.constexpr):
    """Words, factors and sums of (32 BB,) numbers that are at hand."""
    x = tl.reshape(v, (BB, 4, 8))
    xs = tl.max(tl.max(tl.abs(x), 2), 1) / 127.0
    low, n = _packed(x, 1.0 / tl.maximum(xs, 1e-30))
    high, xsum = low, xs
    if FORM == 2:
        halves = tl.reshape(low, (BB, 2, 2))
        second = tl.arange(0, 2)[None, :, None]
        low = tl.sum(halves * (1 - second), 1)
        high = tl.sum(halves * second, 1)
        xsum = xs * tl.sum(tl.sum(n, 2), 1).to(tl.float32)
    return low, high, xs, xsum


@triton.jit(do_not_specialize=["tiles"])
def _whole_quantized(
    pool, stride, table, line, tiles, q, factors, parts, mix, HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    MATRIX: tl.constexpr, FACTORS: tl.constexpr, FORM: tl.constexpr, BN: tl.constexpr, NB: tl.constexpr,
    PARTS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """As `_whole_row`, by whole blocks of the rows of down."""
    BB: tl.constexpr = BN // 32
    e = tl.program_id(1)
    blob, _first, _count = _expert(pool, stride, table, line, e, tiles)
    if FAST:
        tl.extra.cuda.gdc_launch_dependents()
    scales = blob + 3 * MATRIX
    gw, gs = _rows_of(blob, scales, tl.program_id(0), WIDTH, HIDDEN, BN, NB, FORM)
    uw, us = _rows_of(blob + MATRIX, scales + FACTORS, tl.program_id(0), WIDTH, HIDDEN, BN, NB, FORM)
    g = tl.arange(0, NB * 32 if FORM == 1 else NB * 8)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    dw, ds = _blocks(blob + 2 * MATRIX, scales + 2 * FACTORS, g, b, HIDDEN, WIDTH // 32, FORM)
    if FAST:
        tl.extra.cuda.gdc_wait()
    low, high, xs, xsum = _vector(q, factors, 0, HIDDEN, NB, FORM)
    gate = _products(gw, gs, low, high, xs, xsum, FORM, FAST)
    up = _products(uw, us, low, high, xs, xsum, FORM, FAST)
    inner = (gate * tl.sigmoid(gate) * up).to(tl.bfloat16).to(tl.float32)
    low, high, xs, xsum = _quantized_here(inner, BB, FORM)
    found = _products(dw, ds, low, high, xs, xsum, FORM, FAST)
    at = tl.arange(0, NB * 32)
    to = _part(parts, HIDDEN, e, PARTS)
    tl.atomic_add(to + at, found * mix, mask=at < HIDDEN, sem="relaxed")


class Way(NamedTuple):
    """How much a program of one-row kernels does: rows of gate and up, columns at a time (bfloat16), warps.

    With `down` these of a second kernel, which waits for the first; without it one kernel does all.
    """

    up: tuple[int, int, int]
    down: tuple[int, int, int] | None = None


WHOLE_HIDDEN = 2048
"""Widest rows for which a program of one kernel has all its weights in registers."""


def way_of(shape: ExpertShape, n: int, processors: int) -> Way:
    """How `n` experts are computed for one row: as was found fastest on an H200.

    One kernel where its programs are all at work at once, of which a multiprocessor holds two, or nearly so
    (quantized: four); of more, two kernels of smaller programs are faster. Four warps reduce less among themselves
    than eight, and hold nibbles of rows of 2,048 numbers, but bytes of half as many only.

    Parameters
    ----------
    shape
        Of the experts.
    n
        Experts of the group.
    processors
        Multiprocessors of the card.

    Returns
    -------
    Way
        The way.
    """
    plain, small = shape.form == "bf16", shape.hidden <= WHOLE_HIDDEN
    warps = 4 if shape.form == "q4_0" or shape.hidden <= WHOLE_HIDDEN // 2 else 8
    whole = Way((16, 2048, 16)) if plain else Way((32, 0, warps))
    programs = n * -(-shape.width // whole.up[0])
    if small and programs <= processors * (2 if plain else 4):
        return whole
    if plain:
        return Way((4, 1024, 4), (8, 256, 2))
    return Way((4, 0, 2), (32 if small else 16, 0, 4))


class Grouped:
    """Launches the kernels of one model; buffers that only they use.

    Parameters
    ----------
    torch
        The module.
    device
        Of the buffers.
    shapes
        Of the experts of every layer.
    rows, pairs
        Rows of a pass, most (row, expert) pairs of a group.
    fast
        Off only in Triton's interpreter.
    """

    def __init__(
        self, torch: Any, device: Any, shapes: list[ExpertShape], rows: int, pairs: int, *, fast: bool = True
    ) -> None:
        hidden = shapes[0].hidden
        self.rows, self.hidden, self.fast = rows, hidden, fast
        self.quantized = any(shape.form != "bf16" for shape in shapes)
        self.normed = torch.zeros((rows, hidden), dtype=torch.bfloat16, device=device)
        self._bytes = torch.zeros((rows, hidden), dtype=torch.int8, device=device)
        self._factors = torch.zeros((rows, 2 * max(1, hidden // 32)), dtype=torch.float32, device=device)
        widest = max(shape.width for shape in shapes)
        self.pairs = pairs
        self._inner = torch.zeros((pairs, widest), dtype=torch.bfloat16, device=device)
        self._parts = torch.zeros((PARTS, rows if rows == 1 else 0, hidden), dtype=torch.float32, device=device)
        self._used = PARTS if rows == 1 else 0
        self._pdl = {"launch_pdl": True} if fast else {}
        self._dot = tl.bfloat16 if fast else tl.float32
        self._processors = torch.cuda.get_device_properties(device).multi_processor_count if fast else 2

    def normalize(self, x: Any, x_host: Any, line: Any) -> None:
        """Norm of the rows, for this object's groups and for the host.

        Parameters
        ----------
        x : (rows, hidden) float32
            Rows.
        x_host : (rows, hidden) float32
            Memory of the host that is written.
        line : (1,)
            Counts one more.
        """
        blocks = triton.next_power_of_2(triton.cdiv(self.hidden, 32))
        _normalize[(self.rows,)](
            x, self._parts, self.normed, self._bytes, self._factors, x_host, line, x.numel(), HIDDEN=self.hidden,
            NB=blocks, QUANT=self.quantized, PARTS=self._used, num_warps=8 if blocks >= 32 else 4,
        )  # fmt: skip

    def group(
        self, shape: ExpertShape, n: int, pool: Any, table: Any, tokens: Any, line: Any, x: Any, mix: float
    ) -> None:
        """Add a group to the rows.

        Parameters
        ----------
        shape
            Of its experts.
        n
            Tiles of the event's line that it is made of.
        pool : (slots, bytes of a slot)
            Slots.
        table : (events, tiles, 3)
            Tiles.
        tokens : (events, pairs)
            The row of each pair.
        line : (1,)
            The event.
        x : (rows, hidden) float32
            Rows that are added to.
        mix
            Weight of every expert.
        """
        if self.rows == 1:
            way = way_of(shape, n, self._processors)
            self.launch(way, shape, n, pool, table, tokens, line, x, mix)
            return
        cdiv, power = triton.cdiv, triton.next_power_of_2
        common: dict[str, Any] = {"HIDDEN": shape.hidden, "WIDTH": shape.width, "MATRIX": shape.matrix_bytes}
        place = (pool, pool.stride(0), table, tokens, line, table.shape[1], tokens.shape[1])
        inner = self._inner
        if shape.form != "bf16":
            kinds = {"FACTORS": shape.factor_bytes, "FORM": FORMS[shape.form], "FAST": self.fast}
            first = {"BN": 4, "NB": power(shape.hidden // 32), "num_warps": 4} | common | kinds | self._pdl
            self._two_quantized(first, (16, 0, 4), (shape, n), place, x, mix)
            return
        block = PAIRS_FEW if self.rows < MANY_ROWS else PAIRS_MANY
        few = block == PAIRS_FEW
        up = {"BN": 32, "BK": 128, "num_stages": 4} if few else {"BN": 64, "BK": 64, "num_stages": 3}
        down = {"BN": 64, "num_warps": 4, "num_stages": 4} if few else {"BN": 128, "num_warps": 8, "num_stages": 3}
        _gate_up_rows[(cdiv(shape.width, up["BN"]), n)](
            *place, self.normed, inner, BM=block, DOT=self._dot, num_warps=4, **up, **common
        )
        _down_rows[(cdiv(shape.hidden, down["BN"]), n)](
            *place, inner, x, mix, BM=block, BK=64, DOT=self._dot, **down, **common
        )

    def settle(self, x: Any) -> None:
        """Add what groups have added beside x to x itself."""
        if self._used:
            _settle[(triton.cdiv(x.numel(), 1024),)](x, self._parts, x.numel(), PARTS=self._used, N=1024)

    def launch(
        self,
        way: Way,
        shape: ExpertShape,
        n: int,
        pool: Any,
        table: Any,
        tokens: Any,
        line: Any,
        x: Any,
        mix: float,
    ) -> None:
        """`group` of one row in a given way.

        Parameters
        ----------
        way
            How much each program does.
        shape, n, pool, table, tokens, line, x, mix
            As in `group`.
        """
        place = (pool, pool.stride(0), table, line, table.shape[1])
        common: dict[str, Any] = {
            "HIDDEN": shape.hidden, "WIDTH": shape.width, "MATRIX": shape.matrix_bytes, "FAST": self.fast,
        } | self._pdl  # fmt: skip
        power, cdiv = triton.next_power_of_2, triton.cdiv
        rows, columns, warps = way.up
        grid = (cdiv(shape.width, rows), n)
        down = way.down
        if shape.form == "bf16":
            up = {"BN": rows, "BK": min(columns, power(shape.hidden)), "num_warps": warps} | common
            if down is None:
                every = power(shape.hidden)
                _whole_row[grid](*place, self.normed, self._parts, mix, NR=every, PARTS=PARTS, **up)
                return
            _gate_up_row[grid](*place, self.normed, self._inner, **up)
            _down_row[(cdiv(shape.hidden, down[0]), n)](
                *place, self._inner, x, mix, BN=down[0], BK=min(down[1], power(shape.width)), num_warps=down[2],
                **common,
            )  # fmt: skip
            return
        common |= {"FACTORS": shape.factor_bytes, "FORM": FORMS[shape.form]}
        up = {"BN": rows, "NB": power(shape.hidden // 32), "num_warps": warps} | common
        if down is None:
            _whole_quantized[grid](*place, self._bytes, self._factors, self._parts, mix, PARTS=PARTS, **up)
        else:
            self._two_quantized(up, down, (shape, n), (*place[:3], tokens, *place[3:], tokens.shape[1]), x, mix)

    def _two_quantized(
        self, up: dict[str, Any], down: tuple[int, int, int], what: tuple[ExpertShape, int], place: Any, x: Any,
        mix: float,
    ) -> None:  # fmt: skip
        """Gate and up, then down, of (shape, n) quantized experts."""
        shape, n = what
        _gate_up_quantized[(triton.cdiv(shape.width, up["BN"]), n)](
            *place, self._bytes, self._factors, self._inner, **up
        )
        own = {"BN": down[0], "NB": triton.next_power_of_2(shape.width // 32), "num_warps": down[2]}
        _down_quantized[(triton.cdiv(shape.hidden, down[0]), n)](*place, self._inner, x, mix, **(up | own))
