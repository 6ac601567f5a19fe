"""The demo: some policies on some machines over a bundled trace, ranked by time.

The expert cache of each machine is what its card has left for experts at 32K context (`hwmodels.vram`), so the
machines differ in slots as well as in speed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import numpy as np

from hwmodels.registry import load_profile
from hwmodels.vram import FLASH_NEXT_SESSION, Weights, session_lines, vram_budget
from policies import create
from sim.pool import Capacity
from sim.result import RunResult
from sim.run import RunSpec, simulate
from traces import ModelGeometry, RoutingTrace
from traces.bundled import load

TRACE = "flash-next-synthetic"
MACHINES = ("rtx-5070-7600", "rtx-5060ti-5700x3d", "tesla-p40")
POLICIES: dict[str, dict[str, Any]] = {
    "lru": {"eviction": "lru"},
    "lfu": {"eviction": "lfu"},
    "lfru": {"eviction": "lfru"},
    "static (hindsight)": {"eviction": "static"},
    "lru, misses on CPU": {"eviction": "lru", "miss": "cpu"},
    "lfru + oracle, 1 layer": {"eviction": "lfru", "prefetch": "oracle:window=1"},
}
LOOK_AHEAD = "perfect look-ahead"
BEST: dict[str, Any] = {"eviction": "belady", "prefetch": "oracle:window=48"}
"""Perfect look-ahead of one token with the best eviction: the other end of the headroom scale."""
CONTEXT_TOKENS = 32_768


@dataclass
class DemoRun:
    """One row of the demo."""

    machine: str
    policy: str
    result: RunResult
    capacity_bytes: int
    sees_future: bool


def expert_room(hardware: str, geometry: ModelGeometry) -> int:
    """Bytes that a card has left for experts at 32K context, int8 keys and values."""
    weights = Weights(sum(geometry.dense_bytes), head_bytes=geometry.head_bytes)
    session = session_lines(FLASH_NEXT_SESSION, CONTEXT_TOKENS)
    return vram_budget(load_profile(hardware).gpu, weights, session).cache_bytes


def demo_specs(geometry: ModelGeometry) -> list[tuple[str, str, RunSpec]]:
    """(machine, policy, choices) of every run, perfect look-ahead last on each machine."""
    specs = []
    for hardware in MACHINES:
        # The published mix of these engines serves from RAM; the arena fits each machine's memory.
        base = RunSpec(
            hardware=(hardware,), capacity=Capacity(total_bytes=expert_room(hardware, geometry)), miss="fetch"
        )
        specs += [(hardware, name, replace(base, **choice)) for name, choice in POLICIES.items()]
        specs.append((hardware, LOOK_AHEAD, replace(base, **BEST)))
    return specs


def run_demo(passes: int | None, workers: int, progress: Callable[[int], None]) -> list[DemoRun]:
    """All runs of the demo on `workers` processes, in the order of `demo_specs`."""
    trace = demo_trace(passes)
    specs = demo_specs(trace.geometry)
    found: dict[int, RunResult] = {}
    if workers <= 1:
        for i, (_, _, spec) in enumerate(specs):
            found[i] = simulate(trace, spec)
            progress(len(found))
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            jobs = {pool.submit(_run, spec, passes): i for i, (_, _, spec) in enumerate(specs)}
            for job in as_completed(jobs):
                found[jobs[job]] = job.result()
                progress(len(found))
    return [
        DemoRun(machine, policy, found[i], spec.capacity.total_bytes or 0, _sees_future(spec))
        for i, (machine, policy, spec) in enumerate(specs)
    ]


def _sees_future(spec: RunSpec) -> bool:
    """Whether a policy of the run, or the set that it starts from, knows the trace in advance."""
    eviction = create("eviction", spec.eviction)
    placement = create("placement", spec.placement or eviction.default_placement)
    chosen = (eviction, create("prefetch", spec.prefetch), placement)
    return any(policy.needs_future for policy in chosen)


def demo_trace(passes: int | None) -> RoutingTrace:
    """The bundled trace, or its first passes."""
    trace = load(TRACE)
    if passes is None or passes >= trace.n_passes:
        return trace
    return trace.select_passes(np.arange(trace.n_passes) < passes)


_cached: dict[int | None, RoutingTrace] = {}


def _run(spec: RunSpec, passes: int | None) -> RunResult:
    """One run in a worker, which loads the trace once."""
    if passes not in _cached:
        _cached[passes] = demo_trace(passes)
    return simulate(_cached[passes], spec)
