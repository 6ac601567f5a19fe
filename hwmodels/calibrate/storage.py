"""Measurements of the expert file: reads through the page cache, warm and cold, and past it, by size and lanes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from expert_residency.hwmodels.calibrate.readings import Bench, repeat_ns
from expert_residency.hwmodels.executor.experts import CpuExperts, ExpertShape
from expert_residency.hwmodels.executor.files import DirectReader, ExpertFile

TIMES = 15


def storage_benches(file: ExpertFile, sizes: Sequence[int], lanes: Sequence[int], seed: int = 0) -> list[Bench]:
    """Reads at random places; `O_DIRECT` ones are left out where the file system refuses them.

    Parameters
    ----------
    file
        On the drive to be measured.
    sizes
        Bytes of a read, ascending.
    lanes
        Numbers of direct reads in flight.
    seed
        Of the places.

    Returns
    -------
    list[Bench]
        Benches in ns a read.
    """
    drawn = np.random.default_rng(seed)
    benches: list[Bench] = []

    def offset(size: int) -> int:
        return int(drawn.integers(0, max(1, file.nbytes // size))) * size

    def warm(size: int) -> Callable[[], float]:
        into = np.zeros(size, dtype=np.uint8)

        def run() -> float:
            file.warm()
            return repeat_ns(lambda: file.read(offset(size), into), TIMES)

        return run

    def cold(size: int) -> Callable[[], float]:
        into = np.zeros(size, dtype=np.uint8)

        def run() -> float:
            file.drop()
            places = drawn.permutation(file.nbytes // size)[:TIMES]
            start = time.perf_counter_ns()
            for place in places:
                file.read(int(place) * size, into)
            return (time.perf_counter_ns() - start) / len(places)

        return run

    for size in sizes:
        benches.append(Bench("read warm", {"bytes": size}, warm(size)))
        benches.append(Bench("read cold", {"bytes": size}, cold(size)))
    try:
        DirectReader(file.path, sizes[0]).close()
    except OSError:
        return benches
    size = sizes[-1]
    return benches + [Bench("read direct", {"bytes": size, "lanes": n}, _direct(file, size, n)) for n in lanes]


def _direct(file: ExpertFile, size: int, lanes: int) -> Callable[[], float]:
    """Time of a read in ns, `lanes` threads at once."""
    drawn = np.random.default_rng(lanes)

    def run() -> float:
        file.drop()
        places = drawn.integers(0, max(1, file.nbytes // size), (lanes, TIMES))
        readers = [DirectReader(file.path, size + 8192) for _ in range(lanes)]

        def work(lane: int) -> None:
            for place in places[lane]:
                readers[lane].read(int(place) * size, min(size, file.nbytes - int(place) * size))

        threads = [threading.Thread(target=work, args=(lane,)) for lane in range(lanes)]
        start = time.perf_counter_ns()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spent = time.perf_counter_ns() - start
        for reader in readers:
            reader.close()
        return spent / (lanes * TIMES)

    return run


def fault_benches(file: ExpertFile, shape: ExpertShape, workers: int, experts: int = 4) -> list[Bench]:
    """Events computed by the pool straight from a cold mapping: page faults in it.

    Parameters
    ----------
    file
        On the drive to be measured.
    shape
        Of an expert.
    workers
        CPU threads.
    experts
        Experts of an event.

    Returns
    -------
    list[Bench]
        One bench in ns an event.
    """
    pool = CpuExperts(shape.hidden, workers, shape.form)
    x = np.random.default_rng(2).standard_normal((1, shape.hidden)).astype(np.float32)
    out = np.zeros((1, shape.hidden), dtype=np.float32)
    stored = file.nbytes // shape.nbytes

    def run() -> float:
        file.drop()
        weights = file.mapped()
        places = np.random.default_rng(3).permutation(stored)[: experts * min(TIMES, stored // experts)]
        groups = places.reshape(-1, experts).astype(np.int64) * (shape.nbytes // 2)
        start = time.perf_counter_ns()
        for offsets in groups:
            pool(weights, offsets, shape.width, x, out)
        return (time.perf_counter_ns() - start) / len(groups)

    return [Bench("cpu faults", {"workers": workers, "experts": experts}, run)]
