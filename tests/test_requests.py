"""Requests by themselves: cold for each, results of each, from Python, scenarios, sweeps and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expert_residency.errors import SimError
from expert_residency.policies import create
from expert_residency.sim.choices.scenario import build_scenario, open_scenario_trace
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.cli import main
from expert_residency.sim.residency.pool import make_pool
from expert_residency.sim.runs.curve import hit_curve
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.runs.requests import hits_by_request
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.sweep import sweep
from expert_residency.traces import (
    ModelGeometry,
    Phase,
    RoutingTrace,
    TraceBuilder,
    describe,
    load_model,
    read_trace,
    write_parquet,
)
from expert_residency.traces.synthetic import generate, load_style

MODEL = load_model("granite-3.0-1b-a400m")


@pytest.fixture(scope="module")
def trace() -> RoutingTrace:
    return generate(
        MODEL, load_style("qwen3-30b-a3b"), tokens=12, prompt_tokens=5, requests=3, seed=3, weights=False
    )


def alone(trace: RoutingTrace, request: int) -> RoutingTrace:
    return trace.select_passes(trace.pass_request == request)


@pytest.mark.parametrize("simulator", ["reference", "kernel"])
@pytest.mark.parametrize("eviction", ["lru", "lfu", "min"])
def test_a_cold_replay_is_the_sum_of_the_requests(trace: RoutingTrace, eviction: str, simulator: str) -> None:
    cold = replay(trace, eviction, "30%", cold="request", simulator=simulator)
    own = [replay(alone(trace, n), eviction, "30%", simulator=simulator) for n in range(3)]
    for name, counters in cold.phases.items():
        for field, value in vars(counters).items():
            assert value == sum(getattr(result.phases[name], field) for result in own)
    assert cold.evictions == sum(result.evictions for result in own)
    by_request = hits_by_request(trace, cold)
    assert [one["distinct_hits"] for one in by_request] == [r.phases["all"].distinct_hits for r in own]
    assert [one["routed_hits"] for one in by_request] == [r.phases["all"].routed_hits for r in own]
    warm = replay(trace, eviction, "30%", simulator=simulator)
    if eviction != "lfu":  # what it learned from other requests may mislead it
        assert warm.phases["all"].distinct_hits > cold.phases["all"].distinct_hits
    assert warm.phases["all"] != cold.phases["all"]
    assert sum(one["distinct_hits"] for one in hits_by_request(trace, warm)) == warm.phases["all"].distinct_hits
    (point,) = hit_curve(trace, eviction, ["30%"], scope="global", cold="request", simulator=simulator)
    assert point.phases == cold.phases


@pytest.mark.parametrize("simulator", ["reference", "kernel"])
def test_a_cold_run_is_the_runs_of_the_requests(trace: RoutingTrace, simulator: str) -> None:
    spec = RunSpec("tesla-p40", "30%", prefetch="previous-token", miss="fetch")
    seen: list[int] = []
    cold = simulate(trace, spec, cold="request", simulator=simulator, progress=seen.append)
    own = [simulate(alone(trace, n), spec, simulator=simulator) for n in range(3)]
    for n, result in enumerate(own):
        np.testing.assert_array_equal(cold.pass_ns[trace.pass_request == n], result.pass_ns)
        np.testing.assert_array_equal(cold.pass_causes[trace.pass_request == n], result.pass_causes)
    assert cold.link_bytes["h2d_demand"] == sum(result.link_bytes["h2d_demand"] for result in own)
    assert cold.prefetch.issued == sum(result.prefetch.issued for result in own)
    np.testing.assert_array_equal(cold.served_distinct, sum(result.served_distinct for result in own))
    assert [one["tokens_per_s"] for one in cold.requests()] == [r.tokens_per_s for r in own]
    warm = simulate(trace, spec, simulator=simulator)
    assert warm.total_ns < cold.total_ns
    assert cold.manifest | {"start": own[0].manifest["start"]} == warm.manifest | {"cold": "request"}
    assert max(seen) == trace.n_passes
    with pytest.raises(SimError, match="unknown cold 'requests'"):
        simulate(trace, spec, cold="requests")
    with pytest.raises(SimError, match="no timeline"):
        simulate(trace, spec, cold="request", timeline="t.json")


def test_scenarios_and_sweeps_take_them_too(trace: RoutingTrace, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(trace, path)
    data: dict[str, Any] = {"trace": str(path), "hardware": "tesla-p40", "capacity": "30%", "cold": "request"}
    part = open_scenario_trace(build_scenario(data | {"reading": {"requests": "1..2", "phase": "decode"}}))
    assert set(part.pass_request.tolist()) == {1, 2}
    assert set(part.pass_phase.tolist()) == {1}
    for wrong, says in (
        ({"cold": "never"}, "cold is 'never'"),
        ({"reading": {"request": 1}}, "unknown key of reading 'request'; did you mean requests"),
        ({"reading": {"partial": 1}}, "partial is 1"),
        ({"reading": []}, "expected a table"),
    ):
        with pytest.raises(SimError, match=says):
            build_scenario(data | wrong)
    found = sweep(
        {
            "traces": {"t": {"path": str(path), "reading": {"phase": "decode"}}},
            "constants": {"trace": "t", "hardware": "tesla-p40", "capacity": "30%"},
            "axes": {"cold": ["trace", "request"]},
        },
        tmp_path / "out",
        workers=1,
    ).frame
    assert len(set(found["cell_id"])) == 2
    decode = trace.select_passes(trace.pass_phase == 1)
    spec = RunSpec("tesla-p40", "30%")
    for row, cold in zip(found.to_dict("records"), ("trace", "request"), strict=True):
        assert row["total_ns"] == simulate(decode, spec, cold=cold).total_ns


def test_several_files_cold_for_each_from_the_command_line(
    trace: RoutingTrace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(3):
        write_parquet(alone(trace, n), tmp_path / f"{n}.parquet")
    pattern, out = str(tmp_path / "?.parquet"), tmp_path / "r.json"
    with pytest.raises(SystemExit):
        main(
            ["replay", pattern, "--capacity", "30%", "--eviction", "lru", "--cold", "request", "--json", str(out)]
        )
    shown = capsys.readouterr().out
    assert "by request" in shown
    data = json.loads(out.read_text())
    expected = replay(read_trace(pattern), "lru", "30%", cold="request")
    assert data["cold"] == "request"
    assert data["policies"]["lru"]["phases"]["all"]["distinct_hits"] == expected.phases["all"].distinct_hits
    assert [one["request"] for one in data["policies"]["lru"]["requests"]] == [0, 1, 2]
    with pytest.raises(SystemExit):
        main(["run", "--trace", pattern, "--hardware", "tesla-p40", "--capacity", "30%", "--cold", "request",
              "--requests", "0,2", "--json", str(out)])  # fmt: skip
    assert [one["request"] for one in json.loads(out.read_text())["requests"]] == [0, 2]


def test_a_profile_of_activations_is_ranked_by_how_often_they_come(tmp_path: Path) -> None:
    """A moe-trace CSV, which the placement's source writes, was refused as listing experts twice."""
    path = tmp_path / "p.csv"
    path.write_text("layer,expert\n0,3\n0,5\n0,5\n1,2\n1,2\n1,2\n")
    spec = RunSpec("tesla-p40", "3/layer", placement=f"profile:file={path}")
    small = generate(MODEL, load_style("qwen3-30b-a3b"), tokens=2, seed=3, weights=False)
    placed = simulate(small, spec, simulator="reference")
    assert placed.start_bytes == 2 * MODEL.expert_bytes[0] + MODEL.expert_bytes[1]
    ranked = create("placement", f"profile:file={path}")
    assert ranked.rank(make_pool(MODEL, spec.capacity), None) == [MODEL.experts + 2, 5, 3]


@pytest.mark.parametrize(("layers", "k"), [(2, 4), (3, 2), (5, 8)])
def test_below_its_floor_a_global_lru_hits_nothing_and_at_it_something(layers: int, k: int) -> None:
    """A cache below one token's experts was said to hit exactly 0 %; 7 of 8 slots hit half of an event."""
    sizes = tuple(1000 + 7 * layer for layer in range(layers))
    model = ModelGeometry(
        name="t", layer_ids=tuple(range(layers)), experts=3 * k, top_k=k, expert_bytes=sizes, dense_bytes=sizes
    )
    builder = TraceBuilder(model)
    for _ in range(12):  # the same routing for ever: nothing is ever reused sooner
        builder.begin_pass(Phase.DECODE)
        for layer in range(layers):
            builder.row(layer, list(range(k)))
    trace = builder.build()
    floor = model.lru_floor_bytes()
    assert floor <= model.token_cycle_bytes
    one, two = (replay(trace, "lru", f"{n}B").phases["all"] for n in (floor - 1, floor))
    assert (one.distinct_hits, two.distinct_hits > 0) == (0, True)
    if layers == 2 and k == 4:
        seven = replay(trace, "lru", f"{model.token_cycle_bytes - 1000}B").phases["all"]
        assert seven.distinct_hits >= seven.distinct * 0.4
    assert describe(trace)["lru_floor_bytes"] == floor


def test_sizes_of_a_warning_can_be_told_apart(trace: RoutingTrace) -> None:
    room = MODEL.token_cycle_bytes - 1
    (text,) = [w for w in replay(trace, "lru", f"{room}B").warnings if "below one token" in w]
    left, right = text.removeprefix("capacity ").split(" is below one token's experts (")
    assert left != right.partition(")")[0]
