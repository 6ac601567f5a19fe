"""`residency measure`: what is run is said before it starts, and the table is what `validate --live` reads."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from expert_residency.errors import SimError
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.cli import main
from expert_residency.sim.live.check import check_plan, compared
from expert_residency.sim.live.measure import check_room
from expert_residency.sim.live.plan import make_plan
from expert_residency.sim.live.predict import load_live_runs
from expert_residency.sim.live.schedule import sizes_of
from expert_residency.sim.live.variants import decode_window, in_windows
from expert_residency.sim.validation.cases import live_cases
from expert_residency.traces import Phase, RoutingTrace, load_model, write_parquet
from expert_residency.traces.bundled import load

SIDE = 256


@pytest.fixture(scope="module")
def small() -> RoutingTrace:
    """Twelve recorded passes, with experts of 98 kB."""
    window = decode_window(load("tinymoe-prose"), 12)
    n, square = window.geometry.n_layers, SIDE * SIDE * 2
    sizes = {"expert_bytes": (6 * SIDE * 64,) * n, "dense_bytes": (square,) * n, "head_bytes": square}
    return replace(window, geometry=replace(window.geometry, hidden_size=SIDE, **sizes))


def residency(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit code and all that was printed."""
    with pytest.raises(SystemExit) as stop:
        main([*map(str, arguments)])
    said = capsys.readouterr()
    return int(stop.value.code or 0), said.out + said.err


@pytest.mark.parametrize("cardless", [True, False])
def test_a_short_trace_is_run_whole(small: RoutingTrace, cardless: bool) -> None:
    plan = make_plan(small, "small", "here", cardless=cardless)
    assert {passes for passes, _ in plan.spans.values()} == {12}
    assert all(len(one.schedule.pass_steps) - 1 == 12 for one in plan.outcomes)
    assert all(0 <= warmup < 12 for _, warmup in plan.spans.values())


@pytest.mark.parametrize("cardless", [True, False])
def test_more_is_forecast_to_take_more(small: RoutingTrace, cardless: bool) -> None:
    usual = make_plan(small, "small", "here", cardless=cardless)
    for more in ({"rounds": 4}, {"factor": 4}):
        plan = make_plan(small, "small", "here", cardless=cardless, **more)
        assert plan.seconds > usual.seconds, more
        assert plan.disk_bytes >= usual.disk_bytes, more
    assert make_plan(small, "small", "here", cardless=cardless, calibrate=False).seconds < usual.seconds


def test_passes_of_several_rows_hold_the_same_pairs(small: RoutingTrace) -> None:
    windows = in_windows(small, 5)
    assert (windows.n_passes, set(windows.event_rows.tolist())) == (2, {5})
    pairs = [
        (trace.event_layer[event], int(expert), trace.event_pass[event] // (1 if trace is windows else 5))
        for trace in (small.select_passes(np.arange(small.n_passes) < 10), windows)
        for event in range(trace.n_events)
        for row in range(trace.event_row_offsets[event], trace.event_row_offsets[event + 1])
        for expert in trace.row_experts[trace.row_offsets[row] : trace.row_offsets[row + 1]]
    ]
    assert sorted(pairs[: len(pairs) // 2]) == sorted(pairs[len(pairs) // 2 :])
    plan = make_plan(small, "small", "here", cardless=False, rows=5)
    sizes = sizes_of(plan.geometry, plan.longest)
    assert (sizes.rows, sizes.pairs) == (5, 2)
    assert {one.arm.miss for one in plan.outcomes} == {"fetch", "stream"}
    for one in plan.outcomes:
        for step in one.schedule.steps:
            taken = [row for slot in (*step.now, *step.later) for row in step.wanting(slot)]
            assert sorted(taken) == sorted(list(range(5)) * small.geometry.top_k)


def test_a_calibration_ends_with_three_runs(small: RoutingTrace) -> None:
    for cardless in (True, False):
        plan = check_plan(small, "small", "here", cardless=cardless, rounds=5)
        assert plan is not None
        assert len(plan.outcomes) == 3
        assert plan.calibration_rounds >= 5
    assert check_plan(decode_window(small, 3), "small", "here", cardless=True, rounds=5) is None


def test_what_was_measured_is_set_beside_what_was_predicted() -> None:
    lines = compared("h200-x1", Path(str(files("expert_residency.hwmodels.runs.own"))), each=True)
    assert len(lines) == 39 + 2
    assert lines[-2].startswith("39 runs that no fit has seen, predicted: median error 2.7 %, worst 19.4 %")
    assert lines[-1].startswith("warning: past 10 %")


def test_what_cannot_be_run_is_refused_in_a_sentence(small: RoutingTrace, tmp_path: Path) -> None:
    prompt = replace(small, pass_phase=small.pass_phase * 0 + Phase.PREFILL)
    with pytest.raises(SimError, match="small has 0 decode passes"):
        make_plan(prompt, "small", "here", cardless=True)
    with pytest.raises(SimError, match="12 decode passes, 13 are asked for"):
        make_plan(small, "small", "here", cardless=True, passes=13)
    with pytest.raises(SimError, match="leaves nothing of 4 passes"):
        make_plan(small, "small", "here", cardless=True, passes=4, warmup=4)
    with pytest.raises(SimError, match="without a card a pass has one row"):
        make_plan(small, "small", "here", cardless=True, rows=2)
    with pytest.raises(SimError, match="small has 1 decode passes of 12 rows"):
        make_plan(small, "small", "here", cardless=False, rows=12)
    with pytest.raises(SimError, match=r"allow it with --disk \d+GB"):
        check_room(make_plan(small, "small", "here", cardless=True), tmp_path, 1000)


@pytest.fixture
def asked(small: RoutingTrace, tmp_path: Path) -> tuple[object, ...]:
    """A command over a trace file, into `tmp_path / "out"`."""
    pytest.importorskip("numba", reason="the CPU pool needs numba")
    write_parquet(small, tmp_path / "mine.parquet")
    where = ("--trace", tmp_path / "mine.parquet", "--out", tmp_path / "out", "--folder", tmp_path)
    return ("measure", *where, "--cardless", "--workers", 1, "--rounds", 1)


def test_the_table_is_read_by_validate(
    asked: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, profile = tmp_path / "out", files("expert_residency.hwmodels.runs.own") / "epyc2-cardless.toml"
    code, said = residency(capsys, *asked, "--dry-run")
    assert (code, out.exists()) == (0, False)
    assert "5 variants x 1 rounds" in said
    assert "of disk while it runs" in said
    code, said = residency(capsys, *asked, "--profile", profile)
    assert code == 0, said
    written = ["here-cardless.engine.toml", "here-cardless.toml", "live-here-cardless.csv", "mine.parquet"]
    assert sorted(path.name for path in out.iterdir()) == written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.parquet", "out"], "no file is left"
    runs = load_live_runs("here-cardless", out)
    assert len(runs) == 5
    assert all(run.tok_s > 0 and run.passes == 12 and run.factor == 1 for run in runs)


@pytest.mark.slow
def test_the_machine_is_calibrated_in_the_same_session(
    asked: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("expert_residency.hwmodels.calibrate.run.LEAST_BYTES", 1 << 24)
    code, said = residency(capsys, *asked)
    assert code == 0, said
    profile = load_profile(tmp_path / "out/here-cardless.toml")
    assert profile.cpu.workers.count == 1
    assert (tmp_path / "out/here-cardless.readings.json").is_file()
    cases = live_cases(tmp_path / "out")
    assert len(cases) == 5
    assert all(case.predicted > 0 and case.measured > 0 for case in cases)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--cardless", "--group", "x3"), "expected x1, x4, x9"),
        (("--cardless", "--name", "My PC"), "lower-case letters"),
        (("--cardless", "--engine", "strata"), "give --profile too"),
        (("--cardless", "--disk", "3"), "has no unit"),
        (("--cardless", "--model", "mixtral-8x7b"), "32 x 8 experts"),
    ],
)
def test_errors_are_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: tuple[str, ...], says: str
) -> None:
    code, said = residency(capsys, "measure", "--out", tmp_path / "new", *more)
    assert code == 2
    assert says in said
    assert "Traceback" not in said
    assert not (tmp_path / "new").exists()


def test_a_large_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    trace = decode_window(load("tinymoe-prose"), 4)
    large = load_model("qwen3-30b-a3b")
    wide = replace(trace.geometry, expert_bytes=large.expert_bytes[:12], hidden_size=large.hidden_size)
    plan = make_plan(replace(trace, geometry=wide), "large", "here", cardless=True)
    with pytest.raises(SimError, match="allow it with --disk"):
        check_room(plan, tmp_path, 10**9)
