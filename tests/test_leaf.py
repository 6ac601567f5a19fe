"""The leaf that all four folders import: families, words of the user, TOML files."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from expert_residency.errors import CompileError, PolicyError, SimError, SweepError, UserError
from expert_residency.families import FAMILIES, UNKNOWN, quant_family
from expert_residency.hwmodels.quantity import FamilyRates
from expert_residency.hwmodels.registry import PROFILES
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import ENGINES
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.runs.variants import SCENARIOS
from expert_residency.text import parse_call, unknown
from expert_residency.traces.geometry import MODELS
from expert_residency.traces.synthetic.style import STYLES
from tests.test_engine import random_trace

NAMES = {
    "q2": "Q2_K Q2_0 Q2_K_S", "q3": "Q3_K_S Q3_K_XL-f16", "q4": "Q4_0 Q4_1 Q4_0_4_8 UD-Q4_K_XL x-Q4_K_M.gguf",
    "q5": "Q5_0 q5_k Q5_K_R4", "q6": "Q6_K Q6_0", "q8": "Q8_0 Q8_K Q8_KV_R8", "q1": "Q1_0",
    "iq1": "IQ1_S IQ1_M IQ1_BN", "iq2": "IQ2_XXS IQ2_XS IQ2_S IQ2_KT", "iq3": "IQ3_XXS IQ3_S",
    "iq4": "IQ4_NL UD-IQ4_XS IQ4_KSS", "iq5": "IQ5_K", "iq6": "IQ6_K", "tq1": "TQ1_0", "tq2": "TQ2_0",
    "mxfp4": "MXFP4 MXFP4_MOE gpt-oss-20b-mxfp4", "nvfp4": "NVFP4 Qwen3-NVFP4",
    "int2": "gptq-int2", "int3": "int3",
    "int4": "INT4 AWQ gptq GPTQ-Int4 bnb-4bit w4a16", "int8": "I8 GPTQ-Int8 W8A8",
    "fp8": "FP8 F8_E4M3 F8_E5M2 float8_e4m3fn mxfp8", "fp16": "F16 fp16 x-F16 torch.float16",
    "bf16": "BF16 bfloat16 model-bf16", "fp32": "F32 float32", UNKNOWN: "llama EXL3 Q7_K qwen3.8-flash-next U8",
}  # fmt: skip


def test_the_close_names_come_first_and_all_are_listed():
    known = ["lru", "lru-k", "slru", "h2d_gb_per_s", "h2d_pageable"]
    assert unknown("policy", "lfru", known).startswith(
        "unknown policy 'lfru'; did you mean lru? (known: lru, lru-k,"
    )
    assert "; did you mean h2d_gb_per_s or h2d_pageable? " in unknown("key", "h2d", known)
    assert unknown("key", "", []) == "unknown key '' (known: none)"


def test_a_call_is_read_once():
    assert parse_call(" lru-k : k = 2 , top-k=3,", "policy") == ("lru-k", {"k": "2", "top_k": "3"})
    for text, said in (("x:a", "policy x: 'a' has no value, as in x:a=1"), ("x:a=1,a=2", "a is given twice")):
        with pytest.raises(PolicyError, match=said):
            parse_call(text, "policy", PolicyError)


@pytest.mark.parametrize("kind", [PROFILES, ENGINES, STYLES, MODELS, SCENARIOS], ids=lambda kind: kind.what)
def test_all_files_of_toml_are_refused_alike(kind, tmp_path):
    path = tmp_path / "mine.toml"
    with pytest.raises(kind.error, match=r"mine\.toml: no such file"):
        kind.load(path)
    for content, said in (
        (b"\xff", "byte 0: not a text file"),
        (b"a =", r"not valid TOML \("),
        (b"base = 3", "base is 3, exp"),
    ):
        path.write_bytes(content)
        with pytest.raises(kind.error, match=said):
            kind.load(str(path))
    path.write_text('base = "mine.toml"')
    with pytest.raises(kind.error, match="more than 8 bases on top of each other"):
        kind.load(path)
    with pytest.raises(kind.error, match=f"unknown {kind.what} 'nowhere'"):
        kind.load("nowhere")
    path.write_text(f'base = "{kind.names()[0]}"\nmine = 1')
    assert kind.load(path)["mine"] == 1


@pytest.mark.parametrize(
    "error", [SimError("a", path="b", place="c"), SweepError("f", ["a", "b"]), CompileError("a")]
)
def test_errors_travel_between_processes(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    assert isinstance(again, UserError)


def test_every_type_of_gguf_and_hugging_face_files_has_a_family() -> None:
    assert {name: quant_family(name) for names in NAMES.values() for name in names.split()} == {
        name: family for family, names in NAMES.items() for name in names.split()
    }
    assert {*NAMES} == {*FAMILIES, UNKNOWN}
    assert [quant_family(family) for family in FAMILIES] == list(FAMILIES)
    assert list(FamilyRates.model_fields) == ["default", *FAMILIES]


@pytest.mark.parametrize(("family", "warned"), [("q6", False), ("tq1", False), ("exl3", True), (UNKNOWN, True)])
def test_a_family_without_a_rate_of_its_own_takes_the_default_and_only_an_unknown_one_says_so(family, warned):
    spec = RunSpec(hardware=("tesla-p40",), capacity=Capacity(slots_per_layer=2), miss="fetch", engine="generic")
    trace = random_trace(3)
    found = simulate(replace(trace, geometry=replace(trace.geometry, quant_family=family)), spec)
    assert any("quantization family" in warning for warning in found.warnings) == warned
    same = simulate(replace(trace, geometry=replace(trace.geometry, quant_family="q8")), spec)
    assert found.total_ns == same.total_ns
