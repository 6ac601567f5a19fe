"""Commands that measure and record, and the whole loop without a card: calibrate, predict, run, compare."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hwmodels.errors import HardwareError
from hwmodels.registry import load_profile
from sim.cli import _register, app
from sim.live.arms import Arm, decode_window
from sim.live.schedule import make_schedule, sizes_of
from sim.preset import load_engine
from sim.run import RunSpec, simulate
from traces import RoutingTrace, read_trace
from traces.bundled import load
from traces.errors import TraceError

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
    said = fails(TraceError, "record", "--model", "m", "--prompt-file", "p.txt", "--out", out)
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


def test_calibrate_predict_run_compare(
    small: RoutingTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Laws and orders only: seconds of a busy machine prove nothing (`benchmarks/live_runs.py` measures them)."""
    pytest.importorskip("numba", reason="the CPU pool needs numba")
    from hwmodels.calibrate import calibrate
    from hwmodels.live.cardless import CardlessEngine

    monkeypatch.setattr("hwmodels.calibrate.run.LEAST_BYTES", 1 << 24)
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
    limit = 10  # a wrong unit is a thousand
    ratios = [one / other for one, other in zip(predicted, measured, strict=True)]
    assert all(1 / limit < ratio < limit for ratio in ratios), ratios
