"""The card's side of an expert engine: slots, dense parts and experts as CUDA graphs.

A layer is two or three graph launches: *mixer* (norm, dense matrix, router, the ids and the rows to the host),
*experts* (a group of `grouped`, computed in the slots) and, if the CPU computed some, *join* (its rows
up and added). Which slots an experts graph reads stands in a table on the card, one line an event, and a counter
on the card says which line. Ids and rows cross the bus by kernels that read and write page-locked memory, not by
copies, which would stand behind experts in the card's copy engines.

The dense matrix has the bytes of the model's dense part; it stands in for projections and norms. Attention over a
context (`attention`) is part of the mixer of programs that say how long it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.executor.experts import ExpertShape, Form, random_weights
from expert_residency.hwmodels.executor.steps import MANY_ROWS, PAIRS_FEW, PAIRS_MANY


@dataclass(frozen=True)
class LiveSizes:
    """What the card must hold: bytes of each MoE layer's expert and dense part, of the head; widths and counts.

    Experts are of a form. A pass has so many rows, and an expert is wanted by `pairs` of them, in the mean. A
    weight of the model has `bits`, 0 if nobody knows. `missed_static` and `missed_lru`: for each layer the experts
    that a run misses, in that order, with a third of all experts in slots: those that stay there, or those
    wanted last; empty if nobody knows. `cell_bytes`: of keys and values of one position in one layer, and
    numbers of `cells`, ascending, for which attention is measured; passes attend over the last at most, and over
    none if there are none.
    """

    hidden: int
    experts: int
    top_k: int
    expert_bytes: tuple[int, ...]
    dense_bytes: tuple[int, ...]
    head_bytes: int
    form: Form = "bf16"
    rows: int = 1
    pairs: int = 1
    bits: float = 0.0
    missed_static: tuple[tuple[int, ...], ...] = ()
    missed_lru: tuple[tuple[int, ...], ...] = ()
    cell_bytes: int = 0
    cells: tuple[int, ...] = ()

    @property
    def mean_expert_bytes(self) -> float:
        """Over the layers."""
        return sum(self.expert_bytes) / len(self.expert_bytes)

    def distinct_bytes(self, most: int = 3) -> list[int]:
        """Sizes of experts that layers have, ascending; of many the smallest, the largest and some between."""
        found = sorted(set(self.expert_bytes))
        if len(found) <= most:
            return found
        return [found[round(i * (len(found) - 1) / (most - 1))] for i in range(most)]

    def shapes(self) -> list[ExpertShape]:
        """Expert shape of each layer."""
        return [ExpertShape.of(nbytes, self.hidden, self.form) for nbytes in self.expert_bytes]


def has_card() -> bool:
    """Whether torch is installed and finds a CUDA card."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def require_card() -> Any:
    """The torch module.

    Raises
    ------
    HardwareError
        No torch, or no card.
    """
    try:
        import torch
    except ImportError:
        raise HardwareError("a live run on a card needs torch: pip install 'expert-residency[live]'") from None
    if not torch.cuda.is_available():
        raise HardwareError("no CUDA card is found on this machine")
    return torch


def pinned_weights(nbytes: int) -> Any:
    """`nbytes` of random bfloat16 weights in page-locked memory."""
    torch = require_card()
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    host.numpy().view(np.uint16)[:] = random_weights(nbytes)
    return host


LINE_BYTES = 256
"""Slots begin at multiples of this."""
EVENTS = 1 << 16
"""Of a program that attends, for which the card has room; more make it anew."""


class _Mapped:
    """Page-locked memory under the address by which the card reaches it, in the form that torch takes."""

    def __init__(self, host: Any, kind: str) -> None:
        self.host = host
        self.__cuda_array_interface__ = {
            "shape": tuple(host.shape),
            "typestr": kind,
            "data": (host.data_ptr(), False),
            "version": 2,
        }


Table = npt.NDArray[np.int32]


def most_pairs(sizes: LiveSizes) -> int:
    """Most pairs of a tile; quantized experts take all of theirs one by one."""
    if sizes.form != "bf16":
        return max(1, sizes.rows)
    return PAIRS_FEW if sizes.rows < MANY_ROWS else PAIRS_MANY


def tables_of(
    lines: Sequence[Sequence[tuple[int, Sequence[int]]]], most_pairs: int
) -> tuple[Table, Table, list[list[int]]]:
    """Tables of tiles and rows, and for each line how many tiles its first 0, 1, 2, ... slots are.

    Parameters
    ----------
    lines
        For each event the slots to read, each with the rows that want it.
    most_pairs
        Most pairs of a tile.

    Returns
    -------
    (E, T, 3) int32, (E, P) int32, list of list of int
        Tiles (slot, first pair, pairs) and rows of pairs, both filled up with zeros; tiles by slots.
    """
    tiles: list[list[tuple[int, int, int]]] = []
    rows: list[list[int]] = []
    ends = []
    for line in lines:
        here: list[tuple[int, int, int]] = []
        wanted: list[int] = []
        end = [0]
        for slot, of_slot in line:
            for start in range(0, len(of_slot), most_pairs):
                part = of_slot[start : start + most_pairs]
                here.append((slot, len(wanted), len(part)))
                wanted.extend(part)
            end.append(len(here))
        tiles.append(here)
        rows.append(wanted)
        ends.append(end)
    table = np.zeros((len(lines), max(1, *map(len, tiles)), 3), dtype=np.int32)
    pairs = np.zeros((len(lines), max(1, *map(len, rows))), dtype=np.int32)
    for e, (here, wanted) in enumerate(zip(tiles, rows, strict=True)):
        if here:
            table[e, : len(here)] = here
            pairs[e, : len(wanted)] = wanted
    return table, pairs, ends


class Card:
    """Buffers and graphs of one model on the current card.

    Parameters
    ----------
    sizes
        The model.
    slots
        Whole experts (of the largest size) in the pool, staging included.
    """

    def __init__(self, sizes: LiveSizes, slots: int) -> None:
        torch = require_card()
        from expert_residency.hwmodels.executor.grouped import Grouped

        self.torch = torch
        self.sizes = sizes
        self.shapes = sizes.shapes()
        self.stride = -(-max(sizes.expert_bytes) // LINE_BYTES) * LINE_BYTES
        self.rows = rows = sizes.rows
        bf16, self.device = torch.bfloat16, torch.device("cuda")
        self.pool = torch.empty((slots, self.stride), dtype=torch.uint8, device=self.device)
        fill = torch.from_numpy(random_weights(self.stride).view(np.uint8)).to(self.device)
        self.pool[:] = fill
        self.address = int(self.pool.data_ptr())
        self.dense = [
            torch.randn((max(sizes.experts, n // 2 // sizes.hidden), sizes.hidden), device=self.device).to(bf16)
            * 0.02
            for n in sizes.dense_bytes
        ]
        head_rows = sizes.head_bytes // 2 // sizes.hidden
        self.head = (
            torch.randn((head_rows, sizes.hidden), device=self.device).to(bf16) * 0.02 if head_rows else None
        )
        self.x = torch.randn((rows, sizes.hidden), device=self.device)
        pairs = max(sizes.experts, 8 * sizes.pairs, rows * sizes.top_k)
        self.grouped = Grouped(torch, self.device, self.shapes, rows, pairs)
        self.line = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.attention: Any = None
        self.cells = torch.zeros(EVENTS if sizes.cells else 0, dtype=torch.int32, device=self.device)
        self.ids = torch.zeros((rows, sizes.top_k), dtype=torch.int64, pin_memory=True)
        self.x_host = torch.zeros((rows, sizes.hidden), dtype=torch.float32, pin_memory=True)
        self.from_cpu = torch.zeros((rows, sizes.hidden), dtype=torch.float32, pin_memory=True)
        self.token = torch.zeros(rows, dtype=torch.int64, pin_memory=True)
        self._ids, self._x_host, self._from_cpu, self._token = (
            torch.as_tensor(_Mapped(host, kind), device=self.device)
            for host, kind in (
                (self.ids, "<i8"),
                (self.x_host, "<f4"),
                (self.from_cpu, "<f4"),
                (self.token, "<i8"),
            )
        )
        self.tables: list[tuple[Any, Any]] = []
        self.compute = torch.cuda.Stream()
        self.copying = torch.cuda.Stream()
        self._graph_pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[tuple[Any, ...], Any] = {}
        torch.cuda.synchronize()

    def set_cells(self, cells: Sequence[int]) -> None:
        """How many cells each event attends over, for graphs that do; keys and values are made at the first call.

        Raises
        ------
        HardwareError
            More cells than the sizes say, or than the card has room for.
        """
        sizes, most = self.sizes, max(self.sizes.cells, default=0)
        if max(cells) > most:
            raise HardwareError(f"attention over {max(cells)} cells, and there are {most}")
        if self.attention is None:
            from expert_residency.hwmodels.executor.attention import Attention

            taken, free = most * sizes.cell_bytes * len(self.shapes), self.torch.cuda.mem_get_info()[0]
            if taken > free:
                raise HardwareError(
                    f"keys and values of {most} positions take {taken} bytes of the card, {free} are free: attend "
                    "over fewer (--depth)"
                )
            self.attention = Attention(
                self.torch, self.device, len(self.shapes), self.rows, sizes.hidden, sizes.cell_bytes, most
            )
        if len(cells) > len(self.cells):
            self.cells = self.torch.zeros(len(cells), dtype=self.torch.int32, device=self.device)
            self._graphs = {k: g for k, g in self._graphs.items() if k[0] != "mixer"}
        self.cells[: len(cells)] = self.torch.tensor(cells, dtype=self.torch.int32)

    def slot_address(self, slot: int) -> int:
        """Where a slot begins in the card's memory."""
        return self.address + slot * self.stride

    def set_tables(self, tables: Sequence[tuple[Table, Table]]) -> None:
        """Tiles (events, tiles, 3) and rows of their pairs (events, pairs): for residents, and for what lands.

        Graphs hold the addresses of the tables on the card: tables of the shape of the last ones are written over
        them, others are made anew and the graphs that read them dropped.

        Raises
        ------
        HardwareError
            More pairs in a group than rows can want.
        """
        if max(rows.shape[1] for _, rows in tables) > self.grouped.pairs:
            raise HardwareError(f"a group of more than {self.grouped.pairs} (row, expert) pairs")
        sources = [tuple(self.torch.from_numpy(part) for part in pair) for pair in tables]
        known = [tuple(part.shape for part in pair) for pair in self.tables]
        if known == [tuple(part.shape for part in pair) for pair in sources]:
            for pair, source in zip(self.tables, sources, strict=True):
                for old, new in zip(pair, source, strict=True):
                    old.copy_(new)
        else:
            self.tables = [(tiles.to(self.device), rows.to(self.device)) for tiles, rows in sources]
            self._graphs = {k: g for k, g in self._graphs.items() if k[0] != "experts"}
        self.rewind()

    def rewind(self) -> None:
        """Back to the first event."""
        self.line.fill_(-1)
        self.x.normal_()
        self.torch.cuda.synchronize()

    # ---- graphs ------------------------------------------------------------------------------

    def mixer(self, layer: int, *, attends: bool = False) -> Any:
        """Graph of a layer's dense part and router, and attention if it attends; counts the event."""
        return self._graph(("mixer", layer, attends), lambda: self._mixer(layer, attends))

    def experts(self, layer: int, table: int, n: int) -> Any:
        """Graph of the first `n` tiles of the event's line in a table.

        Parameters
        ----------
        layer
            MoE layer, from 0.
        table
            Number of the table of tiles.
        n
            Tiles of the line.

        Returns
        -------
        Any
            The graph, captured once.
        """
        shape = self.shapes[layer]
        return self._graph(("experts", shape, table, n), lambda: self._experts(shape, table, n))

    def join(self) -> Any:
        """Graph that adds the CPU's rows."""
        return self._graph(("join",), self._join)

    def finish(self) -> Any:
        """Graph of the head: the pass's token to the host."""
        return self._graph(("head",), self._finish)

    def _mixer(self, layer: int, attends: bool) -> None:
        torch, grouped = self.torch, self.grouped
        grouped.normalize(self.x, self._x_host, self.line)  # counts the event
        if attends:
            self.attention.attend(layer, grouped.normed, self.cells, self.line, self.x)
        out = grouped.normed @ self.dense[layer].T
        chosen = out[:, : self.sizes.experts].float().topk(self.sizes.top_k).indices
        torch.add(chosen, 0, out=self._ids)  # a kernel; copy_ would be a copy

    def _experts(self, shape: ExpertShape, table: int, n: int) -> None:
        tiles, rows = self.tables[table]
        self.grouped.group(shape, n, self.pool, tiles, rows, self.line, self.x, 1.0 / self.sizes.top_k)

    def _join(self) -> None:
        self.x.add_(self._from_cpu)

    def _finish(self) -> None:
        self.grouped.settle(self.x)
        last = self.x if self.head is None else self.x.to(self.head.dtype) @ self.head.T
        self.torch.add(last.argmax(-1), 0, out=self._token)

    def _graph(self, key: tuple[Any, ...], work: Callable[[], None]) -> Any:
        """Captured once (after a warm-up outside the graph), kept under its key."""
        if key not in self._graphs:
            torch = self.torch
            saved = self.line.clone()
            self.line.clamp_(min=0)
            torch.cuda.synchronize()
            with torch.cuda.stream(self.compute):
                work()
                self.line.clamp_(min=0, max=len(self.tables[0][0]) - 1 if self.tables else 0)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._graph_pool, stream=self.compute):
                work()
            self.line.copy_(saved)
            torch.cuda.synchronize()
            self._graphs[key] = graph
        return self._graphs[key]
