"""The machine group: rows priced by the product, a fit that finds constants, machines that see no own row."""

from __future__ import annotations

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
from expert_residency.sim.validation.measured import windows as windows_module
from expert_residency.sim.validation.measured.cases import machine_group, not_asked
from expert_residency.sim.validation.measured.constants import CONSTANTS, NAMES, SHIPPED
from expert_residency.sim.validation.measured.fit import most_likely, named, row_slopes, slopes
from expert_residency.sim.validation.measured.group import answers
from expert_residency.sim.validation.measured.hits import SHARES, generated_hits, hit_share
from expert_residency.sim.validation.measured.machines import held_out
from expert_residency.sim.validation.measured.price import Priced
from expert_residency.sim.validation.measured.questions import Question, questions
from expert_residency.traces import load_model
from tests.constants import moved

SHIPPED_VALUES = named(SHIPPED)


@pytest.fixture(autouse=True)
def no_simulation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "slow" not in request.keywords:
        monkeypatch.setattr(windows_module, "hit_share", lambda share, own: min(1.0, share**0.5))


def some(*cards: str, most: int = 5) -> list[Question]:
    asked = [one for one in questions()[0] if one.machine.card.name in cards]
    names = dict.fromkeys(one.machine.name for one in asked)
    return [one for name in names for one in [x for x in asked if x.machine.name == name][:most]]


def test_a_row_is_what_split_says_of_the_same_words() -> None:
    """One card, experts of 24 layers on the CPU: machine from parts, preset and sums are the product's."""
    (asked,) = [
        one for one in questions()[0]
        if one.machine.card.name == "rx-7900-xt" and one.knobs.where == "layers"
    ]  # fmt: skip
    assert asked.machine.words.startswith("rx-7900-xt:cpu=ryzen-9-5900x,ram=")
    card, geometry = load_profile(asked.machine.words), asked.geometry
    context = Context(0, "fp16")
    sums = LayerSums(one_token(geometry), {"card": card}, card, load_engine("llama.cpp"), context=context)
    whole = sums.ends("card", "card")
    for layer in range(geometry.n_layers):
        whole += sums.layer("card", layer, 0 if layer < asked.knobs.layers_on_cpu else THIRDS)
    assert Priced(asked)(SHIPPED_VALUES).ms == pytest.approx(whole.ns / 1e6, rel=2e-3)


def test_a_window_is_what_splits_layer_times_say() -> None:
    asked = next(one for one in questions()[0] if one.machine.card.name == "rtx-5070-ti" and one.knobs.hit_pct)
    priced = Priced(asked)(SHIPPED_VALUES)
    assert priced.windows is not None
    assert priced.windows.hits < (asked.knobs.hit_pct or 0) / 100, "the engine's rate leaves out what went over"
    sizes = priced.windows.events(asked.geometry.top_k)
    assert sum(weight for _, weight in sizes) == pytest.approx(1.0, abs=1e-3)
    mean = sum(size * weight for (size, _), weight in sizes)
    assert mean == pytest.approx(priced.windows.distinct * asked.geometry.top_k, rel=1e-3)
    kernels = SHIPPED_VALUES["strata: kernels"]
    slower = Priced(asked)(SHIPPED_VALUES | {"strata: kernels": 2 * kernels})
    card = Priced(asked).profile(SHIPPED_VALUES)
    added = kernels * card.gpu.kernel_us.value * asked.geometry.n_layers / 1000
    assert (slower.ms - priced.ms) * priced.windows.tokens == pytest.approx(added, rel=0.01)


def test_no_shipped_profile_comes_in() -> None:
    """The rules of data sheets alone make the machine, where `split` would take what such a card measured."""
    asked = next(one for one in questions()[0] if one.machine.card.name == "rtx-5070")
    made = Priced(asked).profile(SHIPPED_VALUES)
    assert made.gpu.dense_gb_per_s.default != load_profile("rtx-5070").gpu.dense_gb_per_s.default
    assert "rule" in made.gpu.dense_gb_per_s.default.source


def test_slopes_know_every_constant_that_moves_a_price() -> None:
    cards = ("rtx-5080", "m1-max", "rx-7900-xtx", "rtx-2000-ada", "tesla-v100-32gb")
    for asked in some(*cards, most=1):
        row = Priced(asked)
        base = row(SHIPPED_VALUES).ms
        moving = {
            name for name in NAMES
            if row(SHIPPED_VALUES | {name: 1.1 * SHIPPED_VALUES[name]}).ms != pytest.approx(base, rel=1e-9)
        }  # fmt: skip
        assert moving
        assert moving <= {NAMES[number] for number in row.used}


def test_a_fit_finds_constants_again() -> None:
    asked = [one for one in questions()[0] if one.knobs.where in ("fit", "layers")][:60]
    rows = [Priced(one) for one in asked]
    true = SHIPPED_VALUES | {
        "launch us": 1.25 * SHIPPED_VALUES["launch us"], "card share": 0.9 * SHIPPED_VALUES["card share"]
    }  # fmt: skip
    measured = np.array([row(true).ms for row in rows])
    found = slopes([row_slopes(row) for row in rows], measured)
    at = SHIPPED * np.exp(most_likely(found, np.ones(len(rows))))
    again = np.array([row(named(at)).ms for row in rows])
    assert np.abs(np.log(again / measured)).max() < 0.05


def test_an_engine_that_streams_dense_weights_reads_them_over_the_link() -> None:
    asked = next(one for one in questions()[0] if one.knobs.engine == "krasis" and one.knobs.where == "layers")
    row = Priced(asked)
    link = row.profile(SHIPPED_VALUES).link.h2d_gb_per_s.value
    assert sum(asked.geometry.dense_bytes) == sum(load_model(asked.geometry.name, "Q8_0").dense_bytes)
    assert row(SHIPPED_VALUES).ms > sum(asked.geometry.dense_bytes) / link / 1e6


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
def test_the_constants_that_ship_are_those_of_all_rows() -> None:
    found = dict(moved())
    # A layer has both kinds of launches: rows tell their sum, and hardly what of it is whose.
    launches = [found.pop(f"llama.cpp: {kind}_launches") for kind in ("dense", "expert")]
    found["llama.cpp: launches"] = tuple(map(sum, zip(*launches, strict=True)))
    assert all(abs(new / old - 1) < 0.2 for old, new in launches)
    far = {name: pair for name, pair in found.items() if abs(pair[1] / pair[0] - 1) > 0.06}
    assert not far, "python -m tests.constants --update"


@pytest.mark.slow
def test_the_shipped_rows_are_within_their_limits() -> None:
    group = machine_group()
    assert len(group.answers) >= 385
    assert len(group.machines) >= 60
    assert group.near >= 0.75
    assert not_asked()
    cases, said = machine_cases()
    bounds = load_bounds()
    assert all(one.limit is not None and not one.over(one.limit) for one in summarize(cases, bounds))
    whole = [case for case in cases if case.group == "machine"]
    assert 0.85 <= (coverage(whole) or 0.0) <= 0.95
    forward = [case for case in cases if case.group == "machine: hits not given"]
    assert len(forward) >= 60
    assert any("forward" in line for line in said)
