"""The live engine on a card.

A pass is, for each layer: launch the mixer, wait until the router's ids are on the host, send the demand copies,
launch the experts that are there, launch those that land behind their copies, compute the CPU's share meanwhile,
add it, send what is copied ahead. The host blocks once a layer, at the router; all else is queued. Python touches
each copy once (an entry in the driver's queue) and nothing else one expert at a time.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hwmodels.live.card import Card, LiveSizes, copier, pinned_weights
from hwmodels.live.experts import CpuExperts
from hwmodels.live.files import ExpertFile
from sim.errors import SimError
from sim.live.measured import Measured
from sim.live.schedule import Schedule, Step
from traces import ModelGeometry

Source = Literal["arena", "mmap"]
_RING = 256


def sizes_of(geometry: ModelGeometry) -> LiveSizes:
    """What the live engine needs to know of a model.

    Raises
    ------
    SimError
        If the hidden size is not known.
    """
    if geometry.hidden_size <= 0:
        raise SimError(f"model {geometry.label} does not say its hidden size, which a live run needs")
    return LiveSizes(
        geometry.hidden_size,
        geometry.experts,
        geometry.top_k,
        geometry.expert_bytes,
        geometry.dense_bytes,
        geometry.head_bytes,
    )


class HostExperts:
    """All experts of a model on the host: page-locked memory, or a mapped file.

    Parameters
    ----------
    geometry
        The model.
    source
        `arena` or `mmap`.
    folder
        Where the file lies (`mmap`).
    most_bytes
        If the model is larger, keys share this much memory in turn; a machine's caches must be far smaller.
    """

    def __init__(
        self, geometry: ModelGeometry, source: Source, folder: Path | None = None, most_bytes: int = 1 << 35
    ) -> None:
        self.source = source
        stride = max(geometry.expert_bytes)
        self.distinct = min(geometry.n_experts, most_bytes // stride)
        self.nbytes = self.distinct * stride
        self.size_of = [size for size in geometry.expert_bytes for _ in range(geometry.experts)]
        self.stride = stride
        self._file: ExpertFile | None = None
        self._memory: Any = None
        if source == "mmap":
            if folder is None:
                raise SimError("a live run over mmap needs a folder for the expert file")
            self._file = ExpertFile(folder / f"experts-{self.nbytes}.bin", self.nbytes)
            self._file.random_access()
        else:
            self._memory = pinned_weights(self.nbytes)

    def prepare(self, *, cold: bool) -> None:
        """State of the page cache before a run; nothing to do in an arena."""
        if self._file is not None:
            if cold:
                self._file.drop()
            else:
                self._file.warm()

    def weights(self) -> Any:
        """All bytes as bfloat16 bits, (elements,) uint16; a mapping is made anew after a `prepare`."""
        return self._memory.numpy().view(np.uint16) if self._file is None else self._file.mapped()

    def offset(self, key: int) -> int:
        """Byte offset of an expert."""
        return key % self.distinct * self.stride

    def close(self) -> None:
        """Give the memory or the file back."""
        if self._file is not None:
            self._file.close()
        self._memory = None


class CardEngine:
    """Carries out schedules on the current card.

    Parameters
    ----------
    geometry
        The model.
    host
        Where its experts are.
    workers
        CPU threads.
    """

    def __init__(self, geometry: ModelGeometry, host: HostExperts, workers: int) -> None:
        self.geometry = geometry
        self.host = host
        self.sizes = sizes_of(geometry)
        self.cpu = CpuExperts(geometry.hidden_size, workers)
        self._copy = copier()
        self._card: Card | None = None

    def reserve(self, slots: int) -> Card:
        """A card with room for at least so many slots."""
        if self._card is None or len(self._card.pool) < slots:
            self._card = None  # the old pool goes before the new one comes
            self._card = Card(self.sizes, slots)
        return self._card

    def load(self, schedule: Schedule) -> None:
        """Make the slots, tables and graphs of a schedule."""
        card = self.reserve(schedule.slots)
        tables = []
        for name in ("now", "later"):
            table = np.zeros((len(schedule.steps), max(1, schedule.widest)), dtype=np.int64)
            for e, step in enumerate(schedule.steps):
                slots = getattr(step, name)
                table[e, : len(slots)] = slots
            tables.append(table)
        card.set_tables(tables)
        self._plan(schedule, card)

    def _plan(self, schedule: Schedule, card: Card) -> None:
        """Everything of a step that can be worked out beforehand."""
        self._schedule = schedule
        self._offsets = [
            np.asarray([self.host.offset(key) // 2 for key in step.cpu], dtype=np.int64) for step in schedule.steps
        ]
        self._launch: list[tuple[Any, Any, Any]] = []
        for step in schedule.steps:
            now = card.experts(step.layer, 0, len(step.now)) if step.now else None
            later = card.experts(step.layer, 1, len(step.later)) if step.later else None
            self._launch.append((card.mixer(step.layer), now, later))
        card.join()
        card.finish()

    def _addresses(self, pairs: tuple[tuple[int, int], ...], base: int) -> list[tuple[int, int, int]]:
        assert self._card is not None
        return [
            (self._card.slot_address(slot), base + self.host.offset(key), self.host.size_of[key])
            for key, slot in pairs
        ]

    def run(self, *, cold: bool = False) -> Measured:
        """One timed run of the loaded schedule, from its start state.

        Raises
        ------
        SimError
            If the driver refuses a copy.
        """
        card, schedule = self._card, self._schedule
        assert card is not None
        torch = card.torch
        self.host.prepare(cold=cold)
        weights = self.host.weights()
        base = int(weights.ctypes.data)
        plans = [
            tuple(self._addresses(pairs, base) for pairs in (s.copies, s.ahead_router, s.ahead_done))
            for s in schedule.steps
        ]
        if self.host.source == "arena":
            for to, source, nbytes in self._addresses(schedule.start, base):
                self._check(self._copy(to, source, nbytes, card.demand.cuda_stream))
        card.rewind()
        self._x = card.x_host.numpy()
        self._out = card.from_cpu.numpy()
        self._known = torch.cuda.Event()
        self._landed = torch.cuda.Event()
        self._done = torch.cuda.Event()
        self._ring = [torch.cuda.Event() for _ in range(_RING)]
        self._batch = -1
        measured = Measured.empty(len(schedule.pass_steps) - 1)
        began = [torch.cuda.Event(enable_timing=True) for _ in measured.pass_ns]
        ended = [torch.cuda.Event(enable_timing=True) for _ in measured.pass_ns]
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.stream(card.compute):
                for number in range(len(measured.pass_ns)):
                    start = time.perf_counter_ns()
                    began[number].record()
                    for e in range(schedule.pass_steps[number], schedule.pass_steps[number + 1]):
                        self._event(e, schedule.steps[e], plans[e], weights, measured, number)
                    card.finish().replay()
                    ended[number].record()
                    ended[number].synchronize()
                    measured.pass_ns[number] = time.perf_counter_ns() - start
        finally:
            if collecting:
                gc.enable()
        torch.cuda.synchronize()
        measured.card_ns[:] = [round(a.elapsed_time(b) * 1e6) for a, b in zip(began, ended, strict=True)]
        return measured

    def _event(
        self, e: int, step: Step, plan: tuple[Any, ...], weights: Any, measured: Measured, number: int
    ) -> None:
        card = self._card
        assert card is not None
        mixer, now, later = self._launch[e]
        copies, ahead_router, ahead_done = plan
        start = time.perf_counter_ns()
        mixer.replay()
        self._known.record()
        self._known.synchronize()
        measured.known_ns[number] += time.perf_counter_ns() - start
        compute = card.compute
        if copies:
            if step.after >= 0:
                card.demand.wait_event(self._ring[step.after % _RING])
            stream = card.demand.cuda_stream
            copy = self._copy
            for to, source, nbytes in copies:
                if copy(to, source, nbytes, stream):
                    self._check(1)
            self._landed.record(card.demand)
        if ahead_router:
            self._send_ahead(ahead_router)
        if now is not None:
            if step.needs >= 0 and later is None:
                compute.wait_event(self._ring[step.needs % _RING])
            now.replay()
        if later is not None:
            compute.wait_event(self._landed)
            if step.needs >= 0:
                compute.wait_event(self._ring[step.needs % _RING])
            later.replay()
        if step.cpu:
            start = time.perf_counter_ns()
            width = card.shapes[step.layer].width
            self.cpu(weights, self._offsets[e], width, self._x, self._out)
            measured.cpu_ns[number] += time.perf_counter_ns() - start
            card.join().replay()
        if ahead_done:
            self._done.record()  # members of this event may be the victims
            card.ahead.wait_event(self._done)
            self._send_ahead(ahead_done)

    def _send_ahead(self, copies: list[tuple[int, int, int]]) -> None:
        card = self._card
        assert card is not None
        stream = card.ahead.cuda_stream
        for to, source, nbytes in copies:
            if self._copy(to, source, nbytes, stream):
                self._check(1)
        self._batch += 1
        self._ring[self._batch % _RING].record(card.ahead)

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise SimError(f"the driver refused a copy (error {code})")
