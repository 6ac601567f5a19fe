"""Quotas of layers: equal, or by how many of the best experts a layer has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import PolicyError, SimError
from expert_residency.sim.choices.capacity import Capacity, equal_shares
from expert_residency.sim.residency.pool import make_pool
from expert_residency.sim.residency.quotas import by_mass, share_out
from expert_residency.sim.runs.replay import replay
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace, TraceBuilder


def trace() -> RoutingTrace:
    """Layer 0 always wants experts 0 and 1; layer 1 goes round all six."""
    builder = TraceBuilder(ModelGeometry("uneven", (3, 7), 6, 2, (2, 3), (1, 1)))
    for number in range(12):
        builder.begin_pass(Phase.PREFILL if number == 0 else Phase.DECODE)
        builder.row(3, [0, 1])
        builder.row(7, [2 * number % 6, (2 * number + 1) % 6])
    return builder.build()


def test_every_layer_has_an_event_then_rank_decides():
    """20 bytes: two experts each (4 + 6); the other 10 by rank, 3 for an expert of layer 1; the rest equally."""
    pool = make_pool(trace().geometry, Capacity(total_bytes=20))
    ranked = [0, 1, 6, 7, 8, 9, 10, 11]
    assert by_mass(pool, ranked) == [4, 15]
    assert by_mass(pool, [0, 1, 2, 3, 4, 5, 6, 7]) == [4 + 8, 6 + 2]  # layer 0 is whole


def test_quotas_by_hindsight_beat_equal_ones_where_layers_differ():
    room = Capacity(total_bytes=26, scope="layer")
    equal = replay(trace(), "lru", room)
    by_use = replay(trace(), "lru", Capacity(total_bytes=26, scope="layer", quotas="hindsight"))
    assert by_use.capacity_bytes <= 26
    assert by_use.phases["all"].distinct_hits > equal.phases["all"].distinct_hits


def test_quotas_stay_on_their_card():
    layers = (0, 1)
    shared = share_out(trace(), Capacity(card_bytes=(5, 17), scope="layer", quotas="hindsight"), layers)
    assert shared.layer_bytes is not None
    assert shared.layer_bytes[0] <= 5
    assert shared.layer_bytes[1] <= 17
    assert make_pool(trace().geometry, shared, layers).capacity == list(shared.layer_bytes)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(0, 400))
def test_equal_shares_waste_nothing_while_a_layer_lacks_some(most, room):
    shares = equal_shares(room, most)
    assert room - len(most) < sum(shares) <= room
    if room >= sum(most):
        assert all(share >= one for share, one in zip(shares, most, strict=True))
    else:
        assert all(share == min(one, max(shares)) for share, one in zip(shares, most, strict=True))
    if len(set(most)) == 1:
        assert shares == [room // len(most)] * len(most)


@pytest.mark.parametrize("scope", ["layer", "layer:prompt", "layer:hindsight"])
def test_the_whole_capacity_holds_every_expert_of_unequal_layers(scope):
    """All but the first touches hit, as in a global pool."""
    whole = replay(trace(), "lru", Capacity.of("100%"))
    by_layer = replay(trace(), "lru", Capacity.of("100%", scope))
    assert by_layer.phases["all"].distinct_hits == whole.phases["all"].distinct_hits


def test_equal_quotas_are_left_alone():
    room = Capacity(total_bytes=20, scope="layer")
    assert share_out(trace(), room) is room


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"total_bytes": 9, "quotas": "hindsight"}, "scope layer"),
        ({"layer_bytes": (1, 2)}, "scope layer"),
        ({"slots_per_layer": 2, "scope": "layer", "quotas": "prompt"}, "nothing to share out"),
    ],
)
def test_contradictions_are_refused(options, text):
    with pytest.raises(SimError, match=text):
        Capacity(**options)


def test_misspelt_and_mismatched_quotas_are_refused():
    with pytest.raises(PolicyError, match="did you mean hindsight"):
        share_out(trace(), Capacity(total_bytes=9, scope="layer", quotas="hindsigth"))
    with pytest.raises(SimError, match="quotas of 3 layer"):
        make_pool(trace().geometry, Capacity(layer_bytes=(1, 2, 3), scope="layer"))


def test_prompt_placement_counts_rows_of_prefill_only():
    result = replay(trace(), "static", Capacity(total_bytes=4), placement="prompt")
    assert result.placed == 2  # experts 0 and 1 of layer 0, wanted by the prompt as often as those of layer 1
    decode = trace().select_passes(trace().pass_phase != Phase.PREFILL)
    with pytest.raises(PolicyError, match="no prefill"):
        replay(decode, "static", Capacity(total_bytes=4), placement="prompt")


@pytest.mark.parametrize(
    ("text", "scope", "quotas"),
    [
        ("global", "global", "equal"),
        ("layer", "layer", "equal"),
        ("layer:hindsight", "layer", "hindsight"),
        ("layer:profile:file=hot.csv", "layer", "profile:file=hot.csv"),
    ],
)
def test_quotas_are_named_with_the_scope(text, scope, quotas):
    room = Capacity.of("4MiB", text)
    assert (room.scope, room.quotas) == (scope, quotas)
