"""What a calibrated profile and preset add to the timed engine: unset changes nothing, more is never faster."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.calibrate.fit import line, rising
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.registry import load_profile
from expert_residency.policies.prefetch.oracle import Oracle
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.timed.costs import Costs
from expert_residency.sim.timed.result import EXPERTS, SYNC
from tests.test_engine import check_laws, geometry, random_trace, trace_of

TERMS = ("start_us", "send_us", "ahead_us", "copy_us", "fill_us", "fill_copy_us", "beside_us")
PRESET = load_engine("generic").model_copy(update={"copy_unit": "layer", "copy_order": "asked", "fill": False})


def us(value):
    return Quantity(value=value, kind="measured", source="a test")


def run(trace, changes=None, machine="rtx-5070", **spec):
    choices = RunSpec((machine,), Capacity(slots_per_layer=spec.pop("slots", 4)), **spec)
    return simulate(trace, choices, preset=PRESET.model_copy(update=changes or {}))


def longer(trace, changes, **spec):
    """How much longer a run takes with the changes, ns."""
    found = run(trace, changes, **spec)
    check_laws(trace, found)
    return found.total_ns - run(trace, **spec).total_ns


SPECS = [
    {"miss": "fetch"},
    {"miss": "cpu"},
    {"miss": "hybrid"},
    {"miss": "stream"},
    {"miss": "fetch", "prefetch": "oracle:window=1"},
    {"miss": "fetch", "prefetch": "oracle:window=3"},
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("term", TERMS)
def test_nothing_is_nothing_and_more_is_never_faster(term, spec):
    trace = random_trace(11, tokens=20, experts=12, top_k=3)
    without = run(trace, **spec)
    assert run(trace, {term: us(0.0)}, **spec).pass_ns.tolist() == without.pass_ns.tolist()
    # A little later may be a little sooner, where copies and CPU share the memory; much later never is.
    assert run(trace, {term: us(300.0)}, **spec).total_ns >= without.total_ns


def test_launching_residents_delays_the_cpu_and_nobody_else():
    # A resident and one on the CPU: the pool is the longer branch.
    trace = trace_of([[[0, 1]], [[0, 5]]], geometry(1))
    spec = {"miss": "cpu", "eviction": "static", "placement": "hindsight", "slots": 2}
    assert longer(trace, {"start_us": us(7.0)}, **spec) == 7_000
    assert longer(trace, {"start_us": us(7.0)}, miss="fetch", slots=2) == 0
    serial = {"overlap": False}
    assert run(trace, serial | {"start_us": us(7.0)}, **spec).total_ns == run(trace, serial, **spec).total_ns


def test_each_demand_of_a_layer_lands_later_by_the_host_time_of_all():
    trace = trace_of([[[0, 1, 2]]], geometry(1, top_k=3))
    assert longer(trace, {"copy_us": us(5.0)}, miss="fetch") == 15_000
    assert longer(trace, {"copy_us": us(5.0)}, miss="fetch", host="arena:pin=none") == 0, "sent by the copy itself"


def test_a_layer_that_begins_beside_a_copy_takes_longer():
    trace = trace_of([[[0, 1], [2, 3], [4, 5]]] * 2)
    spec = {"miss": "fetch", "prefetch": "oracle:window=1", "slots": 2}
    plain, beside = run(trace, **spec), run(trace, {"beside_us": us(9.0)}, **spec)
    extra = beside.pass_causes[:, SYNC].sum() - plain.pass_causes[:, SYNC].sum()
    assert extra > 0
    assert extra % 9_000 == 0
    assert longer(trace, {"beside_us": us(9.0)}, miss="fetch", slots=2) == 0, (
        "demands are over when a layer begins"
    )


@pytest.mark.parametrize("at_router", [True, False])
def test_what_is_sent_at_the_router_costs_what_demands_cost_and_later_copies_their_own(monkeypatch, at_router):
    monkeypatch.setattr(Oracle, "at_router", at_router)
    monkeypatch.setattr(Oracle, "at_layer", not at_router)
    trace = random_trace(5, tokens=20, layers=4, experts=16)
    spec = {"miss": "cpu", "prefetch": "oracle", "slots": 6}
    assert (longer(trace, {"send_us": us(500.0)}, **spec) > 0) == at_router
    assert (longer(trace, {"ahead_us": us(500.0)}, **spec) > 0) != at_router


def test_fills_cost_what_copies_for_later_cost_unless_they_have_figures_of_their_own():
    trace = random_trace(5, tokens=20, layers=4, experts=16)
    spec = {"miss": "cpu", "slots": 6}
    filling = {"fill": True, "ahead_us": us(50.0), "copy_us": us(5.0)}
    plain = run(trace, filling, **spec).total_ns
    assert run(trace, filling | {"fill_us": us(50.0), "fill_copy_us": us(5.0)}, **spec).total_ns == plain
    assert run(trace, filling | {"fill_us": us(90.0)}, **spec).total_ns > plain
    assert run(trace, filling | {"fill_copy_us": us(20.0)}, **spec).total_ns > plain


TABLE = """
base = "rtx-5070"
name = "tabled"
summary = "of a test"
[gpu.group_us_by_bytes]
1000000 = {{ value = {0}, kind = "measured", source = "a test" }}
2000000 = {{ value = {1}, kind = "measured", source = "a test" }}
4000000 = {{ value = {2}, kind = "measured", source = "a test" }}
"""


def test_a_measured_group_costs_what_was_measured(tmp_path):
    path = tmp_path / "tabled.toml"
    path.write_text(TABLE.format(20.0, 21.0, 40.5))
    residents = {"eviction": "static", "placement": "hindsight", "machine": str(path), "slots": 6}
    found = [
        int(run(trace_of([[list(range(n))]], geometry(1, top_k=n)), **residents).pass_causes[0, EXPERTS])
        for n in (1, 2, 3, 4, 5)
    ]
    rate = load_profile(str(path)).gpu.expert_gb_per_s.mb_per_s("q4")
    assert found == [20_000, 21_000, 30_750, 40_500, 40_500 - (-1_000_000 * 1000 // rate)]


@given(st.lists(st.integers(1, 10**8), min_size=2, max_size=30))
def test_more_bytes_of_a_group_never_take_less_time(sizes):
    points = [(1_000_000, 20_000), (2_000_000, 20_000), (4_000_000, 41_001), (4_000_001, 60_000)]
    costs = Costs(
        [0], [0], [10**6], [400_000], [0], [0, len(points)], *map(list, zip(*points, strict=True)), [0], 0, [[0]],
        [1], 0, 0, 0, 0, 0, None,
    )  # fmt: skip
    times = [costs.experts(0, nbytes, 1) for nbytes in sorted(sizes)]
    assert times == sorted(times)
    assert np.all(np.asarray(times) >= 20_000)


@pytest.mark.parametrize("values", [(20.0, 19.0, 40.0), (20.0, 21.0, 20.5)])
def test_a_table_that_falls_is_refused(tmp_path, values):
    path = tmp_path / "bad.toml"
    path.write_text(TABLE.format(*values))
    with pytest.raises(HardwareError, match="more of them may not take less time"):
        load_profile(str(path))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12))
def test_times_are_smoothed_no_more_than_needed(times):
    smooth = rising(times)
    assert smooth == sorted(smooth)
    assert sum(smooth) == pytest.approx(sum(times), abs=1e-3)
    if times == sorted(times):
        assert smooth == pytest.approx(times)


def test_times_that_do_not_rise_still_give_a_line():
    start, slope = line([1, 2, 4], [30.0, 29.0, 28.0])
    assert slope > 0
    assert start > 0
    flat = line([1, 2, 4], [30.0, 30.0, 30.0 + 1e-14])
    assert flat == pytest.approx(line([1, 2, 4], [30.0, 30.0, 30.0])), "what rounding leaves is no slope"
    with pytest.raises(HardwareError, match="took no time"):
        line([1, 2], [0.0, 0.0])
