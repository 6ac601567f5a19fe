"""What says `compiled = True` is compiled, by the kernels that would run it, and gives what the reference gives.

The other checks run a policy's Python on arrays; only a compiler knows what it takes. Without numba (extra `fast`)
there is no compiled kernel, and nothing is checked.
"""

from __future__ import annotations

import importlib.util

from expert_residency.errors import CompileError
from expert_residency.policies.protocol import AdmissionPolicy, EvictionPolicy, Policy, PrefetchPolicy
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.testing.cases import random_trace

SEED, PASSES = 11, 24


def _is_checked(policy: Policy) -> bool:
    return policy.compiled and importlib.util.find_spec("numba") is not None


def _replayed(policy: Policy, eviction: EvictionPolicy | str, admission: AdmissionPolicy | str) -> None:
    trace = random_trace(SEED, passes=PASSES)
    capacity = Capacity(total_bytes=trace.geometry.all_expert_bytes // 2)
    found = []
    for simulator in ("reference", "kernel"):
        try:
            found.append(replay(trace, eviction, capacity, admission=admission, simulator=simulator))
        except CompileError as error:
            raise AssertionError(f"{policy.name} says compiled = True: {error}") from error
    plain, compiled = (one.to_dict() | {"simulator": "", "hits": one.hits.tolist()} for one in found)
    assert plain == compiled, f"{policy.name}: compiled code decides otherwise"


def check_compiles_eviction(policy: EvictionPolicy) -> None:
    """A policy that says it can be compiled is, with the same hits and evictions."""
    if _is_checked(policy):
        _replayed(policy, policy, "always")


def check_compiles_admission(policy: AdmissionPolicy) -> None:
    """A policy that says it can be compiled is, with the same hits and evictions."""
    if _is_checked(policy):
        _replayed(policy, "lru", policy)


def check_compiles_prefetch(policy: PrefetchPolicy) -> None:
    """A policy that says it can be compiled is, and the timed kernel finds the reference's times with it."""
    if not _is_checked(policy):
        return
    from expert_residency.sim.testing.prefetch import predicted_trace

    trace = predicted_trace(SEED, passes=PASSES)
    spec = RunSpec("tesla-p40", Capacity(slots_per_layer=trace.geometry.top_k + 1), prefetch=policy, miss="fetch")
    found = []
    for simulator in ("reference", "kernel"):
        try:
            found.append(simulate(trace, spec, simulator=simulator))
        except CompileError as error:
            raise AssertionError(f"{policy.name} says compiled = True: {error}") from error
    plain, compiled = (one.to_dict(passes=True) for one in found)
    assert plain == compiled, f"{policy.name}: compiled code decides otherwise"
