"""Timelines: whole JSON, names for people, tracks without overlaps, and no memory that grows."""

from __future__ import annotations

import json
import tracemalloc
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.timed.timeline import BYTES, FILLING, HITS, QUEUE, TRACKS, Timeline
from expert_residency.traces.bundled import load


def short() -> Any:
    import numpy as np

    trace = load("tinymoe-code")
    return trace.select_passes(np.arange(trace.n_passes) < 8)


def run(path: Path, **choices: Any) -> list[dict[str, Any]]:
    trace = short()
    share = int(0.3 * trace.geometry.all_expert_bytes)
    simulate(trace, RunSpec(capacity=Capacity(share), **choices), timeline=path)
    return list(json.loads(path.read_text())["traceEvents"])


def tracks(events: list[dict[str, Any]]) -> dict[int, str]:
    return {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        (
            {"hardware": ("rtx-5070",), "miss": "fetch", "prefetch": "previous-token"},
            {"GPU 0: computing", "PCIe to card 0: experts in", "host: router, planning"},
        ),
        (
            {"hardware": ("rtx-5070",), "miss": "cpu", "host": "mmap", "start": "cold"},
            {"GPU 0: computing", "CPU pool: experts in RAM", "disk, lane 0: reads", "host: router, planning"},
        ),
    ],
)
def test_tracks_have_names_and_their_slices_do_not_overlap(
    choices: dict[str, Any], expected: set[str], tmp_path: Path
) -> None:
    events = run(tmp_path / "t.json", **choices)
    names = tracks(events)
    assert expected <= set(names.values())
    assert len(set(names.values())) == len(names)
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["tid"]].append((round(event["ts"] * 1000), round(event["dur"] * 1000)))
    assert set(slices) == set(names)
    for track in slices.values():
        track.sort()
        assert all(a + d <= b for (a, d), (b, _) in pairwise(track))


def test_both_cards_have_tracks_of_their_own(tmp_path: Path) -> None:
    trace = short()
    n = trace.geometry.n_layers
    spec = RunSpec(
        ("tesla-p40", "tesla-p40"), Capacity(slots_per_layer=4), layers_each=(n // 2, n - n // 2), miss="fetch"
    )
    simulate(trace, spec, timeline=tmp_path / "t.json")
    names = set(tracks(json.loads((tmp_path / "t.json").read_text())["traceEvents"]).values())
    assert {f"GPU {i}: computing" for i in (0, 1)} | {f"PCIe to card {i}: experts in" for i in (0, 1)} <= names


def test_slots_in_flight_are_a_counter_that_ends_where_it_began(tmp_path: Path) -> None:
    events = run(tmp_path / "t.json", hardware=("rtx-5070",), miss="cpu", prefetch="oracle")
    counts = [(e["ts"], e["args"]["slots"]) for e in events if e["ph"] == "C" and e["name"] == FILLING]
    assert counts == sorted(counts, key=lambda c: c[0])
    assert max(n for _, n in counts) >= 1
    assert min(n for _, n in counts) == 0
    assert all(abs(b - a) <= 1 for (_, a), (_, b) in pairwise(counts))


def test_tracks_are_in_reading_order(tmp_path: Path) -> None:
    events = run(tmp_path / "t.json", hardware=("rtx-5070",), miss="hybrid")
    order = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    names = tracks(events)
    shown = [names[tid].split()[0].rstrip(":,") for tid in sorted(order, key=order.__getitem__)]
    assert shown == sorted(shown, key=[name.split()[0].rstrip(":,") for _, name in TRACKS].index)


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    geometry = load("tinymoe-code").geometry

    def peak(n: int) -> int:
        tracemalloc.start()
        with Timeline(tmp_path / "t.json", geometry, "many") as timeline:
            for i in range(n):
                timeline.slice("GPU 0", "experts", 10 * i, 10 * i + 5, bytes=i)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(20_000) - peak(1_000) < 50_000
    assert len(json.loads((tmp_path / "t.json").read_text())["traceEvents"]) == 1_003


def test_a_run_that_fails_leaves_no_file(tmp_path: Path) -> None:
    geometry = load("tinymoe-code").geometry
    with pytest.raises(RuntimeError), Timeline(tmp_path / "t.json", geometry, "x"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_requests_tokens_and_passes_have_tracks_that_cover_the_run(tmp_path: Path) -> None:
    trace = load("tinymoe-prose")
    import numpy as np

    start = int(np.flatnonzero(np.diff(trace.pass_request))[0]) + 1
    number = np.arange(trace.n_passes)
    trace = trace.select_passes((number < 5) | ((number >= start) & (number < start + 5)))
    path = tmp_path / "t.json"
    spec = RunSpec(("rtx-5070",), Capacity(int(0.3 * trace.geometry.all_expert_bytes)), miss="fetch")
    result = simulate(trace, spec, timeline=path)
    events = json.loads(path.read_text())["traceEvents"]
    names = tracks(events)
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[names[event["tid"]]].append(event)
    assert [round(one["dur"] * 1000) for one in slices["passes"]] == result.pass_ns.tolist()
    assert [one["name"] for one in slices["requests"]] == ["request 0", "request 1"]
    assert sum(round(one["dur"] * 1000) for one in slices["requests"]) == result.total_ns
    assert slices["tokens"][-1]["name"] == f"token {int(trace.pass_emits.sum()) - 1}"
    assert {one["args"]["request"] for one in slices["passes"]} == {0, 1}


def test_slices_name_experts_and_counters_follow_hits_and_queues(tmp_path: Path) -> None:
    events = run(tmp_path / "t.json", hardware=("rtx-5070",), miss="fetch", prefetch="previous-token")
    computed = [e for e in events if e["ph"] == "X" and e["name"].startswith("experts L")]
    assert computed
    assert all(e["args"]["experts"] for e in computed)
    counted = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counted[event["name"]].append(event["args"])
    trace = short()
    assert len(counted[HITS]) == trace.n_events
    assert sum(sum(one.values()) for one in counted[HITS]) == trace.n_lookups
    queue, nbytes = counted[QUEUE.format("H2D card 0")], counted[BYTES.format("H2D card 0")]
    assert max(one["demand"] for one in queue) > 1
    assert max(one["prefetch"] for one in queue) > 0
    assert len(queue) == len(nbytes)
    assert all(
        one["bytes"] == sum(count.values()) * trace.geometry.expert_bytes[0]
        for one, count in zip(nbytes, queue, strict=True)
    )
