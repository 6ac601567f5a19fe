"""The card's side of an expert engine: slots, dense parts and experts as CUDA graphs.

A layer is two or three graph launches: *mixer* (norm, dense matrix, router, the ids and the row to the host),
*experts* (gather m slots, three batched products, weighted sum) and, if the CPU computed some, *join* (its rows
up and added). Which slots an experts graph reads stands in a table on the card, one line an event, and a counter
on the card says which line. Ids and rows cross the bus by kernels that read and write page-locked memory, not by
copies, which would stand behind experts in the card's copy engines.

The dense matrix has the bytes of the model's dense part; it stands in for attention and norms, and there is no KV
cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.executor.experts import ExpertShape, random_weights


@dataclass(frozen=True)
class LiveSizes:
    """What the card must hold: bytes of each MoE layer's expert and dense part, of the head; widths and counts."""

    hidden: int
    experts: int
    top_k: int
    expert_bytes: tuple[int, ...]
    dense_bytes: tuple[int, ...]
    head_bytes: int

    def shapes(self) -> list[ExpertShape]:
        """Expert shape of each layer."""
        return [ExpertShape.of(nbytes, self.hidden) for nbytes in self.expert_bytes]


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


class Card:
    """Buffers and graphs of one model on the current card.

    Parameters
    ----------
    sizes
        The model.
    slots
        Whole experts (of the largest size) in the pool, staging included.
    rows
        Rows of a pass.
    """

    def __init__(self, sizes: LiveSizes, slots: int, rows: int = 1) -> None:
        torch = require_card()
        self.torch = torch
        self.sizes = sizes
        self.shapes = sizes.shapes()
        self.stride = max(sizes.expert_bytes)
        self.rows = rows
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
        self.x = torch.randn((rows, sizes.hidden), device=self.device).to(bf16)
        self.mix = torch.full((sizes.experts, 1, 1), 1.0 / sizes.top_k, device=self.device, dtype=bf16)
        self.line = torch.zeros(1, dtype=torch.int64, device=self.device)
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
        self.tables: list[Any] = []
        self.compute = torch.cuda.Stream()
        self.copying = torch.cuda.Stream()
        self._graph_pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[tuple[Any, ...], Any] = {}
        torch.cuda.synchronize()

    def slot_address(self, slot: int) -> int:
        """Where a slot begins in the card's memory."""
        return self.address + slot * self.stride

    def set_tables(self, tables: Sequence[npt.NDArray[np.int64]]) -> None:
        """Slots to read, one line an event: one table for residents, one for what lands.

        Graphs hold the addresses of the tables on the card: tables as long as the last ones are written over them,
        others are made anew and the graphs that read them dropped.
        """
        wide = [np.zeros((len(t), self.sizes.experts), dtype=np.int64) for t in tables]
        for new, given in zip(wide, tables, strict=True):
            new[:, : given.shape[1]] = given
        sources = [self.torch.from_numpy(new) for new in wide]
        if [t.shape for t in self.tables] == [t.shape for t in sources]:
            for old, source in zip(self.tables, sources, strict=True):
                old.copy_(source)
        else:
            self.tables = [source.to(self.device) for source in sources]
            self._graphs = {k: g for k, g in self._graphs.items() if k[0] != "experts"}
        self.rewind()

    def rewind(self) -> None:
        """Back to the first event."""
        self.line.fill_(-1)
        self.x.normal_()
        self.torch.cuda.synchronize()

    # ---- graphs ------------------------------------------------------------------------------

    def mixer(self, layer: int) -> Any:
        """Graph of a layer's dense part and router; counts the event."""
        return self._graph(("mixer", layer), lambda: self._mixer(layer))

    def experts(self, layer: int, table: int, n: int) -> Any:
        """Graph of the first `n` slots of the event's line in a table.

        Parameters
        ----------
        layer
            MoE layer, from 0.
        table
            Number of the table of slots.
        n
            Slots of the line.

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

    def _mixer(self, layer: int) -> None:
        torch = self.torch
        self.line.add_(1)
        normed = torch.nn.functional.rms_norm(self.x, (self.sizes.hidden,))
        out = normed @ self.dense[layer].T
        chosen = out[:, : self.sizes.experts].float().topk(self.sizes.top_k).indices
        torch.add(chosen, 0, out=self._ids)  # a kernel; copy_ would be a copy
        self._x_host.copy_(normed)  # widens, and so is a kernel

    def _experts(self, shape: ExpertShape, table: int, n: int) -> None:
        torch = self.torch
        hidden, width = shape.hidden, shape.width
        slots = self.tables[table].index_select(0, self.line)[0, :n]
        blobs = self.pool[:, : shape.nbytes].view(torch.bfloat16).index_select(0, slots)
        gate_up = blobs[:, : 2 * width * hidden].view(n, 2 * width, hidden)
        down = blobs[:, 2 * width * hidden : 3 * width * hidden].view(n, hidden, width)
        normed = torch.nn.functional.rms_norm(self.x, (hidden,)).expand(n, self.rows, hidden)
        both = torch.bmm(normed, gate_up.transpose(1, 2))
        inner = torch.nn.functional.silu(both[..., :width]) * both[..., width:]
        self.x.add_((torch.bmm(inner, down.transpose(1, 2)) * self.mix[:n]).sum(0))

    def _join(self) -> None:
        self.x.add_(self._from_cpu)

    def _finish(self) -> None:
        last = self.x if self.head is None else self.x @ self.head.T
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
                self.line.clamp_(min=0, max=len(self.tables[0]) - 1 if self.tables else 0)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._graph_pool, stream=self.compute):
                work()
            self.line.copy_(saved)
            torch.cuda.synchronize()
            self._graphs[key] = graph
        return self._graphs[key]

    @contextmanager
    def on_stream(self) -> Any:
        """Launches of the block go to the compute stream."""
        with self.torch.cuda.stream(self.compute):
            yield
