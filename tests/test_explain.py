"""A token's time derived: shares of constants add up to it, and each is what its constant really costs."""

from __future__ import annotations

import pytest

from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.constants import constants_of, scaled
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.split.layers.division import ALL
from expert_residency.sim.split.layers.study import study_layers
from expert_residency.sim.split.rules import parse_rules
from expert_residency.sim.split.study import Question, study
from expert_residency.sim.studies.explain import FEW, REST, explain
from expert_residency.sim.studies.explain_split import explain_layers, explain_plan, explain_rules
from expert_residency.traces import load_model
from expert_residency.traces.synthetic import generate, load_style


@pytest.fixture(scope="module")
def trace():
    """A few tokens of one request."""
    model = load_model("qwen3.8-flash-next/IQ2_XS")
    return generate(model, load_style("qwen3.8-flash-next"), tokens=5, seed=3)


@pytest.mark.parametrize("engine", ["generic", "strata", "fetch-lru"])
def test_terms_add_up_to_the_time_of_a_token(trace, engine):
    spec = RunSpec(("rtx-3090",), Capacity(4 << 30), engine=engine)
    result = simulate(trace, spec)
    terms = explain(trace, spec, result)
    assert sum(term.ms for term in terms) == pytest.approx(result.ms_per_token, rel=1e-9)
    assert sum(term.share for term in terms) == pytest.approx(1.0)
    rest = {term.constant: term for term in terms}
    assert abs(rest[REST].share) < 0.02, "constants explain it all"
    assert abs(rest[FEW].share) < 0.02
    named = [term for term in terms if term.constant not in (REST, FEW)]
    assert all(term.kind and term.source and term.number for term in named)
    assert [term.ms for term in named] == sorted((term.ms for term in named), reverse=True)


def test_a_share_is_what_the_constant_costs(trace):
    spec = RunSpec(("rtx-3090",), Capacity(4 << 30), engine="generic")
    result = simulate(trace, spec)
    first = explain(trace, spec, result)[0]
    cards, preset = (load_profile("rtx-3090"),), load_engine("generic")
    (constant,) = [one for one in constants_of(cards, preset) if one.name == first.constant]
    assert constant.path[-1] != "us", "the largest term of this machine is a rate"
    faster, engine = scaled(cards, preset, {constant: 1.01})
    saved = result.ms_per_token - simulate(trace, spec, profiles=faster, preset=engine).ms_per_token
    assert saved == pytest.approx(first.ms * (1 - 1 / 1.01), rel=0.05)


def test_what_no_constant_makes_is_empty():
    model = load_model("qwen3.8-flash-next/IQ2_XS")
    prompt = generate(model, load_style("qwen3.8-flash-next"), tokens=0, prompt_tokens=2, seed=3)
    spec = RunSpec(("rtx-3090",), Capacity(4 << 30))
    assert explain(prompt, spec, simulate(prompt, spec)) == []


def _adds_up(terms, tokens_per_s, most_left=0.02):
    assert sum(term.ms for term in terms) == pytest.approx(1000 / tokens_per_s, rel=1e-9)
    left = {term.constant: term.share for term in terms}
    assert abs(left[REST]) < most_left
    assert all(term.source for term in terms if term.constant not in (REST, FEW))


def _asked(engine, **more):
    chosen = {"host": "rtx-3090", "cards": (("rtx-3090",),), "ram_bytes": 64 << 30, "context": 4096, "carve": True}
    return Question("qwen3-30b-a3b", ("Q4_K_M",), engine=engine, **(chosen | more))


@pytest.fixture(scope="module")
def short():
    """A few tokens of another model."""
    return generate(load_model("qwen3-30b-a3b/Q4_K_M"), load_style("qwen3-30b-a3b"), tokens=12, seed=3)


@pytest.mark.parametrize("ram_gib", [64, 16])
def test_terms_of_a_placement_by_layers_add_up_with_reads_of_the_drive(short, ram_gib):
    asked = _asked("llama.cpp", ram_bytes=ram_gib << 30, context=65_536)
    best = study_layers(asked, short, {"rtx-3090": load_profile("rtx-3090")}).best
    terms = explain_layers(best.problem, best.placement)
    _adds_up(terms, best.tokens_per_s)
    assert explain_rules(best.problem, parse_rules([], 8, short.geometry.layer_ids), None, ALL)


@pytest.mark.slow
@pytest.mark.parametrize("simulated", [0, 1])
def test_terms_of_a_plan_add_up_simulated_or_estimated(short, simulated):
    card = "rtx-2080ti"
    asked = _asked("strata", host=card, simulate=simulated, modes=("resident",), cards=((card,),))
    found = study(asked, short, {card: load_profile(card)})
    assert bool(found.best.simulated) == bool(simulated)
    _adds_up(explain_plan(found, found.best), found.best.tokens_per_s)
