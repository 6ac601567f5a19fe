"""The live engine without a card: a cache in RAM over an expert file, experts computed by the CPU.

It stands to a card as RAM does to VRAM: slots are memory of this process, a demand copy is a read of the file
through the page cache (so it may come from the disk), and the compute that a card would do is done by the CPU
pool while one reading thread works. Reads go out in the order asked for. The same programs.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.executor.card import LiveSizes
from expert_residency.hwmodels.executor.experts import CpuExperts, random_weights
from expert_residency.hwmodels.executor.files import ExpertFile
from expert_residency.hwmodels.executor.reader import Jobs, Reader
from expert_residency.hwmodels.executor.steps import Copies, Measured, Program, Step

State = Literal["cold", "warm"]
Floats = npt.NDArray[np.float32]
Offsets = npt.NDArray[np.int64]


class CardlessEngine:
    """Carries out programs on the CPU.

    Parameters
    ----------
    sizes
        The model.
    folder
        Where the expert file lies.
    workers
        CPU threads that compute; the reading thread comes on top.
    """

    def __init__(self, sizes: LiveSizes, folder: Path, workers: int) -> None:
        self.sizes = sizes
        self.shapes = sizes.shapes()
        self.stride = max(sizes.expert_bytes)
        experts = sizes.experts * len(sizes.expert_bytes)
        self.file = ExpertFile(folder / f"experts-{self.stride * experts}.bin", self.stride * experts)
        self.file.random_access()
        self.size_of = [size for size in sizes.expert_bytes for _ in range(sizes.experts)]
        self.cpu = CpuExperts(sizes.hidden, workers, sizes.form)
        rows = [n // 2 // sizes.hidden for n in (*sizes.dense_bytes, sizes.head_bytes)]
        starts = np.concatenate([[0], np.cumsum(rows)]) * sizes.hidden
        self.dense = random_weights(2 * max(int(starts[-1]), 1))
        self._dense = list(zip(starts[:-1].tolist(), rows, strict=True))
        self._out = np.zeros(max(max(rows), sizes.experts), dtype=np.float32)
        self._pool = np.zeros(0, dtype=np.uint16)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def load(self, program: Program) -> None:
        """Make the slots of a program."""
        if any(step.cpu for step in program.steps):
            raise HardwareError("without a card there is only the CPU: miss mode fetch or stream is needed")
        size = program.slots * self.stride // 2
        if len(self._pool) < size:
            self._pool = np.zeros(size, dtype=np.uint16)
            self._pool[:: 4096 // 2] = 1  # touched, so that no page is made in the timed loop
        self._program = program
        self._there = [self._groups(step, landed=True) for step in program.steps]
        self._waiting = [self._groups(step, landed=False) if step.pending else None for step in program.steps]

    def _groups(self, step: Step, *, landed: bool) -> tuple[Offsets, Offsets]:
        """Where the slots begin that are computed at once, and those after waiting for what was read ahead."""
        now, later, pending = step.now, step.later, step.pending
        if pending and step.copies and landed:
            now, later = now + later[:pending], later[pending:]
        elif pending and not step.copies and not landed:
            now, later = now[:-pending], now[-pending:]
        first, second = (np.asarray(slots, dtype=np.int64) * (self.stride // 2) for slots in (now, later))
        return first, second

    def slot(self, number: int) -> npt.NDArray[np.uint16]:
        """What lies in a slot."""
        elements = self.stride // 2
        return self._pool[number * elements : (number + 1) * elements]

    def _jobs(self, pairs: Copies) -> Jobs:
        """Where in the file each expert begins, the memory it goes to, and its bytes."""
        base = int(self._pool.ctypes.data)
        jobs = [(key * self.stride, base + slot * self.stride, self.size_of[key]) for key, slot in pairs]
        return np.array(jobs, dtype=np.int64).reshape(-1, 3)

    def run(self, state: State = "warm") -> Measured:
        """One timed run of the loaded program from its start state, the page cache warm or cold."""
        program = self._program
        for key, slot in program.start:
            self.file.read(key * self.stride, self.slot(slot)[: self.size_of[key] // 2].view(np.uint8))
        if state == "cold":
            self.file.drop()
        elif self.file.resident_share() < 1:
            self.file.warm()
        in_order = [pairs for step in program.steps for pairs in (step.copies, step.ahead_router, step.ahead_done)]
        measured = Measured.empty(len(program.pass_steps) - 1)
        reader = Reader(self.file, self._jobs(tuple(pair for pairs in in_order for pair in pairs)))
        hidden = self.sizes.hidden
        x = np.random.default_rng(0).standard_normal((1, hidden)).astype(np.float32)
        out = np.zeros((1, hidden), dtype=np.float32)
        batches: list[int] = []
        collecting = gc.isenabled()
        gc.disable()
        try:
            for number in range(len(measured.pass_ns)):
                start = time.perf_counter_ns()
                for e in range(program.pass_steps[number], program.pass_steps[number + 1]):
                    self._event(e, reader, batches, x, out, measured, number)
                offset, rows = self._dense[-1]
                if rows:
                    self.cpu.matvec(self.dense, offset, rows, x, self._out)
                measured.pass_ns[number] = time.perf_counter_ns() - start
        finally:
            reader.close()
            if collecting:
                gc.enable()
        return measured

    def _event(
        self, e: int, reader: Reader, batches: list[int], x: Floats, out: Floats, measured: Measured, number: int
    ) -> None:
        step = self._program.steps[e]
        start = time.perf_counter_ns()
        offset, rows = self._dense[step.layer]
        self.cpu.matvec(self.dense, offset, rows, x, self._out)
        np.argpartition(self._out[: self.sizes.experts], -self.sizes.top_k)
        measured.known_ns[number] += time.perf_counter_ns() - start
        last = reader.ask(len(step.copies))
        if step.ahead_router:
            batches.append(reader.ask(len(step.ahead_router)))
        width = self.shapes[step.layer].width
        needs = batches[step.needs] if step.pending else 0
        waiting = self._waiting[e]
        now, later = self._there[e] if waiting is None or reader.landed(needs) else waiting
        if len(now):
            self.cpu(self._pool, now, width, x, out)
        if len(later):
            self._wait(reader, last if step.copies else needs, measured, number)
            self.cpu(self._pool, later, width, x, out)
        if step.ahead_done:
            batches.append(reader.ask(len(step.ahead_done)))

    @staticmethod
    def _wait(reader: Reader, upto: int, measured: Measured, number: int) -> None:
        start = time.perf_counter_ns()
        reader.wait(upto)
        measured.wait_ns[number] += time.perf_counter_ns() - start
