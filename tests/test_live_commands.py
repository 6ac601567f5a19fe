"""Commands that measure and record, and the whole loop without a card: calibrate, predict, run, compare."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from expert_residency.errors import HardwareError, SimError, TraceError
from expert_residency.hwmodels.calibrate.layers import SPACING, USED_AFTER, program_of, spaced
from expert_residency.hwmodels.calibrate.oncard import fit_card, most_of
from expert_residency.hwmodels.calibrate.readings import Bench, measure
from expert_residency.hwmodels.executor.card import LiveSizes
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.cli import _register, app
from expert_residency.sim.live.context import cells_of, from_cell, measured_cells, to_cell, with_context
from expert_residency.sim.live.plan import make_plan
from expert_residency.sim.live.predict import load_live_runs
from expert_residency.sim.live.schedule import LiveChoices, make_schedule, sizes_of
from expert_residency.sim.live.variants import Arm, decode_window, in_windows, scaled
from expert_residency.sim.runs.simulate import simulate
from expert_residency.traces import RoutingTrace, read_trace
from expert_residency.traces.bundled import load

_register()
PASSES, WARMUP, SLOTS = 40, 8, (12, 24, 48)


def fails(error: type[ValueError], *args: str) -> str:
    """Message of a command that ends with an error of the user's making."""
    found = CliRunner().invoke(app, list(args))
    assert isinstance(found.exception, error), found.output
    return str(found.exception)


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "numba", None)
    out = str(tmp_path / "a.parquet")
    prompt = tmp_path / "p.txt"
    prompt.write_text("a prompt", "utf-8")
    said = fails(TraceError, "record", "--model", "m", "--prompt-file", str(prompt), "--out", out)
    assert said == "recording needs torch and transformers: pip install 'expert-residency[record]'"
    said = fails(HardwareError, "calibrate", "--out", str(tmp_path / "a.toml"))
    assert said == "calibrating needs numba: pip install 'expert-residency[live]'"


def test_calibrating_says_what_it_lacks(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="calibrating needs numba")
    assert "ends in .toml" in fails(HardwareError, "calibrate", "--out", str(tmp_path / "profile"))
    torch = pytest.importorskip("torch", reason="whether there is a card is asked of torch")
    if not torch.cuda.is_available():
        assert "no CUDA card here" in fails(HardwareError, "calibrate", "--out", str(tmp_path / "a.toml"))


def test_recording_a_model_from_a_folder(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the recorder needs torch")
    transformers = pytest.importorskip("transformers", reason="the recorder needs transformers")
    tokenizers = pytest.importorskip("tokenizers", reason="the recorder needs transformers")
    config = transformers.OlmoeConfig(
        vocab_size=16, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
        num_experts_per_tok=2, intermediate_size=16, num_experts=8, pad_token_id=None, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(1)
    folder = tmp_path / "small"
    transformers.OlmoeForCausalLM(config).save_pretrained(folder)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)
    prompt, out = tmp_path / "prompt.txt", tmp_path / "trace.parquet"
    prompt.write_text("a b b a b")
    args = ["record", "--model", str(folder), "--prompt-file", str(prompt), "--out", str(out)]
    found = CliRunner().invoke(app, [*args, "--decode-tokens", "4", "--look-ahead", "1"])
    assert found.exit_code == 0, found.output
    trace = read_trace(str(out))
    assert (trace.geometry.name, trace.n_passes, trace.n_rows) == ("small", 5, 3 * (5 + 4))
    assert list(trace.predictions) == [1]
    assert "unknown dtype" in fails(TraceError, *args, "--dtype", "int3")
    prompt.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in fails(TraceError, *args)
    prompt.unlink()
    assert "cannot read the prompt" in fails(TraceError, *args)


@pytest.fixture
def small() -> RoutingTrace:
    """Recorded routing with experts of 98 kB, so that a calibration takes seconds."""
    window = decode_window(load("tinymoe-prose"), PASSES)
    g = window.geometry
    square = 256 * 256 * 2
    return replace(
        window,
        geometry=replace(
            g, hidden_size=256, expert_bytes=(6 * 256 * 64,) * g.n_layers, dense_bytes=(square,) * g.n_layers,
            head_bytes=square,
        ),
    )  # fmt: skip


@pytest.mark.slow
def test_calibrate_predict_run_compare(
    small: RoutingTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Laws and orders only: seconds of a busy machine prove nothing (`benchmarks/live_runs.py` measures them)."""
    pytest.importorskip("numba", reason="the CPU pool needs numba")
    from expert_residency.hwmodels.calibrate import calibrate
    from expert_residency.hwmodels.executor.cardless import CardlessEngine

    monkeypatch.setattr("expert_residency.hwmodels.calibrate.run.LEAST_BYTES", 1 << 24)
    try:
        made = calibrate(sizes_of(small.geometry), tmp_path, name="here", cardless=True, workers=1, rounds=1)
    except HardwareError as error:
        pytest.skip(str(error))
    profile, preset = tmp_path / "here.toml", tmp_path / "here.engine.toml"
    profile.write_text(made.profile_toml)
    preset.write_text(made.engine_toml)
    assert load_profile(str(profile)).gpu.vram_usable_gib.value > 0
    assert load_engine(str(preset)).copy_order == "asked"
    engine = CardlessEngine(sizes_of(small.geometry), tmp_path, 1)
    schedules, predicted = [], []
    for slots in SLOTS:
        arm = Arm("small", slots, host="mmap")
        schedule = make_schedule(small, arm.choices)
        spec = RunSpec((str(profile),), arm.choices.capacity, engine=str(preset), host="mmap")
        found = simulate(small, spec)
        counted = int(found.served_distinct[1, 0]), found.link_bytes["h2d_demand"]
        assert counted == (schedule.hits, schedule.copied_bytes), "the prediction counts what the run does"
        schedules.append(schedule)
        predicted.append(float(found.pass_ns[WARMUP:].mean()))
    measured = [math.inf] * len(SLOTS)
    for _ in range(4):
        for i, schedule in enumerate(schedules):
            engine.load(schedule)
            measured[i] = min(measured[i], float(np.median(engine.run("warm").pass_ns[WARMUP:])))
    engine.close()
    assert predicted == sorted(predicted, reverse=True), "more slots, less time"
    assert measured[0] > measured[-1], "four times the slots show above the noise"
    limit = 30  # a wrong unit is a thousand; `tests/test_live_loop.py` is the measurement
    ratios = [one / other for one, other in zip(predicted, measured, strict=True)]
    assert all(1 / limit < ratio < limit for ratio in ratios), ratios


def sending(small: RoutingTrace, spec: RunSpec, **costs: float) -> Any:
    """A run under a preset whose sending costs something; copies are computed at once, so later is never less."""
    made: dict[str, Any] = {"copy_unit": "layer"}
    made |= {name: Quantity(value=us, kind="assumed", source="a test") for name, us in costs.items()}
    return simulate(small, spec, preset=load_engine("generic").model_copy(update=made))


def test_sending_copies_costs_only_who_sends(small: RoutingTrace) -> None:
    def spec(slots: int, **choices: Any) -> RunSpec:
        return RunSpec(("rtx-3090",), Capacity(slots_per_layer=slots), **choices)

    everything = spec(64, eviction="static", placement="hindsight")
    quiet = sending(small, everything, send_us=50.0, ahead_us=50.0)
    assert quiet.pass_ns.tolist() == sending(small, everything).pass_ns.tolist()
    fetching = spec(16, miss="fetch")
    free, dear = (sending(small, fetching, send_us=us).pass_ns for us in (0.0, 50.0))
    assert (dear >= free).all()
    assert free.sum() < dear.sum() <= free.sum() + small.n_events * 50_000
    assert sending(small, fetching, ahead_us=50.0).pass_ns.tolist() == free.tolist(), "nothing is sent ahead"


def test_copies_sent_after_cpu_work_cost_their_whole_time(small: RoutingTrace) -> None:
    """With one expert's room a layer every event misses on the CPU and fills, so each layer takes 30 us more."""
    spec = RunSpec(("rtx-3090",), Capacity(slots_per_layer=1, scope="layer"), miss="cpu")
    free, dear = (sending(small, spec, ahead_us=us) for us in (0.0, 30.0))
    fills = round((dear.pass_ns - free.pass_ns).sum() / 30_000)
    assert 0 < fills <= small.n_events


def test_a_card_is_fitted_back_from_layers_made_of_its_figures() -> None:
    """Layers made from the formulas, with a set-up of 8 us, copies of 15, and so on."""
    sizes = LiveSizes(
        512, 64, 8, (786_432,) * 12, (2_000_000,) * 12, 4_000_000, cell_bytes=2048, cells=(1, 500, 8000)
    )
    bare, most, dense = 40.0, 8, 4000.0
    group = [0.0, 22.0, 29.0, 30.0, 31.0, 33.0, 36.0, 38.0, 39.0]
    layers = {(n, 0, 0, 0): group[n] for n in range(most + 1)}
    layers |= {(0, n, 0, 0): 8 + n * (15 + 0.5) + group[n] for n in (1, 2, 4, 8)}
    layers |= {(0, 0, n, 0): 25.0 + n * 9 for n in (1, 2, 4, 8)}
    layers[7, 1, 0, 0] = group[7] + group[1] + 14
    layers |= {(4, 0, n, 0): 25.0 + n * 9 + 6 for n in (1, 2, 4)}
    names = ("now", "copies", "cpu", "ahead")
    reading = {
        " ".join(["layer", *(f"{name}={n}" for name, n in zip(names, key, strict=True))]): bare + us
        for key, us in layers.items()
    }
    reading |= {f"layer mapped copies={n}": bare + 8 + n * 100 + group[n] for n in (1, 2, 4, 8)}
    reading |= {f"layer mapped cpu={n}": bare + 30 + n * 10 for n in (1, 2, 4, 8)}
    reading |= {f"layer filled cpu={n}": bare + 25 + n * 9 + 6 + 4 + 30 + 7 * n for n in (1, 2, 4)}
    reading |= {"one layer": bare + 7, "layer piped copies=8": 8 * 15.0, "launch": 6.0}
    # Sending takes 30 us and 0.5 a copy, of which the card's 22 of one expert are hidden; a layer that begins
    # beside a copy takes 4 us more: one of eight if one copy is sent, or as many as 360 us of copies go beside.
    many = most_of(sizes)
    assert many == 24
    send = {n: 30 + 0.5 * n for n in (1, 2, 4, many)}
    reading |= {f"sending ahead={n}": us for n, us in send.items()}
    reading["layer spaced ahead=1"] = bare + 22 + (send[1] - 22 + 4) / 8
    beside = bare + 22
    for _ in range(50):
        beside = bare + 22 + (send[many] - 22) / 8 + 4 * (360 / beside) / 8
    reading["layer beside"] = beside
    attended = {1: 5.0, 500: 4.9, 8000: 20.0}
    reading |= {f"layer cells={n}": bare + us for n, us in attended.items()}
    fitted = fit_card(sizes, dense)({key: 1e3 * us for key, us in reading.items()})
    wanted = {
        "link.copy_t0_us": 8.0, "link.h2d_gb_per_s": 786_432 / 15e3, "link.h2d_pageable_gb_per_s": 786_432 / 100e3,
        "cpu.dispatch_us": 25.0, "cpu.expert_gb_per_s.pinned.default": 786_432 / 9e3,
        "cpu.expert_gb_per_s.page_cache.default": 786_432 / 10e3,
        "engine.start_us": 6.0, "engine.send_us": 14.0, "engine.ahead_us": 30.0, "engine.copy_us": 0.5,
        "engine.fill_us": 30.0, "engine.fill_copy_us": 7.0, "engine.beside_us": 4.0,
        **{f"gpu.attention_us_by_bytes.{n * 2048}": us for n, us in ((1, 4.95), (500, 4.95), (8000, 20.0))},
        **{f"gpu.group_us_by_bytes.{n * 786_432}": group[n] for n in range(1, most + 1)},
    }  # fmt: skip
    assert {name: fitted[name] for name in wanted} == pytest.approx(wanted, rel=1e-6)
    # The memory gives 100 GB/s of 87.4 and 52.4: while 4 copies take 60 us, of which the CPU computes 20, it is
    # slower by 40 %. The simulator does that itself, so it is no cost of filling.
    shared = reading | {
        "layer filled cpu=4": reading["layer filled cpu=4"] + 20 * (786.432 / 9 + 786.432 / 15 - 100) / 100
    }
    again = fit_card(sizes, dense, 0.0, 100.0)({key: 1e3 * us for key, us in shared.items()})
    assert [again[f"engine.fill_{name}us"] for name in ("", "copy_")] == pytest.approx([30.0, 7.0], rel=1e-6)
    # Of costs that fall with the number of copies none is a copy's, and all is a layer's.
    falling = reading | {
        f"layer filled cpu={n}": bare + 25 + n * 9 + 6 + 4 + us for n, us in ((1, 50), (2, 30), (4, 40))
    }
    flat = fit_card(sizes, dense)({key: 1e3 * us for key, us in falling.items()})
    assert [flat[f"engine.fill_{name}us"] for name in ("", "copy_")] == pytest.approx([40.0, 0.05], rel=1e-6)


def test_layers_take_experts_in_the_order_in_which_a_run_misses_them(small: RoutingTrace) -> None:
    sizes = sizes_of(replace(small.geometry, hidden_size=64), small)
    experts = small.geometry.experts
    for eviction, order in (("static", sizes.missed_static), ("lru", sizes.missed_lru)):
        slots = Capacity(slots_per_layer=max(small.geometry.top_k, experts // 3))
        fill = eviction != "static"
        steps = make_schedule(small, LiveChoices(slots, eviction=eviction, miss="cpu", fill=fill)).steps
        for layer, found in enumerate(order):
            assert list(found) == [key % experts for step in steps if step.layer == layer for key in step.cpu]
    given = [tuple(range(experts)) for _ in sizes.expert_bytes]
    program = program_of(sizes, cpu=2, order=given)
    for layer in range(len(given)):
        taken = [key % experts for step in program.steps if step.layer == layer for key in step.cpu]
        assert taken == [n % experts for n in range(len(taken))]
    few = [(1, 1, 1, 2) for _ in given]
    drawn = program_of(sizes, cpu=2, order=few)
    assert all(len(set(step.cpu)) == 2 for step in drawn.steps), "too few experts to fill an event are drawn"
    repeated = [(0, 0, *range(experts)) for _ in given]
    assert all(len(set(step.cpu)) == 2 for step in program_of(sizes, cpu=2, order=repeated).steps)


@pytest.mark.parametrize("used", [True, False])
def test_batches_for_later_are_spaced_and_used_where_that_is_asked(small: RoutingTrace, used: bool) -> None:
    sizes = sizes_of(replace(small.geometry, hidden_size=64), small)
    layers, experts = len(sizes.expert_bytes), small.geometry.experts
    program = spaced(sizes, 3, used=used, slots=90)
    sent = [number for number, step in enumerate(program.steps) if step.ahead_done]
    assert np.diff(sent).tolist() == [SPACING] * (len(sent) - 1)
    for batch, number in enumerate(sent):
        keys, slots = zip(*program.steps[number].ahead_done, strict=True)
        assert len(set(keys)) == 3
        layer = (number + USED_AFTER) % layers if used else number % layers
        assert {key // experts for key in keys} == {layer}
        if used and number + USED_AFTER < len(program.steps):
            user = program.steps[number + USED_AFTER]
            assert (user.now, user.pending, user.needs) == (slots, 3, batch)
    assert sum(step.pending > 0 for step in program.steps) == used * sum(
        number + USED_AFTER < len(program.steps) for number in sent
    )
    assert all(len(step.now) == 1 for step in program.steps if not step.pending)


def test_a_context_is_cells_of_every_layer(small: RoutingTrace) -> None:
    assert sizes_of(small.geometry).cells == ()
    plan = make_plan(small, "tinymoe-prose", "x", cardless=False, depth=1000)
    first, last = (one.schedule.cells for one in (plan.outcomes[0], plan.outcomes[-1]))
    positions = small.row_position[small.event_row_offsets[small.pass_event_offsets[:-1]]]
    assert first == last == tuple((positions + 1001).tolist()), (
        "keys and values of 512 numbers: 2,048 bytes a position"
    )
    assert plan.sizes.cell_bytes == 2048
    assert plan.sizes.cells == measured_cells(max(first), 2048, small.geometry.n_layers)
    assert max(first) in plan.sizes.cells
    assert make_plan(small, "tinymoe-prose", "x", cardless=False).outcomes[0].schedule.cells == ()
    wide = make_plan(small, "tinymoe-prose", "x", cardless=False, depth=1000, factor=4)
    assert (wide.sizes.cell_bytes, wide.outcomes[0].schedule.cells) == (4096, first)
    known = with_context(small.geometry)
    assert known.session is not None
    assert replace(from_cell(to_cell(known)), source="") == replace(known.session, source="")
    sliding = replace(known.session, kv_layers=6, window_layers=6, window_tokens=100)
    half = replace(small, geometry=replace(small.geometry, session=sliding))
    assert cells_of(half, 900)[1][0] == round((901 + int(positions[0]) + 100) / 2)
    with pytest.raises(SimError, match="does not say how large its keys and values are"):
        with_context(replace(small.geometry, name="nobody"))
    with pytest.raises(SimError, match="without a card attention is left out"):
        make_plan(small, "small", "x", cardless=True, depth=1)


def test_runs_take_turns_with_measurements() -> None:
    happened: list[str] = []
    benches = [Bench(f"b{i}", {}, lambda i=i: happened.append(f"b{i}") or 1.0) for i in range(4)]  # type: ignore[misc]
    measure(benches, 2, between=lambda: happened.append("run"), turns=6)
    assert happened[:4] == ["b0", "b1", "b2", "b3"], "the round that does not count has no runs"
    assert happened[4:14] == ["b0", "run", "b1", "run", "run", "b2", "run", "b3", "run", "run"]
    assert happened.count("run") == 12


_SENDING = ("start_us", "send_us", "ahead_us", "copy_us", "beside_us")


@pytest.mark.parametrize(
    ("group", "factor", "rows"),
    [
        ("h200-x1", 1, 1),
        ("h200-x4", 4, 1),
        ("h200-x1-d16384", 1, 1),
        *((f"h200-x1-r{rows}", 1, rows) for rows in (2, 4, 16, 64, 512)),
    ],
)
def test_shipped_presets_hold_what_the_readings_give(group: str, factor: int, rows: int) -> None:
    folder = resources.files("expert_residency.hwmodels.runs.own")
    readings = json.loads(folder.joinpath(f"{group}.readings.json").read_text("utf-8"))
    profile = load_profile(str(folder.joinpath(f"{group}.toml")))
    preset = load_engine(str(folder.joinpath(f"{group}.engine.toml")))
    window = in_windows(decode_window(load("tinymoe-prose"), min(1024, 160 * rows)), rows)
    sizes = sizes_of(scaled(window.geometry, factor), window)
    if run := load_live_runs(group)[0].kv:
        window = replace(window, geometry=replace(window.geometry, session=from_cell(run)))
        cell, cells = cells_of(window, 16384)
        sizes = replace(sizes, cell_bytes=cell, cells=measured_cells(max(cells), cell, window.geometry.n_layers))
    assert profile.dram.stream_gb_per_s is not None
    fit = fit_card(
        sizes, profile.gpu.dense_gb_per_s.default.value, profile.gpu.compute_tflops.value,
        profile.dram.stream_gb_per_s.value,
    )  # fmt: skip
    fitted = fit({row["measurement"]: 1e3 * row["usual_us"] for row in readings})
    found = {f"engine.{name}": getattr(preset, name) for name in _SENDING}
    if rows == 1:
        found |= {f"engine.{name}": getattr(preset, name) for name in ("fill_us", "fill_copy_us")}
    found |= {f"gpu.group_us_by_bytes.{n}": q for n, q in profile.gpu.group_us_by_bytes.items()}
    found |= {f"gpu.attention_us_by_bytes.{n}": q for n, q in profile.gpu.attention_us_by_bytes.items()}
    assert bool(profile.gpu.attention_us_by_bytes) == ("-d" in group)
    found |= {"link.copy_t0_us": profile.link.copy_t0_us, "link.h2d_gb_per_s": profile.link.h2d_gb_per_s}
    assert len(found) > 8
    values = {name: q.value for name, q in found.items()}
    assert values == pytest.approx({name: fitted[name] for name in values}, rel=2e-3, abs=3e-2)
