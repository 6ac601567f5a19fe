"""Attention over the context: what it reads, and that both engines charge it alike."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import expert_residency as er
from expert_residency.errors import SimError
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.cli import main
from expert_residency.sim.timed.attention import Context, attention_ns, kv_bytes, lengths
from expert_residency.sim.timed.machine import Machine
from expert_residency.traces import load_model
from expert_residency.traces.bundled import load
from expert_residency.traces.session import SessionShape

FULL = SessionShape(kv_layers=8, key_values=512, value_values=512, source="test")
SLIDING = replace(FULL, kv_layers=4, window_layers=4, window_tokens=128)
LATENT = SessionShape(kv_layers=8, key_values=576, value_values=0, source="test")


@pytest.fixture(scope="module")
def trace():
    whole = load("tinymoe-code")
    return whole.select_passes(np.arange(whole.n_passes) < 12)


def with_session(trace, shape):
    return replace(trace, geometry=replace(trace.geometry, session=shape))


def spec(**choices):
    return er.RunSpec("tesla-p40", "25%", miss="fetch", **choices)


def test_bytes_of_each_kind_of_layer(trace):
    geometry = trace.geometry
    n = geometry.n_layers
    length = np.array([1, 100, 1000])

    def read(shape, kv_type="fp16"):
        return kv_bytes(replace(geometry, session=shape), length, kv_type).tolist()

    assert read(FULL) == [8 * 2048 * tokens // n for tokens in (1, 100, 1000)]
    assert read(SLIDING) == [(4 * 2048 * tokens + 4 * 2048 * min(tokens, 128)) // n for tokens in (1, 100, 1000)]
    assert read(LATENT) == [8 * 1152 * tokens // n for tokens in (1, 100, 1000)]
    assert read(FULL, "q8_0") == [8 * 1088 * tokens // n for tokens in (1, 100, 1000)]
    assert read(None) == [0, 0, 0]


def test_a_pass_attends_up_to_its_last_row(trace):
    found = lengths(trace, 7)
    for number in range(trace.n_passes):
        events = trace.event_pass == number
        first, last = np.flatnonzero(events)[[0, -1]]
        rows = trace.row_position[trace.event_row_offsets[first] : trace.event_row_offsets[last + 1]]
        assert found[number] == rows.max() + 8


def test_the_time_is_bytes_over_the_rate_of_the_card_that_runs_the_layer(trace):
    own = with_session(trace, FULL)
    cards = (load_profile("rtx-5070"), load_profile("tesla-p40"))
    n = trace.geometry.n_layers
    machine = Machine.split(cards, (n - 1, 1))
    times = attention_ns(own, machine, Context(50_000))
    nbytes = kv_bytes(own.geometry, lengths(own, 50_000), "fp16")
    for card, row in zip(cards, times, strict=True):
        rate = card.gpu.dense_gb_per_s.mb_per_s("bf16")
        assert row.tolist() == [-(-int(b) * 1000 // rate) for b in nbytes]
    one, two = (er.simulate(own, two_cards(depth)) for depth in (0, 50_000))
    short = attention_ns(own, machine, Context(0))
    added = ((times - short) * np.array([[n - 1], [1]])).sum(axis=0)
    assert (two.pass_ns - one.pass_ns).tolist() == added.tolist()


def test_measured_times_take_the_place_of_the_rate(trace):
    """Lines between the points, the first one's time below it, the last line beyond; no model, no time."""
    points = {300_000: 5.0, 600_000: 8.0, 2_000_000: 20.0}
    quantities = {n: Quantity(value=us, kind="measured", source="a test") for n, us in points.items()}
    card = load_profile("rtx-5070")
    card = card.model_copy(update={"gpu": card.gpu.model_copy(update={"attention_us_by_bytes": quantities})})
    machine = Machine.split((card,), (trace.geometry.n_layers,))
    own = with_session(trace, FULL)
    (short,), (middle,), (long,) = (attention_ns(own, machine, Context(depth)) for depth in (0, 400, 3_000))
    assert set(short.tolist()) == {5_000}
    nbytes = kv_bytes(own.geometry, lengths(own, 400), "fp16")
    assert ((nbytes > 600_000) & (nbytes < 2_000_000)).all()
    assert middle.tolist() == [round(8_000 + (int(b) - 600_000) * 12_000 / 1_400_000) for b in nbytes]
    nbytes = kv_bytes(own.geometry, lengths(own, 3_000), "fp16")
    assert (nbytes > 2_000_000).all()
    assert long.tolist() == [round(20_000 + (int(b) - 2_000_000) * 12_000 / 1_400_000) for b in nbytes]
    assert not attention_ns(with_session(trace, None), machine, Context(3_000)).any()


def two_cards(depth):
    # the last layer alone on the second card; every expert resident, so that nothing else changes with time
    return er.RunSpec(
        "rtx-5070+tesla-p40", "100%", layers_each=[11, 1], depth=depth, placement="layers", miss="fetch"
    )


@settings(max_examples=15, deadline=None)
@given(
    depth=st.integers(0, 200_000),
    shape=st.sampled_from([FULL, SLIDING, LATENT, None]),
    kv_type=st.sampled_from(["fp16", "int8", "q4_0"]),
    cards=st.sampled_from(["rtx-5070", "rtx-5070+tesla-p40"]),
)
def test_both_engines_charge_the_same(trace, depth, shape, kv_type, cards):
    asked = er.RunSpec(cards, "25%", miss="fetch", depth=depth, kv_type=kv_type, prefetch="oracle:window=2")
    results = [er.simulate(with_session(trace, shape), asked, simulator=name) for name in ("reference", "kernel")]
    assert results[0].pass_ns.tolist() == results[1].pass_ns.tolist()
    assert results[0].pass_causes.tolist() == results[1].pass_causes.tolist()


def test_a_longer_context_is_never_faster_and_fewer_bits_never_slower(trace):
    own = with_session(trace, FULL)
    by_depth = [er.simulate(own, spec(depth=depth)).total_ns for depth in (0, 4096, 16_384, 65_536)]
    assert by_depth == sorted(by_depth)
    assert by_depth[0] < by_depth[-1]
    by_type = [er.simulate(own, spec(depth=65_536, kv_type=kv)).total_ns for kv in ("q4_0", "q8_0", "fp16")]
    assert by_type == sorted(set(by_type))


def test_decoding_slows_down_along_a_run(trace):
    whole = load("tinymoe-code")
    own = with_session(whole, replace(FULL, kv_layers=8 * 400))  # so wide that 450 positions are felt
    found = er.simulate(own, er.RunSpec("tesla-p40", "100%", placement="layers", miss="fetch"))
    decode = found.pass_ns[found.pass_phase == 1]
    third = len(decode) // 3
    assert decode[:third].mean() < decode[third : 2 * third].mean() < decode[2 * third :].mean()


def test_published_decode_of_a_unified_memory_machine_by_depth():
    """gpt-oss-120b on a DGX Spark: 57.8, 54.7, 48.3, 42.9 tokens/s at 0, 4k, 16k, 32k tokens of context.

    The time that context adds is what is tested: within 20 % of what was added there, at 74 % of 273 GB/s.
    """
    geometry = load_model("gpt-oss-120b")
    per_layer = kv_bytes(geometry, np.array([0, 4096, 16_384, 32_768]), "fp16")
    added_ms = (per_layer - per_layer[0]) * geometry.n_layers / (0.74 * 273e9) * 1e3
    measured_ms = [1e3 / rate - 1e3 / 57.8 for rate in (57.8, 54.7, 48.3, 42.9)]
    for ours, theirs in zip(added_ms[2:], measured_ms[2:], strict=True):
        assert ours == pytest.approx(theirs, rel=0.2)


def test_a_sweep_charges_the_session_of_a_trace_in_memory(trace):
    own = with_session(trace, FULL)
    constants = {"hardware": "tesla-p40", "capacity": "25%", "miss": "fetch"}
    found = er.sweep({"traces": {"own": own}, "constants": constants, "axes": {"depth": [0, 65_536]}}, workers=1)
    direct = [er.simulate(own, spec(depth=depth)).ms_per_token for depth in (0, 65_536)]
    assert found.frame["ms_per_token"].tolist() == pytest.approx(direct)
    assert found.frame["depth"].tolist() == [0, 65_536]


def test_the_shape_of_a_context_is_part_of_the_manifest(trace):
    one, two = (er.simulate(with_session(trace, shape), spec()).manifest for shape in (FULL, SLIDING))
    assert one != two


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"depth": -1}, "depth is -1, expected a whole number from 0"),
        ({"depth": 1 << 40}, "expected 0 to"),
        ({"kv_type": "fp17"}, "unknown KV type 'fp17'; did you mean fp16"),
    ],
)
def test_bad_contexts_are_refused(trace, choices, words):
    with pytest.raises(SimError, match=words):
        er.simulate(trace, spec(**choices))


@pytest.mark.parametrize(("words", "same"), [("f16", "fp16"), ("BF16", "fp16"), ("Q8_0", "q8_0")])
def test_kv_types_in_the_words_of_llama_cpp(words: str, same: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for kv_type in (words, same):
        with pytest.raises(SystemExit, match="0"):
            main(["vram", "--model", "qwen3-30b-a3b", "--hardware", "tesla-p40", "--kv-type", kv_type])
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
