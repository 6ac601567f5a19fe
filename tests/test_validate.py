"""Validation: cases, errors and order, limits, user files; and a loop of calibrating, predicting and running."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from expert_residency.errors import HardwareError, SimError
from expert_residency.hwmodels.runs import load_strata_runs
from expert_residency.sim.choices.trace import open_trace
from expert_residency.sim.cli import _register, app
from expert_residency.sim.live.predict import GROUPS, load_live_runs, predict
from expert_residency.sim.live.variants import decode_window
from expert_residency.sim.runs.interval import spread_about
from expert_residency.sim.validation.cases import (
    Bounds,
    Case,
    coverage,
    exact_cases,
    live_cases,
    llamacpp_cases,
    load_bounds,
    order_of,
    published_cases,
    summarize,
)
from expert_residency.sim.validation.live_table import live_table
from expert_residency.traces import write_parquet
from expert_residency.traces.bundled import load

STRATA = Path(str(resources.files("expert_residency.hwmodels.runs").joinpath("published/strata.csv")))


def case(predicted: float, measured: float, *, group: str = "g", use: Any = "unseen", among: str = "m") -> Case:
    return Case(group, use, "a case", "a kind", among, predicted, measured)


def test_errors_and_order_of_a_group() -> None:
    cases = [case(100, 100), case(90, 120), case(260, 200), case(50, 60, use="fitted"), case(1, 9, among="other")]
    found = {(one.group, one.use): one for one in summarize(cases, {})}
    unseen = found["g", "unseen"]
    assert found["g", "fitted"].cases == 1
    assert unseen.cases == 4
    assert unseen.median == pytest.approx((0.25 + 0.3) / 2)
    assert unseen.worst == pytest.approx(8 / 9)
    assert (unseen.pairs, unseen.wrong) == (3, 1), "cases of other machines are not compared"
    assert (unseen.limit, unseen.over(None)) == (None, [])


def test_how_many_cases_lie_in_their_intervals() -> None:
    around = spread_about(100.0, np.zeros(16), model=0.06)
    assert around.low == pytest.approx(100 / 1.104, rel=0.01)
    assert around.high == pytest.approx(100 * 1.104, rel=0.01)
    cases = [replace(case(100.0, measured), interval=around) for measured in (95, 100, 120)]
    assert [one.held for one in cases] == [True, True, False]
    assert [one.held for one in summarize([*cases, case(1, 9)], {})] == [2 / 3]
    assert summarize([case(1, 9)], {})[0].held is None


@pytest.mark.slow
def test_intervals_hold_the_rows_that_no_constant_saw() -> None:
    cases = [*live_cases(), *published_cases()[0], *llamacpp_cases()]
    unseen = [one for one in cases if one.use == "unseen" and one.interval is not None]
    assert len(unseen) >= 140
    assert 0.85 <= (coverage(unseen) or 0.0) <= 0.97, "wide where a rate is a data sheet's: 96 % of 90"


def test_close_cases_may_swap() -> None:
    assert order_of([case(2, 100), case(1, 109)]) == (0, 0)
    assert order_of([case(1, 100), case(1, 111)]) == (1, 1), "equal predictions do not order"


def test_what_is_past_a_limit_is_named() -> None:
    (one,) = summarize([case(130, 100)], {("g", "unseen"): (Bounds(0.2, 0.5, 0.0), Bounds(0.4, 0.4, 0.0))})
    assert one.over(one.limit) == ["median error 30.0 % over 20 %"]
    assert one.over(one.target) == []


def test_every_group_has_a_limit_and_a_target() -> None:
    bounds = load_bounds()
    wanted = {("exact", "unseen")} | {(case.group, case.use) for case in published_cases()[0]}
    assert len(wanted) == 6
    wanted |= {(case.group, case.use) for case in llamacpp_cases()}
    wanted |= {("machine", "unseen")}
    wanted |= {(f"machine: {kind}", "unseen") for kind in ("nothing moves", "hits given", "hits not given")}
    assert set(bounds) == wanted | {(f"live {group}", "unseen") for group in GROUPS}
    assert bounds["exact", "unseen"][0] == Bounds(0, 0, 0)


def test_shipped_live_tables() -> None:
    counts = {group: len(load_live_runs(group)) for group in GROUPS}
    assert counts == {
        "h200-x1": 39, "h200-x4": 37, "h200-x1-d16384": 21, "h200-x1-r2": 13, "h200-x1-r4": 13,
        "h200-x1-r16": 12, "h200-x1-r64": 12, "h200-x1-r512": 12, "epyc2-cardless": 22,
    }  # fmt: skip
    assert {run.factor for run in load_live_runs("h200-x4")} == {4}
    assert {(run.spec.depth, bool(run.kv)) for run in load_live_runs("h200-x1-d16384")} == {(16384, True)}
    for rows in (2, 4, 16, 64, 512):
        assert {run.rows for run in load_live_runs(f"h200-x1-r{rows}")} == {rows}


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "path", "model", "runs"),
    [
        ("granite", "granite3/moe_expert_trace.json", "granite-3.0-1b-a400m/Q8_0", 20),
        ("gptoss", "gptoss20b/gptoss20b_decode.npz", "gpt-oss-20b/MXFP4", 18),
    ],
)
def test_recorded_models_that_no_fit_has_seen(
    shared: Path, tmp_path: Path, name: str, path: str, model: str, runs: int
) -> None:
    """Chosen before they were run; their routing does not ship and is imported."""
    own = Path(str(resources.files("expert_residency.hwmodels.runs.own")))
    for file in (f"h200-{name}.toml", f"h200-{name}.engine.toml", f"live-h200-{name}.csv"):
        (tmp_path / file).write_text((own / file).read_text())
    trace = open_trace(str(shared / "traces" / path), None, model)
    write_parquet(decode_window(trace, 160), tmp_path / f"{name}.parquet")
    (found,) = summarize(live_cases(tmp_path), {})
    assert found.cases == runs
    assert found.median < 0.02
    assert found.worst < 0.13
    assert abs(found.bias) < 0.025
    assert found.wrong == 0


@pytest.mark.parametrize("group", GROUPS)
def test_a_plain_arm_is_near_its_measurement(group: str) -> None:
    run = load_live_runs(group)[0]
    assert abs(math.log(predict(run) / run.tok_s)) < math.log(1.3)


def test_live_tables_that_do_not_do(tmp_path: Path) -> None:
    with pytest.raises(SimError, match="no such table of live runs"):
        load_live_runs("x", tmp_path)
    (tmp_path / "live-x.csv").write_text("tok_s,trace\n1,a\n")
    with pytest.raises(SimError, match="line 1: column 'engine' is missing"):
        load_live_runs("x", tmp_path)
    shipped = Path(
        str(resources.files("expert_residency.hwmodels.runs.own").joinpath("live-h200-x1.csv"))
    ).read_text()
    head, first = shipped.splitlines()[:2]
    (tmp_path / "live-x.csv").write_text(f"{head}\n")
    with pytest.raises(SimError, match="no run in it"):
        load_live_runs("x", tmp_path)
    (tmp_path / "live-x.csv").write_text(f"{head}\n{first.replace(',160,32,', ',160,few,')}\n")
    with pytest.raises(SimError, match=r"line 2: .*'few'"):
        load_live_runs("x", tmp_path)


def test_exact_cases_need_a_capacity_and_a_column(tmp_path: Path) -> None:
    with pytest.raises(SimError, match="FILE@CAPACITY"):
        exact_cases(["some.csv"])
    bundled = str(resources.files("expert_residency.traces.bundled").joinpath("tinymoe-prose.parquet"))
    with pytest.raises(SimError, match="does not say what the engine found resident"):
        exact_cases([f"{bundled}@64MiB"])


@pytest.mark.shared
def test_residency_of_recorded_traces_is_exact(shared: Path) -> None:
    folder = shared / "traces" / "bigmoe-edge"
    cases = exact_cases([f"{folder / 'qwen.route.csv'}@4000MiB", f"{folder / 'gptoss.route.csv'}@3000MiB@lru"])
    assert [(case.predicted, case.measured) for case in cases] == [(39526, 39526), (6375, 6375)]


def test_published_halves_stay_apart() -> None:
    found = Counter((case.group, case.use) for case in published_cases()[0])
    assert found == {
        ("published machine", "unseen"): 21, ("published machine", "derived"): 23, ("published row", "fitted"): 21,
        ("published row", "derived"): 9, ("published row", "unseen"): 9,
    }  # fmt: skip


def test_rows_of_a_user(tmp_path: Path) -> None:
    """A row that ships is held out as it is there; a new one of a known machine is unseen; others are named."""
    with STRATA.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    drop = ("group", "profile", "use")
    known = next(row for row in rows if row["group"] == "1x-rtx-5070-ti-ryzen-9-5900x" and row["use"] == "fit")
    new = known | {"date": "2027-01-01", "source": "a user's own run"}
    stranger = known | {"gpu": "RTX 1", "date": "2027-01-02"}
    path = tmp_path / "mine.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [name for name in known if name not in drop], extrasaction="ignore")
        writer.writeheader()
        writer.writerows([known, new, stranger])
    cases, left, notes = published_cases(path)
    assert [(case.group, case.use) for case in cases] == [
        ("published mine.csv machine", "derived"), ("published mine.csv machine", "unseen"),
        ("published mine.csv row", "fitted"), ("published mine.csv row", "unseen"),
    ]  # fmt: skip
    assert [one.reason[:24] for one in left] == ["no profile of RTX 1 with"]
    assert notes == [f"{path}: row 1 ships as well, so it was as little held out as there"]
    assert cases[0].predicted == pytest.approx(cases[1].predicted)
    path.write_text("gpu,speed\na,1\n")
    with pytest.raises(HardwareError, match="unknown column 'speed'"):
        published_cases(path)


def test_a_row_of_a_user_is_not_exchanged_for_one_that_ships(tmp_path: Path) -> None:
    """Equal date, flags and speed, other counts: what is predicted is the user's row."""
    with STRATA.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    known = next(row for row in rows if row["group"] == "1x-rtx-5070-ti-ryzen-9-5900x" and row["use"] == "fit")
    moved = int(known["cpu_served"]) // 2
    own = {key: value for key, value in known.items() if key not in ("group", "profile", "use")}
    own |= {"cpu_served": str(moved), "vram_hits": str(int(known["lookups"]) - moved)}
    path = tmp_path / "mine.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(own))
        writer.writeheader()
        writer.writerow(own)
    cases, _, notes = published_cases(path)
    shipped = next(case for case in published_cases()[0] if case.measured == cases[0].measured)
    assert cases[0].predicted > 1.05 * shipped.predicted
    assert notes == []


def test_the_command(tmp_path: Path) -> None:
    _register()
    out, picture = tmp_path / "v.json", tmp_path / "v.png"
    args = ["validate", "--group", "published", "--group", "exact", "--check", "--json", str(out)]
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib")
    found = CliRunner().invoke(app, [*args, "--plot", str(picture)])
    assert found.exit_code == 0, found.output
    assert "no trace with an engine's residency column was given" in found.output
    assert "published rows that cannot be predicted" in found.output
    assert "neither hit rate nor counts printed" in found.output
    data = json.loads(out.read_text())
    assert {one["use"] for one in data["cases"]} == {"fitted", "derived", "unseen"}
    assert [one["cases"] for one in data["groups"]] == [21, 23, 21, 9, 9]
    assert len(data["not_predicted"]) + 44 == len(load_strata_runs())
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_past_a_limit_the_command_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    _register()
    none = (Bounds(0.0, 0.0, 0.0), Bounds(0.0, 0.0, 0.0))
    monkeypatch.setattr(
        "expert_residency.sim.validation.cases.load_bounds", lambda: {("published machine", "unseen"): none}
    )
    args = ["validate", "--group", "published", "--no-cases"]
    assert CliRunner().invoke(app, args).exit_code == 0
    found = CliRunner().invoke(app, [*args, "--check"])
    assert found.exit_code == 1
    assert "past the limit: published machine, unseen: median error" in found.output


def test_live_runs_of_a_folder(tmp_path: Path) -> None:
    """A user's tables stand apart from the shipped ones and have no limit."""
    shipped = Path(str(resources.files("expert_residency.hwmodels.runs.own")))
    group = "epyc2-cardless"
    for name in (f"{group}.toml", f"{group}.engine.toml"):
        (tmp_path / name).write_text((shipped / name).read_text())
    lines = (shipped / f"live-{group}.csv").read_text().splitlines(keepends=True)
    (tmp_path / f"live-{group}.csv").write_text("".join(lines[:3]))
    cases = live_cases(tmp_path)
    assert [case.group for case in cases] == [f"live {tmp_path.name}/{group}"] * 2
    assert cases[0].predicted == predict(load_live_runs(group)[0])
    assert summarize(cases, load_bounds())[0].limit is None
    with pytest.raises(SimError, match=r"no table live-GROUP\.csv"):
        live_cases(tmp_path / "nothing")


def test_live_runs_of_a_trace_of_your_own(tmp_path: Path) -> None:
    """The part of a trace that was run lies beside its table; it is not looked for among the bundled ones."""
    shipped, group = Path(str(resources.files("expert_residency.hwmodels.runs.own"))), "h200-x1"
    for name in (f"{group}.toml", f"{group}.engine.toml"):
        (tmp_path / name).write_text((shipped / name).read_text())
    lines = (shipped / f"live-{group}.csv").read_text().splitlines(keepends=True)[:2]
    (tmp_path / f"live-{group}.csv").write_text("".join(lines).replace("tinymoe-prose", "mine"))
    window = decode_window(load("tinymoe-prose"), 160)
    write_parquet(window, tmp_path / "mine.parquet")
    assert live_cases(tmp_path)[0].predicted == predict(load_live_runs(group)[0])


def test_the_table_of_the_documentation() -> None:
    table = live_table([case(100, 80, group="live a"), case(90, 100, group="live a"), case(1, 1, group="live b")])
    assert "| live a | 2 | 17.5 % | 25.0 % | +7.5 % | 1 of 1 |" in table
    assert "| a kind | 2: 17.5, 25.0, +7.5 | 1: 0.0, 0.0, +0.0 |" in table
