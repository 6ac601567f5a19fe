"""Costs: lower bounds, latency counted once, arithmetic only where there are many rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import HardwareError
from expert_residency.hwmodels import cost
from expert_residency.hwmodels.registry import list_profiles, load_profile
from expert_residency.hwmodels.units import GIB

PROFILES = st.sampled_from(list_profiles()).map(load_profile)
BYTES = st.integers(0, 10**11)
MB = 10**6


def changed(model, **values):
    """Copy of a profile section with other numbers."""
    return model.model_copy(
        update={key: getattr(model, key).model_copy(update={"value": value}) for key, value in values.items()}
    )


def test_latency_is_charged_once_a_copy():
    # 1 MB over 1 GB/s with 10 us: 1.010 ms, not 1.020 (astra-network-analytical#12).
    link = changed(load_profile("rtx-5070").link, h2d_gb_per_s=1.0, copy_t0_us=10.0)
    assert cost.copy_ns(link, MB, queue_empty=True) == 1_010_000
    assert cost.copy_ns(link, MB, queue_empty=False) == 1_000_000


def test_one_gib_over_the_measured_link():
    assert cost.copy_ns(load_profile("rtx-5070").link, GIB, queue_empty=False) / 1e6 == pytest.approx(
        37.8, abs=0.05
    )


def test_isolated_copies_of_the_published_table():
    # hardware table "copy model t0 = 10 us": GB/s that one copy of 1.456 MB sees on the three links.
    for name, published in (("rtx-5070", 23.8), ("rtx-5060ti", 12.9), ("tesla-p40", 11.0)):
        seen = 1_456_000 / cost.copy_ns(load_profile(name).link, 1_456_000, queue_empty=True)
        assert seen == pytest.approx(published, abs=0.06), name


def test_a_layer_round_trip_costs_without_any_bytes():
    # 48 layers x 118 us of submit, wait and merge: at least 5.66 ms a step.
    gpu = changed(load_profile("rtx-5070").gpu, sync_us=118.0)
    assert 48 * gpu.sync_ns >= 5_660_000


def test_hand_off_matches_the_published_bounce():
    link = load_profile("tesla-p40").link
    for tokens, published_us in ((2, 33), (4, 66), (8, 122)):
        assert cost.handoff_ns(link, tokens * 51_216) / 1000 == pytest.approx(published_us, rel=0.07)
    with pytest.raises(HardwareError, match="p2p"):
        cost.handoff_ns(link, 1, p2p=True)


@given(PROFILES, BYTES, BYTES)
def test_more_bytes_never_take_less_time(p, a, b):
    small, large = min(a, b), max(a, b)
    for time in (
        lambda n: cost.copy_ns(p.link, n, queue_empty=True),
        lambda n: cost.gpu_dense_ns(p.gpu, n, "q4", launches=3),
        lambda n: cost.gpu_experts_ns(p.gpu, n, "iq2", 4),
        lambda n: cost.cpu_experts_ns(p.cpu, n, "iq2", "page_cache", 4),
        lambda n: cost.disk_read_ns(p.disk, n),
        lambda n: cost.handoff_ns(p.link, n),
    ):
        assert time(small) <= time(large)


@given(PROFILES, BYTES, st.integers(1, 64))
def test_bytes_over_rate_is_a_lower_bound(p, nbytes, experts):
    assert cost.gpu_experts_ns(p.gpu, nbytes, "q4", experts) * p.gpu.mem_mb_per_s >= nbytes * 1000
    assert cost.cpu_experts_ns(p.cpu, nbytes, "q4", "pinned", experts) * p.dram.theory_mb_per_s >= nbytes * 1000
    assert cost.disk_read_ns(p.disk, nbytes, lanes_busy=64) * p.disk.seq_mb_per_s >= nbytes * 1000


def test_no_expert_costs_nothing():
    p = load_profile("rtx-5070")
    assert cost.gpu_experts_ns(p.gpu, 0, "q4", 0) == 0
    assert cost.cpu_experts_ns(p.cpu, 0, "q4", "pinned", 0) == 0
    assert cost.disk_read_ns(p.disk, 0) == 0


def test_few_rows_are_bound_by_bytes_and_many_by_arithmetic():
    gpu = load_profile("rtx-5070").gpu
    one = cost.gpu_dense_ns(gpu, 10**9, "q4", rows=1, params=2 * 10**9)
    assert one == cost.gpu_dense_ns(gpu, 10**9, "q4")
    many = cost.gpu_dense_ns(gpu, 10**9, "q4", rows=4096, params=2 * 10**9)
    assert many == pytest.approx(2 * 2e9 * 4096 / gpu.compute_flop_per_ns, rel=1e-6)
    assert cost.gpu_experts_ns(gpu, 10**6, "q4", 1, rows=8192, params_per_expert=10**6) > cost.gpu_experts_ns(
        gpu, 10**6, "q4", 1, rows=1, params_per_expert=10**6
    )


def test_launches_add_up():
    gpu = load_profile("rtx-5070").gpu
    assert cost.gpu_dense_ns(gpu, 0, "q4", launches=7) == 7 * gpu.launch_ns


def test_pool_rate_depends_on_where_the_experts_lie():
    cpu = load_profile("rtx-5060ti").cpu
    times = {
        s: cost.cpu_experts_ns(cpu, 10**9, "iq4", s, 400) for s in ("pinned", "pageable", "page_cache", "budget")
    }
    assert times["budget"] > times["pageable"] > times["page_cache"] > times["pinned"]
    # 1.2 GB a round at 27.4 GB/s is about 43 ms of the 67.3 ms round (Strata PR #416).
    assert cost.cpu_experts_ns(cpu, 1_200_000_000, "iq4", "page_cache", 450) / 1e6 == pytest.approx(43, abs=1)


def test_lanes_add_up_to_the_drive():
    disk = load_profile("rtx-5060ti").disk
    rates = [cost.disk_rate_mb_per_s(disk, n) for n in range(1, 9)]
    assert rates == sorted(rates)
    assert rates[0] == disk.lane_mb_per_s
    assert rates[-1] == disk.seq_mb_per_s
    direct = cost.disk_read_ns(disk, 10**9)
    assert cost.disk_read_ns(disk, 10**9, access="mmap") > 10 * direct
    assert cost.disk_read_ns(disk, 10**9, access="read_ahead") <= direct
