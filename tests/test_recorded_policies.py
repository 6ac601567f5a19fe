"""Recorded traces: an engine's own residency, its authors' replay curves, and figures published from them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.runs.replay import matches_engine, replay
from expert_residency.traces import read_trace

pytestmark = pytest.mark.shared

CURVES = {  # name in the curve file: (policy, scope)
    "belady": ("belady", "global"),
    "lru": ("lru", "global"),
    "lfu": ("lfu", "global"),
    "layer": ("lru", "layer"),
    "layerlfu": ("lfu", "layer"),
}
MIB = 1 << 20


@pytest.fixture(scope="module")
def recorded(shared: Path):
    return {
        name: read_trace(shared / "traces" / "bigmoe-edge" / f"{name}.route.csv") for name in ("qwen", "gptoss")
    }


@pytest.mark.parametrize(("name", "mib", "equal"), [("qwen", 4000, 39526), ("gptoss", 3000, 6375)])
def test_residency_that_the_engine_reported(recorded, name, mib, equal):
    """First touch of every distinct expert of every event (Helldez/BigMoeOnEdge, 2026-07-15-route-trace)."""
    trace = recorded[name]
    assert matches_engine(trace, replay(trace, "lru", Capacity(total_bytes=mib * MIB))) == (equal, equal)


@pytest.mark.slow
@pytest.mark.parametrize("policy", CURVES)
@pytest.mark.parametrize("name", ["qwen", "gptoss"])
def test_replay_curves(recorded, shared, name, policy):
    """Every budget of the authors' curves, to the last digit printed."""
    spec, scope = CURVES[policy]
    trace = recorded[name]
    with (shared / "traces" / "bigmoe-edge" / f"{name}-curve.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["policy"] == policy]
    assert rows
    for row in rows:
        room = Capacity(total_bytes=int(row["budget_mib"]) * MIB, scope=scope)
        result = replay(trace, spec, room, oversize="overflow")
        everything, decode = result.phases["all"], result.phases["decode"]
        assert f"{100 * everything.hit_rate:.3f}" == row["hit_pct_cum"], row
        assert f"{100 * decode.hit_rate:.3f}" == row["hit_pct_decode"], row
        assert f"{everything.miss_bytes / MIB:.1f}" == row["read_mib"], row


@pytest.mark.parametrize(
    ("name", "policy", "expected"),
    [
        ("qwen", "lfru", ["61.3", "74.0", "82.8"]),
        ("qwen", "lru", ["56.5", "70.6", "80.3"]),
        ("gptoss", "lfru", ["35.5", "46.2", "52.7"]),
        ("gptoss", "lru", ["30.9", "44.8", "51.7"]),
    ],
)
def test_lfru_against_lru(recorded, name, policy, expected):
    """Decode hit rates of global pools at 2000, 3000 and 4000 MiB."""
    found = [replay(recorded[name], policy, Capacity(total_bytes=mib * MIB)) for mib in (2000, 3000, 4000)]
    for result, text in zip(found, expected, strict=True):
        assert abs(100 * result.phases["decode"].hit_rate - float(text)) <= 0.0501


def test_a_global_lru_below_one_tokens_experts_hits_nothing(recorded):
    """The cliff: the layers go round like a scan. Quotas of layers keep what tokens share."""
    trace = recorded["qwen"]
    room = trace.geometry.token_cycle_bytes * 9 // 10
    overflow = replay(trace, "lru", Capacity(total_bytes=room), oversize="overflow")
    assert overflow.phases["decode"].distinct_hits == 0
    assert any("exactly 0 %" in text for text in overflow.warnings)
    by_layer = replay(trace, "lru", Capacity(total_bytes=room, scope="layer"), oversize="overflow")
    assert by_layer.phases["decode"].hit_rate > 0.35


def test_sequential_replay_turns_the_ranking_round(recorded):
    """Why the contract is a part of every result: LRU and static change places."""
    trace = recorded["gptoss"]
    room = Capacity(slots_per_layer=3, scope="layer")

    def hits(policy, contract):
        return replay(trace, policy, room, contract=contract, placement="none").phases["decode"].distinct_hits

    assert hits("lru", "sequential") < hits("lru", "event")


def test_periodic_swaps_copy_far_less_than_lru(recorded):
    """Strata's tier promotes about 7 times fewer experts than LRU at 1 to 25 % more misses (Infernix' replay)."""
    trace = recorded["qwen"]
    room = Capacity(total_bytes=4000 * MIB)
    demand = replay(trace, "lru", room, placement="prompt")
    adaptive = replay(trace, "lru", room, admission="strata-adaptive", placement="prompt")
    assert adaptive.admitted_bytes * 5 < demand.admitted_bytes
    misses = [r.phases["decode"].distinct - r.phases["decode"].distinct_hits for r in (demand, adaptive)]
    assert misses[0] < misses[1] < 1.4 * misses[0]


def later_arrivals(recorded):
    trace = recorded["qwen"]
    room = Capacity(total_bytes=4000 * MIB)
    options = {"admission": "strata-adaptive", "placement": "prompt"}
    return (replay(trace, "lru", room, lag_passes=lag, **options) for lag in (1, 2))


def test_a_later_arrival_costs_hits(recorded):
    """What is one more pass on its way misses meanwhile."""
    soon, late = later_arrivals(recorded)
    assert late.phases["decode"].distinct_hits < soon.phases["decode"].distinct_hits


def test_a_later_arrival_does_not_change_the_swaps(recorded):
    soon, late = later_arrivals(recorded)
    assert late.admitted_bytes == soon.admitted_bytes
