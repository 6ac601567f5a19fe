"""The table of `docs/time-bound.md`: how near runs come to the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.runs.time_bound import time_bound
from expert_residency.sim.studies.bounds import baseline_spec, perfect_prefetch, time_ns
from expert_residency.traces.bundled import load

MACHINES = ("rtx-5060ti-5700x3d", "tesla-p40", "rtx-5070-7600")
SHARES = (0.1, 0.25, 0.5)
PASSES = 500


def near() -> str:
    """Time of the bound over that of LRU, and of the best oracle, in %."""
    trace = load("tinymoe-prose")
    trace = trace.select_passes(np.arange(trace.n_passes) < PASSES)
    lines = ["| machine | room | miss | `lru` | best oracle | what bounds |", "|---|---|---|---|---|---|"]
    for machine in MACHINES:
        for share in SHARES:
            for miss in ("fetch", "cpu"):
                room = Capacity(int(share * trace.geometry.all_expert_bytes))
                spec = RunSpec((machine,), room, miss=miss)
                bound = time_bound(trace, spec)
                oracles = [simulate(trace, replace(spec, eviction=name)) for name in ("min", "static")]
                best = min(map(time_ns, [perfect_prefetch(trace, spec), *oracles]))
                plain = time_ns(simulate(trace, baseline_spec(spec)))
                limit = max(bound.limits, key=lambda name: bound.limits[name])
                near = [f"{100 * bound.time_ns / ns:.0f}" for ns in (plain, best)]
                lines.append(f"| {machine} | {share:.0%} | {miss} | {' | '.join(near)} | {limit} |")
    return "\n".join(lines) + "\n"
