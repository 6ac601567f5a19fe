"""Laws of eviction policies, one function each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from expert_residency.errors import PolicyError
from expert_residency.policies.admission.always import Always
from expert_residency.policies.eviction.belady import Belady
from expert_residency.policies.eviction.min import Min
from expert_residency.policies.protocol import EvictionPolicy, Lists
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.residency.pool import make_pool
from expert_residency.sim.testing.cases import capacities, random_trace
from expert_residency.sim.testing.compiled import ArrayPool
from expert_residency.sim.testing.compiling import check_compiles_eviction
from expert_residency.sim.testing.shared import SEEDS, Replayed, declared, instance, same_on
from expert_residency.sim.testing.strict import StrictPool
from expert_residency.sim.testing.watched import WatchedPool, replay_watched, visited_pool


def check_declarations(policy: EvictionPolicy) -> None:
    """Name, source and a docstring are there; parameters are a frozen dataclass's fields with defaults."""
    declared(policy, EvictionPolicy)


def _replayed(policy: EvictionPolicy) -> Replayed:
    return lambda trace, capacity, **more: replay_watched(trace, policy, Always(), capacity, **more)


def check_laws_at_every_step(policy: EvictionPolicy) -> None:
    """Capacity holds to the byte, victims are resident, of the right scope and not protected, members stay."""
    for seed in SEEDS:
        trace = random_trace(seed)
        for capacity in capacities(trace.geometry):
            replay_watched(trace, policy, Always(), capacity)


def check_foreign_arrivals(policy: EvictionPolicy) -> None:
    """Experts that no event wanted come (prefetch) and go (cancelled copies) without breaking a law."""
    for seed in SEEDS:
        trace = random_trace(seed)
        for capacity in capacities(trace.geometry):
            replay_watched(trace, policy, Always(), capacity, pool_type=visited_pool(seed))


def check_same_twice(policy: EvictionPolicy) -> None:
    """Two runs agree, also when their steps alternate, and the policy object does not change."""
    trace = random_trace(1)
    before = dataclasses.replace(policy)
    for capacity in capacities(trace.geometry):
        first, _ = replay_watched(trace, policy, Always(), capacity)
        second, _ = replay_watched(trace, policy, Always(), capacity)
        assert first == second, f"{policy.name}: two runs differ"
    assert policy == before, f"{policy.name}: a run changed the policy object"


def check_causal(policy: EvictionPolicy) -> None:
    """What comes later does not matter, unless the policy says that it needs the future."""
    if policy.needs_future:
        return
    trace = random_trace(2)
    cut = trace.select_passes(np.arange(trace.n_passes) < trace.n_passes // 2)
    for capacity in capacities(trace.geometry):
        _, whole = replay_watched(trace, policy, Always(), capacity)
        _, part = replay_watched(cut, policy, Always(), capacity)
        assert isinstance(whole, WatchedPool)
        assert isinstance(part, WatchedPool)
        left = part.departures
        assert left == whole.departures[: len(left)], f"{policy.name}: decisions depend on what comes after"


def check_no_better_than_the_optimum(policy: EvictionPolicy) -> None:
    """On equal sizes hits are at most MIN's, and at most Belady's if every miss was admitted."""
    for seed in SEEDS:
        trace = random_trace(seed, uniform=True)
        for slots in (2, 4, 9):
            capacity = Capacity(total_bytes=10 * slots)
            hits, cache = replay_watched(trace, policy, Always(), capacity)
            best, _ = replay_watched(trace, Min(), Always(), capacity)
            assert sum(hits) <= sum(best), f"{policy.name}: {sum(hits)} hits, MIN has {sum(best)}"
            largest = max(trace.event_offsets[1:] - trace.event_offsets[:-1])
            admitted = cache.evictions + sum(cache.resident)
            if largest <= slots and admitted == len(hits) - sum(hits):
                forced, _ = replay_watched(trace, Belady(), Always(), capacity)
                assert sum(hits) <= sum(forced), f"{policy.name}: {sum(hits)} hits, Belady has {sum(forced)}"


def check_everything_fits(policy: EvictionPolicy) -> None:
    """With room for all nobody leaves, and only first uses miss."""
    trace = random_trace(5)
    hits, cache = replay_watched(trace, policy, Always(), Capacity(total_bytes=trace.geometry.all_expert_bytes))
    assert cache.evictions == 0, f"{policy.name}: {cache.evictions} evictions with room for everything"
    misses, distinct = len(hits) - sum(hits), len(set(trace.keys.tolist()))
    assert misses == distinct, f"{policy.name}: {misses} misses on {distinct} experts with room for everything"


def check_refuses_to_guess(policy: EvictionPolicy) -> None:
    """An oracle without a future is an error, not a guess."""
    if not policy.needs_future:
        return
    trace = random_trace(0)
    pool = make_pool(trace.geometry, capacities(trace.geometry)[0])
    try:
        policy.start(pool, Lists, None)
    except PolicyError:
        return
    raise AssertionError(f"{policy.name} needs the future, but starts without one")


def check_runs_on_arrays(policy: EvictionPolicy) -> None:
    """A policy that says it can be compiled keeps its state in the allocator's sequences: arrays give the same."""
    same_on(ArrayPool, policy, _replayed(policy), "lists and arrays differ")


def check_keeps_promises(policy: EvictionPolicy) -> None:
    """A policy that says it can be compiled counts no index from the end and keeps to the ranges it promised."""
    same_on(StrictPool, policy, _replayed(policy), "the kind of list matters")


EVICTION_CHECKS: tuple[Callable[[EvictionPolicy], None], ...] = (
    check_declarations,
    check_laws_at_every_step,
    check_foreign_arrivals,
    check_same_twice,
    check_causal,
    check_no_better_than_the_optimum,
    check_everything_fits,
    check_refuses_to_guess,
    check_runs_on_arrays,
    check_keeps_promises,
    check_compiles_eviction,
)


def check_eviction(policy: EvictionPolicy | type[EvictionPolicy]) -> None:
    """Run every check on a policy, or on a class with its defaults.

    Raises
    ------
    AssertionError
        The first law that does not hold, with the policy's name.
    """
    policy = instance(policy, EvictionPolicy)
    for check in EVICTION_CHECKS:
        check(policy)
