"""One cell, in whatever process runs it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from expert_residency.policies import adopt_all
from expert_residency.policies.registry import Adopted
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.runs.time_bound import TimeBound, bounded_case, time_bound
from expert_residency.sim.sweep.cells import Cell
from expert_residency.sim.sweep.rows import MISFIT, Row, failed_row, result_row, room_row
from expert_residency.sim.sweep.stored import View, open_view


@dataclass(frozen=True)
class Outcome:
    """What a worker sends back: the row, and what goes to the side log."""

    row: Row
    seconds: float
    pid: int
    peak_rss_bytes: int
    simulator: str = ""
    """Who simulated it; empty if nobody did."""


def run_cell(cell: Cell, simulator: str = "auto", runs: int = 1, policies: Adopted | None = None) -> Outcome:
    """Simulate `cell`, one of `runs`; an error becomes a row with its reason.

    Parameters
    ----------
    cell
        What to simulate.
    simulator, runs
        As for `simulate`.
    policies
        Classes that the main process adopted, which no package registers here.

    Returns
    -------
    Outcome
        The row, and what goes to the log.
    """
    adopt_all(policies or {})
    began = time.perf_counter()
    ran = ""
    row: Row = {}
    try:
        trace = open_view(cell.view)
        row = room_row(trace, cell.spec)
        if cell.misfit is not None:
            row |= failed_row(cell.misfit, MISFIT)
        else:
            result = simulate(trace, cell.spec, simulator=simulator, runs=runs, cold=cell.view.cold)
            bound = _bound(cell.view, bounded_case(cell.spec))
            bound.check(result, cell.spec.eviction)
            row |= result_row(result, bound.time_ns)
            ran = result.simulator
    except Exception as error:  # whatever a policy may raise
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        row |= failed_row(kind + str(error))
    return Outcome(row, time.perf_counter() - began, os.getpid(), peak_rss_bytes(), ran)


@lru_cache(maxsize=256)
def _bound(view: View, spec: RunSpec) -> TimeBound:
    """Least time of any schedule, found once for all policies that are compared."""
    return time_bound(open_view(view), spec, cold=view.cold)


def peak_rss_bytes() -> int:
    """Peak memory of this process; 0 where the system does not tell."""
    # Not `ru_maxrss`: that begins at the size of the process that started this one.
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def settle(parent: int) -> None:
    """Begin a local worker: Ctrl-C is left to the main process, and when that is gone the worker goes too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
