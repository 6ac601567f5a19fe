"""The machine group: the formula's parts, a fit that finds constants, and machines that never see themselves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.runs.layer_sums import THIRDS, LayerSums
from expert_residency.sim.timed.attention import Context
from expert_residency.sim.validation.cases import coverage, load_bounds, machine_cases, summarize
from expert_residency.sim.validation.llamacpp import one_token
from expert_residency.sim.validation.measured import terms as terms_module
from expert_residency.sim.validation.measured.cases import machine_group, not_asked
from expert_residency.sim.validation.measured.constants import CONSTANTS, INDEX, NAMES, PRIORS
from expert_residency.sim.validation.measured.fit import Fit
from expert_residency.sim.validation.measured.formula import Formula, _chain, _staged
from expert_residency.sim.validation.measured.group import answers
from expert_residency.sim.validation.measured.hits import SHARES, generated_hits, hit_share
from expert_residency.sim.validation.measured.machines import held_out
from expert_residency.sim.validation.measured.questions import Question, questions
from expert_residency.sim.validation.measured.terms import terms_of


@pytest.fixture(autouse=True)
def no_simulation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "slow" not in request.keywords:
        monkeypatch.setattr(terms_module, "hit_share", lambda share, own: min(1.0, share**0.5))


def some(*cards: str, most: int = 5) -> list[Question]:
    asked = [one for one in questions()[0] if one.machine.card.name in cards]
    names = dict.fromkeys(one.machine.name for one in asked)
    return [one for name in names for one in [x for x in asked if x.machine.name == name][:most]]


def test_a_token_where_nothing_moves_is_a_sum() -> None:
    (asked,) = [
        one for one in questions()[0]
        if one.machine.card.name == "rx-7900-xt" and one.knobs.where == "layers"
    ]  # fmt: skip
    terms = terms_of(asked)
    assert (terms.cpu_layers, terms.on_cpu, terms.on_card) == (24, 1.0, 0.0)

    def prior(name: str) -> float:
        return float(PRIORS[INDEX[name]])

    rate = 800 * prior("card share") * prior("card share rdna")
    memory, cores = 51.2 * prior("memory share"), 12 * prior("core GB/s") * prior("core mxfp4")
    pool = (memory**-3 + cores**-3) ** (-1 / 3)
    wanted = 1000 * (terms.dense_gb / rate + terms.expert_gb / pool)
    wanted += (48 * prior("block us") * prior("slower rdna") + 24 * prior("split us")) / 1000 + prior("pass ms")
    ms, _ = Formula([terms]).ms(PRIORS)
    assert ms[0] == pytest.approx(wanted)


def test_what_goes_over_the_link_is_whole_experts() -> None:
    missed = np.array([0.5, 2.0, 8.0, 8.0, 8.0])
    share = _staged(missed, np.array([0.2, 0.5, 0.5, 1.0, 0.0]))
    assert share[0] < 0.01, "the floor of a fifth of less than five is nothing"
    assert 0 < share[1] < 0.5
    assert share[2] == pytest.approx(0.5 - 0.25 / 8, abs=0.01), "half of an odd number loses half an expert"
    assert share[3] == pytest.approx(1.0, abs=0.01)
    assert share[4] == 0


def test_a_chain_of_drafts() -> None:
    assert _chain(np.array([0.5]), np.array([3.0]))[0] == pytest.approx(0.5 + 0.25 + 0.125)
    assert _chain(np.array([0.5]), np.array([0.0]))[0] == 0


def test_given_hits_are_those_of_the_engine() -> None:
    asked = next(one for one in questions()[0] if one.machine.card.name == "rtx-5070-ti" and one.knobs.hit_pct)
    given_hits = terms_of(asked)
    _, without = Formula([replace(given_hits, share=0.0)]).ms(PRIORS)
    _, most = Formula([replace(given_hits, share=0.55)]).ms(PRIORS)
    assert without.hits[0] == pytest.approx(given_hits.hits), "nothing over the link: misses are the CPU's"
    assert most.hits[0] < without.hits[0], "the engine's rate leaves out what went over the link"
    _, windows = Formula([replace(given_hits, tokens=3.0)]).ms(PRIORS)
    assert windows.tokens[0] == 3.0


def test_a_fit_finds_constants_again() -> None:
    asked = [one for one in questions()[0] if one.knobs.where != "slots"]
    formula = Formula([terms_of(one) for one in asked])
    true = np.zeros(len(NAMES))
    true[INDEX["block us"]], true[INDEX["card share"]] = math.log(1.4), math.log(0.9)
    ms, _ = formula.ms(PRIORS * np.exp(true))
    found = Fit(formula, ms, [one.machine.name for one in asked])(np.ones(len(asked), dtype=np.bool_))
    again, _ = formula.ms(PRIORS * np.exp(found))
    assert np.abs(np.log(again / ms)).max() < 0.04
    assert found[INDEX["block us"]] == pytest.approx(math.log(1.4), abs=0.15)


@settings(max_examples=5, deadline=None)
@given(st.sampled_from(["rtx-5080", "m1-max", "rtx-2080"]), st.floats(0.3, 3.0))
def test_a_machines_own_rows_never_change_its_predictions(card: str, factor: float) -> None:
    asked = some("rtx-5080", "m1-max", "rtx-2080", "rtx-3090", most=3)
    before = answers(asked)
    mine = next(one.machine.name for one in asked if one.machine.card.name == card)
    changed = [
        replace(one, row=one.row.model_copy(update={"tok_s": one.row.tok_s * factor}))
        if held_out(mine, one.machine.name) else one
        for one in asked
    ]  # fmt: skip
    after = answers(changed)
    assert [one.tok_s for one in after if one.question.machine.name == mine] == [
        one.tok_s for one in before if one.question.machine.name == mine
    ]
    if abs(factor - 1) > 0.2:
        assert [one.tok_s for one in after] != [one.tok_s for one in before], "others are told"


@pytest.mark.slow
def test_the_products_own_numbers_stand_near_the_same_rows() -> None:
    """Preset and parts as shipped, not the held-out constants: what `split` would say of llama.cpp's rows."""
    errors = []
    for one in questions()[0]:
        knobs, machine, geometry = one.knobs, one.machine, one.geometry
        if knobs.engine != "llama.cpp" or knobs.where == "cpu" or machine.cards > 1:
            continue
        cpu = "" if machine.card.shared or machine.cpu is None else f":cpu={machine.cpu.name},ram=512GB"
        card = load_profile(f"{machine.card.name}{cpu}")
        sums = LayerSums(
            one_token(geometry), {"card": card}, card, load_engine("llama.cpp"), context=Context(knobs.depth)
        )
        layers = [0 if i < terms_of(one).cpu_layers else THIRDS for i in range(geometry.n_layers)]
        whole = sums.ends("card", "card")
        for layer, thirds in enumerate(layers):
            whole += sums.layer("card", layer, thirds)
        errors.append(abs(1e9 / whole.ns / one.row.tok_s - 1))
    assert len(errors) >= 90
    assert np.median(errors) < 0.15
    assert np.mean(np.array(errors) < 0.25) > 0.78


def test_every_constant_has_a_source_and_no_name_twice() -> None:
    assert all(one.source and one.prior > 0 and one.spread > 0 for one in CONSTANTS)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.slow
def test_more_slots_find_more() -> None:
    assert list(generated_hits(False)) == sorted(generated_hits(False))
    assert all(own >= other for own, other in zip(generated_hits(True), generated_hits(False), strict=True))
    assert hit_share(1.0, False) == 1.0
    assert hit_share(SHARES[2], False) == generated_hits(False)[2]


@pytest.mark.slow
def test_the_shipped_rows_are_within_their_limits() -> None:
    group = machine_group()
    assert len(group.answers) >= 385
    assert len(group.machines) >= 60
    assert group.near >= 0.76
    assert not_asked()
    cases, said = machine_cases()
    bounds = load_bounds()
    assert all(one.limit is not None and not one.over(one.limit) for one in summarize(cases, bounds))
    whole = [case for case in cases if case.group == "machine"]
    assert 0.85 <= (coverage(whole) or 0.0) <= 0.95
    forward = [case for case in cases if case.group == "machine: hits not given"]
    assert len(forward) >= 60
    assert any("forward" in line for line in said)
