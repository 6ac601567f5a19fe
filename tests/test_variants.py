"""Scenarios of several variants, and the two published cases that ship as such."""

from dataclasses import replace

import pytest

from expert_residency.errors import SimError
from expert_residency.sim.choices.scenario import build_scenario, open_scenario_trace
from expert_residency.sim.runs.variants import list_scenarios, load_variants, run_variants
from expert_residency.sim.timed.result import CAUSES
from expert_residency.traces import load_model

SMALL = """
trace = "synthetic"
model = "granite-3.0-1b-a400m"
synthetic = { style = "gpt-oss-20b", tokens = 8, seed = 3 }
hardware = "rtx-5060ti"
slots_per_layer = 4
miss = "cpu"
host = "mmap"
[[variants]]
name = "cold"
start = "cold"
measured_tok_s = 10.0
[[variants]]
name = "again"
start = "carry"
"""


def write(tmp_path, text):
    file = tmp_path / "s.toml"
    file.write_text(text)
    return file


def test_variants_share_a_page_cache_in_order(tmp_path):
    cold, again = run_variants(load_variants(write(tmp_path, SMALL)))
    assert cold.result.link_bytes["disk"] > 0 == again.result.link_bytes["disk"]
    assert cold.error == pytest.approx(cold.result.tokens_per_s / 10 - 1)
    assert again.error is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('start = "cold"', 'strat = "cold"', r"variant 'cold': unknown choice 'strat'"),
        ("measured_tok_s = 10.0", "measured_tok_s = 0", "above 0"),
        ('trace = "synthetic"\n', "", "trace is missing"),
        ("tokens = 8", "token = 8", "unknown key 'token'"),
        ("[[variants]]", "[[arms]]", r"\[\[arms\]\] is written \[\[variants\]\]"),
    ],
)
def test_errors_name_file_and_variant(tmp_path, old, new, message):
    file = write(tmp_path, SMALL.replace(old, new))
    with pytest.raises(ValueError, match=message):
        run_variants(load_variants(file))


def test_unknown_cases_list_the_known_ones():
    with pytest.raises(SimError, match="bigger-than-ram"):
        load_variants("case:smaller-than-ram")
    with pytest.raises(SimError, match=r"nowhere\.toml: no such file"):
        load_variants("nowhere.toml")


def test_windows_and_chunks_of_a_scenario():
    data = {"trace": "synthetic", "model": "granite-3.0-1b-a400m", "hardware": "rtx-5070", "slots_per_layer": 2}
    table = {"style": "gpt-oss-20b", "tokens": 9, "prompt_tokens": 10}
    made = build_scenario(data | {"synthetic": table, "windows": {"rows": 3, "emitted": 2}, "chunk": 4})
    trace = open_scenario_trace(made)
    assert trace.event_rows[:: trace.geometry.n_layers].tolist() == [4, 4, 2, 3, 3, 3]
    assert trace.pass_emits.tolist() == [0, 0, 1, 2, 2, 2]


def test_capacity_from_the_cards_memory_falls_with_the_context():
    data = {
        "trace": "synthetic", "model": "qwen3.8-flash-next/IQ4_XS", "hardware": "rtx-5060ti",
        "synthetic": {"tokens": 2},
    }  # fmt: skip
    model = load_model("qwen3.8-flash-next/IQ4_XS")
    asked = [
        data | {"vram": {"context": 65536, "kv_resident": 20480}},
        data | {"capacity": "auto:context=65536,kv-resident=32768"},
    ]
    room = [build_scenario(one).spec.settled(model).capacity.total_bytes for one in asked]
    assert room[0] - room[1] == 12288 * (12 * 2048 + 2048 + 128)  # fp16, where no engine says otherwise


def test_every_shipped_case_loads():
    assert set(list_scenarios()) >= {"bigger-than-ram", "experts-ahead"}
    for name in list_scenarios():
        assert len(load_variants(f"case:{name}")) > 3


@pytest.mark.slow
def test_the_ways_to_serve_a_model_bigger_than_ram_rank_as_measured():
    """Variants of Strata PR #416 over fewer rounds than it ran: their order, and three mechanisms in the costs."""
    variants = [
        replace(
            variant, scenario=replace(variant.scenario, synthetic=variant.scenario.synthetic | {"tokens": 150})
        )
        for variant in load_variants("case:bigger-than-ram")
    ]
    found = {one.variant.name: one for one in run_variants(variants)}

    def per_pass(name, cause):
        causes = found[name].result.pass_causes
        return causes[:, CAUSES.index(cause)].mean() / 1e6

    mapped, after = "mapped, warm", "mapped, after two budget runs"
    gguf, budget = "GGUF in place", "GGUF in place + budget 40"
    speed = {name: one.result.tokens_per_s for name, one in found.items()}
    assert speed["arena, IQ3_S"] > speed[mapped] > speed["arena"] > speed[budget] > speed[after] > speed[gguf]
    served = found["arena"].result.shares("verify")
    assert served["cpu_pinned"] == served["pcie"] == 0 < served["cpu_pageable"]
    assert per_pass("arena", "cpu_wait") > per_pass(mapped, "cpu_wait")
    assert per_pass(after, "disk_wait") > 30 > per_pass(mapped, "disk_wait") == 0
    assert per_pass(budget, "adapt") == pytest.approx(7.58, rel=0.2)
    kv = speed["mapped, kv-resident 32768"]
    assert kv <= speed[mapped]


def test_the_variants_of_experts_ahead_are_as_far_off_as_the_page_says():
    """Normal variants were fitted (one rate for all). Of the oracle variants prose is within 15 %, code is not."""
    error = {one.variant.name: one.error for one in run_variants(load_variants("case:experts-ahead"))}
    for name in ("prose, normal", "code, normal", "64 tokens, normal"):
        assert abs(error[name]) < 0.04
    for name in ("prose, control (tier off)", "code, control (tier off)"):
        assert 0 < error[name] < 0.1
    assert -0.15 < error["prose, oracle"] < 0
    assert -0.25 < error["code, oracle"] < -0.15
