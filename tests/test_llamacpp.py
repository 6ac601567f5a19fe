"""llama.cpp's users beside the preset: the one derived number, what of it is held out, and what it changes."""

from __future__ import annotations

import pytest

from expert_residency.hwmodels.datasheet import GPU_SHARE, from_data_sheet
from expert_residency.hwmodels.parts.compose import MEMORY_SHARE
from expert_residency.hwmodels.parts.rows import find_cpu
from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.runs import load_llama_runs
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.layer_sums import THIRDS, LayerSums
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.validation.cases import llamacpp_cases, load_bounds, summarize
from expert_residency.sim.validation.llamacpp import (
    best_share,
    geometry_of,
    is_old,
    machine_of,
    one_token,
    parts_of,
    predict_llamacpp,
    tokens_per_s,
)
from expert_residency.traces import load_model
from expert_residency.traces.synthetic import generate, load_style
from expert_residency.traces.windows import compose_windows

RUNS = load_llama_runs()


def test_errors_are_within_the_declared_limits_and_the_median_is_what_the_page_says():
    summaries = {one.group: one for one in summarize(llamacpp_cases(), load_bounds())}
    offload = summaries["llamacpp on the CPU too"]
    assert offload.cases == sum(run.offloads for run in RUNS) == 13
    assert offload.median < 0.09
    assert not [text for one in summaries.values() for text in one.over(one.limit)]


@pytest.mark.slow
def test_every_processor_is_held_out_and_machines_from_parts_have_the_number_of_all():
    old = [run for run in RUNS if run.n_cpu_moe != "0" and is_old(run)]
    assert {find_cpu(run.cpu)[0].arch for run in old} == {"skylake"}
    shipped = load_profile("rtx-3060:cpu=i3-8100,ram=32GB").cpu.core_share
    assert shipped.value == machine_of(old[0]).cpu.core_share.value == pytest.approx(best_share(old), rel=0.02)
    assert load_profile("rtx-3060:cpu=ryzen-5-5600x,ram=32GB").cpu.core_share is None
    found = predict_llamacpp(RUNS)
    shares = {one.run.cpu: one.core_share for one in found}
    assert {cpu for cpu, share in shares.items() if share} == {run.cpu for run in old}
    singly = [best_share([run]) for run in old]
    assert min(shipped.spread) == pytest.approx(min(singly), rel=0.02)
    assert max(shipped.spread) == pytest.approx(max(singly), rel=0.02)
    cpu = "Core i3-8100"
    changed = [run.model_copy(update={"tok_s": 9 * run.tok_s}) if run.cpu == cpu else run for run in RUNS]
    again = {one.run.cpu: one.core_share for one in predict_llamacpp(changed)}
    assert again[cpu] == shares[cpu]
    assert again["Core i9-9900T"] != shares["Core i9-9900T"]


def test_an_old_core_reads_less_until_memory_binds():
    old = load_profile("rtx-3060:cpu=i3-8100,ram=32GB@2400").cpu
    assert old.most_gb_per_s(9.2) == pytest.approx(9.2 * 4 * old.core_share.value)
    assert load_profile("rtx-3070").cpu.most_gb_per_s(9.2) == pytest.approx(9.2 * 12)


def test_two_threads_of_a_sweep_give_the_rate_of_a_core():
    """ggml-org/llama.cpp PR 20596: 26.2 tokens/s with 2 threads, all experts of 40 layers on the CPU."""
    run = next(run for run in RUNS if run.machine.startswith("RTX 5080") and run.n_cpu_moe == "40")
    q4_k_s = run.model_copy(update={"gpu": "RTX 5090", "gpu_gb_per_s": 1792, "expert_bytes": 1769472, "cores": 2})
    assert tokens_per_s(q4_k_s, None) == pytest.approx(26.2, rel=0.02)


def test_time_is_linear_in_the_inverse_of_the_core_rate():
    """The short cut of the fit is what the preset itself gives."""
    preset = load_engine("llama.cpp")
    for run in RUNS:
        for share in (0.2, 0.4) if is_old(run) else (None,):
            whole = 1e9 / parts_of(run, preset, machine_of(run, share)).ns * (1 - (run.prompt_pct or 0) / 100)
            assert tokens_per_s(run, share) == pytest.approx(whole, rel=2e-3)


def test_a_profile_by_data_sheet_has_shares_of_theory():
    made = from_data_sheet("x", gpu="g", gpu_gb_per_s=1000, cpu="c", cores=8, ram_gb_per_s=50)
    assert made.gpu.dense_gb_per_s.mb_per_s("q4") == 1000 * 1000 * GPU_SHARE
    assert made.cpu.expert_mb_per_s("pageable", "q4") == round(50 * 1000 * MEMORY_SHARE)
    bare = from_data_sheet("x", gpu="", gpu_gb_per_s=0, cpu="c", cores=8, ram_gb_per_s=50)
    assert bare.gpu.dense_gb_per_s.mb_per_s("q4") == round(50 * 1000 * MEMORY_SHARE)


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


def speed_of(trace, profile, engine="llama.cpp", on_card=0):
    """Tokens/s with the experts of the last layers on the card."""
    sums = LayerSums(trace, {"card": profile}, profile, load_engine(engine))
    n = trace.geometry.n_layers
    parts = [sums.layer("card", layer, THIRDS if layer >= n - on_card else 0) for layer in range(n)]
    return 1e9 * sums.tokens / sum((part.ns for part in parts), start=sums.ends("card", "card").ns)


def test_ktransformers_on_a_machine_that_no_number_comes_from():
    """DeepSeek-V3 q4km, V0.2.1 on an RTX 4090 and two Xeon Gold 6454S: 13.4 tokens/s."""
    profile = load_profile("rtx-4090:cpu=2x-xeon-gold-6454s,ram=1TB@4800")
    found = speed_of(one_token(load_model("deepseek-v3", "Q4_K_M")), profile, "ktransformers")
    assert found == pytest.approx(13.4, rel=0.1)


def test_drafts_of_llama_cpp_cost_what_a_sweep_of_their_number_says():
    """PR 22673, RTX 3060 Laptop: two are best. Fitted: memory's rate to the run without, 4 ms a draft to these."""
    measured = {1: (27.58, 0.8835), 2: (29.39, 0.815), 3: (27.78, 0.7127), 4: (26.09, 0.6421)}
    model = load_model("qwen3.5-35b-a3b", "Q4_K_M")
    trace = generate(model, load_style("qwen3-30b-a3b"), tokens=160, seed=1, weights=False)
    rates = range(16, 60)
    machine = {gb: load_profile(f"rtx-3060:cpu=ryzen-7-5800x,ram=64GB@{1000 * gb // 16}x2") for gb in rates}
    low, high = rates[0], rates[-1]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if speed_of(trace, machine[middle], on_card=5) < 22.92 else (low, middle)
    found = {
        drafts: speed_of(
            compose_windows(trace, rows=drafts + 1, emitted=1 + drafts * kept), machine[low], on_card=5
        )
        for drafts, (_, kept) in measured.items()
    }
    assert max(found, key=found.__getitem__) == 2
    assert all(found[drafts] == pytest.approx(speed, rel=0.1) for drafts, (speed, _) in measured.items())
