"""Measurements of the CPU pool: events of some experts by number of workers and by the memory they lie in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from expert_residency.hwmodels.calibrate.readings import Bench, repeat_ns
from expert_residency.hwmodels.executor.experts import CpuExperts, ExpertShape, Weights

COUNTS = (1, 4, 8)
TIMES = 15


def worker_counts(most: int) -> list[int]:
    """1, 2, 4, ... and all."""
    found = [1]
    while found[-1] * 2 < most:
        found.append(found[-1] * 2)
    return [*found, most] if most > 1 else found


def event_of(pool: CpuExperts, weights: Weights, shape: ExpertShape, n: int, seed: int = 0) -> Callable[[], None]:
    """A function that computes one event of `n` distinct experts, others at each call.

    Parameters
    ----------
    pool
        The CPU pool.
    weights
        (elements,) where the experts lie.
    shape
        Of an expert.
    n
        Experts of the event.
    seed
        Of the draws.

    Returns
    -------
    Callable[[], None]
        The function.
    """
    elements = shape.nbytes // 2
    stored = len(weights) // elements
    drawn = np.random.default_rng(seed)
    x = drawn.standard_normal((1, shape.hidden)).astype(np.float32)
    out = np.zeros((1, shape.hidden), dtype=np.float32)

    def event() -> None:
        offsets = drawn.choice(stored, n, replace=False).astype(np.int64) * elements
        pool(weights, offsets, shape.width, x, out)

    return event


def pool_benches(
    shape: ExpertShape, sources: dict[str, Weights], workers: Sequence[int], *, all_workers: int
) -> list[Bench]:
    """By source with all workers, and by workers from the first source.

    Parameters
    ----------
    shape
        Of an expert.
    sources
        Weights by the name of their memory.
    workers
        Worker counts for the first source.
    all_workers
        Worker count for every source.

    Returns
    -------
    list[Bench]
        Benches in ns an event.
    """
    benches: list[Bench] = []
    first = next(iter(sources))

    def add(source: str, count: int, n: int) -> None:
        event = event_of(CpuExperts(shape.hidden, count, shape.form), sources[source], shape, n)
        params: dict[str, Any] = {"source": source, "workers": count, "experts": n}
        benches.append(Bench("cpu", params, lambda: repeat_ns(event, TIMES)))

    for source in sources:
        for n in COUNTS:
            add(source, all_workers, n)
    for count in workers:
        if count != all_workers:
            for n in COUNTS:
                add(first, count, n)
    return benches


def dense_benches(shape: ExpertShape, weights: Weights, rows: int, workers: int) -> list[Bench]:
    """A dense part of `rows` rows on the pool, and one of four times as many.

    Parameters
    ----------
    shape
        Of an expert, whose width the rows have.
    weights
        (elements,) the matrix.
    rows
        Rows of the smaller part.
    workers
        CPU threads.

    Returns
    -------
    list[Bench]
        Two benches in ns a product.
    """
    pool = CpuExperts(shape.hidden, workers, shape.form)
    x = np.random.default_rng(1).standard_normal((1, shape.hidden)).astype(np.float32)
    out = np.zeros(4 * rows, dtype=np.float32)

    def bench(n: int) -> Bench:
        return Bench(
            "cpu dense", {"rows": n}, lambda: repeat_ns(lambda: pool.matvec(weights, 0, n, x, out), TIMES)
        )

    return [bench(rows), bench(4 * rows)]
