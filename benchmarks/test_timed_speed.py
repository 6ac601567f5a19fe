"""Speed of the compiled timed kernel beside the SimPy engine, and of five hundred runs on two processes.

    pytest benchmarks/test_timed_speed.py -m benchmark_run -s

Both engines do the same work in one run, interleaved, in CPU time of the thread; medians and spread are printed.
What is asserted are ratios. Compiling is measured apart, in a process with an empty cache.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import product
from multiprocessing import get_context
from statistics import median

import pytest

from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.kernel.timed.engine import TimedKernel
from expert_residency.sim.runs.simulate import prepare, simulate
from expert_residency.sim.studies.demo import SYNTHETIC, demo_trace, expert_room
from expert_residency.traces import RoutingTrace
from expert_residency.traces.synthetic import generate, load_style

pytestmark = pytest.mark.benchmark_run
ROUNDS, KERNEL_ROUNDS = 3, 5
RUNS, TOKENS, WORKERS = 500, 2000, 2
HARDWARE = "rtx-5070"


def cpu_s(work):
    began = time.thread_time()
    work()
    return time.thread_time() - began


def kernel_of(trace: RoutingTrace, spec: RunSpec) -> TimedKernel:
    ready = prepare(trace, spec, simulator="kernel")
    assert ready.recorder is not None
    return TimedKernel(
        trace, ready.machine, ready.preset, ready.cache, ready.policies, ready.miss, ready.host_plan,
        ready.page_cache, ready.recorder,
    )  # fmt: skip


@pytest.mark.parametrize("miss", ["fetch", "cpu"])
@pytest.mark.parametrize("prefetch", ["oracle", "none"])
def test_tokens_per_second(prefetch, miss):
    trace = demo_trace(SYNTHETIC, None)
    room = Capacity(total_bytes=expert_room(HARDWARE, trace.geometry))
    spec = RunSpec((HARDWARE,), room, prefetch=prefetch, miss=miss)
    simulate(trace, spec, simulator="kernel")
    reference, kernel, whole = [], [], []
    for _ in range(ROUNDS):
        reference.append(cpu_s(lambda: simulate(trace, spec, simulator="reference")))
        for _ in range(KERNEL_ROUNDS):
            kernel.append(cpu_s(kernel_of(trace, spec).run))
            whole.append(cpu_s(lambda: simulate(trace, spec, simulator="kernel")))
    tokens = trace.n_tokens_emitted
    print(
        f"\nprefetch {prefetch}, {miss}: reference {tokens / median(reference):,.0f} tokens/s, kernel "
        f"{tokens / median(kernel):,.0f} ({tokens / max(kernel):,.0f} to {tokens / min(kernel):,.0f}), set-up "
        f"included {tokens / median(whole):,.0f}: {median(reference) / median(kernel):.0f} times, with it "
        f"{median(reference) / median(whole):.0f}"
    )
    assert median(reference) / median(kernel) > 50


@cache
def long_trace() -> RoutingTrace:
    geometry = demo_trace(SYNTHETIC, None).geometry
    return generate(geometry, load_style("qwen3-30b-a3b"), tokens=TOKENS, seed=1, weights=False)


def many() -> list[RunSpec]:
    """Policies x prefetchers x capacities."""
    room = expert_room(HARDWARE, long_trace().geometry)
    base = RunSpec((HARDWARE,), Capacity(total_bytes=room), miss="fetch")
    choices = product(
        ("lru", "fifo", "sieve", "s3fifo", "static"), ("none", "oracle", "previous-token", "noisy-oracle"),
        range(RUNS // 20),
    )  # fmt: skip
    return [
        replace(
            base, eviction=eviction, prefetch=prefetch, capacity=Capacity(total_bytes=room * (75 + part) // 100)
        )
        for eviction, prefetch, part in choices
    ]


def one(spec: RunSpec) -> float:
    result = simulate(long_trace(), spec, simulator="kernel")
    assert result.tokens_per_s is not None
    return result.tokens_per_s


def test_five_hundred_runs_of_two_thousand_tokens():
    specs = many()
    assert len(specs) == RUNS
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        list(pool.map(one, specs[::25], chunksize=1))  # traces made, kernels loaded
        began = time.perf_counter()
        found = list(pool.map(one, specs, chunksize=5))
        seconds = time.perf_counter() - began
    assert min(found) > 0
    rate = RUNS * TOKENS / seconds
    print(f"\n{RUNS} runs of {TOKENS} tokens on {WORKERS} processes: {seconds:.1f} s, {rate:,.0f} tokens/s")
    began = time.perf_counter()
    simulate(long_trace(), specs[0], simulator="reference")
    alone = time.perf_counter() - began
    print(f"one of them by the reference: {alone:.1f} s")
    assert alone * RUNS / WORKERS / seconds > 25


def test_compiling(tmp_path):
    """CPU time of the first run of a process, without and with compiled kernels on disk."""
    code = (
        "import time; from benchmarks.test_timed_speed import *; t = demo_trace(SYNTHETIC, 5);"
        "s = RunSpec((HARDWARE,), Capacity(total_bytes=1 << 30)); b = time.process_time();"
        "simulate(t, s, simulator='kernel'); print(time.process_time() - b)"
    )
    env = os.environ | {"EXPERT_RESIDENCY_CACHE": str(tmp_path)}
    first, second = (
        float(
            subprocess.run(
                [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
            ).stdout
        )
        for _ in range(2)
    )
    print(
        f"\nfirst run of a fresh install by the kernel: {first:.1f} s of CPU, from the disk cache {second:.1f} s"
    )
    assert second < first / 4
