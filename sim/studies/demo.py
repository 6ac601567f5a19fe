"""The demo: some policies on some machines over the bundled traces, ranked by time.

Over the synthetic trace of a large model the expert cache of each machine is what its card has left for experts at
32K context (`hwmodels.vram`), so the machines differ in slots as well as in speed. The recorded traces are of a
small model that any card would hold; they have room for a quarter of its experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from typing import Any

import numpy as np

from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.vram import Weights, vram_budget
from expert_residency.policies import sees_future
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.session import session_lines, session_shape
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.runs.time_bound import TimeBound, time_bound
from expert_residency.sim.timed.result import RunResult
from expert_residency.traces import ModelGeometry, RoutingTrace
from expert_residency.traces.bundled import load

SYNTHETIC, RECORDED = "flash-next-requests", ("tinymoe-prose", "tinymoe-code")
SHOWN = (
    (SYNTHETIC, "rtx-5070-7600"),
    (SYNTHETIC, "rtx-5060ti-5700x3d"),
    (SYNTHETIC, "tesla-p40"),
    *((name, "rtx-5060ti-5700x3d") for name in RECORDED),
)
"""(trace, machine) of every table."""
POLICIES: dict[str, dict[str, Any]] = {
    "lru": {"eviction": "lru"},
    "lfu": {"eviction": "lfu"},
    "lfru": {"eviction": "lfru"},
    "static (hindsight)": {"eviction": "static"},
    "lru, misses on CPU": {"eviction": "lru", "miss": "cpu"},
    "lfru + oracle, 1 layer": {"eviction": "lfru", "prefetch": "oracle:window=1"},
}
GATES: dict[str, dict[str, Any]] = {"lfru + next router": {"eviction": "lfru", "prefetch": "gate-lookahead"}}
"""Of traces that hold what the next layer's router makes of this layer's input."""
LOOK_AHEAD = "perfect look-ahead"
"""Of one token, with Belady's eviction."""
CONTEXT_TOKENS = 32_768


@dataclass
class DemoRun:
    """One row of the demo; `bound_ns` is the least time of any schedule and miss mode."""

    trace: str
    machine: str
    policy: str
    result: RunResult
    capacity_bytes: int
    sees_future: bool
    bound_ns: int


def expert_room(hardware: str, geometry: ModelGeometry) -> int:
    """Bytes that a card has left for experts at 32K context, int8 keys and values."""
    weights = Weights(sum(geometry.dense_bytes), head_bytes=geometry.head_bytes)
    session = session_lines(session_shape(geometry), CONTEXT_TOKENS, kv_type="int8")
    return vram_budget(load_profile(hardware).gpu, weights, session).cache_bytes


def demo_specs(passes: int | None) -> list[tuple[str, str, str, RunSpec]]:
    """(trace, machine, policy, choices) of every run."""
    specs = []
    for name, hardware in SHOWN:
        trace = demo_trace(name, passes)
        geometry = trace.geometry
        room = geometry.all_expert_bytes // 4 if name in RECORDED else expert_room(hardware, geometry)
        # The published mix of these engines serves from RAM; the arena fits each machine's memory.
        base = RunSpec(hardware=(hardware,), capacity=Capacity(total_bytes=room), miss="fetch")
        choices = POLICIES | (GATES if trace.predictions else {})
        choices |= {LOOK_AHEAD: {"eviction": "belady", "prefetch": f"oracle:window={geometry.n_layers}"}}
        specs += [(name, hardware, policy, replace(base, **choice)) for policy, choice in choices.items()]
    return specs


def run_demo(
    specs: Sequence[tuple[str, str, str, RunSpec]],
    passes: int | None,
    workers: int,
    progress: Callable[[int], None],
) -> list[DemoRun]:
    """All runs of `demo_specs` on `workers` processes, in their order.

    Parameters
    ----------
    specs
        Trace, machine, policy and choices of each run.
    passes
        Only the first so many passes; all if None.
    workers
        Processes.
    progress
        Called with the number of runs done.

    Returns
    -------
    list[DemoRun]
        The runs in the order of `specs`.
    """
    found: dict[int, tuple[RunResult, int]] = {}
    if workers <= 1:
        for i, (name, _, _, spec) in enumerate(specs):
            found[i] = _run(name, spec, passes, len(specs))
            progress(len(found))
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            jobs = {
                pool.submit(_run, name, spec, passes, len(specs)): i for i, (name, _, _, spec) in enumerate(specs)
            }
            for job in as_completed(jobs):
                found[jobs[job]] = job.result()
                progress(len(found))
    return [
        DemoRun(
            name,
            machine,
            policy,
            found[i][0],
            spec.capacity.total_bytes or 0,
            sees_future(spec.eviction, spec.prefetch, spec.placement),
            found[i][1],
        )
        for i, (name, machine, policy, spec) in enumerate(specs)
    ]


@cache
def demo_trace(name: str, passes: int | None) -> RoutingTrace:
    """A bundled trace, or its first passes."""
    trace = load(name)
    if passes is None or passes >= trace.n_passes:
        return trace
    return trace.select_passes(np.arange(trace.n_passes) < passes)


@cache
def _bound(name: str, anyhow: RunSpec, passes: int | None) -> TimeBound:
    return time_bound(demo_trace(name, passes), anyhow)


def _run(name: str, spec: RunSpec, passes: int | None, runs: int) -> tuple[RunResult, int]:
    """One of so many runs in a worker, which loads each trace once, and what no run of its table can be under."""
    result = simulate(demo_trace(name, passes), spec, runs=runs)
    # `hybrid` lets links and processor share misses as they like, which all rows of a table are cases of
    plain = RunSpec(hardware=spec.hardware, capacity=spec.capacity, miss="hybrid")
    bound = _bound(name, plain, passes)
    bound.check(result, spec.eviction)
    return result, bound.time_ns
