"""Every column of a sweep's rows and of its report, worked out again from the arrays of the run."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest

from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.report import data as report
from expert_residency.sim.runs.simulate import manifest, simulate
from expert_residency.sim.sweep import cells as planning
from expert_residency.sim.sweep import rows as rows_of
from expert_residency.sim.sweep.cells import Cell
from expert_residency.sim.sweep.stored import View
from expert_residency.sim.timed.result import CAUSES, TIERS, RunResult
from expert_residency.traces import Phase, RoutingTrace, TraceBuilder
from tests.test_engine import geometry

DENSE_ONLY, HEAD = 70_000, 90_000
PLACE = ("tesla-p40", "rtx-3090")
CHOICES: dict[str, dict[str, Any]] = {
    "one card, prefetch into a ring": {
        "hardware": PLACE[0], "capacity": "3/layer", "prefetch": "previous-token", "insertion": "staging:slots=2",
        "miss": "fetch",
    },
    "two cards, mapped and cold": {
        "hardware": list(PLACE), "layers_each": [1, 2], "capacity": "50%", "host": "mmap", "start": "cold",
        "miss": "cpu", "scope": "layer", "placement": "none",
    },
    "an oracle that fetches ahead": {
        "hardware": PLACE[1], "capacity": "40%", "eviction": "belady", "miss": "hybrid",
        "prefetch": "oracle:window=2", "admission": "cap:per_event=1",
    },
}  # fmt: skip


def small_trace() -> RoutingTrace:
    """Prefills, decodes and windows; layers of different sizes, dense layers and a head."""
    plain = geometry(3, 6, 2)
    model = replace(plain, dense_only_bytes=DENSE_ONLY, head_bytes=HEAD,
                    expert_bytes=tuple(size + 4096 * i for i, size in enumerate(plain.expert_bytes)))  # fmt: skip
    draw = np.random.default_rng(5)
    builder = TraceBuilder(model)
    for number in range(40):
        phase = Phase.PREFILL if number in (0, 20) else Phase.VERIFY if number % 5 == 0 else Phase.DECODE
        rows = {Phase.PREFILL: 7, Phase.VERIFY: 3, Phase.DECODE: 1}[phase]
        builder.begin_pass(phase, request=number // 20, emits=2 if phase == Phase.VERIFY else 1)
        for layer in model.layer_ids:
            for _ in range(rows):
                builder.row(layer, draw.permutation(6)[:2].tolist())
    return builder.build()


def simulated(name: str) -> tuple[RoutingTrace, RunSpec, RunResult]:
    trace = small_trace()
    spec = RunSpec(**CHOICES[name]).settled(trace.geometry)
    return trace, spec, simulate(trace, spec, simulator="reference")


def expected(trace: RoutingTrace, spec: RunSpec, run: RunResult) -> dict[str, Any]:
    """The columns, from arrays and sizes alone; none of it is taken from the properties of a result."""
    g = trace.geometry
    decode = np.asarray([phase != Phase.PREFILL for phase in run.pass_phase])
    ns, tokens = run.pass_ns[decode].tolist(), int(run.pass_emits[decode].sum())
    each = spec.layers_each or (g.n_layers,)
    edges = np.cumsum([0, *each]).tolist()
    spans = [range(a, b) for a, b in pairwise(edges)]
    if spec.capacity.slots_per_layer is not None:
        room = spec.capacity.slots_per_layer * sum(g.expert_bytes)
    elif spec.capacity.card_bytes is not None:
        room = sum(spec.capacity.card_bytes)
    else:
        room = spec.capacity.total_bytes or 0
    if spec.capacity.scope == "layer" and spec.capacity.slots_per_layer is None:  # whole bytes for each layer
        of_card = zip(spec.capacity.card_bytes or [room], spans, strict=True)
        room = sum(size // len(span) * len(span) for size, span in of_card)
    ring = int(spec.insertion.partition("slots=")[2] or 0)
    frames = sum(ring * max(g.expert_bytes[i] for i in span) for span in spans if len(span))
    served = run.served_distinct
    moved = run.link_bytes
    stats = run.prefetch
    used = stats.useful + stats.late
    by_request = [
        (int(run.pass_emits[own].sum()), int(run.pass_ns[own].sum()))
        for own in (decode & (trace.pass_request == n) for n in dict.fromkeys(trace.pass_request.tolist()))
        if own.any()
    ]
    fixed = {
        "passes": 40, "model": g.label, "hardware": "+".join(spec.hardware), "cards": len(spec.hardware),
        "layers_each": None if spec.layers_each is None else "1+2", "scope": spec.capacity.scope,
        "slots_per_layer": spec.capacity.slots_per_layer, "capacity_bytes": room,
        "vram_bytes": room + frames + sum(g.dense_bytes) + DENSE_ONLY + HEAD,
        "cached_share": room / (6 * sum(g.expert_bytes)), "cycles": room / (2 * sum(g.expert_bytes)),
        "oracle": spec.prefetch.startswith("oracle"),
        "status": "ok", "reason": None, "tokens": int(run.pass_emits.sum()), "decode_tokens": tokens,
        "requests": len(by_request), "request_tokens": [emitted for emitted, _ in by_request],
        "request_ns": [ns_of for _, ns_of in by_request],
        "total_ns": sum(run.pass_ns.tolist()), "decode_ns": sum(ns), "bound_ns": 123,
        "tokens_per_s": tokens / (sum(ns) / 1e9),
        "ms_per_token": sum(ns) / 1e6 / tokens,
        "hit_rate": served[1:, TIERS.index("vram")].sum() / served[1:].sum(),
        "h2d_demand_bytes": moved["h2d_demand"], "h2d_prefetch_bytes": moved["h2d_prefetch"],
        "h2d_adapt_bytes": moved["h2d_adapt"], "d2h_bytes": moved["d2h"], "disk_bytes": moved["disk"],
        "cpu_bytes": moved["cpu"], "evictions": run.evictions, "admitted_bytes": run.admitted_bytes,
        "start_bytes": run.start_bytes, "load_ns": run.load_ns, "waves": run.waves,
        "prefetch_issued": stats.issued, "prefetch_useful": stats.useful, "prefetch_late": stats.late,
        "prefetch_wasted": stats.wasted, "prefetch_cancelled": stats.cancelled,
        "prefetch_useful_bytes": stats.useful_bytes,
        "prefetch_late_bytes": stats.late_bytes, "prefetch_wasted_bytes": stats.wasted_bytes,
        "prefetch_harmful_bytes": stats.harmful_bytes,
        "prefetch_precision": used / stats.issued if stats.issued else None,
        "prefetch_recall": stats.recall, "binds": rows_of.binding_sentence(run), "warnings": run.warnings,
        "caveats": run.caveats, "manifest": json.dumps(run.manifest, sort_keys=True),
    }  # fmt: skip
    fixed |= {f"share_{tier}": served[:, i].sum() / served.sum() for i, tier in enumerate(TIERS)}
    fixed |= {
        f"{cause}_ms_per_token": int(run.pass_causes[decode][:, i].sum()) / 1e6 / tokens
        for i, cause in enumerate(CAUSES)
    }
    fixed |= {f"ms_per_pass_p{q}": percentile(ns, q) / 1e6 for q in (50, 95, 99)}
    return fixed


def percentile(values: list[int], q: int) -> float:
    """Linear between the two nearest ranks."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * q / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def row(trace: RoutingTrace, spec: RunSpec, run: RunResult, number: int = 0) -> dict[str, Any]:
    cell = Cell(number, f"id-{number}", "a trace", None, View("", None, None), spec)
    return rows_of.cell_row(cell, rows_of.room_row(trace, spec) | rows_of.result_row(run, 123))


def check_rows() -> None:
    """All columns of all rows are what the arrays of the runs say."""
    for name in CHOICES:
        trace, spec, run = simulated(name)
        found, wanted = row(trace, spec, run), expected(trace, spec, run)
        named = {"cell": 0, "cell_id": "id-0", "trace": "a trace", "scenario": None, "seed": None, "setting": None}
        chosen = {column: CHOICES[name].get(column, found[column]) for column in rows_of.POLICY_COLUMNS}
        wanted |= named | chosen
        assert set(wanted) == {column.name for column in rows_of.COLUMNS}
        for column, value in wanted.items():
            assert found[column] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), (
                column
            )
    assert run.link_bytes["h2d_prefetch"] > run.link_bytes["h2d_demand"] > 0  # or a swap would not show


def check_report() -> None:
    """The report's own columns are those of the rows, in GiB, ranked, and against the best bound."""
    from expert_residency.sim.sweep.rows import schema

    trace = small_trace()
    made = []
    for number, (eviction, prefetch) in enumerate(
        (("lru", "none"), ("lfu", "none"), ("belady", "none"), ("belady", "oracle:window=2"))
    ):
        spec = RunSpec(PLACE[1], "40%", eviction=eviction, prefetch=prefetch, miss="fetch").settled(trace.geometry)
        made.append(row(trace, spec, simulate(trace, spec, simulator="reference"), number))
    pa = pytest.importorskip("pyarrow")
    frame = pa.Table.from_pylist(made, schema()).to_pandas()
    shown = report.report_rows(frame).set_index("cell")
    bounds = frame[frame["oracle"]]["tokens_per_s"]
    assert bounds.nunique() == 2
    order = frame.sort_values("ms_per_token")["cell"].tolist()
    assert shown.sort_values("order").index.tolist() == order
    real = [cell for cell in order if not frame.loc[cell, "oracle"]]
    assert shown.loc[real, "rank"].tolist() == [1, 2]
    assert shown.loc[[2, 3], "rank"].isna().all()
    for cell in frame["cell"]:
        assert shown.loc[cell, "capacity_gib"] == frame.loc[cell, "capacity_bytes"] / 2**30
        assert (
            shown.loc[cell, "vram_gib"] == frame.loc[cell, "vram_bytes"] / 2**30 != shown.loc[cell, "capacity_gib"]
        )
        assert shown.loc[cell, "of_best"] == frame.loc[cell, "tokens_per_s"] / bounds.max()
        for column in ("tokens_per_s", "ms_per_token", "ms_per_pass_p95", "hit_rate", "cycles", "binds"):
            assert shown.loc[cell, column] == frame.loc[cell, column]


def check_ids() -> None:
    """Everything that decides a result is in a cell's id: any other choice is another id."""
    trace = small_trace()
    base: dict[str, Any] = {"hardware": PLACE[0], "capacity": "3/layer", "host": "mmap", "miss": "cpu"}
    others: list[dict[str, Any]] = [
        {}, {"start": "cold"}, {"host": "arena"}, {"miss": "fetch"}, {"eviction": "lfu"}, {"admission": "two-hit"},
        {"prefetch": "previous-token"}, {"placement": "hindsight"}, {"capacity": "2/layer"}, {"engine": "strata"},
        {"hardware": PLACE[1]}, {"insertion": "guarded:events=1"}, {"prefetch_bytes": 4096}, {"predict_us": 1.0},
    ]  # fmt: skip
    ids = set()
    for changes in others:
        spec = RunSpec(**(base | changes)).settled(trace.geometry)
        with (
            patch.object(planning, "open_view", lambda _: trace),
            patch.object(planning, "_first_pass", lambda _: trace),
        ):
            ids.add(planning._check(View("", None, None), spec)[0])
    assert len(ids) == len(others)


def test_every_column_is_what_the_run_says() -> None:
    check_rows()


def test_a_report_shows_what_the_rows_say() -> None:
    check_report()


def test_every_choice_is_in_the_id_of_a_cell() -> None:
    check_ids()


def test_a_manifest_is_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, spec, run = simulated("one card, prefetch into a ring")
    profiles = tuple(map(load_profile, spec.hardware))
    made = manifest(trace, spec, profiles, load_engine(spec.engine))
    assert run.manifest == made | {"start": run.manifest["start"]}
    assert set(run.manifest["start"]) == {"resident_sha256", "pages_sha256"}
    assert isinstance(pd.DataFrame([row(trace, spec, run)]), pd.DataFrame)
