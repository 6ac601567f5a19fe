"""The interval beside a speed: which constants move it, which move together, and what the trace says of texts."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

import expert_residency as er
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.registry import list_profiles, load_profile
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs import interval
from expert_residency.sim.runs.constants import constants_of
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.split.interval import placement_interval
from expert_residency.sim.split.layers.by_rules import rules_interval
from expert_residency.sim.split.rules import parse_rules
from expert_residency.traces import load_model
from expert_residency.traces.synthetic import generate, load_style

SPEC = RunSpec(("rtx-5070-7600",), Capacity(4 << 30), engine="strata")


@pytest.fixture(scope="module")
def trace():
    """A few tokens of one request."""
    model = load_model("qwen3.8-flash-next/IQ2_XS")
    return generate(model, load_style("qwen3.8-flash-next"), tokens=6, seed=3)


def with_pool_spread(low: float, high: float):
    """The machine with one spread of its processor's rate."""
    profile = load_profile("rtx-5070-7600")
    rate = Quantity(value=33.7, kind="measured", source="as asked", spread=(low, high))
    sources = profile.cpu.expert_gb_per_s
    rates = sources.pinned.model_copy(update={"default": rate})
    sources = sources.model_copy(update={"pinned": rates, "pageable": rates})
    return profile.model_copy(update={"cpu": profile.cpu.model_copy(update={"expert_gb_per_s": sources})})


def test_the_interval_holds_the_speed_and_is_the_same_each_time(trace):
    result = simulate(trace, SPEC)
    found = er.interval_90(trace, SPEC, result)
    assert found.low < result.tokens_per_s < found.high
    assert found.holds(result.tokens_per_s)
    assert found == er.interval_90(trace, SPEC)


def test_a_wider_spread_of_a_constant_widens_the_interval_on_its_side(trace):
    narrow, slow, fast = (
        er.interval_90(trace, SPEC, profiles=[with_pool_spread(*ends)])
        for ends in ((33.6, 33.8), (11.0, 33.8), (33.6, 100.0))
    )
    assert slow.constants > narrow.constants
    assert slow.low < 0.9 * narrow.low
    assert slow.high < 1.05 * narrow.high
    assert fast.low > 0.95 * narrow.low
    assert fast.high > 0.99 * narrow.high


def test_constants_of_one_source_are_one_draw():
    preset = load_engine("strata")
    two = (load_profile("rtx-3090"), load_profile("rtx-2080ti"))
    for profiles, _ in interval.draws(two, preset):
        moved = [
            card.link.copy_t0_us.value / own.link.copy_t0_us.value for card, own in zip(profiles, two, strict=True)
        ]
        assert moved[0] == pytest.approx(moved[1])  # from the generic profile
    cards = tuple(load_profile(f"{name}:cpu=ryzen-7-5800x,ram=64GB@3600x2") for name in ("rtx-3060", "rtx-4070"))
    for profiles, _ in interval.draws(cards, preset):
        dense, experts = (
            [getattr(card.gpu, which).default.value / getattr(own.gpu, which).default.value
             for card, own in zip(profiles, cards, strict=True)]
            for which in ("dense_gb_per_s", "expert_gb_per_s")
        )  # fmt: skip
        assert dense == pytest.approx(experts, rel=1e-6)


def test_every_plan_has_an_interval_of_its_own(trace):
    found = er.split(trace, "qwen3.8-flash-next", "rtx-3090+rtx-4060ti", quants=["IQ2_XS"], engine="strata",
                     count=2, modes=("arena",), simulate=0)  # fmt: skip
    (answer,) = found.answers
    around = found.best_interval_90
    assert around is found.interval_90(answer)
    assert around.low < answer.tokens_per_s < around.high
    whole = simulate(trace, RunSpec(("rtx-3090", "rtx-4060ti"), Capacity(8 << 30), engine="strata"))
    assert whole.tokens_per_s, "the same machine can be run"
    assert 0.3 < around.constants / er.interval_90(trace, SPEC).constants < 3


def test_plans_by_layers_are_priced_again_and_not_scaled(trace):
    cards = "rtx-3090+rtx-4060ti"
    found = er.split(trace, "qwen3.8-flash-next", cards, quants=["IQ2_XS"], engine="llama.cpp", count=(1, 2))
    assert [answer.placement is not None for answer in found.answers] == [True] * 3
    for answer in found.answers:
        assert answer.interval_90.low < answer.tokens_per_s < answer.interval_90.high
    costs = found.answers[0].problem.costs
    same = costs.on(costs.cards, costs.host, costs.preset)
    card = found.answers[0].placement.cards[0]
    assert same.layer(card, 5, 2) == costs.layer(card, 5, 2)
    assert same._events is costs._events


def test_rules_have_the_interval_of_the_plan_that_they_make(trace):
    found = er.split(trace, "qwen3.8-flash-next", "rtx-3090", quants=["IQ2_XS"], engine="llama.cpp")
    (answer,) = found.answers
    simple = answer.lines[-1].options
    n = int(simple[simple.index("--n-cpu-moe") + 1])
    rules = parse_rules([], n, answer.geometry.layer_ids)
    by_rules = rules_interval(answer.problem, rules)
    assert by_rules == placement_interval(answer.problem, answer.lines[-1].placement)


def test_draws_fill_the_spread_that_a_file_gives():
    machine = (with_pool_spread(20.0, 44.1),), load_engine("strata")
    rates = [cards[0].cpu.expert_gb_per_s.pinned.default.value for cards, _ in interval.draws(*machine)]
    assert min(rates) < 20.5
    assert max(rates) > 43.5
    assert statistics.median(rates) == pytest.approx(33.7, rel=0.03)
    inside = sum(20.0 <= rate <= 44.1 for rate in rates)
    assert inside == round(0.9 * len(rates) - 0.5) or inside == len(rates) - 2


def test_kinds_without_a_spread_have_no_more_than_those_that_give_one():
    found: dict[str, dict[str, float]] = {}
    for name in list_profiles():
        for one in constants_of((load_profile(name),), load_engine("generic")):
            if one.spread and one.spread[0] > 0 and one.card is not None:
                sd = math.log(one.spread[1] / one.spread[0]) / 2 / interval._REACH
                found.setdefault(one.kind, {})[one.source] = sd
    medians = {kind: statistics.median(by_source.values()) for kind, by_source in found.items()}
    for kind, sd in interval.KIND_SD.items():
        if kind in medians:
            assert 0.5 < sd / medians[kind] < 1.25, (kind, sd, medians[kind])


def test_a_long_trace_is_cut_to_decode_passes(trace):
    assert interval.shortened(trace, 10**9) is trace
    model = load_model("qwen3.8-flash-next/IQ2_XS")
    long = generate(model, load_style("qwen3.8-flash-next"), tokens=8, prompt_tokens=16, seed=3)
    short = interval.shortened(long, 3 * 480)
    assert short.n_passes == 3
    assert set(np.unique(short.pass_phase)) == {1}


def test_requests_say_how_far_texts_are_apart():
    model = load_model("qwen3.8-flash-next/IQ2_XS")
    one = simulate(generate(model, load_style("qwen3.8-flash-next"), tokens=3, seed=3), SPEC)
    many = simulate(generate(model, load_style("qwen3.8-flash-next"), tokens=3, requests=6, seed=3), SPEC)
    assert interval.workload_sd(one) == interval.TEXT_SD
    speeds = [math.log(row["tokens_per_s"]) for row in many.requests()]
    assert interval.workload_sd(many) == pytest.approx(statistics.pstdev(speeds) / math.sqrt(6), rel=0.1)


def test_nothing_decoded_has_no_interval():
    model = load_model("qwen3.8-flash-next/IQ2_XS")
    prompt = generate(model, load_style("qwen3.8-flash-next"), tokens=0, prompt_tokens=4, seed=3)
    assert er.interval_90(prompt, SPEC) is None
