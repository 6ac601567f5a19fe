"""How good must a predictor be: the study, its break-even line, plot and command."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import PolicyError, SimError
from expert_residency.policies import create
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.cli import main
from expert_residency.sim.residency.pool import CachePool, make_pool
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.studies.predictor import (
    KNOWN,
    Cell,
    break_even,
    grid,
    lines,
    noisy,
    quality,
    recall_worth,
    studied,
    study,
)
from expert_residency.traces import ModelGeometry, Phase, TraceBuilder, write_parquet
from expert_residency.traces.bundled import load

GRID = {"recalls": (0.2, 0.9), "precisions": (0.2, 0.6, 1.0), "windows": (1, 3), "rank_qualities": (0.5, 1.0)}
SPEC = RunSpec(("tesla-p40",), Capacity(slots_per_layer=4), miss="fetch")


def test_the_command_tries_what_the_study_does():
    from expert_residency.sim.cli import predictor as command

    for name in ("RECALLS", "PRECISIONS", "WINDOWS", "RANK_QUALITIES"):
        assert tuple(command._numbers(getattr(command, name), name)) == getattr(grid, name)


@pytest.fixture(scope="module")
def trace():
    made = ModelGeometry(
        "tiny", (0, 1, 2, 3), 12, 2, (2_000_000,) * 4, (1_000_000,) * 4, hidden_size=64, quant_family="q4"
    )
    draw = np.random.default_rng(1)
    builder = TraceBuilder(made)
    for _ in range(40):
        builder.begin_pass(Phase.DECODE)
        for layer in range(4):
            builder.row(layer, draw.permutation(12)[:2].tolist())
    return builder.build()


@pytest.fixture(scope="module")
def found(trace):
    return study(trace, SPEC, **GRID, passes=16)


def cell(precision, speedup, recall=0.5, reached=None, ms=1.0):
    return Cell("x", recall, precision, 0.8, 1, speedup, ms, recall, reached, 1, 1, 1, 1)


def test_the_break_even_line_is_linear_between_grid_points():
    place = (1, 0.8, 0.5)
    assert break_even([cell(0.2, 0.9), cell(0.6, 1.1), cell(1.0, 1.3)]) == {place: pytest.approx(0.4)}
    assert break_even([cell(0.2, 1.0), cell(1.0, 1.3)]) == {place: 0.2}
    assert break_even([cell(0.2, 0.8), cell(1.0, 0.9)]) == {place: None}
    # from the highest precision down: a lucky point below the line does not count
    dip = [cell(0.1, 1.05), cell(0.5, 0.9), cell(1.0, 1.1)]
    assert break_even(dip) == {place: pytest.approx(0.75)}
    # it is the precision that the copies reached that counts
    assert break_even([cell(0.2, 0.9, reached=0.4), cell(0.6, 1.1, reached=0.8)]) == {place: pytest.approx(0.6)}


def test_a_point_of_recall_is_worth_the_slope_of_the_time_of_a_token():
    cells = [cell(0.5, 1.0, recall, ms=9.0 - 4.0 * recall) for recall in (0.2, 0.5, 0.9)]
    assert recall_worth(cells) == {(1, 0.8, 0.5): pytest.approx(0.04)}
    assert recall_worth(cells[:1]) == {(1, 0.8, 0.5): None}


def test_the_grid_is_whole_and_measured_against_the_run_without_prefetching(trace, found):
    assert [(c.window, c.rank_quality, c.recall, c.precision) for c in found.grid] == [
        (w, q, r, p) for w in (1, 3) for q in (0.5, 1.0) for r in (0.2, 0.9) for p in (0.2, 0.6, 1.0)
    ]
    assert [one.prefetch for one in found.measured if one.prefetch == one.predictor] == list(KNOWN)
    assert [one.prefetch for one in found.measured] == [point.prefetch for point in lines(trace)]
    assert (found.passes, found.of_passes) == (16, 40)
    assert found.baseline.decode_tokens == 16
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False)) == found.to_dict()


def test_better_predictors_are_faster_and_wrong_ones_do_harm(found):
    speed = {(c.window, c.recall, c.precision): c for c in found.grid if c.rank_quality == 0.5}
    assert speed[1, 0.9, 1.0].speedup > speed[1, 0.2, 1.0].speedup > 1.0
    assert speed[3, 0.9, 1.0].speedup > speed[3, 0.9, 0.2].speedup
    assert speed[1, 0.9, 0.2].harmful_bytes > 0
    assert speed[1, 0.9, 0.2].h2d_bytes > speed[1, 0.9, 1.0].h2d_bytes


def test_the_cache_starts_as_lru_leaves_it(trace):
    """The last passes of a whole run take exactly as long as the same passes measured alone."""
    roomy = RunSpec(("tesla-p40",), Capacity(slots_per_layer=9), miss="fetch")
    warm = study(trace, roomy, recalls=(1.0,), precisions=(1.0,), windows=(1,), passes=16).baseline
    whole = simulate(trace, roomy)
    assert warm.start_bytes == 4 * 9 * 2_000_000
    assert warm.pass_ns.tolist() == whole.pass_ns[24:].tolist()


def test_processes_change_nothing(trace, found):
    again = study(trace, SPEC, **GRID, passes=16, workers=2)
    assert again.grid == found.grid
    assert again.measured == found.measured


def test_a_single_pass_is_refused(trace):
    with pytest.raises(SimError, match="single pass"):
        study(trace.select_passes(np.arange(40) == 0), SPEC)


def test_command_writes_table_json_and_plot(trace, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    source, plot, data = tmp_path / "t.parquet", tmp_path / "line.png", tmp_path / "out.json"
    write_parquet(trace, source)
    with pytest.raises(SystemExit) as end:
        main([
            "predictor", str(source), "--hardware", "tesla-p40", "--slots-per-layer", "4", "--recalls", "0.3,0.9",
            "--precisions", "0.2,1", "--windows", "1,2", "--rank-qualities", "0.8", "--passes", "8",
            "--workers", "1", "--plot", str(plot), "--json", str(data),
        ])  # fmt: skip
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "any (from" not in out
    names = [line.split("  ")[0] for line in out.splitlines() if "width=" in line]
    assert names
    assert all(":" in name for name in names), names
    assert "a point " in out
    assert "ms a token saved" in out
    assert "are left a token" in out
    assert "only the last 8 of 40 passes" in out
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert len(json.loads(data.read_text())["grid"]) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--recalls", "x"], "numbers separated by commas"), (["--recalls", "2"], "expected 0 to 1"),
     (["--insertion", "stage"], "unknown insertion rule"), (["--windows", "0"], "expected 1 to")],
)  # fmt: skip
def test_command_refuses_bad_choices_in_one_sentence(trace, tmp_path, capsys, options, message):
    source = tmp_path / "t.parquet"
    write_parquet(trace, source)
    with pytest.raises(SystemExit) as end:
        main([
            "predictor", str(source), "--hardware", "tesla-p40", "--slots-per-layer", "4", "--passes", "2",
            "--workers", "1", *options,
        ])  # fmt: skip
    assert end.value.code == 2
    assert message in capsys.readouterr().err


# ---- the noisy oracle of copies -------------------------------------------------------------------------


def wide_trace(passes=80, layers=3, experts=32, k=6, seed=2):
    made = ModelGeometry("wide", tuple(range(layers)), experts, k, (1_000_000,) * layers, (1_000_000,) * layers,
                         hidden_size=64, quant_family="q4")  # fmt: skip
    draw = np.random.default_rng(seed)
    builder = TraceBuilder(made)
    for _ in range(passes):
        builder.begin_pass(Phase.DECODE)
        for layer in range(layers):
            builder.row(layer, draw.permutation(experts)[:k].tolist())
    return builder.build()


WIDE = wide_trace()


@given(st.sampled_from([0.3, 0.7, 1.0]), st.sampled_from([0.4, 0.7, 1.0]), st.sampled_from([0.0, 0.5, 0.8, 1.0]),
       st.integers(0, 10**6))  # fmt: skip
def test_the_noisy_oracle_of_copies_has_what_was_asked_for(recall, precision, auc, seed):
    """With nobody resident every proposal is a copy."""
    found = quality(WIDE, create("prefetch", noisy(recall, precision, auc, seed=seed)))
    assert found.foretold == pytest.approx(recall, abs=0.06)
    assert found.right == pytest.approx(precision, abs=0.06)
    if precision < 1:
        assert found.rank_quality == pytest.approx(auc, abs=0.08)
    else:
        assert found.rank_quality is None


def test_it_errs_only_where_an_error_would_be_a_copy():
    """Experts that are resident are never guessed wrongly, and are in no rate."""
    pool = make_pool(WIDE.geometry, Capacity(slots_per_layer=16))
    cache = CachePool(pool, create("eviction", "lru"), create("admission", "always"))
    found = quality(WIDE, create("prefetch", noisy(1.0, 0.5, 0.5)), cache)
    plain = quality(WIDE, create("prefetch", noisy(1.0, 0.5, 0.5)))
    assert found.right > plain.right + 0.1  # half of the right ones are resident, and owe no wrong one
    assert sum(cache.resident) == 3 * 16


def test_within_pass_it_says_nothing_of_the_next_pass():
    assert not quality(WIDE, create("prefetch", noisy(1.0, 1.0, 0.5))).within_pass
    found = quality(WIDE, create("prefetch", noisy(1.0, 1.0, 0.5, within_pass=True)))
    assert found.within_pass
    assert found.foretold == pytest.approx(2 / 3)
    far = quality(WIDE, create("prefetch", noisy(1.0, 1.0, 0.5, window=2, nearest=2)))
    assert far.layers_ahead == 2.0


def test_a_window_that_ends_before_it_begins_is_refused():
    with pytest.raises(PolicyError, match=r"window is 1, expected 2 \(nearest\) or more"):
        simulate(WIDE, replace(SPEC, prefetch="noisy-copies:nearest=2,window=1"))


# ---- recorded predictions --------------------------------------------------------------------------------


def with_scores(trace):
    """One layer ahead the true set and two others, by score; the last of the true ones scores least."""
    offsets, experts, scores = [0], [], []
    draw = np.random.default_rng(3)
    for e in range(trace.n_events):
        if trace.event_layer[e]:
            true = (
                trace.keys[trace.event_offsets[e] : trace.event_offsets[e + 1]] % trace.geometry.experts
            ).tolist()
            others = [x for x in draw.permutation(trace.geometry.experts).tolist() if x not in true][:2]
            experts += [*true[:-1], *others, true[-1]]
            scores += [0.9] * (len(true) - 1) + [0.5, 0.4, 0.1]
        offsets.append(len(experts))
    return replace(trace, predictions={1: (np.array(offsets), np.array(experts, dtype=np.int16))},
                   prediction_scores={1: np.array(scores, dtype=np.float32)})  # fmt: skip


def test_thresholds_and_top_n_choose_among_recorded_predictions():
    trace = with_scores(WIDE)
    k = trace.geometry.top_k

    def found(words):
        return quality(trace, create("prefetch", "gate-lookahead" + words))

    assert found("").foretold == pytest.approx(2 / 3)  # the first layer of three has none
    assert found("").right == pytest.approx(k / (k + 2))
    assert found("").rank_quality == pytest.approx((k - 1) / k)
    assert found(":threshold=0.45").right == pytest.approx((k - 1) / k)
    assert found(":threshold=0.95").right is None
    assert found(":top=3").right == 1.0
    assert found(":top=3").foretold == pytest.approx(2 / 3 * 3 / k)
    assert found(f":threshold=0.2,top={k}").right == pytest.approx((k - 1) / k)


def test_a_threshold_needs_scores():
    trace = replace(with_scores(WIDE), prediction_scores={})
    with pytest.raises(PolicyError, match="have no scores to hold against a threshold; top= takes the first"):
        simulate(trace, replace(SPEC, prefetch="gate-lookahead:threshold=0.5"))


def test_recorded_predictions_stand_on_the_map_with_their_thresholds():
    trace = with_scores(WIDE)
    points = [point for point in lines(trace) if point.recorded]
    cuts = sorted({float(f"{cut:.4g}") for cut in np.quantile(trace.prediction_scores[1], (0.25, 0.5, 0.75))})
    name = "gate-lookahead:depth=1"
    assert [point.prefetch for point in points] == [name, *(f"{name},threshold={cut:.4g}" for cut in cuts)]
    unscored = [point.prefetch for point in lines(replace(trace, prediction_scores={})) if point.recorded]
    assert unscored == ["gate-lookahead:depth=1", "gate-lookahead:depth=1,top=2", "gate-lookahead:depth=1,top=4"]
    found = study(trace, SPEC, recalls=(1.0,), precisions=(1.0,), windows=(1,), rank_qualities=(0.5,), passes=20)
    own = found.measured[0]
    assert own.recorded
    assert own.layers_ahead == 1.0
    assert own.map_speedup == pytest.approx(own.speedup, abs=0.03)


def shuffled(trace, depth=1):
    """The same guesses without their order."""
    offsets, experts = trace.predictions[depth]
    event = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.lexsort((np.random.default_rng(0).random(len(experts)), event))
    return replace(trace, predictions={depth: (offsets, experts[order])})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tinymoe-prose", "tinymoe-code"])
@pytest.mark.parametrize("order", ["recorded", "shuffled"])
def test_the_map_says_what_recorded_predictions_give(monkeypatch, name, order):
    """Sign and size: at a recorded predictor's recall, precision and rank quality, within 2 points of its gain.

    Guesses in the order of their scores gain, since doubtful ones are cancelled; the same ones shuffled do not.
    """
    recorded = load(name)
    trace = recorded if order == "recorded" else shuffled(recorded)
    spec = RunSpec(("rtx-5060ti-5700x3d",), Capacity(total_bytes=200 << 20), miss="fetch")
    only = lines(trace)[:1]
    monkeypatch.setattr(studied, "lines", lambda trace: only)
    (own,) = study(
        trace, spec, recalls=(1.0,), precisions=(1.0,), windows=(1,), rank_qualities=(0.5,), passes=400
    ).measured
    assert own.prefetch == "gate-lookahead:depth=1"
    assert own.map_speedup == pytest.approx(own.speedup, abs=0.02)
    assert (own.map_speedup > 1.0) == (own.speedup > 1.0)
    assert own.speedup > 1.03 if order == "recorded" else own.speedup < 1.01
    assert own.rank_quality == pytest.approx(0.8 if order == "recorded" else 0.5, abs=0.03)
