"""A start from what other texts wanted, and reads behind a budget that go past the page cache."""

from __future__ import annotations

from dataclasses import replace

import pytest

from expert_residency.errors import PolicyError, SimError
from expert_residency.policies import create
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.residency.other_texts import future_for
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.runs.simulate import prepare, simulate
from expert_residency.traces import RoutingTrace, load_model
from expert_residency.traces.synthetic import generate, load_style

ROOMY = "a100-80gb:cpu=epyc-7763,ram=512GB"


@pytest.fixture(scope="module")
def texts() -> RoutingTrace:
    geometry, style = load_model("qwen3-30b-a3b", "Q4_K_M"), load_style("qwen3-30b-a3b")
    return generate(geometry, style, tokens=20, requests=2, draft_tokens=2, seed=3, weights=False)


def _strata(**choices: object) -> RunSpec:
    return RunSpec.for_engine("strata", hardware=ROOMY, capacity="25%", **choices)


def test_an_engine_that_keeps_a_profile_starts_from_other_texts(texts: RoutingTrace) -> None:
    assert _strata().placement == "profile"
    found = {p: simulate(texts, _strata(placement=p)).decode_hit_rate() for p in ("full", "profile", "hindsight")}
    assert found["full"] + 0.05 < found["profile"] < found["hindsight"], "others' texts help, its own help more"


def test_both_engines_start_alike(texts: RoutingTrace) -> None:
    one, other = (simulate(texts, _strata(), simulator=which) for which in ("reference", "kernel"))
    assert one.pass_ns.tolist() == other.pass_ns.tolist()


def test_other_texts_know_nothing_of_the_text_that_runs(texts: RoutingTrace) -> None:
    longer = generate(
        texts.geometry, load_style("qwen3-30b-a3b"), tokens=60, requests=5, seed=3, weights=False
    )  # the same seed, so the same other texts
    ranked = [prepare(trace, _strata()).placed for trace in (texts, longer)]
    assert ranked[0] == ranked[1]
    assert ranked[0] != prepare(replace(texts, meta={**texts.meta, "seed": 4}), _strata()).placed


def test_a_recorded_trace_starts_by_number_and_says_so(texts: RoutingTrace) -> None:
    recorded = replace(texts, meta={"source": "an engine"})
    made = prepare(recorded, _strata())
    assert made.placed == prepare(recorded, _strata(placement="full")).placed
    assert any("profile:file=PATH" in line for line in simulate(recorded, _strata()).warnings)
    assert not any("profile:file=PATH" in line for line in simulate(texts, _strata()).warnings)


def test_counts_start_there_too(texts: RoutingTrace) -> None:
    found = [replay(texts, "static", "25%", placement="profile", simulator=which).phases["all"].hit_rate
             for which in ("reference", "kernel")]  # fmt: skip
    assert found[0] == found[1] > replay(texts, "static", "25%", placement="full").phases["all"].hit_rate


def test_what_is_asked_of_other_texts_is_bounded(texts: RoutingTrace) -> None:
    with pytest.raises(PolicyError, match="1 to 1,000"):
        create("placement", "profile:texts=0")
    short = future_for(create("placement", "profile:texts=1,tokens=2"), texts, lambda: None)
    assert short is not None
    assert sum(short.counts) == 2 * texts.geometry.n_layers * texts.geometry.top_k


def test_reads_past_the_page_cache_come_from_the_drive_every_time(texts: RoutingTrace) -> None:
    behind = {"host": "budget:gib=1", "placement": "full", "admission": "never"}
    cached, unbuffered = (
        simulate(texts, _strata(**(behind | {"host": f"budget:gib=1{words}"}))) for words in ("", ",cache=none")
    )
    assert cached.decode_hit_rate() == unbuffered.decode_hit_rate()
    assert unbuffered.tokens_per_s < cached.tokens_per_s
    for which in ("reference", "kernel"):
        again = simulate(texts, _strata(**(behind | {"host": "budget:gib=1,cache=none"})), simulator=which)
        assert again.pass_ns.tolist() == unbuffered.pass_ns.tolist()
    with pytest.raises(SimError, match="pages, none"):
        simulate(texts, _strata(host="budget:gib=1,cache=some"))
