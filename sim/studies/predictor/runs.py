"""Many runs of one trace, perhaps in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context

from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.timed.result import RunResult
from expert_residency.traces import RoutingTrace


class Runs:
    """Runs of one trace, perhaps in several processes, which stay for all of them."""

    def __init__(
        self, stack: ExitStack, trace: RoutingTrace, total: int, workers: int,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        self.trace, self.total, self.progress = trace, total, progress
        self.done = 0
        self.pool = (
            stack.enter_context(
                ProcessPoolExecutor(workers, get_context("spawn"), initializer=_take, initargs=(trace, total))
            )
            if workers > 1
            else None
        )

    def run(self, specs: Sequence[RunSpec]) -> list[RunResult]:
        """Results in order."""
        if self.pool is not None:
            results: Iterable[RunResult] = self.pool.map(_run, specs)
        else:
            _take(self.trace, self.total)
            results = map(_run, specs)
        found = []
        for result in results:
            found.append(result)
            self.done += 1
            self.progress(self.done, max(self.done, self.total))
        return found


_taken: list[tuple[RoutingTrace, int]] = []


def _take(trace: RoutingTrace, runs: int) -> None:
    """A worker's copy of the trace, and how many runs of it there will be."""
    _taken[:] = [(trace, runs)]


def _run(spec: RunSpec) -> RunResult:
    trace, runs = _taken[0]
    return simulate(trace, spec, runs=runs)


def base_with(base: RunSpec, prefetch: str) -> RunSpec:
    """The same with another prefetcher."""
    return replace(base, prefetch=prefetch)
