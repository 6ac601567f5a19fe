"""Laws of the replay on drawn traces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from expert_residency.policies import available, create
from expert_residency.policies.admission.always import Always
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.testing import replay_watched
from expert_residency.sim.testing.strategies import capacities, geometries, traces

CAUSAL = [name for name in available("eviction") if not create("eviction", name).needs_future]
ADMITTING = [name for name in CAUSAL if name != "static"]


EVERYBODY = available("eviction")


def total(result) -> int:
    return result.phases["all"].distinct_hits


def roomy(data, trace) -> Capacity:
    """Room for every event at least, in experts of size 1."""
    largest = int(max(trace.event_offsets[1:] - trace.event_offsets[:-1]))
    return Capacity(total_bytes=data.draw(st.integers(largest, trace.geometry.n_experts)))


@given(data=st.data())
def test_every_step_is_lawful(data):
    """Capacity to the byte, victims resident and free, members stay: asserted inside at every call."""
    trace = data.draw(traces())
    capacity = data.draw(capacities(trace.geometry))
    for spec in EVERYBODY:
        _, cache = replay_watched(trace, create("eviction", spec), Always(), capacity)
        cache.check()


@given(data=st.data())
def test_counts_add_up(data):
    """Hits and misses are the look-ups; phases add up; misses have their bytes; at most they are admitted."""
    trace = data.draw(traces())
    capacity = data.draw(capacities(trace.geometry))
    sizes = [trace.geometry.expert_bytes[key // trace.geometry.experts] for key in trace.keys.tolist()]
    for spec in EVERYBODY:
        result = replay(trace, spec, capacity, placement="none")
        counts = result.phases["all"]
        assert counts.distinct == trace.n_lookups, spec
        assert counts.routed == trace.n_routed, spec
        assert counts.distinct_hits == int(result.hits.sum()), spec
        for field in ("distinct", "distinct_hits", "routed", "routed_hits", "compulsory", "miss_bytes", "passes"):
            parts = sum(getattr(c, field) for name, c in result.phases.items() if name != "all")
            assert parts == getattr(counts, field), (spec, field)
        missed = sum(size for size, hit in zip(sizes, result.hits.tolist(), strict=True) if not hit)
        assert counts.miss_bytes == missed, spec
        assert result.admitted_bytes <= missed, spec
        assert counts.compulsory == len(set(trace.keys.tolist())), spec


@given(data=st.data())
def test_what_is_admitted_is_what_missed(data):
    """Where every event fits, every miss is admitted and copied once."""
    trace = data.draw(traces(geometries(uniform=True)))
    capacity = roomy(data, trace)
    for spec in ADMITTING:
        result = replay(trace, spec, capacity)
        assert result.admitted_bytes == result.phases["all"].miss_bytes, spec
        _, cache = replay_watched(trace, create("eviction", spec), Always(), capacity)
        assert cache.evictions + sum(cache.resident) == trace.n_lookups - total(result), spec


@given(data=st.data())
def test_min_then_belady_then_everybody_else(data):
    trace = data.draw(traces(geometries(uniform=True)))
    capacity = roomy(data, trace)
    best, forced = replay(trace, "min", capacity), replay(trace, "belady", capacity)
    assert total(best) >= total(forced)
    for spec in CAUSAL:
        result = replay(trace, spec, capacity, placement="none")
        assert total(best if spec == "static" else forced) >= total(result), spec


@given(data=st.data())
def test_a_larger_lru_hits_whenever_a_smaller_one_does(data):
    """Inclusion, for equal sizes and events that fit."""
    trace = data.draw(traces(geometries(uniform=True)))
    small = roomy(data, trace)
    large = Capacity(total_bytes=data.draw(st.integers(small.total_bytes, trace.geometry.n_experts)))
    assert (replay(trace, "lru", small).hits <= replay(trace, "lru", large).hits).all()


@given(data=st.data())
def test_contracts_agree_on_single_experts(data):
    """With one expert an event there is nothing to be atomic about."""
    trace = data.draw(traces(geometries(max_top_k=1), max_rows=1))
    capacity = data.draw(capacities(trace.geometry))
    for spec in EVERYBODY:
        atomic = replay(trace, spec, capacity, placement="none")
        for contract in ("sequential", "sequential-descending"):
            other = replay(trace, spec, capacity, placement="none", contract=contract)
            assert (atomic.hits == other.hits).all(), (spec, contract)


@given(data=st.data())
def test_waves_and_overflow_agree_where_events_fit(data):
    """Equal sizes: to make room before or after is the same. (Unequal ones may leave more or less room.)"""
    trace = data.draw(traces(geometries(uniform=True)))
    capacity = roomy(data, trace)
    for spec in ("lru", "fifo", "lfru", "lfu", "belady"):
        waves = replay(trace, spec, capacity)
        assert (waves.hits == replay(trace, spec, capacity, oversize="overflow").hits).all(), spec
