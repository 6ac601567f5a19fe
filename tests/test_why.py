"""Why a pass took so long: parts add up, watching changes nothing, and reasons are those of the run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from expert_residency.errors import SimError, UserError
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.cli import main
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.studies.why import (
    DRIVE,
    EVICTED,
    HITS,
    LANDED,
    LINK,
    NEW,
    PARTS,
    PASSED,
    POOL,
    POOL_DRIVE,
    REASONS,
    Diary,
    explain,
)
from expert_residency.sim.timed.result import CAUSES, CPU_WAIT, DENSE, DISK_WAIT, EXPERTS, PCIE_WAIT
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace, TraceBuilder, write_parquet
from expert_residency.traces.bundled import load

from .tiny_runs import compiled, tiny_runs

SPLIT = {EXPERTS: (HITS, LANDED), DISK_WAIT: (DRIVE, POOL_DRIVE), PCIE_WAIT: (LINK,), CPU_WAIT: (POOL,)}


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(tiny_runs(compiled("eviction"), compiled("admission")))
def test_parts_add_up_to_each_pass_and_to_its_causes_and_watching_changes_nothing(tiny):
    machine = {"profiles": tiny.profiles, "preset": tiny.preset}
    try:
        plain = simulate(tiny.trace, tiny.spec, simulator="reference", **machine)
    except UserError:
        assume(False)
        return
    diary = Diary(range(tiny.trace.n_passes))
    watched = simulate(tiny.trace, tiny.spec, watch=diary, **machine)
    assert watched.pass_causes.tolist() == plain.pass_causes.tolist()
    assert watched.to_dict() == plain.to_dict()
    looked_up = np.diff(tiny.trace.event_offsets[tiny.trace.pass_event_offsets])
    for number, page in diary.pages.items():
        assert page.ns == sum(page.parts.values()) == int(plain.pass_ns[number])
        for cause in range(len(CAUSES)):
            names = SPLIT.get(cause) or (PARTS[cause],)
            assert sum(page.parts.get(name, 0) for name in names) == int(plain.pass_causes[number, cause])
        assert sum(one.ns for one in page.waits.values()) == page.parts.get(LINK, 0) + page.parts.get(DRIVE, 0)
        assert page.hits + len(page.missed) == looked_up[number]
        assert all(one.in_flight or one.reason in REASONS for one in page.missed)
        assert all(one.since <= number and one.wanted < number for one in page.missed)


def by_hand(passes: list[list[int]]) -> RoutingTrace:
    """One layer of four experts, one decode pass a set."""
    geometry = ModelGeometry(
        "by hand", (7,), 4, len(passes[0]), (1_000_000,), (1_000_000,), hidden_size=64, quant_family="q4"
    )
    builder = TraceBuilder(geometry)
    for chosen in passes:
        builder.begin_pass(Phase.DECODE)
        builder.row(7, chosen)
    return builder.build()


def test_who_left_for_whom_and_when():
    trace = by_hand([[0], [1], [0], [2], [0]])
    spec = RunSpec(("rtx-5070",), Capacity(slots_per_layer=1), miss="fetch")
    first, found = explain(trace, spec, 0), explain(trace, spec, 2)
    (new,), (gone,) = first.page.missed, found.page.missed
    assert (new.reason, first.reason(new)) == (NEW, "first wanted here, and not placed at the start")
    assert gone.reason == EVICTED
    assert found.reason(gone) == "left in pass 1 for L7 E1, which was missed; wanted in pass 0"
    assert found.served(gone) == "card"
    assert found.sentences[-1] == "Of 1 experts it missed 1, the median pass 1: 1 evicted."
    (wait,) = found.waits
    assert found.queue(wait) == "nothing: its own time"
    assert wait.ns == found.page.parts[LINK]


def test_what_admission_turns_away_was_given_no_slot():
    trace = by_hand([[0], [0], [0]])
    spec = RunSpec(("rtx-5070",), Capacity(slots_per_layer=1), miss="cpu", admission="never")
    found = explain(trace, spec, 2)
    (missed,) = found.page.missed
    assert missed.reason == PASSED
    assert found.reason(missed) == "given no slot in pass 1"
    assert found.served(missed) == "CPU"
    assert found.page.parts[POOL] > 0


def test_what_stands_before_a_copy_is_told():
    trace = load("tinymoe-prose")
    trace = trace.select_passes(np.arange(trace.n_passes) < 30)
    room = Capacity(trace.geometry.all_expert_bytes // 4)
    spec = RunSpec(
        ("rtx-5060ti-5700x3d",), room, miss="fetch", prefetch="noisy-oracle:recall=0.5,precision=0.3,window=4"
    )
    found = explain(trace, spec, 20)
    queues = [found.queue(one) for one in found.waits]
    assert any("prefetch" in text and "MB" in text for text in queues)
    assert found.page.ns >= found.beside.ns or found.number != found.median


def test_the_slowest_decode_pass_is_asked_by_default_and_the_median_stands_beside_it():
    trace = load("tinymoe-code")
    trace = trace.select_passes(np.arange(trace.n_passes) < 41)
    spec = RunSpec(("rtx-5060ti-5700x3d",), Capacity(trace.geometry.all_expert_bytes // 4), miss="cpu")
    result, found = simulate(trace, spec), explain(trace, spec)
    decode = np.flatnonzero(trace.pass_phase != Phase.PREFILL)
    assert result.pass_ns[found.number] == result.pass_ns[decode].max()
    rank = np.sort(result.pass_ns[decode]).tolist().index(int(result.pass_ns[found.median]))
    assert abs(rank - (len(decode) - 1) // 2) <= np.sum(result.pass_ns[decode] == result.pass_ns[found.median])
    assert found.page.parts[PARTS[DENSE]] > 0


def test_a_request_that_starts_cold_is_a_run_of_its_own():
    trace = load("tinymoe-prose")
    starts = np.flatnonzero(np.diff(trace.pass_request)) + 1
    near = (np.arange(trace.n_passes) < 12) | (
        (np.arange(trace.n_passes) >= starts[0]) & (np.arange(trace.n_passes) < starts[0] + 12)
    )
    trace = trace.select_passes(near)
    spec = RunSpec(("rtx-5060ti-5700x3d",), Capacity(trace.geometry.all_expert_bytes // 4), miss="fetch")
    found = explain(trace, spec, 13, cold="request")
    assert (found.first, found.number) == (12, 1)
    assert found.page.ns == simulate(trace, spec, cold="request").pass_ns[13]
    assert found.sentences[0].startswith("Pass 13 (decode, request 1) takes ")
    with pytest.raises(SimError, match="pass 24 of a trace of 24 passes: expected 0 to 23"):
        explain(trace, spec, 24)


def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    trace = by_hand([[0, 1], [2, 3], [0, 1], [1, 2]])
    write_parquet(trace, tmp_path / "t.parquet")
    words = [
        "why",
        str(tmp_path / "t.parquet"),
        "--hardware",
        "rtx-5070",
        "--slots-per-layer",
        "2",
        "--miss",
        "fetch",
    ]
    with pytest.raises(SystemExit) as end:
        main([*words, "--pass", "2"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "Pass 2 (decode, request 0) takes" in out
    assert "left in pass 1 for L7 E" in out
    assert "waiting for copies" in out
    with pytest.raises(SystemExit):
        main([*words, "--json", "-"])
    found = json.loads(capsys.readouterr().out)
    assert sum(found["parts_ns"].values()) == found["ns"]
    assert sum(found["median_parts_ns"].values()) == found["median_ns"]
    assert {one["served_by"] for one in found["missed"]} == {"card"}
