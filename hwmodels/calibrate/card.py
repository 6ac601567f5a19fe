"""Measurements of a card alone: copies by size and kind of memory, its ceilings, and the link beside the pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from expert_residency.hwmodels.calibrate.pool import event_of
from expert_residency.hwmodels.calibrate.readings import Bench, repeat_ns
from expert_residency.hwmodels.executor.card import require_card
from expert_residency.hwmodels.executor.copies import entry_point
from expert_residency.hwmodels.executor.experts import CpuExperts, ExpertShape, Weights

BIG_COPY = 1 << 25


class CopyLoop:
    """Copies alone: isolated (waited for one by one), queued (ns each of many), and the host's part of it.

    Parameters
    ----------
    sources
        Address of host memory by kind (`pinned`, `pageable`, `page_cache`).
    room
        Bytes of each.
    """

    def __init__(self, sources: dict[str, int], room: int) -> None:
        torch = require_card()
        self.sources = sources
        self.room = room
        self.target = torch.empty(room, dtype=torch.uint8, device="cuda")
        self.stream = torch.cuda.Stream()
        self._up = entry_point("cuMemcpyHtoDAsync_v2", "ppsp")
        self._down = entry_point("cuMemcpyDtoHAsync_v2", "ppsp")

    def benches(self, sizes: Sequence[int]) -> list[Bench]:
        """Every size from every source, and down to page-locked memory."""
        kinds = [("h2d", source) for source in self.sources] + [("d2h", "pinned")]
        return [bench for kind, source in kinds for size in sizes for bench in self._benches(kind, source, size)]

    def _benches(self, kind: str, source: str, size: int) -> list[Bench]:
        n = max(4, min(64, (1 << 28) // size, self.room // size))
        here, there = self.sources[source], int(self.target.data_ptr())
        drawn = np.random.default_rng(size)
        up = kind == "h2d"
        copy, handle, wait = self._up if up else self._down, self.stream.cuda_stream, self.stream.synchronize

        def pairs(count: int) -> list[tuple[int, int]]:
            """Other places at each call, or the processor's caches would be measured."""
            places = (drawn.integers(0, self.room // size, count) * size).tolist()
            return [(there + p, here + p) if up else (here + p, there + p) for p in places]

        def timed(count: int) -> tuple[float, float]:
            """Time until all are sent, and until all have landed; ns."""
            chosen = pairs(count)
            start = time.perf_counter_ns()
            for to, source in chosen:
                copy(to, source, size, handle)
            sent = time.perf_counter_ns() - start
            wait()
            return sent, time.perf_counter_ns() - start

        def middle(count: int, which: int, times: int) -> float:
            return float(np.median([timed(count)[which] for _ in range(times)])) / count

        params = {"source": source, "bytes": size}
        return [
            Bench(f"{kind} isolated", params, lambda: middle(1, 1, 15)),
            Bench(f"{kind} queued", params, lambda: middle(n, 1, 5)),
            Bench(f"{kind} submit", params, lambda: middle(n, 0, 3)),
        ]


def ceiling_benches() -> list[Bench]:
    """A large dense part (ns a GB), copy within the card (ns a GB read and written) and product (ns a TFLOP)."""
    torch = require_card()
    n = 4096
    a, b = (torch.randn((n, n), device="cuda").to(torch.bfloat16) for _ in range(2))
    here = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    there = torch.empty_like(here)

    def timed(work: Callable[[], object], times: int) -> float:
        def together() -> None:
            for _ in range(times):
                work()
            torch.cuda.synchronize()

        together()
        return repeat_ns(together, 3) / times

    matrix = torch.randn((1 << 15, n), device="cuda").to(torch.bfloat16)
    row = torch.randn((1, n), device="cuda").to(torch.bfloat16)
    dense = 2 * matrix.numel() / 1e9
    return [
        Bench("card dense", {}, lambda: timed(lambda: row @ matrix.T, 10) / dense),
        Bench("card copy", {}, lambda: timed(lambda: there.copy_(here), 5) / (2 * here.numel() / 1e9)),
        Bench("card product", {}, lambda: timed(lambda: a @ b, 10) / (2 * n**3 / 1e12)),
    ]


def together_benches(
    pool: CpuExperts, shape: ExpertShape, weights: Weights, n: int, copies: int = 160
) -> list[Bench]:
    """CPU events beside a link kept busy, and the link beside a busy pool: ns an event, ns a copy.

    Parameters
    ----------
    pool
        The CPU pool.
    shape
        Of an expert.
    weights
        Page-locked memory that both read.
    n
        Experts of a CPU event.
    copies
        Copies of `BIG_COPY` bytes in a round.

    Returns
    -------
    list[Bench]
        Three benches: the link alone, the pool beside it, the link beside the pool.
    """
    torch = require_card()
    event = event_of(pool, weights, shape, n)
    target = torch.empty(BIG_COPY, dtype=torch.uint8, device="cuda")
    up = entry_point("cuMemcpyHtoDAsync_v2", "ppsp")
    stream = torch.cuda.Stream()
    seen: dict[str, float] = {}
    base, room = int(weights.ctypes.data), weights.nbytes - BIG_COPY

    def send(count: int) -> None:
        for i in range(count):
            up(target.data_ptr(), base + i * BIG_COPY % room, BIG_COPY, stream.cuda_stream)

    def alone() -> float:
        start = time.perf_counter_ns()
        send(40)
        stream.synchronize()
        return (time.perf_counter_ns() - start) / 40

    def together() -> float:
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record(stream)
        send(copies)
        ended.record(stream)
        spent = []
        while not ended.query():
            start = time.perf_counter_ns()
            event()
            spent.append(time.perf_counter_ns() - start)
        seen["copy"] = started.elapsed_time(ended) * 1e6 / copies
        return float(np.median(spent)) if spent else 0.0

    params = {"experts": n, "workers": pool.workers}
    return [
        Bench("h2d queued", {"source": "pinned", "bytes": BIG_COPY, "alone": 1}, alone),
        Bench("cpu beside copies", params, together),
        Bench("copies beside cpu", {"bytes": BIG_COPY, "workers": pool.workers}, lambda: seen["copy"]),
    ]
