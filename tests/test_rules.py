"""Rules of time: lower bounds, latency counted once, arithmetic only where there are many rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.hwmodels.registry import list_profiles, load_profile
from expert_residency.hwmodels.units import GIB
from expert_residency.sim.timed import rules

PROFILES = st.sampled_from(list_profiles()).map(load_profile)
BYTES = st.integers(0, 10**11)
PACES = st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)).map(lambda pace: (max(pace), min(pace)))


def isolated_ns(name, nbytes):
    link = load_profile(name).link
    return link.copy_t0_ns + rules.copy_ns(nbytes, link.h2d_mb_per_s, link.submit_ns)


def test_one_gib_over_the_measured_link():
    link = load_profile("rtx-5070").link
    assert rules.copy_ns(GIB, link.h2d_mb_per_s, link.submit_ns) / 1e6 == pytest.approx(37.8, abs=0.05)


@pytest.mark.parametrize(("name", "published"), [("rtx-5070", 23.8), ("rtx-5060ti", 12.9), ("tesla-p40", 11.0)])
def test_isolated_copies_of_the_published_table(name, published):
    """Hardware table "copy model t0 = 10 us": GB/s that one copy of 1.456 MB sees on the three links."""
    assert 1_456_000 / isolated_ns(name, 1_456_000) == pytest.approx(published, abs=0.06)


def test_hand_off_matches_the_published_bounce():
    link = load_profile("tesla-p40").link
    for tokens, published_us in ((2, 33), (4, 66), (8, 122)):
        found = rules.handoff_ns(tokens * 51_216, link.handoff_ns, link.handoff_mb_per_s)
        assert found / 1000 == pytest.approx(published_us, rel=0.07)


@given(PROFILES, BYTES, BYTES)
def test_more_bytes_never_take_less_time(p, a, b):
    small, large = min(a, b), max(a, b)
    for time in (
        lambda n: rules.copy_ns(n, p.link.h2d_mb_per_s, p.link.submit_ns),
        lambda n: rules.group_ns(n, 1, p.gpu.launch_ns, p.gpu.expert_gb_per_s.mb_per_s("q4"), 0, 1, -1),
        lambda n: rules.read_ns(rules.page_bytes_of(n, 3, 4096), p.disk.latency_ns, p.disk.lane_mb_per_s),
        lambda n: rules.handoff_ns(n, p.link.handoff_ns, p.link.handoff_mb_per_s),
    ):
        assert time(small) <= time(large)


@given(BYTES, st.integers(1, 10**6), st.integers(0, 10**6))
def test_bytes_over_rate_is_a_lower_bound(nbytes, rate, fixed):
    for ns in (
        rules.copy_ns(nbytes, rate, fixed),
        rules.read_ns(nbytes, fixed, rate),
        rules.handoff_ns(nbytes, fixed, rate),
        rules.group_ns(nbytes, 1, fixed, rate, 0, 1, -1),
    ):
        assert ns * rate >= nbytes * 1000


@given(st.integers(0, 10**12), st.integers(0, 10**12), PACES)
def test_a_server_never_moves_more_than_its_capacity(solo, elapsed, pace):
    """Progress is rounded down and a finish up: at its finish a transfer is done, and one ns before it is not."""
    finish = rules.slowed_ns(solo, *pace)
    assert rules.progress_ns(finish, *pace) >= solo >= rules.progress_ns(max(finish - 1, 0), *pace)
    assert rules.progress_ns(elapsed, *pace) <= elapsed


def test_few_rows_are_bound_by_bytes_and_many_by_arithmetic():
    for time in (rules.dense_ns, rules.pool_ns):
        assert time(10**6, 1, 10**9, 10**4) == 10**6
        assert time(10**6, 4096, 10**9, 10**4) == 4096 * 10**5
    assert rules.pool_ns(10**6, 4096, 10**9, 0) == 10**6
    assert rules.group_ns(10**6, 8192, 7, 10**3, 10**6, 10**3, -1) == 7 + 8192 * 10**3
    assert rules.group_ns(10**6, 1, 7, 10**3, 10**6, 10**3, -1) == 7 + 10**6


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_a_wait_has_no_more_than_itself_in_common(start, length, began, waited):
    common = rules.common_ns(start, start + length, began, began + waited)
    assert common == len(range(max(start, began), min(start + length, began + waited)))


@given(st.integers(0, 100), st.integers(-100, 200), st.integers(0, 50), st.integers(0, 100))
def test_the_drive_has_at_most_the_whole_wait(waited, until, read, copying):
    assert 0 <= rules.disk_part_ns(waited, until, read, copying) <= waited


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_waves_hold_an_event_and_none_is_idle(nbytes, capacity):
    waves = rules.extra_waves(nbytes, capacity)
    assert waves * capacity < nbytes <= (waves + 1) * capacity
