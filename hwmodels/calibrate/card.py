"""Measurements of a card, in the place where an engine pays them: whole layers with and without each part.

`layer now=m copies=c cpu=n` is one layer of a running decode loop: dense part and router, m resident experts, c
demand copies and their experts, n experts on the CPU. What a part costs is the difference to the bare layer, so
that launches, hidden latencies and the host's own work are counted as an engine meets them. Copies alone, by size,
stand beside.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hwmodels.calibrate.pool import event_of
from hwmodels.calibrate.readings import Bench, repeat_ns
from hwmodels.live.card import Card, LiveSizes, copier, require_card
from hwmodels.live.experts import CpuExperts, Weights

EVENTS = 240
SLOTS = 64
COUNTS = (1, 2, 4, 8)
DENSE_FACTOR = 8
BIG_COPY = 1 << 25


class LayerLoop:
    """A card with two kinds of layers: the model's dense part, and one `DENSE_FACTOR` times as large.

    Parameters
    ----------
    sizes
        The model; its first layer counts.
    weights
        Page-locked experts.
    pool
        CPU pool.
    """

    def __init__(self, sizes: LiveSizes, weights: Weights, pool: CpuExperts) -> None:
        expert, dense = sizes.expert_bytes[0], sizes.dense_bytes[0]
        two = replace(sizes, expert_bytes=(expert, expert), dense_bytes=(dense, dense * DENSE_FACTOR))
        self.expert = expert
        self.card = Card(two, SLOTS + 2 * COUNTS[-1])
        self.copy = copier()
        self.weights = weights
        self.base = int(weights.ctypes.data)
        self.stored = weights.nbytes // expert
        self.pool = pool
        drawn = np.random.default_rng(0)
        lines = [[drawn.choice(SLOTS, COUNTS[-1], replace=False) for _ in range(EVENTS)] for _ in range(2)]
        later = np.asarray(lines[1]) % COUNTS[-1] + SLOTS
        self.card.set_tables([np.asarray(lines[0]), later])
        self.places = drawn.integers(0, self.stored, (EVENTS, COUNTS[-1]))

    def bench(self, *, now: int = 0, copies: int = 0, cpu: int = 0, layer: int = 0) -> Bench:
        """One kind of layer; ns a layer."""
        card = self.card
        mixer = card.mixer(layer)
        resident = card.experts(layer, 0, now) if now else None
        landed = card.experts(layer, 1, copies) if copies else None
        join = card.join()
        event: Callable[[], None] | None = None
        if cpu:
            event = event_of(self.pool, self.weights, card.shapes[layer], cpu)
        targets = [card.slot_address(SLOTS + COUNTS[-1] + i) for i in range(copies)]
        plans = [
            [(to, self.base + int(place) * self.expert) for to, place in zip(targets, line, strict=False)]
            for line in self.places
        ]

        def run() -> float:
            torch = card.torch
            known, done = torch.cuda.Event(), torch.cuda.Event()
            stream = card.demand.cuda_stream
            card.rewind()
            with torch.cuda.stream(card.compute):
                start = time.perf_counter_ns()
                for plan in plans:
                    mixer.replay()
                    known.record()
                    known.synchronize()
                    if plan:
                        for to, source in plan:
                            self.copy(to, source, self.expert, stream)
                        done.record(card.demand)
                    if resident is not None:
                        resident.replay()
                    if landed is not None:
                        card.compute.wait_event(done)
                        landed.replay()
                    if event is not None:
                        event()
                        join.replay()
                card.compute.synchronize()
                return (time.perf_counter_ns() - start) / EVENTS

        params = {"now": now, "copies": copies, "cpu": cpu} | ({"dense": DENSE_FACTOR} if layer else {})
        return Bench("layer", params, run)

    def head(self) -> Bench:
        """Head, argmax and the token on the host."""
        card = self.card
        graph = card.finish()

        def once() -> None:
            with card.torch.cuda.stream(card.compute):
                graph.replay()
            card.compute.synchronize()

        return Bench("head", {}, lambda: repeat_ns(once, 50))

    def benches(self) -> list[Bench]:
        """Layers with each part alone and with two at once."""
        return [
            self.bench(),
            self.bench(layer=1),
            *(self.bench(now=n) for n in COUNTS),
            *(self.bench(copies=n) for n in COUNTS),
            *(self.bench(cpu=n) for n in COUNTS),
            self.bench(now=4, copies=4),
            self.bench(now=4, cpu=4),
            self.head(),
        ]


class CopyLoop:
    """Copies alone: isolated (waited for one by one), queued (ns each of many), and the host's part of it.

    Parameters
    ----------
    sources
        Address of host memory by kind (`pinned`, `pageable`, `page_cache`), each of `room` bytes.
    """

    def __init__(self, sources: dict[str, int], room: int) -> None:
        torch = require_card()
        self.sources = sources
        self.room = room
        self.target = torch.empty(room, dtype=torch.uint8, device="cuda")
        self.stream = torch.cuda.Stream()
        self._up = copier()
        self._down: Any = ctypes.CDLL("libcuda.so.1").cuMemcpyDtoHAsync_v2
        self._down.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint64]

    def benches(self, sizes: Sequence[int]) -> list[Bench]:
        """Every size from every source, and down to page-locked memory."""
        kinds = [("h2d", source) for source in self.sources] + [("d2h", "pinned")]
        return [bench for kind, source in kinds for size in sizes for bench in self._benches(kind, source, size)]

    def _benches(self, kind: str, source: str, size: int) -> list[Bench]:
        n = max(4, min(64, self.room // size))
        here, there = self.sources[source], int(self.target.data_ptr())
        places = [i * size % (self.room - size + 1) for i in range(n)]
        up = kind == "h2d"
        pairs = [(there + p, here + p) if up else (here + p, there + p) for p in places]
        copy, handle, wait = self._up if up else self._down, self.stream.cuda_stream, self.stream.synchronize

        def send() -> None:
            for to, start in pairs:
                copy(to, start, size, handle)

        def isolated() -> None:
            copy(*pairs[0], size, handle)
            wait()

        def queued() -> None:
            send()
            wait()

        def submitted() -> float:
            spent = repeat_ns(send, 1) / n
            wait()
            return spent

        params = {"source": source, "bytes": size}
        return [
            Bench(f"{kind} isolated", params, lambda: repeat_ns(isolated, 15)),
            Bench(f"{kind} queued", params, lambda: repeat_ns(queued, 5) / n),
            Bench(f"{kind} submit", params, submitted),
        ]


def ceiling_benches() -> list[Bench]:
    """A large copy within the card (ns a GB read and written) and a large matrix product (ns a TFLOP)."""
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

    return [
        Bench("card copy", {}, lambda: timed(lambda: there.copy_(here), 5) / (2 * here.numel() / 1e9)),
        Bench("card product", {}, lambda: timed(lambda: a @ b, 10) / (2 * n**3 / 1e12)),
    ]


def together_benches(loop: LayerLoop, n: int = 8) -> list[Bench]:
    """CPU events beside a link kept busy, and the link beside a busy pool: ns an event, ns a copy."""
    torch = loop.card.torch
    event = event_of(loop.pool, loop.weights, loop.card.shapes[0], n)
    to = loop.card.address
    size = min(BIG_COPY, SLOTS * loop.expert)
    seen: dict[str, float] = {}

    def run() -> float:
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = loop.card.demand
        copies = 160
        started.record(stream)
        for i in range(copies):
            loop.copy(to, loop.base + i * size % (loop.weights.nbytes - size), size, stream.cuda_stream)
        ended.record(stream)
        spent = []
        while not ended.query():
            start = time.perf_counter_ns()
            event()
            spent.append(time.perf_counter_ns() - start)
        seen["copy"] = started.elapsed_time(ended) * 1e6 / copies
        return float(np.median(spent)) if spent else 0.0

    alone = Bench("h2d queued", {"source": "pinned", "bytes": size, "alone": 1}, lambda: _alone(loop, to, size))
    return [
        alone,
        Bench("cpu beside copies", {"experts": n, "workers": loop.pool.workers}, run),
        Bench("copies beside cpu", {"bytes": size, "workers": loop.pool.workers}, lambda: seen["copy"]),
    ]


def _alone(loop: LayerLoop, to: int, size: int) -> float:
    stream = loop.card.demand
    start = time.perf_counter_ns()
    for i in range(40):
        loop.copy(to, loop.base + i * size % (loop.weights.nbytes - size), size, stream.cuda_stream)
    stream.synchronize()
    return (time.perf_counter_ns() - start) / 40
