"""Differences between runs with intervals over requests: real ones are found, chance is not called real."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import SimError
from expert_residency.sim.studies.bootstrap import FEWEST, ratio_interval
from expert_residency.sim.studies.compare import Comparison, compare, compare_named
from expert_residency.sim.studies.score import ScoredRun
from expert_residency.traces import write_parquet
from expert_residency.traces.geometry import load_model
from expert_residency.traces.synthetic import generate, load_style
from tests.golden_runs import said


def case_of(slots: int) -> str:
    machine = {"model": "m", "hardware": ["h"], "engine": "e", "miss": None, "trace_sha256": "0123456789abcdef"}
    return json.dumps(machine | {"capacity": {"slots_per_layer": slots, "scope": "layer"}})


def scored(policies: str, times: list[int], case: str = case_of(4)) -> ScoredRun:
    spec = {"eviction": policies, "admission": "always", "placement": None, "prefetch": "none"}
    return ScoredRun(f"{policies}.json", spec, case, sum(times), 1.0, 0.5, "", {}, [], (), times)


TIMES = st.lists(st.integers(1, 10**9), min_size=FEWEST, max_size=30)


def test_each_line_says_to_which_case_it_belongs():
    """The same two policies at two capacities: two lines that can be told apart."""
    runs = [scored(name, [ns] * 9, case_of(slots)) for slots in (4, 6) for name, ns in (("a", 2), ("b", 7))]
    lines = [one.sentence for one in compare_named(runs, "a", "b")]
    assert [line.partition(" slots")[0][-1] for line in lines] == ["4", "6"]
    assert all("m on h" in line and "trace 0123456789ab: a is" in line for line in lines)


@given(TIMES, st.floats(0.2, 5))
def test_a_constant_factor_is_found_whatever_the_requests(times, factor):
    """Requests differ by orders of magnitude; pairs of them by the factor alone."""
    times = [1000 * ns for ns in times]
    low, high = ratio_interval(times, [round(factor * ns) for ns in times])
    assert low == pytest.approx(factor, rel=1e-3)
    assert high == pytest.approx(factor, rel=1e-3)


@given(TIMES, st.randoms(use_true_random=False))
def test_the_ratio_lies_between_those_of_single_requests(times, random):
    other = [max(1, round(ns * random.uniform(0.5, 2))) for ns in times]
    low, high = ratio_interval(times, other)
    ratios = [theirs / mine for mine, theirs in zip(times, other, strict=True)]
    assert min(ratios) - 1e-9 <= low <= high <= max(ratios) + 1e-9


def test_chance_is_called_chance_and_a_difference_is_found():
    """Of 200 pairs of equal policies about one in twenty is called different; a 10 % difference is found."""
    rng = np.random.default_rng(3)
    alarms = 0
    for seed in range(200):
        base = rng.lognormal(10, 0.5, 40)
        a, b = (np.round(base * rng.lognormal(0, 0.2, 40)).astype(int).tolist() for _ in range(2))
        low, high = ratio_interval(a, b, draws=500, seed=seed)
        alarms += not low <= 1 <= high
    assert 2 <= alarms <= 24
    faster = np.round(base / 1.1 * rng.lognormal(0, 0.05, 40)).astype(int).tolist()
    assert compare(scored("a", faster), scored("b", np.round(base).astype(int).tolist())).real


def test_too_few_requests_have_no_interval():
    found = compare(scored("a", [1, 2, 3]), scored("b", [2, 3, 9]))
    assert (found.low, found.high, found.real, found.faster_on) == (None, None, None, 3)
    assert found.ratio == pytest.approx(14 / 6)
    assert "whether that is real cannot be said" in found.sentence


def test_only_equal_cases_are_compared():
    with pytest.raises(SimError, match="another trace, machine or capacity"):
        compare(scored("a", [1] * 9), scored("b", [1] * 9, case='{"x": 1}'))
    with pytest.raises(SimError, match="does not say times by request"):
        compare(scored("a", []), scored("b", [1] * 9))
    runs = [scored("a", [1] * 9), scored("b", [2] * 9), scored("c", [2] * 9, case_of(5))]
    where = "m on h, engine e, miss as the engine: 4 slots a layer, scope layer, trace 0123456789ab"
    assert compare_named(runs, "a", "b") == [Comparison("a", "b", where, 9, 2.0, 2.0, 2.0, 9)]
    with pytest.raises(SimError, match=r"no run has policies 'd' \(there are: a, b, c\)"):
        compare_named(runs, "a", "d")
    with pytest.raises(SimError, match="has both 'a' and 'c'"):
        compare_named(runs, "a", "c")


def test_the_command_compares_cells_of_a_sweep_and_files(tmp_path):
    model = load_model("granite-3.0-1b-a400m")
    trace = generate(model, load_style("qwen3.8-flash-next"), tokens=6, prompt_tokens=2, requests=6, seed=5)
    write_parquet(trace, tmp_path / "t.parquet")
    run = ["--hardware", "tesla-p40", "--capacity", "30%", "--miss", "fetch"]
    words = ["--trace", str(tmp_path / "t.parquet"), *run]
    policies = ["--eviction", "lru", "--eviction", "random", "--eviction", "belady", "--prefetch", "none"]
    said(["sweep", *words, *policies, "--workers", "1", "--out", str(tmp_path / "s")])
    text = said(["score", str(tmp_path / "s"), "--compare", "belady", "random"])
    assert ": belady is 2." in text
    assert f"{model.label} on tesla-p40, engine generic, miss fetch, host arena: " in text
    assert f"scope global, trace {trace.content_hash[:12]}: belady" in text
    assert "faster on 6 of 6 requests: the difference is real" in text
    (data,) = json.loads(said(["score", str(tmp_path / "s"), "--compare", "2", "1", "--json", "-"]))
    assert (data["a"], data["b"], data["requests"], data["real"]) == ("belady", "random", 6, True)
    assert data["low"] <= data["ratio"] <= data["high"]
    for name in ("lru", "belady"):
        said(["run", *words, "--eviction", name, "--json", str(tmp_path / f"{name}.json")])
    files = [str(tmp_path / f"{name}.json") for name in ("lru", "belady")]
    (again,) = json.loads(said(["score", *files, "--compare", "belady", "lru", "--json", "-"]))
    (cells,) = json.loads(said(["score", str(tmp_path / "s"), "--compare", "belady", "lru", "--json", "-"]))
    assert again == cells
    ranked = json.loads(said(["score", *files, "--json", "-"]))
    best = next(made for made in ranked if made["policies"] == "belady")
    assert best["speedup_interval"] == [cells["low"], cells["high"]]
    assert f"x ({cells['low']:.2f}-{cells['high']:.2f})" in said(["score", *files])
