"""Sizes, rates and times: the two readings of a giga never mix; a conversion is exact or says how it rounds."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.units import (
    MOST,
    format_bytes,
    mb_per_s,
    ns_for_bytes,
    ns_from_us,
    parse_size,
)

UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS)))
def test_whole_sizes_are_exact(number, unit):
    assume(number * UNITS[unit] <= MOST)
    assert parse_size(f"{number}{unit}") == number * UNITS[unit]
    assert parse_size(f" {number} {unit.lower()} ") == number * UNITS[unit]
    assert parse_size(f"{number}{unit.upper()}") == number * UNITS[unit]


@given(st.decimals(0, 10**6, places=3), st.sampled_from(sorted(UNITS)))
def test_fractions_are_cut_to_whole_bytes(number, unit):
    exact = number * UNITS[unit]
    assume(exact <= MOST)
    assert exact - 1 < parse_size(f"{number:f}{unit}") <= exact


@given(st.integers(1, 10**12))
def test_a_bare_number_is_refused_with_both_readings(number):
    readings = [
        f"{number}{unit} for {number * n:,} bytes" for unit, n in (("MB", 10**6), ("MiB", 2**20), ("GB", 10**9))
    ]
    with pytest.raises(HardwareError, match=".*".join(readings)):
        parse_size(number)


@pytest.mark.parametrize("text", ["0", 0, "0.0", 0.0])
def test_nothing_without_a_unit_is_refused_in_one_sentence(text):
    with pytest.raises(
        HardwareError, match=r"^size 0(\.0)? has no unit; write 0B for none, else a number and a unit"
    ):
        parse_size(text)


@pytest.mark.parametrize(
    "text", ["", "GB", "4 furlong", "4 Gb", "-4GB", "4GB/s", "4,5GB", "nan GB", "0x10GB", "4 G B"]
)
def test_what_is_no_size_is_one_sentence(text):
    with pytest.raises(HardwareError) as error:
        parse_size(text)
    assert "\n" not in str(error.value)


@given(st.integers(0, 10**13), st.integers(1, 10**7))
def test_time_is_the_smallest_that_moves_all_bytes(nbytes, rate):
    time = ns_for_bytes(nbytes, rate)
    assert time * rate >= nbytes * 1000
    assert time == 0 or (time - 1) * rate < nbytes * 1000


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(1, 10**7))
def test_splitting_a_copy_never_saves_time(a, b, rate):
    assert (
        ns_for_bytes(a + b, rate) <= ns_for_bytes(a, rate) + ns_for_bytes(b, rate) <= ns_for_bytes(a + b, rate) + 1
    )


def test_bad_arguments_of_a_time():
    for nbytes, rate in ((-1, 5), (5, 0), (5, -2)):
        with pytest.raises(HardwareError):
            ns_for_bytes(nbytes, rate)


def test_both_readings_are_printed():
    assert format_bytes(4000 * 2**20) == "4.19 GB (3.91 GiB)"
    assert format_bytes(1_441_000) == "1.44 MB (1.37 MiB)"
    assert format_bytes(512) == "512 B"
    assert format_bytes(-2 * 10**12) == "-2.00 TB (-1.82 TiB)"


def test_integer_views():
    assert mb_per_s(28.4) == 28400
    assert ns_from_us(0.25) == 250
