"""Shipped measured rows as questions: every row is put or named, and put as it was printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.hwmodels.runs import MeasuredRun, load_llama_runs, load_measured_runs, load_strata_runs
from expert_residency.sim.validation.measured.knobs import depth_of
from expert_residency.sim.validation.measured.machines import NOT_NAMED, held_out
from expert_residency.sim.validation.measured.models import geometry_of
from expert_residency.sim.validation.measured.questions import Question, Unasked, question_of, questions
from expert_residency.traces import load_model

ROW = MeasuredRun.model_validate(
    {
        "source": "a report", "gpu": "RTX 4090 Laptop 16GB 175 W", "n_gpus": "1", "ram": "64 GB",
        "cpu": "Core i9-13900HX (23 workers, AVX2)", "link": "PCIe4 x16, 24.0 GB/s probe",
        "model": "Qwen3.8-Flash-Next", "quant": "IQ3_S", "engine": "Strata 0.1.41", "tok_s": "60.6",
        "mode": "arena, calibrated pcie-frac 0.20, 7 CPU workers", "cache": "3897 slots 7.44 GiB",
        "workload": "--calibrate own prompts, ctx 131072", "kind": "run", "read_in": "source",
    }
)  # fmt: skip


def test_every_row_is_put_or_named() -> None:
    asked, left = questions()
    others = len(load_llama_runs()) + sum(run.tok_s is not None for run in load_strata_runs())
    assert len(asked) + len(left) == len(load_measured_runs()) + others
    assert len(asked) >= 385
    assert len({one.machine.name for one in asked}) >= 60
    assert all(one.missing for one in left)
    assert len({one.name for one in asked if one.machine.card.name == "rtx-4090-laptop"}) >= 36


def test_a_row_of_a_slot_engine() -> None:
    asked = question_of(ROW)
    assert isinstance(asked, Question)
    knobs, machine = asked.knobs, asked.machine
    assert (knobs.engine, knobs.where, knobs.slots, knobs.pcie_share) == ("strata", "slots", 3897, 0.2)
    assert knobs.workers == 7  # the run's own, not the machine's 23
    assert (machine.card.name, machine.link_gb_per_s, machine.ram_gb_per_s) == ("rtx-4090-laptop", 24.0, 89.6)
    assert asked.geometry == load_model("qwen3.8-flash-next", "IQ3_S")


@pytest.mark.parametrize(
    ("changes", "where", "layers"),
    [
        ({"engine": "ToshLLM", "mode": "ncmoe 16"}, "layers", 16),
        ({"engine": "ToshLLM", "mode": "all in VRAM"}, "card", 0),
        ({"engine": "ollama", "mode": "-ngl 99 or all resident, offload not recorded"}, "fit", 0),
        ({"engine": "moe-l2", "mode": "host buffer"}, "link", 0),
    ],
)
def test_where_experts_lie(changes: dict[str, str], where: str, layers: int) -> None:
    asked = question_of(ROW.model_copy(update=changes))
    assert isinstance(asked, Question)
    assert (asked.knobs.where, asked.knobs.layers_on_cpu) == (where, layers)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"kind": "lossy"}, "routing"),
        ({"kind": "flagged"}, "refused"),
        ({"engine": "a new one"}, "no preset of the engine a new one"),
        ({"model": "Nobody-7B"}, "no sizes of the model Nobody-7B"),
        ({"quant": "IQ9_X"}, "in IQ9_X"),
        ({"gpu": "GTX 9999"}, "no data sheet of the card GTX 9999"),
        ({"cpu": ""}, "processor"),
        ({"cache": ""}, "neither slots nor hit rate"),
        ({"mode": "arena, 100 W power cap"}, "power cap"),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, str], missing: str) -> None:
    left = question_of(ROW.model_copy(update=changes))
    assert isinstance(left, Unasked)
    assert missing in left.missing


@pytest.mark.parametrize(
    ("workload", "depth"),
    [
        ("prompt 512, out 128, context/depth 131072", 131072),  # llama-bench -d
        ("prompt 16384, out 128, context/depth 16384", 16384),
        ("prompt 0, out 0, context/depth 8192", 8192),
        ("prompt 0, out 0, context/depth 1048576", 0),  # room reserved: nothing has a million tokens behind it
        ("prompt 20, out 100, context/depth 262144", 70),
        ("prompt 512, out 512, context/depth 65536", 768),
        ("32K", 32768),
        ("story 48 in, 1400 out", 48),
        ("14699 prompt, 256 out, ctx 262144", 14699),
        ("--calibrate own prompts, ctx 131072", 0),
        ("short", 0),
    ],
)
def test_depth(workload: str, depth: int) -> None:
    assert depth_of(ROW.model_copy(update={"workload": workload})) == depth


def test_a_mix_that_is_not_packaged_is_scaled() -> None:
    near, wanted = geometry_of("Qwen3.6-35B-A3B", "Q4_K_M"), geometry_of("Qwen3.6-35B-A3B-GGUF", "Q4_K_S")
    assert not isinstance(near, str)
    assert not isinstance(wanted, str)
    assert 0.9 < sum(wanted.expert_bytes) / sum(near.expert_bytes) < 1
    dynamic = geometry_of("Qwen3.6-35B-A3B", "UD-Q4_K_XL")
    assert not isinstance(dynamic, str)
    assert dynamic.dense_bytes == load_model("qwen3.5-35b-a3b", "Q8_0").dense_bytes


NAMES = st.tuples(st.sampled_from(["RTX 3090", "M1 Max"]), st.sampled_from(["EPYC 7543", "Ryzen", NOT_NAMED]))


@given(NAMES, NAMES)
def test_held_out_is_symmetric_and_knows_unnamed_processors(one: tuple[str, str], other: tuple[str, str]) -> None:
    a, b = " + ".join(one), " + ".join(other)
    assert held_out(a, b) == held_out(b, a)
    assert held_out(a, a)
    assert held_out(a, b) == (one[0] == other[0] and (one[1] == other[1] or NOT_NAMED in (one[1], other[1])))
