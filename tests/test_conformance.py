"""Numbers that pin the replay contract, and bounds against trying everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.testing import best_hits
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace, TraceBuilder

NINE = [(0, 1), (0, 3), (1, 2), (1, 5), (3, 4), (0, 4), (3, 5), (2, 4), (4, 5)]


def one_layer(events, experts: int, top_k: int) -> RoutingTrace:
    builder = TraceBuilder(ModelGeometry("one", (0,), experts, top_k, (1,), (1,)))
    for event in events:
        builder.begin_pass(Phase.DECODE)
        builder.row(0, list(event))
    return builder.build()


def hits(trace: RoutingTrace, eviction: str, slots: int, **options) -> int:
    return replay(trace, eviction, Capacity(total_bytes=slots), **options).phases["all"].distinct_hits


@pytest.mark.parametrize(
    ("eviction", "contract", "expected"),
    [
        ("lru", "event", 8),
        ("lfu", "event", 5),
        ("lfru", "event", 6),
        ("lru", "sequential", 7),
        ("lru", "sequential-descending", 4),
        ("belady", "event", 9),
        ("min", "event", 10),
    ],
)
def test_nine_events(eviction, contract, expected):
    """One layer, six experts, k = 2, three slots: the seven meanings give seven numbers."""
    assert hits(one_layer(NINE, 6, 2), eviction, 3, contract=contract) == expected


@pytest.mark.parametrize("contract", ["event", "sequential", "sequential-descending"])
def test_toy_trace(contract):
    """moe-cache-eval's toy trace: 3 layers, 2 slots each, LRU 12 hits and 18 misses, 12 of them compulsory."""
    builder = TraceBuilder(ModelGeometry("toy", (0, 1, 2), 4, 2, (1, 1, 1), (1, 1, 1)))
    for event in ((0, 1), (0, 2), (0, 1), (0, 3), (0, 1)):
        builder.begin_pass(Phase.DECODE)
        for layer in range(3):
            builder.row(layer, list(event))
    result = replay(builder.build(), "lru", Capacity(slots_per_layer=2, scope="layer"), contract=contract)
    counts = result.phases["all"]
    assert (counts.distinct, counts.distinct_hits, counts.compulsory) == (30, 12, 12)
    assert result.evictions == 12


def test_cyclic_scan_defeats_lru_but_not_the_optimum():
    """A B C D six times in three slots (Helldez/BigMoeOnEdge#33): LRU nothing, the optimum 14, with bypass 15."""
    trace = one_layer([(k,) for _ in range(6) for k in range(4)], 4, 1)
    assert hits(trace, "lru", 3) == 0
    assert hits(trace, "belady", 3) == 14
    assert hits(trace, "min", 3) == 15
    result = replay(trace, "lru", Capacity(total_bytes=3))
    assert result.phases["all"].compulsory == 4


def test_an_event_larger_than_the_cache_is_served_in_waves():
    """One slot, two experts of one layer (JustVugg/colibri#701): two waves, never over the capacity."""
    result = replay(one_layer([(1, 2)], 3, 2), "lru", Capacity(total_bytes=1))
    assert (result.waves, result.phases["all"].distinct_hits) == (1, 0)
    assert any("waves" in text for text in result.warnings)


def test_a_policy_that_never_evicts_is_said_to_be_untested():
    """JustVugg/colibri#1092: with room for everything all policies tie."""
    result = replay(one_layer(NINE, 6, 2), "lru", Capacity(total_bytes=6))
    assert result.evictions == 0
    assert any("never exercised" in text for text in result.warnings)


def test_warm_up_takes_compulsory_misses_out():
    """A B A B without limit (dasebe/webcachesim#6): half with compulsory misses, all after two passes."""
    result = replay(one_layer([(0,), (1,), (0,), (1,)], 2, 1), "lru", Capacity(total_bytes=2), warmup_passes=2)
    assert result.phases["all"].hit_rate == 0.5
    assert result.warm.hit_rate == 1.0


@given(data=st.data())
def test_bounds_equal_trying_everything(data):
    """Belady is the best that must admit, MIN the best that need not, on traces small enough to try all."""
    top_k = data.draw(st.integers(1, 2))
    experts = data.draw(st.integers(top_k + 1, 6))
    event = st.sets(st.integers(0, experts - 1), min_size=top_k, max_size=top_k).map(sorted)
    events = data.draw(st.lists(event, min_size=1, max_size=9))
    slots = data.draw(st.integers(top_k, experts))
    trace = one_layer(events, experts, top_k)
    assert hits(trace, "belady", slots) == best_hits(events, slots, bypass=False)
    assert hits(trace, "min", slots) == best_hits(events, slots, bypass=True)


@pytest.mark.parametrize(("slots", "said"), [(1, False), (4, True)])
def test_a_policy_that_turned_misses_away_was_exercised(slots, said):
    """`min` evicts nobody where it need not, and hits by whom it lets in: that is no tie."""
    trace = one_layer([(k,) for k in (0, 1, 0, 2, 0, 3, 0)], 4, 1)
    room = Capacity(total_bytes=slots)
    counted = replay(trace, "min", room)
    timed = simulate(trace, RunSpec(("tesla-p40",), room, eviction="min", miss="fetch"))
    for result in (counted, timed):
        assert result.evictions == 0 < result.admitted_bytes
        assert any("never exercised" in text for text in result.warnings) == said
    assert hits(trace, "lru", slots) == (0 if slots == 1 else 3)
    assert hits(trace, "min", slots) == 3
