"""Knob sweeps of measured rows: what one is, how a prediction is judged, and that settings are really run."""

import dataclasses

import pytest

from expert_residency.hwmodels.runs import MeasuredRun, load_measured_runs
from expert_residency.sim.cli import validate_advice
from expert_residency.sim.studies.advise import sweeps
from expert_residency.sim.studies.advise.sweeps import (
    Judged,
    NotJudged,
    SweepTask,
    find_sweeps,
    fitting_rows,
    judge,
    task_of,
)


def row(tok_s, mode, **more):
    own = {
        "source": "a report", "gpu": "RTX 4090 Laptop 16GB", "n_gpus": 1, "cpu": "Core i9-13900HX", "ram": "64 GB",
        "link": "24.0 GB/s", "model": "Qwen3.8-Flash-Next", "quant": "IQ3_S", "engine": "Strata 0.1.41",
        "mode": mode, "cache": "3897 slots 7.44 GiB", "tok_s": tok_s, "kind": "run", "read_in": "source",
    }  # fmt: skip
    return MeasuredRun(**(own | more))


def shares(*pairs, **more):
    return [row(tok_s, f"arena, pcie-frac {share}", **more) for share, tok_s in pairs]


def test_a_sweep_is_rows_that_differ_in_one_knob_and_nothing_else():
    rows = shares((0, 60.0), (0.2, 70.0), (0.5, 50.0), (0.2, 74.0))
    (found,) = find_sweeps(rows)
    assert (found.knob, found.values, found.tok_s) == ("PCIe share", (0.0, 0.2, 0.5), (60.0, 72.0, 50.0))
    assert found.values[found.best] == 0.2
    assert not find_sweeps(rows[:2])
    assert not find_sweeps([*rows[:2], row(50.0, "mmap, pcie-frac 0.5")]), "another host"
    assert not find_sweeps([*rows[:2], *shares((0.5, 50.0), quant="IQ2_XS")]), "another quantization"
    assert not find_sweeps([*rows[:2], *shares((0.5, 50.0), source="another report")])
    assert len(find_sweeps([*rows, *shares((0, 5.0), (0.2, 6.0), (0.5, 7.0), workload="64K")])) == 2
    caches = [row(1.0 + n, "look-ahead on", engine="warp", cache=f"{n} slots {n}.5 GB") for n in (3, 5, 9)]
    (found,) = find_sweeps(caches)
    assert (found.knob, found.values) == ("cache", (3.5, 5.5, 9.5))


def test_sweeps_of_the_shipped_rows():
    """Four knobs of the RTX 4090 Laptop at two cache sizes, shares of two more machines, caches."""
    found = find_sweeps()
    assert len(found) == 18
    laptop = [sweep for sweep in found if "4090 Laptop" in sweep.machine]
    assert sorted({sweep.knob for sweep in laptop}) == ["PCIe share", "adaptive tier", "draft floor", "workers"]
    shares_of = [sweep for sweep in found if "P100" in sweep.machine or "A3000" in sweep.machine]
    assert [sweep.knob for sweep in shares_of] == ["PCIe share"] * 3
    assert all(isinstance(task_of(sweep), SweepTask) for sweep in (*laptop, *shares_of))
    assert all(isinstance(task_of(sweep), str) for sweep in found if sweep not in (*laptop, *shares_of))
    two = task_of(shares_of[0]).task
    assert len(two.room) == len(two.ask.profiles) == 2
    rows = fitting_rows([task_of(sweep) for sweep in laptop])
    assert len(rows) == 6
    assert len(load_measured_runs()) > 400


def test_regret_and_order_are_those_of_the_machine():
    (sweep,) = find_sweeps(shares((0, 60.0), (0.2, 72.0), (0.5, 50.0)))
    right = Judged(sweep, (6.0, 7.0, 5.0))
    assert (right.regret(right.predicted), right.wrong(right.predicted, 0.1)) == (0.0, (0, 3))
    other = (7.0, 6.0, 5.0)
    assert right.regret(other) == pytest.approx(1 - 60 / 72)
    assert right.wrong(other, 0.1) == (1, 3)
    assert right.wrong(other, 0.25) == (0, 1)
    ties = (7.0, 7.0, 7.0)
    assert right.regret(ties) == pytest.approx(1 - 50 / 72), "of equal predictions the worst counts"
    assert right.wrong(ties, 0.1) == (3, 3)


def test_settings_that_a_fit_saw_are_told_from_those_it_did_not():
    (sweep,) = find_sweeps(shares((0, 60.0), (0.2, 72.0), (0.5, 50.0), (1.0, 40.0)))
    one = Judged(sweep, (6.0, 7.0, 5.0, 4.0), (60.0, 45.0, 55.0, 40.0), used=(0, 3))
    left = one.unseen()
    assert (left.sweep.values, left.fitted) == ((0.2, 0.5), (45.0, 55.0))
    assert left.regret(left.fitted) == pytest.approx(1 - 50 / 72)
    assert one.regret(one.fitted) == pytest.approx(1 - 60 / 72), "over all settings the fit's own is advised"
    assert one.errors(one.fitted, used=True) == pytest.approx([0, 0])
    assert one.errors(one.fitted, used=False) == pytest.approx([45 / 72 - 1, 0.1])
    assert Judged(sweep, one.predicted).unseen() is None
    assert Judged(sweep, one.predicted, one.fitted, used=(0, 1, 3)).unseen() is None
    said = validate_advice.past_wanted([one])
    assert any("did not see, worst 30.6 %" in line for line in said)


def test_settings_are_run_and_what_cannot_be_run_is_named(monkeypatch):
    monkeypatch.setattr(sweeps, "PASSES", 16)
    rows = shares((0, 69.1), (0.2, 73.5), (1.0, 39.8))
    nobody = [row(1.0 + n, "look-ahead on", engine="warp", cache=f"{n} GB", gpu="M5 Pro") for n in (3, 5, 9)]
    (judged,), (left,) = judge(find_sweeps([*rows, *nobody]), fit=False)
    assert judged.fitted is None
    assert judged.predicted[1] > judged.predicted[2], "all over the link is slower than a fifth"
    assert "no preset of the engine warp" in left.missing
    task = task_of(judged.sweep)
    half = dataclasses.replace(judged.sweep, values=(0.5,) * 3)
    task.sweep = half
    assert task.speed(0.2) == judged.predicted[1]
    fast = task.profile.model_copy(
        update={"link": task.profile.link.model_copy(update={"h2d_gb_per_s": sweeps.as_set(50.0)})}
    )
    assert task.speed(1.0, ((fast,), task.preset)) > judged.predicted[2]


def test_what_is_printed_and_what_falls_short(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    (sweep,) = find_sweeps(shares((0, 60.0), (0.2, 72.0), (0.5, 50.0)))
    good, bad = Judged(sweep, (6.0, 7.0, 5.0), (6.0, 7.0, 5.0)), Judged(sweep, (7.0, 6.0, 5.0), (5.0, 6.0, 7.0))
    validate_advice.print_advice([good, bad], [NotJudged(sweep, "a preset")])
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 125
    assert "3 knob sweeps" in said
    assert "regret median 8.3 %, worst 16.7 %" in said
    assert not validate_advice.past_wanted([good])
    short = validate_advice.past_wanted([good, bad])
    assert len(short) == 4
    data = validate_advice.advice_to_dict([good, bad], [NotJudged(sweep, "a preset")])
    assert data["by_knob"] == {"PCIe share": 3}
    assert data["judged"][1]["fitted"]["advised"] == 0.5
    assert data["judged"][1]["fitted"]["wrong_order"]["0.2"] == [1, 1]
