"""The live engine on a card.

A pass is, for each layer: launch the mixer, wait until the router's ids are on the host, send the demand copies,
launch the experts that are there, launch those that land behind their copies, compute the CPU's share meanwhile,
add it, send what is copied ahead. The host blocks once a layer, at the router; all else is queued. Whether experts
that were copied ahead are there is the one thing asked at that moment: the decisions are all taken beforehand.
One stream computes, one copies, in the order asked for: two copying streams would share the link anyhow (measured
on an H200), and nobody could say in which proportion.

Over a cold file an expert that is wanted for the first time is read into the page cache first.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.executor.card import Card, LiveSizes, most_pairs, pinned_weights, tables_of
from expert_residency.hwmodels.executor.copies import Batch, Copier, prepare
from expert_residency.hwmodels.executor.experts import CpuExperts
from expert_residency.hwmodels.executor.files import ExpertFile
from expert_residency.hwmodels.executor.marks import Marks
from expert_residency.hwmodels.executor.steps import Copies, Measured, Program, Step

Source = Literal["arena", "mmap"]
State = Literal["cold", "warm"]
KNOWN, LANDED, DONE, FIRST = range(4)
"""Marks: router's ids on the host, demands landed, event done; then one for each batch copied ahead."""


class HostExperts:
    """All experts of a model on the host: page-locked memory, or a mapped file.

    Parameters
    ----------
    sizes
        The model.
    source
        `arena` or `mmap`.
    folder
        Where the file lies (`mmap`).
    most_bytes
        If the model is larger, keys share this much memory in turn; a machine's caches must be far smaller.
    """

    def __init__(
        self, sizes: LiveSizes, source: Source, folder: Path | None = None, most_bytes: int = 1 << 35
    ) -> None:
        self.source = source
        stride = max(sizes.expert_bytes)
        self.distinct = min(sizes.experts * len(sizes.expert_bytes), most_bytes // stride)
        self.nbytes = self.distinct * stride
        self.size_of = [size for size in sizes.expert_bytes for _ in range(sizes.experts)]
        self.stride = stride
        self._scratch = np.zeros(stride, dtype=np.uint8)
        self._file: ExpertFile | None = None
        self._memory: Any = None
        if source == "mmap":
            if folder is None:
                raise HardwareError("a live run over mmap needs a folder for the expert file")
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
                if self._file.resident_share() < 1:
                    self._file.warm()
                self._file.mapped(populate=True)  # or the first use of a page after a cold run would take longer

    def weights(self) -> Any:
        """All bytes as bfloat16 bits, (elements,) uint16; a mapping is made anew after a `prepare`."""
        return self._memory.numpy().view(np.uint16) if self._file is None else self._file.mapped()

    def offset(self, key: int) -> int:
        """Byte offset of an expert."""
        return key % self.distinct * self.stride

    def read(self, key: int) -> None:
        """Bring an expert of a file into the page cache."""
        assert self._file is not None
        self._file.read(self.offset(key), self._scratch[: self.size_of[key]])

    def close(self) -> None:
        """Give the memory or the file back."""
        if self._file is not None:
            self._file.close()
        self._memory = None


class CardEngine:
    """Carries out programs on the current card.

    Parameters
    ----------
    sizes
        The model.
    host
        Where its experts are.
    workers
        CPU threads.
    """

    def __init__(self, sizes: LiveSizes, host: HostExperts, workers: int) -> None:
        self.sizes = sizes
        self.cpu = CpuExperts(sizes.hidden, workers, sizes.form)
        self._card: Card | None = None
        self._marks = Marks()
        self.use(host)

    def use(self, host: HostExperts) -> None:
        """Take experts from there in programs loaded from now on."""
        self.host = host
        self.copier = Copier(batched=host.source == "arena")
        self._queued = host.source == "arena"
        """Whether sending copies only queues them: out of memory that is not page-locked it waits for them."""

    def reserve(self, slots: int) -> Card:
        """A card with room for at least so many slots."""
        if self._card is None or len(self._card.pool) < slots:
            self._card = None  # the old pool goes before the new one comes
            self._card = Card(self.sizes, slots)
        return self._card

    def load(self, program: Program) -> None:
        """Make the slots, tables and graphs of a program, and work out all that can be worked out beforehand."""
        card = self.reserve(program.slots)
        steps = program.steps
        most = most_pairs(self.sizes)
        rows = list(zip(*map(_rows, steps), strict=True))
        made = [
            tables_of(
                [[(slot, step.wanting(slot)) for slot in slots] for step, slots in zip(steps, of, strict=True)],
                most,
            )
            for of in rows
        ]
        card.set_tables([(tiles, pairs) for tiles, pairs, _ in made])
        ends = list(zip(*(found for _, _, found in made), strict=True))
        if program.cells:
            card.set_cells(np.repeat(program.cells, np.diff(program.pass_steps)).tolist())
        attends = bool(program.cells)
        self._program = program
        self._offsets = [
            np.asarray([self.host.offset(key) // 2 for key in step.cpu], dtype=np.int64) for step in program.steps
        ]
        self._launch = [
            (card.mixer(step.layer, attends=attends), *self._launches(card, step, end))
            for step, end in zip(steps, ends, strict=True)
        ]
        self._join, self._finish = card.join(), card.finish()

    @staticmethod
    def _launches(
        card: Card, step: Step, ends: tuple[list[int], list[int]]
    ) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Residents and those that land, while what was copied ahead is under way, and when it is there."""

        def groups(now: int, later: int) -> tuple[Any, Any]:
            first = card.experts(step.layer, 0, ends[0][now]) if now else None
            return first, card.experts(step.layer, 1, ends[1][later]) if later else None

        now, later = map(len, _rows(step))
        there = groups(now, later - step.pending)
        waiting = groups(now - step.pending, later) if step.pending else there
        return waiting, there

    def _batch(self, pairs: Copies, base: int) -> Batch | None:
        card = self._card
        assert card is not None
        if not pairs:
            return None
        return prepare(
            [
                (card.slot_address(slot), base + self.host.offset(key), self.host.size_of[key])
                for key, slot in pairs
            ]
        )

    def run(self, state: State = "warm") -> Measured:
        """One timed run of the loaded program, from its start state.

        Raises
        ------
        HardwareError
            If the driver refuses a copy.
        """
        card, program = self._card, self._program
        assert card is not None
        torch = card.torch
        cold = self.host.source == "mmap" and state == "cold"
        self.host.prepare(cold=cold)
        self._fresh = program.first_uses() if cold else [()] * len(program.steps)
        weights = self.host.weights()
        base = int(weights.ctypes.data)
        plans = [
            tuple(self._batch(pairs, base) for pairs in (s.copies, s.ahead_router, s.ahead_done))
            for s in program.steps
        ]
        start = self._batch(program.start, base)
        if start is not None and not cold:
            self.copier.send(start, card.copying.cuda_stream)
        card.rewind()
        self._x, self._out = card.x_host.numpy(), card.from_cpu.numpy()
        self._marks.reserve(FIRST + sum((plan[1] is not None) + (plan[2] is not None) for plan in plans))
        self._sent = FIRST - 1
        measured = Measured.empty(len(program.pass_steps) - 1)
        began = [torch.cuda.Event(enable_timing=True) for _ in measured.pass_ns]
        ended = [torch.cuda.Event(enable_timing=True) for _ in measured.pass_ns]
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.stream(card.compute):
                for number in range(len(measured.pass_ns)):
                    before = time.perf_counter_ns()
                    began[number].record()
                    for e in range(program.pass_steps[number], program.pass_steps[number + 1]):
                        self._event(e, program.steps[e], plans[e], weights, measured, number)
                    self._finish.replay()
                    ended[number].record()
                    ended[number].synchronize()
                    measured.pass_ns[number] = time.perf_counter_ns() - before
        finally:
            if collecting:
                gc.enable()
        torch.cuda.synchronize()
        measured.card_ns[:] = [round(a.elapsed_time(b) * 1e6) for a, b in zip(began, ended, strict=True)]
        return measured

    def _event(
        self, e: int, step: Step, plan: tuple[Batch | None, ...], weights: Any, measured: Measured, number: int
    ) -> None:
        card = self._card
        assert card is not None
        mixer, waiting, there = self._launch[e]
        copies, ahead_router, ahead_done = plan
        marks, copier = self._marks, self.copier
        compute, copying = card.compute.cuda_stream, card.copying.cuda_stream
        before = time.perf_counter_ns()
        mixer.replay()
        marks.set(KNOWN, compute)
        marks.block(KNOWN)
        measured.known_ns[number] += time.perf_counter_ns() - before
        pending = step.pending > 0 and not marks.reached(FIRST + step.needs)
        now, later = waiting if pending else there
        if now is not None and not self._queued:
            now.replay()
        if self._fresh[e]:
            before = time.perf_counter_ns()
            for key in self._fresh[e]:
                self.host.read(key)
            measured.wait_ns[number] += time.perf_counter_ns() - before
        if copies is not None:
            copier.send(copies, copying)
            marks.set(LANDED, copying)
        if ahead_router is not None:
            self._send_ahead(ahead_router, copying)
        before = time.perf_counter_ns()
        if now is not None and self._queued:
            now.replay()
        if later is not None:  # what was copied ahead went out before, on the same stream
            marks.hold(compute, LANDED if copies is not None else FIRST + step.needs)
            later.replay()
        measured.start_ns[number] += time.perf_counter_ns() - before
        if step.cpu:
            before = time.perf_counter_ns()
            self.cpu(weights, self._offsets[e], card.shapes[step.layer].width, self._x, self._out)
            measured.cpu_ns[number] += time.perf_counter_ns() - before
            self._join.replay()
        if ahead_done is not None:
            before = time.perf_counter_ns()
            marks.set(DONE, compute)  # members of this event may be the victims
            marks.hold(copying, DONE)
            self._send_ahead(ahead_done, copying)
            measured.sent_ns[number] += time.perf_counter_ns() - before

    def _send_ahead(self, batch: Batch, copying: int) -> None:
        self.copier.send(batch, copying)
        self._sent += 1
        self._marks.set(self._sent, copying)


def _rows(step: Step) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Slots in the two tables of an event: residents or demands, then in both those that were copied ahead."""
    if step.copies:
        ahead = step.later[: step.pending]
        return step.now + ahead, step.later[step.pending :] + ahead
    return step.now, step.now[len(step.now) - step.pending :]
