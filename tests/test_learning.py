"""Learned predictors: what they may see, that none is evaluated on what it was fitted to, what they find."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import PolicyError, SimError, TraceError
from expert_residency.policies import create
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.studies.learning import (
    Predictor,
    by_request,
    check_causal,
    create_predictor,
    cross_fit,
    predictors,
    requests_of,
)
from expert_residency.sim.studies.learning.logistic import Logistic
from expert_residency.sim.studies.learning.transitions import Transitions
from expert_residency.sim.studies.predictor import quality
from expert_residency.traces import ModelGeometry, Phase, TraceBuilder, read_trace, write_parquet
from tests.golden_runs import said

LAYERS, EXPERTS, K = 4, 12, 2
SPEC = RunSpec(("tesla-p40",), Capacity(slots_per_layer=5), miss="fetch", prefetch="gate-lookahead:depth=1")


def made(requests=4, passes=30, seed=0, *, weights=True, window=1):
    """Layer l + 1 wants what layer l wanted, each expert plus 3: all can be foretold but the first layer."""
    model = ModelGeometry(
        "linked", tuple(range(LAYERS)), EXPERTS, K, (2_000_000,) * LAYERS, (1_000_000,) * LAYERS, hidden_size=64,
        quant_family="q4",
    )  # fmt: skip
    draw = np.random.default_rng(seed)
    builder = TraceBuilder(model)
    for request in range(requests):
        for number in range(passes + 1):
            rows = 3 if number == 0 else window
            builder.begin_pass(Phase.PREFILL if number == 0 else Phase.DECODE, request=request)
            first = [draw.permutation(EXPERTS)[:K] for _ in range(rows)]
            for layer in range(LAYERS):
                for ids in first:
                    chosen = ((ids + 3 * layer) % EXPERTS).tolist()
                    builder.row(layer, chosen, weights=[0.6, 0.4] if weights else None)
    return builder.build()


TRACE = made()


@dataclass(frozen=True)
class Recent(Predictor):
    """What the layer wanted in the pass before; remembers what it was handed."""

    name: ClassVar[str] = "recent"
    source: ClassVar[str] = "test"

    def fit(self, requests):
        return {request.number: request.experts.tobytes() for request in requests}

    def scores(self, model, request):
        assert request.number not in model
        assert request.experts.tobytes() not in model.values()
        return np.stack([request.wanted(layer, request.before) for layer in range(request.n_layers)], axis=1)


@dataclass(frozen=True)
class Peeking(Recent):
    """What the layer wants now."""

    name: ClassVar[str] = "peeking"

    def scores(self, model, request):
        return np.stack([request.wanted(layer) for layer in range(request.n_layers)], axis=1)


@dataclass(frozen=True)
class Shaped(Recent):
    name: ClassVar[str] = "shaped"

    def scores(self, model, request):
        return np.zeros((request.n_tokens, request.n_layers))


@given(requests=st.integers(2, 7), folds=st.integers(2, 9), seed=st.integers(0, 1000))
def test_what_a_request_is_evaluated_on_was_never_fitted_to_it(requests, folds, seed):
    """`Recent.scores` refuses a request that its model was handed; and each request has its predictions."""
    fitted: list[list[int]] = []

    @dataclass(frozen=True)
    class Spy(Recent):
        name: ClassVar[str] = "spy"

        def fit(self, given):
            fitted.append([request.number for request in given])
            return super().fit(given)

    trace = made(requests, passes=3, seed=seed)
    found = cross_fit(trace, Spy(), folds=folds, seed=seed)
    assert len(fitted) == min(folds, requests)
    left_out = [number for given in fitted for number in set(range(requests)) - set(given)]
    assert sorted(left_out) == list(range(requests))
    counts = np.diff(found.predictions[1][0])
    decode = (found.event_phase == Phase.DECODE) & (found.event_layer >= 1)
    assert (counts[decode] == K).all()
    assert (counts[~decode] == 0).all()


@pytest.mark.parametrize("predictor", [Transitions(), Logistic(epochs=600), Logistic(hidden=24, epochs=400)])
def test_what_can_be_foretold_is_learned_from_other_requests(predictor):
    if isinstance(predictor, Logistic):
        pytest.importorskip("sklearn")
    found = cross_fit(TRACE, predictor, folds=2)
    judged = quality(found, create("prefetch", "gate-lookahead:depth=1"))
    assert judged.foretold > 0.95 * (LAYERS - 1) / LAYERS
    assert simulate(found, SPEC).prefetch.precision > 0.9


@pytest.mark.parametrize("predictor", [Transitions(), Logistic(epochs=3), Transitions(depth=2), Recent()])
@pytest.mark.parametrize("window", [1, 2])
def test_predictors_are_causal(predictor, window):
    """Whatever of a request is not known yet changes nothing, in passes of one row and of several."""
    if isinstance(predictor, Logistic):
        pytest.importorskip("sklearn")
    first, *others = requests_of(made(3, window=window))
    model = predictor.fit(others)
    check_causal(predictor, model, first, cuts=12)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_one_that_peeks_is_refused(depth):
    with pytest.raises(PolicyError, match="peeking is not causal: when layer"):
        cross_fit(TRACE, Peeking(depth=depth))


def test_one_that_sees_one_layer_too_far_is_refused():
    @dataclass(frozen=True)
    class Early(Recent):
        """Says of layer l + 2 what layer l + 1 tells, and calls that two layers ahead."""

        name: ClassVar[str] = "early"
        depth: int = 2

        def scores(self, model, request):
            shifted = [request.wanted(max(0, layer - 1)) for layer in range(request.n_layers)]
            return np.stack(shifted, axis=1)

    with pytest.raises(PolicyError, match="early is not causal"):
        cross_fit(TRACE, Early())


def test_scores_of_another_shape_are_refused():
    with pytest.raises(PolicyError, match=r"shaped: scores have the shape \(33, 4\), expected \(33, 4, 12\)"):
        cross_fit(TRACE, Shaped())


def test_one_request_or_one_fold_leave_nothing_to_evaluate():
    one = TRACE.select_passes(TRACE.pass_request == 0)
    with pytest.raises(SimError, match="a single request: a predictor would be evaluated on what it was fitted"):
        cross_fit(one, Transitions())
    with pytest.raises(SimError, match="1 folds: expected 2 or more"):
        cross_fit(TRACE, Transitions(), folds=1)


def test_requests_hold_the_rows_of_the_trace_by_token():
    first = requests_of(TRACE)[0]
    assert first.experts.shape == (33, LAYERS, K)
    assert first.prompt.tolist() == [True] * 3 + [False] * 30
    assert first.pass_of.tolist() == [0, 0, 0, *range(1, 31)]
    assert first.before.tolist() == [-1, -1, -1, 2, *range(3, 32)]
    assert first.weights[0, 0].tolist() == pytest.approx([0.6, 0.4])
    rows = [TRACE.row_experts[i : i + K].tolist() for i in range(0, 3 * LAYERS * K, K)]
    assert [first.experts[t, layer].tolist() for layer in range(LAYERS) for t in range(3)] == rows
    assert first.wanted(0)[5].nonzero()[0].tolist() == sorted(first.experts[5, 0].tolist())
    assert first.wanted(0, first.before)[0].sum() == 0


def test_a_last_layer_with_the_last_row_only_has_it_at_the_last_token():
    model = TRACE.geometry
    builder = TraceBuilder(model)
    builder.begin_pass(Phase.PREFILL)
    for layer in range(LAYERS):
        for row in range(3 if layer < LAYERS - 1 else 1):
            builder.row(layer, [row, row + 1])
    (request,) = requests_of(builder.build())
    assert request.experts[:, -1].tolist() == [[-1, -1], [-1, -1], [0, 1]]
    assert request.wanted(LAYERS - 1).sum(axis=1).tolist() == [0, 0, 2]


def test_token_ids_and_hidden_states_are_handed_on_and_checked():
    n = 33 * 4
    tokens = np.arange(n)
    hidden = np.arange(n * LAYERS, dtype=np.float32).reshape(n, LAYERS, 1)
    second = requests_of(TRACE, tokens=tokens, hidden=hidden)[1]
    assert second.tokens.tolist() == list(range(33, 66))
    assert second.hidden[0, 0, 0] == 33 * LAYERS
    with pytest.raises(TraceError, match="5 token ids for 132 tokens"):
        requests_of(TRACE, tokens=tokens[:5])
    with pytest.raises(TraceError, match=r"hidden states of shape \(132, 3, 1\) for 132 tokens and 4 layers"):
        requests_of(TRACE, hidden=hidden[:, :3])


def test_hidden_states_tell_a_regression_what_experts_do_not():
    pytest.importorskip("sklearn")
    draw = np.random.default_rng(5)
    builder = TraceBuilder(TRACE.geometry)
    for request in range(3):
        for _ in range(60):
            builder.begin_pass(Phase.DECODE, request=request)
            for layer in range(LAYERS):
                builder.row(layer, draw.permutation(EXPERTS)[:K].tolist())
    trace = builder.build()
    by_token = np.concatenate([request.experts for request in requests_of(trace)])
    hidden = np.zeros((len(by_token), LAYERS, EXPERTS), dtype=np.float32)
    for layer in range(LAYERS - 1):
        np.put_along_axis(hidden[:, layer], by_token[:, layer + 1].astype(np.int64), 1.0, axis=1)
    blind, seeing = (
        quality(cross_fit(trace, Logistic(epochs=500), hidden=given), create("prefetch", "gate-lookahead"))
        for given in (None, hidden)
    )
    assert seeing.foretold > 0.7
    assert blind.foretold < 0.3


def test_scores_are_kept_and_a_threshold_chooses_among_them():
    pytest.importorskip("sklearn")
    found = cross_fit(TRACE, Logistic(epochs=100), top=6)
    assert len(found.prediction_scores[1]) == len(found.predictions[1][1])
    assert found.meta["notes"][-1] == "predictions 1 layer(s) ahead: logistic, fitted to other requests (4 folds)"
    sure, all_ = (quality(found, create("prefetch", f"gate-lookahead{more}")) for more in (":threshold=0.5", ""))
    assert sure.right > all_.right


def test_results_by_request_are_those_of_the_requests_alone():
    found = cross_fit(TRACE, Transitions())
    rows = by_request(found, SPEC)
    assert [row.request for row in rows] == [0, 1, 2, 3]
    alone = found.select_passes(found.pass_request == 2)
    assert rows[2].recall == simulate(alone, SPEC).prefetch.recall
    assert rows[2].speedup > 1.0


def test_registered_ones_are_found_by_name():
    assert predictors() == ["logistic", "transitions"]
    assert create_predictor("transitions:prior=2,depth=3") == Transitions(prior=2.0, depth=3)
    for words, told in (("nothing", "unknown predictor 'nothing'"), ("transitions:x=1", "unknown .*parameter"),
                        ("transitions:depth=a", "depth is 'a', expected int"),
                        ("transitions:depth=0", "expected 1 to")):  # fmt: skip
        with pytest.raises(PolicyError, match=told):
            create_predictor(words)


def test_traces_without_weights_are_learned_too():
    found: Any = cross_fit(made(3, weights=False), Transitions())
    assert quality(found, create("prefetch", "gate-lookahead")).foretold > 0.7
    assert replace(found, predictions={}, prediction_scores={}).n_passes == found.n_passes


def test_the_command_tells_requests_that_it_was_not_fitted_to(tmp_path):
    """What it prints by request is of `cross_fit`, and the trace that it writes is one that `run` takes."""
    write_parquet(TRACE, tmp_path / "t.parquet")
    words = ["learn", str(tmp_path / "t.parquet"), "--predictor", "transitions", "--folds", "2", "--seed", "3"]
    text = said([*words, "--out", str(tmp_path / "told.parquet")], columns=80)
    assert "on requests that it was not fitted to (2 folds)" in text
    found = json.loads(said([*words, "--json", "-"]))
    told = cross_fit(TRACE, "transitions", folds=2, seed=3)
    assert read_trace(tmp_path / "told.parquet").content_hash == told.content_hash
    assert [one["request"] for one in found["requests"]] == [0, 1, 2, 3]
    for one in found["requests"]:
        part = told.select_passes(told.pass_request == one["request"])
        assert one["foretold"] == quality(part, create("prefetch", "gate-lookahead:depth=1")).foretold
        assert one["tokens"] == 30
    out = tmp_path / "r.json"
    said(["run", str(tmp_path / "told.parquet"), "--hardware", "tesla-p40", "--slots-per-layer", "5",
          "--miss", "fetch", "--prefetch", "gate-lookahead:depth=1", "--json", str(out)])  # fmt: skip
    assert json.loads(out.read_text())["prefetch"]["issued"] > 0
