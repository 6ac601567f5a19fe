"""What a trace holds: against plain loops, on recorded traces, and with layers that have no experts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from expert_residency.traces import ModelGeometry, Phase, RoutingTrace, TraceBuilder, convert, describe, read_trace
from expert_residency.traces.bundled import load
from expert_residency.traces.inspect import lag_overlap
from tests.trace_files import bigmoe_lines, write_lines


def random_trace(seed: int) -> RoutingTrace:
    """Two requests, prefill and decode mixed, one layer absent from some passes, k = 2 of 6."""
    rng = np.random.default_rng(seed)
    geometry = ModelGeometry("random", (2, 3, 7), 6, 2, (10, 20, 30), (1, 2, 3), dense_only_bytes=4, head_bytes=5)
    builder = TraceBuilder(geometry)
    for _ in range(60):
        phase = Phase(int(rng.choice(3, p=[0.2, 0.7, 0.1])))
        builder.begin_pass(phase, request=int(rng.integers(2)))
        for layer in (2, 3, 7):
            if layer == 2 or rng.random() < 0.9:
                for _ in range(1 if phase == Phase.DECODE else 3):
                    builder.row(layer, rng.choice(6, 2, replace=False).tolist())
    return builder.build(whole=False)


def plain_overlap(trace: RoutingTrace, lag: int) -> list[float]:
    """The definition, in loops."""
    sets: dict[tuple[int, int], dict[int, set[int]]] = {}
    step: dict[int, int] = {}
    for p in range(trace.n_passes):
        if trace.pass_phase[p] != Phase.DECODE:
            continue
        request = int(trace.pass_request[p])
        at = step[request] = step.get(request, -1) + 1
        for e in range(trace.pass_event_offsets[p], trace.pass_event_offsets[p + 1]):
            keys = trace.keys[trace.event_offsets[e] : trace.event_offsets[e + 1]]
            sets.setdefault((request, int(trace.event_layer[e])), {})[at] = set(keys.tolist())
    out = []
    for layer in range(trace.geometry.n_layers):
        hits = base = 0
        for (_, at_layer), steps in sets.items():
            for t, chosen in steps.items():
                if at_layer == layer and t + lag in steps:
                    hits, base = hits + len(chosen & steps[t + lag]), base + len(chosen)
        out.append(hits / base if base else math.nan)
    return out


@pytest.mark.parametrize("seed", range(4))
def test_overlap_is_its_definition(seed: int) -> None:
    trace = random_trace(seed)
    for lag, values in lag_overlap(trace).items():
        np.testing.assert_allclose(values, plain_overlap(trace, lag))


def test_counts_add_up() -> None:
    trace = random_trace(9)
    d = describe(trace)
    for field in ("events", "rows", "lookups"):
        assert sum(layer[field] for layer in d["layers"]) == d[field]
    assert sum(layer["experts_touched"] for layer in d["layers"]) == d["working_set_experts"]
    assert sum(u["events"] for u in d["union"].values()) == d["events"]
    assert sum(d["passes"].values()) == trace.n_passes
    assert d["working_set_bytes"] == sum(n["experts_touched"] * n["expert_bytes"] for n in d["layers"])
    assert d["token_cycle_bytes"] == 2 * (10 + 20 + 30)
    assert d["all_expert_bytes"] == 6 * (10 + 20 + 30)
    assert d["dense_pass_bytes"] == 1 + 2 + 3 + 4 + 5
    assert d["compulsory_share"] == d["working_set_experts"] / d["lookups"]


def test_uniform_and_fixed_routing_are_the_ends_of_the_scale() -> None:
    geometry = ModelGeometry("x", (0,), 10, 1, (1,), (1,))
    fixed, even = TraceBuilder(geometry), TraceBuilder(geometry)
    for t in range(40):
        for builder, expert in ((fixed, 3), (even, t % 10)):
            builder.begin_pass(Phase.DECODE)
            builder.row(0, [expert])
    one, all_ = describe(fixed.build()), describe(even.build())
    assert (one["normalised_entropy"], one["hottest_10_percent_share"], one["overlap"]["lag_1"]) == (0.0, 1.0, 1.0)
    assert all_["normalised_entropy"] == pytest.approx(1.0)
    assert all_["hottest_10_percent_share"] == pytest.approx(0.1)
    assert all_["overlap"] == dict.fromkeys(["lag_1", "lag_2", "lag_4", "lag_8", "lag_16"], 0.0)


def test_what_a_trace_cannot_tell_is_none() -> None:
    builder = TraceBuilder(ModelGeometry("x", (0, 1), 4, 1, (1, 1), (1, 1)))
    builder.begin_pass(Phase.PREFILL)
    builder.row(0, [1])
    d = describe(builder.build(whole=False))
    assert d["overlap"]["lag_1"] is None
    assert d["layers"][1]["normalised_entropy"] is None
    assert json.loads(json.dumps(d, allow_nan=False)) == d


def test_dense_first_layer_shifts_no_number(tmp_path: Path) -> None:
    """Four layers, layer 0 dense: the table shows 1, 2, 3, not 0, 1, 2."""
    passes = [[[[0, 1]], [[2, 3]], [[4, 5]]]] * 2
    trace = read_trace(write_lines(tmp_path / "a.csv", bigmoe_lines(passes, sizes=(0, 10, 20, 30))))
    layers = describe(trace)["layers"]
    assert [layer["layer"] for layer in layers] == [1, 2, 3]
    assert [layer["expert_bytes"] for layer in layers] == [10, 20, 30]


def test_convert_writes_what_it_returns(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.csv", bigmoe_lines())
    trace = convert(source, tmp_path / "a.parquet")
    assert read_trace(tmp_path / "a.parquet").content_hash == trace.content_hash


@pytest.mark.shared
def test_recorded_traces(shared: Path) -> None:
    qwen = describe(read_trace(shared / "traces/bigmoe-edge/qwen.route.csv"))
    assert qwen["passes"] == {"prefill": 1, "decode": 128, "verify": 0}
    assert (qwen["routed"], qwen["lookups"], qwen["k_min"], qwen["k_max"]) == (44_766, 39_526, 6, 6)
    assert qwen["union"]["decode"] == {
        "events": 6144, "rows_mean": 1.0, "rows_max": 1, "distinct_mean": 6.0, "distinct_max": 6,
    }  # fmt: skip
    assert qwen["union"]["prefill"]["rows_max"] == 28
    # published for this geometry on other prompts: lag-1 overlap 0.39 to 0.50, layer 0 far below the rest
    assert 0.3 < qwen["overlap"]["lag_1"] < 0.55
    assert qwen["layers"][0]["overlap_lag_1"] < 0.15
    granite = describe(read_trace(shared / "traces/granite3/moe_expert_trace.json"))
    assert (granite["requests"], granite["tokens_emitted"], granite["routed"]) == (3, 195, 304 * 24 * 8)


def test_a_note_is_one_line_however_it_is_stored() -> None:
    trace = random_trace(1)
    assert describe(trace)["notes"] == []
    for stored in ("two prompts", ["two prompts"]):
        trace.meta["notes"] = stored
        assert describe(trace)["notes"] == ["two prompts"]
    assert len(describe(load("tinymoe-code"))["notes"]) == 1
