"""Fast policies decide as their definitions do, which score every resident at every eviction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from expert_residency.policies import create
from expert_residency.policies.admission.always import Always
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.testing import replay_watched
from expert_residency.sim.testing.strategies import capacities, geometries, traces
from expert_residency.sim.testing.watched import visited_pool
from tests import naive

PAIRS = {
    "lfru": naive.NaiveLfru(),
    "lfu": naive.NaiveLfu(),
    "lfu:counts=in-cache": naive.NaiveInCacheLfu(),
    "lru-k": naive.NaiveLruK({"k": 2}),
    "lru-k:k=1": naive.NaiveLruK({"k": 1}),
    "lru-k:k=3": naive.NaiveLruK({"k": 3}),
    "lfu:counts=decayed,half_life_tokens=3": naive.NaiveDecayedLfu({"half_life": 3.0}),
    "hyperbolic": naive.NaiveHyperbolic(),
    "moe-infinity": naive.NaiveMoeInfinity({"eps": 1e-4}),
    "hobbit": naive.NaiveHobbit(),
    "belady-window:window_tokens=2": naive.NaiveBeladyWindow({"window": 2, "half_life": 16.0}),
}


@given(data=st.data())
def test_policies_equal_their_definitions(data):
    trace = data.draw(traces())
    capacity = data.draw(capacities(trace.geometry))
    for spec, definition in PAIRS.items():
        fast, _ = replay_watched(trace, create("eviction", spec), Always(), capacity)
        slow, _ = replay_watched(trace, definition, Always(), capacity)
        assert fast == slow, spec


@given(data=st.data())
def test_policies_equal_their_definitions_whoever_comes_unasked(data):
    """Prefetched and dropped experts; LFU keeps those apart until they are used."""
    trace = data.draw(traces(geometries(uniform=True)))
    capacity = data.draw(capacities(trace.geometry))
    seed = data.draw(st.integers(0, 1000))
    for spec in ("lfu", "lfu:counts=in-cache", "lfru", "lru-k"):
        fast, _ = replay_watched(trace, create("eviction", spec), Always(), capacity, pool_type=visited_pool(seed))
        slow, _ = replay_watched(trace, PAIRS[spec], Always(), capacity, pool_type=visited_pool(seed))
        assert fast == slow, spec


@given(data=st.data())
def test_least_stale_is_lru_without_prefetching(data):
    trace = data.draw(traces())
    capacity = data.draw(capacities(trace.geometry))
    one, _ = replay_watched(trace, create("eviction", "least-stale"), Always(), capacity)
    other, _ = replay_watched(trace, create("eviction", "lru"), Always(), capacity)
    assert one == other


@given(data=st.data())
def test_an_endless_window_is_belady(data):
    """Equal sizes; ties may fall differently, hits may not."""
    trace = data.draw(traces(geometries(uniform=True)))
    largest = int(max(trace.event_offsets[1:] - trace.event_offsets[:-1]))
    capacity = Capacity(total_bytes=data.draw(st.integers(largest, trace.geometry.n_experts)))
    window, _ = replay_watched(trace, create("eviction", "belady-window:window_tokens=9999"), Always(), capacity)
    belady, _ = replay_watched(trace, create("eviction", "belady"), Always(), capacity)
    assert sum(window) == sum(belady)
