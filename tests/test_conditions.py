"""A machine's state in words: drive, memory held by others, clock, NUMA nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.split.memory import HEADROOM_BYTES, default_headroom

TWO = "rtx-4090:cpu=2x xeon-gold-6454s,ram=512GB"


def _pinned(name: str) -> float:
    found = load_profile(name).cpu.expert_gb_per_s.pinned.default
    assert found is not None
    return found.value


def test_a_drive_by_kind_or_by_rate_replaces_that_of_the_profile() -> None:
    sata, given = load_profile("rtx-5070:drive=sata"), load_profile("rtx-5070:drive=5.2")
    assert (sata.disk.seq_gb_per_s.value, given.disk.seq_gb_per_s.value) == (0.53, 5.2)
    assert (sata.disk.seq_gb_per_s.kind, given.disk.seq_gb_per_s.kind) == ("assumed", "datasheet")
    assert sata.disk.mmap_fault_gb_per_s.value < 0.05
    assert sata.cpu == load_profile("rtx-5070").cpu
    assert sata.name != given.name, "two drives are two machines"
    kinds = [load_profile(f"rtx-5070:drive={name}").disk for name in ("hdd", "sata", "gen3", "gen4", "gen5")]
    assert [disk.seq_gb_per_s.value for disk in kinds] == sorted(disk.seq_gb_per_s.value for disk in kinds)


def test_a_slower_clock_slows_what_cores_limit_and_not_what_memory_does() -> None:
    full, slow = load_profile("bigmoe-phone"), load_profile("bigmoe-phone:clock=0.66")
    ratio = slow.gpu.expert_gb_per_s.default.value / full.gpu.expert_gb_per_s.default.value
    assert 0.66 < ratio < 0.75, "14.1 of 68 GB/s: nearly all of its time is the cores'"
    assert slow.disk == full.disk
    desktop = "rtx-4070:cpu=ryzen-5-5600x,ram=64GB@3200x2"
    assert 0.8 < _pinned(f"{desktop},clock=0.66") / _pinned(desktop) < 1.0, "its memory limits most of it"


@given(st.floats(0.05, 1.0), st.floats(0.05, 1.0))
def test_no_clock_is_faster_than_a_higher_one(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert _pinned(f"bigmoe-phone:clock={low}") <= _pinned(f"bigmoe-phone:clock={high}") <= _pinned("bigmoe-phone")


def test_memory_that_others_hold_is_none_of_the_page_caches() -> None:
    ram = load_profile("rtx-5070:ram=32GiB,system=20GiB").ram
    assert (ram.os_reserve_gib.value, ram.pin_limit_gib.value) == (20.0, 12.0)


def test_nodes_without_a_card_change_what_its_layers_are_read_at() -> None:
    """Its layers and experts stay at the rate of memory wherever it fell, though the pool's rose."""
    alone = "none:cpu=2x epyc-7763,ram=512GB@3200x8"
    spread, placed = load_profile(alone), load_profile(f"{alone},numa=placed")
    for rates in ("expert_gb_per_s", "dense_gb_per_s"):
        assert getattr(placed.gpu, rates).default.value == _pinned(f"{alone},numa=placed")
        assert getattr(placed.gpu, rates).default.value > getattr(spread.gpu, rates).default.value
    with pytest.raises(HardwareError, match="name one node's processor and memory"):
        load_profile(f"{alone},numa=one")
    with pytest.raises(HardwareError, match="say the memory that is left"):
        load_profile(f"{alone},system=100GB")


def test_nodes_change_rates_of_pool_and_link() -> None:
    spread, placed, one = (_pinned(f"{TWO}{words}") for words in ("", ",numa=placed", ",numa=one"))
    assert one < spread < placed, "0.65 of one node, 0.35 of both, 0.61 of both"
    reads = load_profile(f"{TWO},numa=placed").cpu.expert_gb_per_s.pinned.default
    assert reads.spread is not None
    assert reads.spread[0] < placed == reads.spread[1], "one machine reached much less"
    half, whole = load_profile(f"{TWO},numa=one"), load_profile(TWO)
    assert half.ram.total_gib.value == pytest.approx(whole.ram.total_gib.value / 2)
    assert (half.cpu.cores.count, whole.cpu.cores.count) == (32, 64)
    far = load_profile(f"{TWO},card=far").link
    assert far.h2d_gb_per_s.value == pytest.approx(0.32 * whole.link.h2d_gb_per_s.value, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rtx-4090:drive=floppy", "hdd, sata, gen3"),
        ("rtx-4090:clock=2.19", "2.19 of 3.32 GHz"),
        ("rtx-4090:system=640GB", "up to the host's"),
        ("rtx-4090:cpu=ryzen-5-5600x,card=far", "cpu=2x NAME"),
        ("tesla-p40:numa=one", "cpu=2x NAME"),
        (f"{TWO},numa=both", "spread, placed, one"),
        ("none:cpu=2x xeon-gold-6454s,ram=512GB,card=far", "no link"),
    ],
)
def test_words_that_say_nothing_are_refused(name: str, said: str) -> None:
    with pytest.raises(HardwareError) as error:
        load_profile(name)
    assert said in str(error.value)


def test_what_others_hold_is_free_of_the_model_in_a_split() -> None:
    held = load_profile("rtx-5070:ram=32GiB,system=20GiB")
    assert default_headroom(held) == 20 << 30
    assert default_headroom(load_profile("rtx-5070")) == HEADROOM_BYTES
    assert default_headroom(load_profile("m4-max:ram=64GB")) == 0
