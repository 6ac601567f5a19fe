"""Scores: ranks by time, headroom, gap in misses, regime, ceilings, and the command."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import PolicyFaultError, SimError
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.cli import main
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.runs.time_bound import time_bound
from expert_residency.sim.studies.bounds import (
    MissGap,
    Regime,
    assess,
    baseline_spec,
    miss_gap,
    perfect_prefetch,
    time_ns,
)
from expert_residency.sim.studies.headroom import binding_limit, ceilings
from expert_residency.sim.studies.score import ScoredRun, score, score_run
from expert_residency.sim.sweep import sweep
from expert_residency.sim.testing.cases import random_trace
from expert_residency.sim.timed.binding import BINDS, binding_sentence
from expert_residency.sim.timed.result import CAUSES
from expert_residency.traces import read_trace, write_parquet


def made_trace(seed=1, **choices):
    trace = random_trace(seed, **({"experts": 12, "top_k": 2, "uniform": True} | choices))
    geometry = replace(
        trace.geometry, quant_family="q4", expert_bytes=(2_000_000,) * trace.geometry.n_layers,
        dense_bytes=(1_000_000,) * trace.geometry.n_layers, hidden_size=64,
    )  # fmt: skip
    return replace(trace, geometry=geometry)


SPEC = RunSpec(("tesla-p40",), Capacity(slots_per_layer=4), miss="fetch")


def runs(trace, spec=SPEC):
    choices = [{}, {"eviction": "lfru"}, {"eviction": "fifo"}, {"prefetch": "previous-token"}]
    return [ScoredRun.of(simulate(trace, replace(spec, **choice)), f"run {i}") for i, choice in enumerate(choices)]


def test_every_cause_has_words_and_the_largest_binds():
    assert set(BINDS) == set(CAUSES)
    result = simulate(made_trace(), SPEC)
    decode = result.pass_causes[result.pass_phase != 0].sum(axis=0)
    sentence = binding_sentence(result)
    assert BINDS[CAUSES[int(decode.argmax())]] in sentence
    assert f"{100 * decode.max() / decode.sum():.0f} %" in sentence


def test_headroom_is_nothing_at_the_baseline_and_all_at_the_best():
    trace = made_trace()
    base, best = simulate(trace, baseline_spec(SPEC)), time_bound(trace, SPEC).time_ns
    assert score_run(base, base, best).headroom == 0.0
    perfect = score_run(perfect_prefetch(trace, SPEC), base, best)
    assert 0.5 < perfect.headroom <= 1.0
    between = simulate(trace, replace(SPEC, eviction="lfru"))
    made = score_run(between, base, best)
    expected = (time_ns(base) - time_ns(between)) / (time_ns(base) - best)
    assert made.headroom == pytest.approx(expected)
    assert made.speedup == pytest.approx(time_ns(base) / time_ns(between))


def test_the_best_run_is_the_fastest_of_the_oracles_windows():
    trace = made_trace(2)
    times = [
        time_ns(simulate(trace, replace(SPEC, eviction="belady", prefetch=f"oracle:window={window}")))
        for window in (1, 4, trace.geometry.n_layers)
    ]
    assert time_ns(perfect_prefetch(trace, SPEC)) == min(times)


def test_runs_are_ranked_by_time_within_their_case_only():
    trace = made_trace()
    other = replace(SPEC, capacity=Capacity(slots_per_layer=6))
    scores = score([*runs(trace), *runs(trace, other)])
    for case in {made.run.case for made in scores}:
        group = [made for made in scores if made.run.case == case]
        assert [made.rank for made in group] == [1, 2, 3, 4]
        assert [made.run.time_ns for made in group] == sorted(made.run.time_ns for made in group)
        assert all(made.headroom is None for made in group)
        assert all("no bound on time" in made.warnings[-1] for made in group)


def test_a_run_under_the_bound_is_refused_and_the_least_bound_of_a_case_counts():
    trace = made_trace()
    base, bound = simulate(trace, baseline_spec(SPEC)), time_bound(trace, SPEC).time_ns
    with pytest.raises(PolicyFaultError, match="where no schedule can take less"):
        score_run(base, base, time_ns(base) + 1)
    made = [replace(run, bound_ns=bound - i) for i, run in enumerate(runs(trace))]
    assert {one.bound_ns for one in score(made)} == {bound - 3}
    assert {one.bound_ns for one in score([*made[:3], replace(made[3], bound_ns=None)])} == {None}


def test_two_cases_are_not_compared():
    trace = made_trace()
    with pytest.raises(SimError, match="another trace, machine or capacity"):
        score_run(
            simulate(trace, SPEC), simulate(trace, replace(SPEC, capacity=Capacity(slots_per_layer=5))), None
        )


def test_nothing_to_capture_is_said_instead_of_divided():
    trace = made_trace()
    roomy = replace(SPEC, capacity=Capacity(slots_per_layer=12), placement="hindsight")
    result = simulate(trace, roomy)
    made = score_run(result, result, time_bound(trace, roomy).time_ns)
    assert made.headroom is None
    assert any("nothing to capture" in warning for warning in made.warnings)


def test_warnings_tell_oracles_and_policies_that_were_never_exercised():
    trace = made_trace()
    static = score_run(simulate(trace, replace(SPEC, eviction="static", admission="never")), None, None)
    assert static.run.oracle  # its default start is hindsight
    idle = replace(SPEC, capacity=Capacity(slots_per_layer=12), placement="hindsight", prefetch="previous-token")
    made = score_run(simulate(trace, idle), None, None)
    assert any("never exercised: no copy" in warning for warning in made.warnings)
    short = score([ScoredRun.of(simulate(trace, replace(SPEC, capacity=Capacity(slots_per_layer=12))))])
    assert any("never exercised" in warning for warning in short[0].warnings)


@given(st.integers(0, 200), st.sampled_from(["lru", "lfu", "fifo", "random"]), st.integers(1, 8))
def test_the_gap_splits_into_two_shares_that_are_never_negative_for_causal_policies(seed, eviction, slots):
    trace = random_trace(seed, uniform=True, experts=9)
    gap = miss_gap(trace, Capacity(slots_per_layer=slots), eviction)
    assert gap.minimum <= gap.belady <= gap.policy <= gap.lookups
    assert gap.admission_share + gap.victim_share == gap.policy - gap.minimum


def test_the_gap_counts_what_the_replay_counts():
    trace = random_trace(3, uniform=True)
    capacity = Capacity(slots_per_layer=3)
    gap = miss_gap(trace, capacity, "lru")
    counted = replay(trace, "lru", capacity).phases["all"]
    assert gap.policy == counted.distinct - counted.distinct_hits
    assert MissGap(10, 7, 4, 3).to_dict()["victim_share"] == 3
    with pytest.raises(SimError, match="one card only"):
        miss_gap(trace, Capacity(card_bytes=(100, 100)), "lru")


def test_regime_by_hand():
    trace = made_trace(experts=12, top_k=2)
    regime = Regime.of(trace, 3 * 3 * 2_000_000)  # three layers, three experts each
    assert regime.slots_per_layer == 3.0
    assert regime.slots_over_k == 1.5
    assert regime.cycles == 1.5
    assert regime.cached_share == 0.25
    small = Regime.of(trace, 2_000_000)
    assert any("smaller than what one token touches" in text for text in small.warnings("global"))
    assert not any("smaller than what one token touches" in text for text in small.warnings("layer"))
    assert any("cannot differ" in text for text in Regime.of(trace, 10**9).warnings("global"))


def test_assess_adds_what_only_the_trace_can_tell():
    trace = made_trace()
    scores = assess(trace, runs(trace)[1:])
    assert {made.run.name for made in scores} >= {"baseline, simulated now"}
    assert all(made.headroom is not None and made.gap and made.regime for made in scores)
    base = next(made for made in scores if made.run.is_baseline)
    assert base.headroom == 0.0
    with pytest.raises(SimError, match="another trace"):
        assess(made_trace(5), runs(trace))


def test_lifting_a_limit_never_slows_and_the_binding_one_is_named():
    trace = made_trace()
    found = ceilings(trace, SPEC)
    now, *single, everything = [time_ns(one.result) for one in found]
    assert all(time <= now for time in single)
    assert everything <= min(single)
    assert found[2].result.shares()["vram"] == 1.0
    assert "'endless cache'" in binding_limit(found) or "'perfect prefetch'" in binding_limit(found)
    at_ceiling = replace(SPEC, capacity=Capacity(slots_per_layer=12), placement="hindsight")
    assert "no fixed costs" in binding_limit(ceilings(trace, at_ceiling))


def test_command_on_files_folder_and_trace(tmp_path, capsys):
    trace = made_trace()
    folder = tmp_path / "results"
    folder.mkdir()
    for i, choice in enumerate([{}, {"eviction": "lfru"}, {"eviction": "belady", "prefetch": "oracle:window=3"}]):
        spec = replace(SPEC, **choice)
        data = simulate(trace, spec).to_dict(passes=True) | {"time_bound": time_bound(trace, spec).to_dict()}
        (folder / f"{i}.json").write_text(json.dumps(data))
    with pytest.raises(SystemExit) as end:
        main(["score", str(folder), "--json", "-"])
    assert end.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["rank"] for row in found] == [1, 2, 3]
    assert next(row for row in found if row["policies"] == "lru")["headroom_captured"] == 0.0
    assert 0.5 < next(row for row in found if row["oracle"])["headroom_captured"] <= 1.0
    write_parquet(trace, tmp_path / "trace.parquet")
    with pytest.raises(SystemExit):
        main(["score", str(folder / "0.json"), str(folder / "1.json"), "--trace", str(tmp_path / "trace.parquet")])
    out = capsys.readouterr().out
    assert "headroom" in out
    assert "bound: no schedule, whatever it knows, is faster than" in out
    assert "victim gap" in out
    assert "regime:" in out


def test_only_a_plain_lru_is_said_to_hit_nothing():
    trace = made_trace()
    small = replace(SPEC, capacity=Capacity(total_bytes=trace.geometry.token_cycle_bytes // 2))
    choices = [{}, {"eviction": "fifo"}, {"eviction": "lfu"}, {"admission": "two-hit"}, {"prefetch": "oracle"}]
    made = [simulate(trace, replace(small, **choice)) for choice in choices]
    assert [any("exactly 0 %" in text for text in result.warnings) for result in made] == [True] + [False] * 4
    assert all(any("below one token's experts" in text for text in result.warnings) for result in made)
    assert made[0].decode_hit_rate() == 0
    scores = assess(trace, [ScoredRun.of(result) for result in made])
    said = [score.run.policies for score in scores if any("exactly 0 %" in text for text in score.warnings)]
    assert said == ["lru"]


def test_headings_are_for_readers_and_the_missing_best_run_says_what_to_do(tmp_path, capsys):
    trace = made_trace()
    write_parquet(trace, tmp_path / "trace.parquet")
    room = {"global": Capacity(total_bytes=40_000_000), "layer": Capacity(total_bytes=40_000_000, scope="layer")}
    for scope, capacity in room.items():
        path = tmp_path / f"{scope}.json"
        path.write_text(json.dumps(simulate(trace, replace(SPEC, capacity=capacity)).to_dict()))
        with pytest.raises(SystemExit):
            main(["score", str(path)])
        shown = capsys.readouterr()
        heading = " ".join(shown.out.split())
        assert f"38.1 MiB, scope {scope}" in heading
        assert "total_bytes" not in heading
        assert ("quotas equal" in heading) == (scope == "layer")
        assert "--trace FILE adds it" in shown.out + shown.err
        with pytest.raises(SystemExit):  # and what it says to do helps
            main(["score", str(path), "--trace", str(tmp_path / "trace.parquet")])
        shown = capsys.readouterr()
        assert "--trace FILE" not in shown.out + shown.err


@pytest.mark.parametrize(
    ("text", "message"), [("{}", "not a result"), ("nope", "not JSON"), ("[1]", "not a result")]
)
def test_command_names_a_file_that_is_no_result(tmp_path, capsys, text, message):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(SystemExit) as end:
        main(["score", str(path)])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.shared
def test_more_hits_and_yet_slower(shared):
    """Prefetching by a predictor of 80 % recall and precision raises the hit rate, and loses time: where the CPU
    computes misses, a copy that is late makes the layer wait for the link (compare Helldez/BigMoeOnEdge#101)."""
    trace = read_trace(shared / "traces/bigmoe-edge/qwen.route.csv")
    base = RunSpec(("rtx-5070-7900x",), Capacity(total_bytes=3000 << 20), miss="cpu")
    plain = simulate(trace, base)
    ahead = simulate(
        trace, replace(base, prefetch="noisy-oracle:recall=0.8,precision=0.8", insertion="staging:slots=16")
    )
    assert ahead.decode_hit_rate() > plain.decode_hit_rate()
    assert ahead.decode_ns > plain.decode_ns
    causes, before = ahead.causes_ms_per_token(), plain.causes_ms_per_token()
    assert causes["pcie_wait"] > before["pcie_wait"]


def test_command_on_a_sweep(tmp_path, capsys):
    choices = {
        "name": "small",
        "traces": {"code": "bundled:tinymoe-code"},
        "constants": {"miss": "fetch", "passes": 6, "capacity": "40%"},
        "axes": {
            "hardware": ["rtx-5070", "tesla-p40"],
            "eviction": ["lru", "belady"],
            "prefetch": ["none", "oracle"],
        },
    }
    sweep(choices, tmp_path / "out", workers=1)
    with pytest.raises(SystemExit):
        main(["score", str(tmp_path / "out"), "--json", "-"])
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 8
    for rank in range(1, 5):
        assert len([row for row in found if row["rank"] == rank]) == 2
    for row in found:
        if row["policies"] == "lru":
            assert row["headroom_captured"] in (0.0, None)
