"""Live runs: the decisions laid down beforehand, and the engines that carry them out."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expert_residency.errors import HardwareError, SimError
from expert_residency.hwmodels.executor.experts import ExpertShape, random_weights
from expert_residency.hwmodels.executor.steps import Measured
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.live.schedule import LiveChoices, Schedule, make_schedule, sizes_of
from expert_residency.sim.live.variants import (
    COLUMNS,
    Arm,
    Outcome,
    decode_window,
    run_in_turn,
    to_rows,
    write_rows,
)
from expert_residency.sim.runs.replay import replay
from expert_residency.traces import ModelGeometry, RoutingTrace
from expert_residency.traces.bundled import load

EVICTION = ("lru", "lfu", "static", "fifo")
PREFETCH = (
    "none",
    "oracle:window=1",
    "oracle:window=12",
    "noisy-oracle:recall=0.5,precision=0.5",
    "previous-token",
)


@pytest.fixture(scope="module")
def trace() -> RoutingTrace:
    return decode_window(load("tinymoe-prose"), 12)


def small_geometry(trace: RoutingTrace) -> RoutingTrace:
    """The same routing with tiny experts, so that a real run takes no time."""
    g = trace.geometry
    square = 64 * 64 * 2
    tiny = replace(
        g,
        hidden_size=64,
        expert_bytes=(6 * 64 * 4,) * g.n_layers,
        dense_bytes=(square,) * g.n_layers,
        head_bytes=square,
    )
    return replace(trace, geometry=tiny)


def follow(trace: RoutingTrace, schedule: Schedule) -> None:
    """Carry the copies out in order, and check that every group computes the experts that the event wants."""
    held: dict[int, int] = {slot: key for key, slot in schedule.start}
    offsets, keys = trace.event_offsets, trace.keys
    for e, step in enumerate(schedule.steps):
        wanted = set(keys[offsets[e] : offsets[e + 1]].tolist())
        assert {held[slot] for slot in step.now} <= wanted
        before = {slot: held.get(slot) for slot in step.now}
        held |= {slot: key for key, slot in step.copies}
        assert {slot: held[slot] for slot in step.now} == before, "a copy went into a slot being computed"
        held |= {slot: key for key, slot in step.ahead_router}
        computed = [held[slot] for slot in (*step.now, *step.later)] + list(step.cpu)
        assert sorted(computed) == sorted(wanted)
        held |= {slot: key for key, slot in step.ahead_done}
        assert all(0 <= slot < schedule.slots for slot in held)


@settings(max_examples=40, deadline=None)
@given(
    eviction=st.sampled_from(EVICTION),
    prefetch=st.sampled_from(PREFETCH),
    miss=st.sampled_from(["fetch", "cpu", "hybrid", "stream"]),
    fill=st.booleans(),
    slots=st.integers(28, 64),
    scope=st.sampled_from(["global", "layer"]),
)
def test_every_event_computes_what_it_wants(
    trace: RoutingTrace, eviction: str, prefetch: str, miss: str, fill: bool, slots: int, scope: str
) -> None:
    choices = LiveChoices(
        Capacity(slots_per_layer=slots, scope=scope), eviction, prefetch=prefetch, miss=miss, fill=fill
    )
    follow(trace, make_schedule(trace, choices))


@pytest.mark.parametrize("eviction", EVICTION)
@pytest.mark.parametrize("slots", [12, 32])
def test_without_prefetch_the_hits_are_the_replays(trace: RoutingTrace, eviction: str, slots: int) -> None:
    capacity = Capacity(slots_per_layer=slots)
    schedule = make_schedule(trace, LiveChoices(capacity, eviction))
    counted = replay(trace, eviction, capacity).phases["all"]
    assert (schedule.hits, schedule.lookups) == (counted.distinct_hits, counted.distinct)
    assert schedule.copied_bytes == counted.miss_bytes


def test_an_oracle_leaves_only_the_first_event_to_demand(trace: RoutingTrace) -> None:
    schedule = make_schedule(trace, LiveChoices(Capacity(slots_per_layer=32), prefetch="oracle:window=1"))
    assert [len(step.copies) for step in schedule.steps if step.copies] == [8]
    waits = [step.needs for step in schedule.steps if step.needs >= 0]
    assert waits == sorted(waits)


def test_what_a_live_run_cannot_do_is_said(trace: RoutingTrace) -> None:
    with pytest.raises(SimError, match="live runs have no waves"):
        make_schedule(trace, LiveChoices(Capacity(slots_per_layer=4, scope="layer")))
    with pytest.raises(SimError, match="has 1024 decode passes, 5000 are asked for"):
        decode_window(load("tinymoe-prose"), 5000)
    with pytest.raises(HardwareError, match="cannot be a bf16 one of hidden size 512"):
        ExpertShape.of(100, 512)


def test_the_pool_computes_swiglu() -> None:
    pytest.importorskip("numba", reason="the CPU pool needs numba")
    from expert_residency.hwmodels.executor.experts import CpuExperts

    shape = ExpertShape.of(6 * 48 * 24, 48)
    weights = random_weights(shape.nbytes * 5)
    drawn = np.random.default_rng(0)
    x = drawn.standard_normal((3, 48)).astype(np.float32)
    out = np.full((3, 48), np.nan, dtype=np.float32)
    chosen = np.array([4, 0, 2], dtype=np.int64) * (shape.nbytes // 2)
    CpuExperts(48, 2)(weights, chosen, shape.width, x, out)
    wide = (weights.astype(np.uint32) << 16).view(np.float32).astype(np.float64).reshape(5, -1)
    expected = np.zeros((3, 48))
    for expert in (4, 0, 2):
        gate, up, down = np.split(wide[expert], 3)
        inner = x @ gate.reshape(24, 48).T
        expected += (inner / (1 + np.exp(-inner)) * (x @ up.reshape(24, 48).T)) @ down.reshape(48, 24).T
    assert np.linalg.norm(out - expected) / np.linalg.norm(expected) < 1e-5


@pytest.mark.parametrize("state", ["warm", "cold"])
@pytest.mark.parametrize("prefetch", ["none", "oracle:window=2"])
def test_a_real_run_without_a_card(trace: RoutingTrace, tmp_path: Path, state: Any, prefetch: str) -> None:
    """Every read happens, and what a slot holds is what the file holds for its last expert."""
    pytest.importorskip("numba", reason="the CPU pool needs numba")
    from expert_residency.hwmodels.executor.cardless import CardlessEngine

    trace = small_geometry(trace)
    engine = CardlessEngine(sizes_of(trace.geometry), tmp_path, 1)
    schedule = make_schedule(trace, LiveChoices(Capacity(slots_per_layer=24), prefetch=prefetch))
    engine.load(schedule)
    measured = engine.run(state)
    assert len(measured.pass_ns) == trace.n_passes
    assert (measured.pass_ns > 0).all()
    assert (measured.known_ns + measured.wait_ns <= measured.pass_ns).all()
    held = {slot: key for key, slot in schedule.start}
    for step in schedule.steps:
        held |= {slot: key for key, slot in (*step.copies, *step.ahead_router, *step.ahead_done)}
    stored = np.fromfile(engine.file.path, dtype=np.uint16).reshape(trace.geometry.n_experts, -1)
    for slot, key in held.items():
        np.testing.assert_array_equal(engine.slot(slot), stored[key])
    engine.close()


def test_without_a_card_the_cpu_mode_has_no_meaning(trace: RoutingTrace, tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="the CPU pool needs numba")
    from expert_residency.hwmodels.executor.cardless import CardlessEngine

    trace = small_geometry(trace)
    engine = CardlessEngine(sizes_of(trace.geometry), tmp_path, 1)
    with pytest.raises(HardwareError, match="miss mode fetch or stream is needed"):
        engine.load(make_schedule(trace, LiveChoices(Capacity(slots_per_layer=24), miss="cpu")))
    engine.close()


def test_arms_are_interleaved_and_make_a_table(trace: RoutingTrace, tmp_path: Path) -> None:
    arms = [Arm("tinymoe-prose", n) for n in (16, 24, 32)]
    order: list[int] = []

    def run(arm: Arm, schedule: Schedule) -> Measured:
        order.append(arm.slots_per_layer)
        measured = Measured.empty(trace.n_passes)
        measured.pass_ns[:] = 1_000_000 * arm.slots_per_layer + len(order)
        return measured

    outcomes = [Outcome(arm, make_schedule(trace, arm.choices), []) for arm in arms]
    turns = run_in_turn(outcomes, run)
    for _ in range(9):
        next(turns)
    assert [sorted(order[i : i + 3]) for i in (0, 3, 6)] == [[16, 24, 32]] * 3
    assert order[:3] != order[3:6] or order[:3] != order[6:]
    write_rows(to_rows(outcomes, {"gpu": "none"}, trace, 2), tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(COLUMNS)
    assert [float(row["tok_s"]) for row in rows] == pytest.approx([62.5, 1000 / 24, 31.25], rel=1e-3)
    assert rows[0]["rounds"] == "3"
    assert to_rows([Outcome(arm, outcomes[0].schedule, []) for arm in arms], {}, trace, 2) == []


@pytest.mark.parametrize("landed", [True, False])
def test_the_card_engine_does_what_the_schedule_says(
    trace: RoutingTrace, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """Run against a card that only keeps a log: launches and copies come in the order of the steps.

    With all that was copied ahead landed it is computed with the residents, else behind its copies.
    """
    pytest.importorskip("numba", reason="the CPU pool needs numba")
    import expert_residency.hwmodels.executor.engine as module

    trace = small_geometry(trace)
    log: list[tuple[Any, ...]] = []
    fake = FakeCard(trace.geometry, log)
    monkeypatch.setattr(module, "Copier", lambda **_: FakeCopier(log))
    marks = FakeMarks(landed)
    monkeypatch.setattr(module, "Marks", lambda: marks)
    monkeypatch.setattr(module, "pinned_weights", lambda nbytes: FakeTensor(random_weights(nbytes)))
    host = module.HostExperts(sizes_of(trace.geometry), "arena")
    engine = module.CardEngine(sizes_of(trace.geometry), host, 1)
    monkeypatch.setattr(engine, "reserve", lambda slots: setattr(engine, "_card", fake) or fake)
    choices = LiveChoices(Capacity(slots_per_layer=20), miss="hybrid", prefetch="oracle:window=1", fill=True)
    schedule = make_schedule(trace, choices)
    engine.load(schedule)
    log.clear()
    measured = engine.run()
    assert (measured.pass_ns > 0).all()
    launches = [entry[1] for entry in log if entry[0] == "launch"]
    assert launches.count(("finish",)) == trace.n_passes
    assert [name for name in launches if name[0] == "mixer"] == [("mixer", step.layer) for step in schedule.steps]
    copies = [entry for entry in log if entry[0] == "copy"]
    expected = sum(len(s.copies) + len(s.ahead_router) + len(s.ahead_done) for s in schedule.steps)
    assert len(copies) == expected + len(schedule.start)
    base = int(host.weights().ctypes.data)
    stride = max(trace.geometry.expert_bytes)
    first = next(step for step in schedule.steps if step.copies)
    assert copies[0][1:4] == (fake.slot_address(first.copies[0][1]), base + first.copies[0][0] * stride, stride)
    groups = [(name[2], name[3]) for name in launches if name[0] == "experts"]
    held = 0
    for step in schedule.steps:
        ready = len(step.now) - (0 if step.copies else step.pending)
        wanted = [ready + step.pending, len(step.copies)] if landed else [ready, len(step.copies) + step.pending]
        for table, n in enumerate(wanted):
            if n:
                assert groups.pop(0) == (table, n)
        held += wanted[1] > 0
    assert not groups
    assert sum(step.pending for step in schedule.steps) > 0
    assert marks.held == held + sum(bool(step.ahead_done) for step in schedule.steps)
    host.close()


class FakeMarks:
    """Events that are never waited for."""

    def __init__(self, landed: bool) -> None:
        self.landed = landed
        self.held = 0
        self.count = 0

    def reserve(self, count: int) -> None:
        self.count = max(self.count, count)

    def set(self, number: int, _stream: int) -> None:
        assert number < self.count

    def hold(self, _stream: int, number: int) -> None:
        assert number < self.count
        self.held += 1

    def block(self, number: int) -> None:
        pass

    def reached(self, number: int) -> bool:
        assert number < self.count
        return self.landed


class FakeCopier:
    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        self.log = log

    def send(self, batch: Any, stream: int) -> None:
        self.log.extend(("copy", *triple, stream) for triple in batch.triples)


class FakeTensor:
    def __init__(self, array: Any) -> None:
        self.array = array

    def numpy(self) -> Any:
        return self.array


class FakeCard:
    """Launches and events go to a log, time stands still on the card."""

    def __init__(self, geometry: ModelGeometry, log: list[tuple[Any, ...]]) -> None:
        self.log = log
        self.shapes = [ExpertShape.of(n, geometry.hidden_size) for n in geometry.expert_bytes]
        self.x_host = FakeTensor(np.zeros((1, geometry.hidden_size), dtype=np.float32))
        self.from_cpu = FakeTensor(np.zeros((1, geometry.hidden_size), dtype=np.float32))
        self.torch = self
        self.cuda = self
        self.compute, self.copying = (FakeStream(self, name) for name in ("compute", "copying"))

    def __getattr__(self, name: str) -> Any:
        if name in ("mixer", "experts", "join", "finish"):
            return lambda *args, attends=False: FakeGraph(self.log, (name, *args, *["attends"] * attends))
        if name == "Event":
            return lambda **_: FakeEvent()
        raise AttributeError(name)

    def slot_address(self, slot: int) -> int:
        return 1000 * slot

    def set_tables(self, tables: Any) -> None:
        assert all(tiles.min() >= 0 and not rows.any() for tiles, rows in tables)

    def rewind(self) -> None:
        self.log.append(("rewind",))

    def stream(self, _stream: Any) -> Any:
        import contextlib

        return contextlib.nullcontext()

    def synchronize(self) -> None:
        self.log.append(("synchronize",))


class FakeStream:
    def __init__(self, card: FakeCard, name: str) -> None:
        self.card, self.cuda_stream = card, len(name)


class FakeGraph:
    def __init__(self, log: list[tuple[Any, ...]], name: tuple[Any, ...]) -> None:
        self.log, self.name = log, name

    def replay(self) -> None:
        self.log.append(("launch", self.name))


class FakeEvent:
    def record(self, _stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, _other: Any) -> float:
        return 1.0
