"""Replay of a trace larger than memory: parts of whole passes through compiled caches, one for each policy.

The numbers are those of `sim.runs.replay`. Only caches and one part are held; oracles need the whole trace, and
are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from expert_residency.errors import SimError
from expert_residency.policies import Given, policy_of
from expert_residency.policies.protocol import AdmissionPolicy, EvictionPolicy, PlacementPolicy
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.caveats import TraceFacts, caveats, texts
from expert_residency.sim.kernel import choose
from expert_residency.sim.residency.laws import ranked_by
from expert_residency.sim.residency.pool import check_room, make_pool
from expert_residency.sim.runs.counts import ReplayResult, counted, phase_passes, result_of
from expert_residency.sim.runs.steps import Steps
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace


def replay_stream(
    parts: Iterable[RoutingTrace],
    geometry: ModelGeometry,
    evictions: Sequence[Given[EvictionPolicy]],
    capacity: Capacity | str | Sequence[str],
    *,
    scope: str | None = None,
    admission: Given[AdmissionPolicy] = "always",
    placement: Given[PlacementPolicy] | None = None,
    contract: str = "event",
    overflow: bool = False,
    warmup_passes: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[ReplayResult]:
    """Replay consecutive parts of a trace, such as `traces.stream.stream_parquet` reads.

    Parameters
    ----------
    evictions, capacity, scope, admission, placement, contract, overflow, warmup_passes
        As for `sim.runs.replay.replay`; one result a policy. Results have no `hits`.
    progress
        Called with the number of passes done after each part.

    Raises
    ------
    SimError, PolicyError, TraceError
        A policy or quota that needs the whole trace, or that cannot be compiled, and whatever reading raises.
    """
    from expert_residency.sim.kernel.counts.replay import ReplayKernel

    capacity = Capacity.of(capacity, scope).of_one_cache(geometry)
    if capacity.quotas != "equal":
        raise SimError(f"quotas by {capacity.quotas} need the whole trace: read it whole")
    gate = policy_of("admission", admission)
    pool = make_pool(geometry, capacity)
    check_room(pool)
    policies, kernels, placed = [], [], []
    for spec in evictions:
        eviction = policy_of("eviction", spec)
        start = policy_of("placement", placement if placement is not None else eviction.default_placement)
        for oracle in (eviction, start):
            if oracle.needs_future:
                raise SimError(f"policy {oracle.name} needs the whole trace: read it whole, or leave it out")
        if start.other_texts:
            raise SimError(
                "placement profile without a file needs the whole trace: read it whole, or give file=PATH"
            )
        choose("kernel", 0, eviction, gate)
        kernel = ReplayKernel(pool, eviction, gate, overflow=overflow, warmup_passes=warmup_passes)
        policies.append(eviction)
        kernels.append(kernel)
        placed.append(len(kernel.place(ranked_by(start, pool, None))))
    passes = np.zeros((2, len(Phase)), dtype=np.int64)
    done = 0
    facts: TraceFacts | None = None
    for part in parts:
        facts = TraceFacts.of(part) if facts is None else facts.joined(TraceFacts.of(part))
        steps = replace(Steps.of(part, contract).arrays, first_pass=done)
        for kernel in kernels:
            kernel.feed(steps)
        passes += phase_passes(part, warmup_passes - done)
        done += part.n_passes
        if progress is not None:
            progress(done)
    none = np.zeros(0, dtype=np.uint8)
    results = [
        result_of(counted(kernel, passes, none, n), policy, gate, pool, geometry, capacity.scope, contract)
        for kernel, policy, n in zip(kernels, policies, placed, strict=True)
    ]
    for result in results:
        result.caveats = texts(caveats(facts, geometry))
    return results
