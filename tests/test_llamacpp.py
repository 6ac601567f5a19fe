"""llama.cpp's users beside the preset: the one derived number, what of it is held out, and what it changes."""

from __future__ import annotations

import pytest

from expert_residency.hwmodels.datasheet import CPU_SHARE, GPU_SHARE, from_data_sheet
from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.runs import load_llama_runs
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.validation.cases import llamacpp_cases, load_bounds, summarize
from expert_residency.sim.validation.llamacpp import (
    best_rate,
    geometry_of,
    one_token,
    parts_of,
    predict_llamacpp,
    tokens_per_s,
)
from expert_residency.traces import load_model
from expert_residency.traces.synthetic import generate, load_style

RUNS = load_llama_runs()


def test_errors_are_within_the_declared_limits_and_the_median_is_what_the_page_says():
    summaries = {one.group: one for one in summarize(llamacpp_cases(), load_bounds())}
    offload = summaries["llamacpp on the CPU too"]
    assert offload.cases == sum(run.offloads for run in RUNS) == 11
    assert offload.median < 0.155
    assert not [text for one in summaries.values() for text in one.over(one.limit)]


def test_every_processor_is_held_out_and_the_preset_has_the_number_of_all():
    preset = load_engine("llama.cpp").cpu_core_gb_per_s
    assert preset.value == pytest.approx(best_rate(RUNS), rel=0.02)
    found = predict_llamacpp(RUNS)
    rates = {one.run.cpu: one.core_gb_per_s for one in found}
    assert min(preset.spread) - 0.05 < min(rates.values())
    assert max(rates.values()) < max(preset.spread) + 0.05
    cpu = "Core i3-8100"
    changed = [run.model_copy(update={"tok_s": 9 * run.tok_s}) if run.cpu == cpu else run for run in RUNS]
    again = {one.run.cpu: one.core_gb_per_s for one in predict_llamacpp(changed)}
    assert again[cpu] == rates[cpu]


def test_time_is_linear_in_the_inverse_of_the_core_rate():
    """The short cut of the fit is what the preset itself gives."""
    for run in RUNS:
        for rate in (1.3, 3.4):
            quantity = load_engine("llama.cpp").cpu_core_gb_per_s.model_copy(update={"value": rate})
            preset = load_engine("llama.cpp").model_copy(update={"cpu_core_gb_per_s": quantity})
            whole = 1e9 / parts_of(run, preset).ns * (1 - (run.prompt_pct or 0) / 100)
            assert tokens_per_s(run, rate) == pytest.approx(whole, rel=2e-3)


def test_a_profile_by_data_sheet_has_shares_of_theory():
    made = from_data_sheet("x", gpu="g", gpu_gb_per_s=1000, cpu="c", cores=8, ram_gb_per_s=50)
    assert made.gpu.dense_gb_per_s.mb_per_s("q4") == 1000 * 1000 * GPU_SHARE
    assert made.cpu.expert_mb_per_s("pageable", "q4") == round(50 * 1000 * CPU_SHARE)
    bare = from_data_sheet("x", gpu="", gpu_gb_per_s=0, cpu="c", cores=8, ram_gb_per_s=50)
    assert bare.gpu.dense_gb_per_s.mb_per_s("q4") == round(50 * 1000 * CPU_SHARE)


def test_what_a_cpu_layer_costs_is_paid_only_where_the_cpu_computes():
    run = next(run for run in RUNS if run.cpu == "Ryzen 9 5900X" and run.offloads)
    trace, profile, preset = one_token(geometry_of(run)), load_profile("tesla-p40"), load_engine("llama.cpp")
    free = preset.model_copy(update={"cpu_core_gb_per_s": None, "cpu_layer_us": None})

    def ns(chosen, share: int) -> int:
        room = Capacity(total_bytes=share * trace.geometry.all_expert_bytes)
        spec = RunSpec.for_engine("llama.cpp", "tesla-p40", room)
        return int(simulate(trace, spec, profiles=[profile], preset=chosen, simulator="reference").pass_ns.sum())

    assert ns(preset, 1) == ns(free, 1)
    assert ns(preset, 0) - ns(free, 0) >= trace.geometry.n_layers * preset.cpu_layer_ns


@pytest.mark.parametrize("slots", [24, 73])
def test_imp_takes_its_fixed_time_and_a_third_of_a_millisecond_a_miss(slots):
    """kekzl/imp on an RTX 5090: 24 slots a layer and 36.6 % hits are 10.51 tokens/s, 73 and 74.1 % are 20.99."""
    model = load_model("qwen3-30b-a3b", "Q4_K_M")
    trace = generate(model, load_style("qwen3-30b-a3b"), tokens=12, seed=1, weights=False)
    spec = RunSpec.for_engine("imp", "rtx-5090", Capacity(slots_per_layer=slots))
    result = simulate(trace, spec, simulator="reference")
    missed = model.n_layers * model.top_k * (1 - result.decode_hit_rate())
    ms = result.pass_ns[trace.pass_phase != 0].mean() / 1e6
    assert ms == pytest.approx(14.4 + 0.33 * missed, rel=0.1)
