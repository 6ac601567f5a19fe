"""Attention over a context: keys and values of every layer on the card, read whole in each pass.

A layer's cells lie in heads of 64 numbers, first all keys of a head, then its values. Each head answers `GROUP`
queries of every row, taken from the normed rows. The context is split among programs as fast decoding does: each
reads its part of a head once for all queries, keeping maximum, sum and weighted values; a second kernel joins the
parts and adds them to the rows. How many cells a pass attends over stands in a table on the card, so that one
graph serves all lengths.

Triton is imported with this module, which only a card imports. `FAST` off is for Triton's interpreter.
"""

from typing import Any

import triton
import triton.language as tl

from expert_residency.hwmodels.executor.steps import HEAD_BYTES

HEAD = 64
"""Numbers of a key, and of a value."""
GROUP = 8
"""Queries of a row that share a head of keys and values."""
LITTLE = 0.01
"""Weight of what attention adds to the rows, which are random here and should stay about as large."""


@triton.jit
def _query(number, head, HIDDEN: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr):
    """Row of a query, and where its numbers lie in the row: heads go round the row."""
    row = number // GROUP
    first = (head * GROUP + number % GROUP) * HEAD
    return row, (first[:, None] + tl.arange(0, HEAD)[None, :]) % HIDDEN


@triton.jit(do_not_specialize=["most"])
def _attend(
    normed, keys, cells, line, parts, peaks, sums, most, queries, HIDDEN: tl.constexpr, HEADS: tl.constexpr,
    GROUP: tl.constexpr, HEAD: tl.constexpr, SPLITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """One part of the context, for some queries of a head."""
    split, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(cells + tl.load(line))
    per = tl.cdiv(tl.cdiv(length, SPLITS), BN) * BN
    start = split * per
    end = tl.minimum(start + per, length)
    number = tl.program_id(2) * BM + tl.arange(0, BM)
    there = number < queries
    row, columns = _query(number, head, HIDDEN, GROUP, HEAD)
    q = tl.load(normed + row[:, None] * HIDDEN + columns, mask=there[:, None], other=0.0).to(DOT)
    d = tl.arange(0, HEAD)
    key = keys + head.to(tl.int64) * 2 * most * HEAD
    peak = tl.full((BM,), -1e30, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    found = tl.zeros((BM, HEAD), tl.float32)
    for at in range(start, end, BN):
        n = at + tl.arange(0, BN)
        inside = n < end
        k = tl.load(key + n[:, None] * HEAD + d[None, :], mask=inside[:, None], other=0.0)
        v = tl.load(key + (most + n)[:, None] * HEAD + d[None, :], mask=inside[:, None], other=0.0)
        score = tl.dot(q, tl.trans(k.to(DOT))) * 0.18033688  # 1 / sqrt(64), and exponents of 2
        score = tl.where(inside[None, :], score, -1e30)
        higher = tl.maximum(peak, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        less = tl.exp2(peak - higher)
        found = found * less[:, None] + tl.dot(weight.to(DOT), v.to(DOT))
        total = total * less + tl.sum(weight, 1)
        peak = higher
    to = (split * HEADS + head) * queries + number
    tl.store(parts + to[:, None] * HEAD + d[None, :], found, mask=there[:, None])
    tl.store(peaks + to, peak, mask=there)
    tl.store(sums + to, total, mask=there)


@triton.jit
def _join(
    parts, peaks, sums, x, queries, mix, HIDDEN: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr,
    HEAD: tl.constexpr, SPLITS: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """The parts of one query put together and added to its row."""
    head, number = tl.program_id(0), tl.program_id(1)
    s = tl.arange(0, ALL)
    d = tl.arange(0, HEAD)
    at = (s * HEADS + head) * queries + number
    peak = tl.load(peaks + at, mask=s < SPLITS, other=-1e30)
    weight = tl.exp2(peak - tl.max(peak, 0))
    total = tl.sum(weight * tl.load(sums + at, mask=s < SPLITS, other=0.0), 0)
    part = tl.load(parts + at[:, None] * HEAD + d[None, :], mask=(s < SPLITS)[:, None], other=0.0)
    found = tl.sum(part * weight[:, None], 0) / tl.maximum(total, 1e-30)
    columns = ((head * GROUP + number % GROUP) * HEAD + d) % HIDDEN
    tl.atomic_add(x + (number // GROUP) * HIDDEN + columns, found * mix, sem="relaxed")


class Attention:
    """Keys and values of a model's layers, and the kernels that read them.

    Parameters
    ----------
    torch
        The module.
    device
        Where they lie.
    layers, rows, hidden
        Of the model, of a pass, and numbers of a row.
    cell_bytes, most
        Bytes of a cell in one layer, a multiple of `HEAD_BYTES`, and the most cells.
    fast
        Off only in Triton's interpreter.
    """

    def __init__(
        self, torch: Any, device: Any, layers: int, rows: int, hidden: int, cell_bytes: int, most: int, *,
        fast: bool = True,
    ) -> None:  # fmt: skip
        self.heads, self.most, self.hidden = cell_bytes // HEAD_BYTES, most, hidden
        self.queries = rows * GROUP
        kind = torch.bfloat16 if fast else torch.float32
        one = torch.randn((self.heads, 2, most, HEAD), device=device).to(kind)
        self.cells = [one, *(one.clone() for _ in range(layers - 1))]
        self._block = 16 if self.queries <= 16 else 64
        processors = torch.cuda.get_device_properties(device).multi_processor_count if fast else 2
        programs = self.heads * -(-self.queries // self._block)
        self.splits = max(1, min(64, 2 * processors // programs))
        shape = (self.splits, self.heads, self.queries)
        self._parts = torch.zeros((*shape, HEAD), dtype=torch.float32, device=device)
        self._peaks, self._sums = (torch.zeros(shape, dtype=torch.float32, device=device) for _ in range(2))
        self._dot = tl.bfloat16 if fast else tl.float32

    def attend(self, layer: int, normed: Any, cells: Any, line: Any, x: Any) -> None:
        """Add to the rows what they find in a layer's cells.

        Parameters
        ----------
        layer
            Of the model.
        normed : (rows, hidden)
            Rows, normed.
        cells : (events,)
            How many cells each event attends over.
        line : (1,)
            The event.
        x : (rows, hidden) float32
            Rows that are added to.
        """
        common: dict[str, Any] = {
            "HIDDEN": self.hidden, "HEADS": self.heads, "GROUP": GROUP, "HEAD": HEAD, "SPLITS": self.splits,
        }  # fmt: skip
        where = (self._parts, self._peaks, self._sums)
        grid = (self.splits, self.heads, triton.cdiv(self.queries, self._block))
        _attend[grid](
            normed, self.cells[layer], cells, line, *where, self.most, self.queries, BM=self._block, BN=64,
            DOT=self._dot, num_warps=4, num_stages=3, **common,
        )  # fmt: skip
        _join[(self.heads, self.queries)](
            *where, x, self.queries, LITTLE, ALL=triton.next_power_of_2(self.splits), num_warps=1, **common
        )
