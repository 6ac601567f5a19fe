"""Seeds as an axis of sweeps: each cell is one seed's, and what is said is over all of them."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import SimError
from expert_residency.sim.choices.trace import open_trace
from expert_residency.sim.report.data import bases, report_rows
from expert_residency.sim.studies.compare import compare_named
from expert_residency.sim.studies.score import ScoredRun, score
from expert_residency.sim.studies.tune import load_tune
from expert_residency.sim.sweep import SweepError, load_sweep, read_dataset, sweep
from expert_residency.sim.sweep.default import default_sweep
from expert_residency.sim.sweep.seeds import over_seeds, t_factor
from expert_residency.sim.sweep.spec import expand
from expert_residency.traces import load_model
from expert_residency.traces.synthetic import generate, load_style
from tests.golden_runs import said

MODEL = "granite-3.0-1b-a400m"
DRAWN = {"synthetic": {"style": "gpt-oss-20b", "tokens": 6, "requests": 2}, "model": MODEL}
SEEDED: dict[str, Any] = {
    "traces": {"drawn": DRAWN, "code": "bundled:tinymoe-code"},
    "constants": {"miss": "fetch", "passes": 12, "hardware": "rtx-5070", "capacity": "25%"},
    "axes": {"trace": ["drawn", "code"], "eviction": ["lru", "random:seed={seed}"], "seed": [1, 2, 3]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep above."""
    made = tmp_path_factory.mktemp("seeded") / "out"
    sweep(SEEDED, made, workers=1)
    return made


def test_a_seed_is_a_trace_and_what_draws_nothing_is_there_once(folder: Path) -> None:
    frame = read_dataset(folder)
    cells = frame[["trace", "eviction", "seed"]].fillna(0).astype({"seed": int}).values.tolist()
    assert cells == [
        *(["drawn", "lru", seed] for seed in (1, 2, 3)),
        *(["drawn", f"random:seed={seed}", seed] for seed in (1, 2, 3)),
        ["code", "lru", 0],
        *(["code", f"random:seed={seed}", seed] for seed in (1, 2, 3)),
    ]
    lru = frame[(frame["trace"] == "drawn") & (frame["eviction"] == "lru")]
    assert lru["total_ns"].nunique() == 3
    assert lru["setting"].nunique() == 1
    assert frame["cell_id"].nunique() == len(frame)


def test_a_cell_is_the_run_of_its_seed(folder: Path) -> None:
    import expert_residency as er

    row = read_dataset(folder).iloc[1]
    trace = generate(load_model(MODEL), load_style("gpt-oss-20b"), tokens=6, requests=2, seed=2)
    spec = er.RunSpec(hardware="rtx-5070", capacity="25%", miss="fetch")
    assert row["total_ns"] == er.simulate(trace, spec).total_ns


def test_more_seeds_later_run_only_what_is_new(folder: Path, tmp_path: Path) -> None:
    few = SEEDED | {"axes": SEEDED["axes"] | {"seed": [1, 3]}}
    sweep(few, tmp_path / "out", workers=1)
    again = sweep(SEEDED, tmp_path / "out", workers=1, resume=True)
    assert again.ran == 3
    parts = [sorted((one / "cells").iterdir()) for one in (folder, tmp_path / "out")]
    assert [p.read_bytes() for p in parts[0]] == [p.read_bytes() for p in parts[1]]


def test_means_and_intervals_over_seeds(folder: Path) -> None:
    frame = read_dataset(folder)
    found = over_seeds(frame)
    assert found[["trace", "eviction", "seeds"]].values.tolist() == [
        ["drawn", "lru", 3], ["drawn", "random:seed={seed}", 3],
        ["code", "lru", 0], ["code", "random:seed={seed}", 3],
    ]  # fmt: skip
    assert found["cells"].tolist() == [[0, 1, 2], [3, 4, 5], [6], [7, 8, 9]]
    for row in found.to_dict("records"):
        own = frame[frame["cell"].isin(row["cells"])]
        ms = own["ms_per_token"]
        assert row["ms_per_token"] == pytest.approx(ms.mean())
        assert row["tokens_per_s"] == pytest.approx(1000 / ms.mean())
        longer = row["trace"] == "drawn"
        assert row["decode_ns"] == pytest.approx(
            own["decode_ns"].sum() if longer else own["decode_ns"].mean(), abs=1
        )
        assert sum(row["request_ns"]) == pytest.approx(row["decode_ns"], abs=2)
        assert row["requests"] == (6 if longer else own["requests"].iloc[0])
        causes = [name for name in found.columns if name.endswith("_ms_per_token")]
        assert sum(row[name] for name in causes) == pytest.approx(row["ms_per_token"])
        if row["seeds"] < 2:
            assert math.isnan(row["ms_per_token_low"])
            continue
        half = t_factor(3) * ms.std(ddof=1) / math.sqrt(3)
        assert [row["ms_per_token_low"], row["ms_per_token_high"]] == pytest.approx(
            [ms.mean() - half, ms.mean() + half]
        )
        assert row["tokens_per_s_low"] < row["tokens_per_s"] < row["tokens_per_s_high"]


def test_students_t() -> None:
    """Against the published table: 95 % two-sided, degrees of freedom 1, 2, 4, 9, 29."""
    table = {2: 12.7062, 3: 4.30265, 5: 2.77645, 10: 2.26216, 30: 2.04523}
    for n, factor in table.items():
        assert t_factor(n) == pytest.approx(factor, rel=2e-5)


def test_intervals_hold_the_mean_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        ms = rng.normal(10, 2, 4)
        half = t_factor(4) * ms.std(ddof=1) / 2
        held += abs(ms.mean() - 10) <= half
    assert 0.92 <= held / 400 <= 0.98


def test_reports_and_scores_are_over_seeds(folder: Path) -> None:
    frame = read_dataset(folder)
    rows = report_rows(frame)
    assert len(rows) == 4
    assert {trace: basis.requests for trace, basis in bases(frame).items()}["drawn"] == 6
    runs = [ScoredRun.of_row(row, "x") for row in over_seeds(frame).to_dict("records")]
    made = score(runs)
    assert len({one.run.case for one in made}) == 2
    assert all(one.speedup is not None for one in made)
    (drawn, code) = compare_named(runs, "lru", "random:seed={seed}")
    assert (drawn.requests, drawn.low is None) == (6, False)
    assert "trace drawn, 3 seeds" in drawn.where
    assert code.requests == frame[frame["trace"] == "code"]["requests"].iloc[0]
    lru = frame.iloc[:3]
    other = frame.iloc[3:6]
    assert drawn.ratio == pytest.approx(other["decode_ns"].sum() / lru["decode_ns"].sum())
    assert code.ratio == pytest.approx(frame.iloc[7:]["decode_ns"].mean() / frame.iloc[6]["decode_ns"], rel=1e-6)
    assert [one.ratio for one in compare_named(runs, "2", "4")] == [drawn.ratio], (
        "any cell of the setting names it"
    )


def test_the_commands(folder: Path, tmp_path: Path) -> None:
    out = said(
        f"sweep --trace synthetic:gpt-oss-20b:tokens=5 --passes 5 --seeds 2 --hardware rtx-5070 --capacity 25% "
        f"--eviction lru --prefetch none --workers 1 --out {tmp_path}/s".split()
    )
    assert "95 % over seeds" in out
    assert "over 2 requests, 10 tokens" in out
    out = said(["score", str(folder), "--compare", "lru", "random:seed={seed}"])
    assert "trace drawn, 3 seeds: lru is" in out


def test_words_of_a_synthetic_trace() -> None:
    """One trace in words, as a table, and from Python."""
    trace = open_trace("synthetic:gpt-oss-20b:tokens=7,requests=2,seed=4,base_skew=0.5", None, MODEL)
    style = load_style("gpt-oss-20b").model_copy(update={"base_skew": 0.5})
    made = generate(load_model(MODEL), style, tokens=7, requests=2, seed=4)
    assert trace.content_hash == made.content_hash
    assert open_trace("synthetic:gpt-oss-20b:tokens=1", None, None).geometry.name == "gpt-oss-20b"
    with pytest.raises(SimError, match=r"unknown key 'token'.*tokens"):
        open_trace("synthetic:gpt-oss-20b:token=1", None, None)
    with pytest.raises(SimError, match=r"no file|a format of its own"):
        open_trace("synthetic:gpt-oss-20b", "parquet", None)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"axes": {"seed": [1, -1]}}, "seed is -1, expected a whole number"),
        ({"axes": {"seed": [1, "2"]}}, "seed is '2', expected a whole number"),
        ({"axes": {"seed": [1, 1]}}, "1 is listed twice"),
        (
            {"traces": {"a": "bundled:tinymoe-code"}, "axes": {"seed": [1, 2]}},
            "seed: no cell has a synthetic trace",
        ),
        ({"traces": {"a": {"path": "x", "synthetic": {"tokens": 3}}}}, "give a path, or a table"),
        ({"traces": {"a": {"synthetic": {"tokens": 3}, "format": "csv"}}}, "format and reading are of a file"),
        ({"traces": {"a": {"synthetic": {"style": "gpt"}}}}, "unknown routing style 'gpt'"),
        ({"traces": {"a": {"synthetic": {"style": "gpt-oss-20b"}}}}, "tokens is missing"),
        ({"traces": {"a": "synthetic:gpt-oss-20b:tokens"}}, "'tokens' has no value"),
    ],
)
def test_bad_seeds_and_tables_are_refused_in_words(tables: dict[str, Any], words: str, tmp_path: Path) -> None:
    base = {"traces": {"drawn": DRAWN}, "constants": {"capacity": "25%", "hardware": "rtx-5070"}}
    with pytest.raises(SweepError) as error:
        sweep(base | tables, tmp_path / "out", workers=1)
    assert words in str(error.value)


def test_a_search_takes_one_seed() -> None:
    with pytest.raises(SimError, match="one seed a trace"):
        load_tune({"traces": {"a": DRAWN}, "choices": {"seed": 1, "capacity": "{share}%"},
                   "parameters": {"share": {"low": 5, "high": 6}}})  # fmt: skip


NAMES = st.sampled_from(["a.csv", "b/a.parquet", "bundled:tinymoe-code", "synthetic:gpt-oss-20b:tokens=5",
                         "synthetic:gpt-oss-20b:tokens=6", 'x"y.csv', "é z.csv", "a.csv.gz"])  # fmt: skip


@given(st.lists(NAMES, min_size=1, max_size=5, unique=True), st.none() | st.integers(1, 9))
def test_the_built_in_sweep_over_any_traces(sources: list[str], seeds: int | None) -> None:
    """The file says what was asked for: every trace once, every seed where something is drawn."""
    file = load_sweep(tomllib.loads(default_sweep(sources, seeds=seeds)))[0]
    assert len(file.traces) == len(sources)
    drawn = sum(source.startswith("synthetic:") for source in sources)
    if seeds is not None and not drawn:
        with pytest.raises(SweepError, match="no cell has a synthetic trace"):
            list(expand(file))
        return
    cells = 3 * 5 * 4 * 3 * 2
    assert len(list(expand(file))) == cells * (len(sources) - drawn + drawn * (seeds or 1))
