"""Where cells run: in this process, on the local cores (joblib's loky), or on a Dask cluster.

All are executors of `concurrent.futures`. A worker that dies (killed, out of memory) takes down the local pool;
the cells that were in its hands are then run again one at a time, and one that kills its worker alone too is
recorded as failed.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from expert_residency.errors import SimError
from expert_residency.policies import adopted
from expert_residency.sim.sweep.cells import Cell
from expert_residency.sim.sweep.rows import failed_row
from expert_residency.sim.sweep.worker import Outcome, run_cell, settle

CONNECT = "20s"
"""How long a Dask scheduler may take to answer."""
DIED = "its worker process died (killed, or out of memory)"


@dataclass(frozen=True)
class Pool:
    """An executor, how many cells to keep in its hands, and the error that says that a worker died for good."""

    executor: Executor
    window: int
    lost: tuple[type[BaseException], ...] = ()


MakePool = Callable[[int | None], AbstractContextManager[Pool]]
"""Makes a pool; with a number, one of that many workers whatever was asked for."""


class Here(Executor):
    """Runs each cell at once in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run, and return a future that is done."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def local(workers: int) -> MakePool:
    """One worker is this process; more are loky processes."""

    @contextmanager
    def make(number: int | None) -> Iterator[Pool]:
        if workers == 1:
            yield Pool(Here(), 1)
            return
        from joblib.externals.loky import ProcessPoolExecutor

        count = number or workers
        executor = ProcessPoolExecutor(count, initializer=settle, initargs=(os.getpid(),))
        try:
            yield Pool(executor, 1 if number else 2 * count)
        finally:
            with _silent_threads():
                executor.shutdown(kill_workers=True)

    return make


@contextmanager
def _silent_threads() -> Iterator[None]:
    """Loky's own thread stumbles over work that was handed over a moment before it is killed (KeyError)."""
    usual = threading.excepthook
    threading.excepthook = lambda _: None
    try:
        yield
    finally:
        threading.excepthook = usual


def dask(address: str) -> MakePool:
    """A running Dask cluster; its workers must see the sweep's folder under the same path."""

    @contextmanager
    def make(number: int | None) -> Iterator[Pool]:
        try:
            from distributed import Client, KilledWorker
        except ImportError:
            raise SimError("--scheduler needs Dask: pip install 'expert-residency[cluster]'") from None
        try:
            client: Any = Client(address, timeout=CONNECT)  # type: ignore[no-untyped-call]
        except (OSError, ValueError) as error:
            raise SimError(f"no Dask scheduler at {address} ({error})") from None
        with client:
            threads = sum(client.nthreads().values())
            if not threads:
                raise SimError(f"the Dask scheduler at {address} has no workers")
            yield Pool(client.get_executor(pure=False), 2 * threads, (KilledWorker,))

    return make


def run_all(
    cells: list[Cell], make: MakePool, collect: Callable[[Cell, Outcome], None], simulator: str = "auto"
) -> None:
    """Run every cell and hand each outcome to `collect` as it comes."""
    queue = deque(cells)
    run = partial(run_cell, simulator=simulator, runs=len(cells), policies=adopted())
    while queue:
        with make(None) as pool:
            suspects = _drain(queue, pool, run, collect)
        for cell in suspects:
            with make(1) as pool:
                if _drain(deque([cell]), pool, run, collect):
                    collect(cell, _dead())


def _drain(
    queue: deque[Cell], pool: Pool, run: Callable[[Cell], Outcome], collect: Callable[[Cell, Outcome], None]
) -> list[Cell]:
    """Run the queue until it is empty or the pool breaks; returns the cells that were then in its hands."""
    pending: dict[Future[Outcome], Cell] = {}
    suspects: list[Cell] = []
    while (queue and not suspects) or pending:
        while queue and not suspects and len(pending) < pool.window:
            cell = queue.popleft()
            try:
                pending[pool.executor.submit(run, cell)] = cell
            except BrokenExecutor:
                suspects.append(cell)
        done, _ = wait(pending, return_when=FIRST_COMPLETED)
        for future in done:
            cell = pending.pop(future)
            try:
                outcome = future.result()
            except BrokenExecutor:
                suspects.append(cell)
                continue
            except pool.lost:
                outcome = _dead()
            collect(cell, outcome)
    return sorted(suspects, key=lambda cell: cell.number)


def _dead() -> Outcome:
    return Outcome(failed_row(DIED), 0.0, 0, 0)
