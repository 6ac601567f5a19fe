"""Sizes, rates and times: text at the edge, integers inside.

Inside the program a size is a whole number of bytes, a time a whole number of nanoseconds and a rate a whole
number of MB/s (10^6 bytes a second). GB = 10^9 bytes, GiB = 2^30 bytes; the two differ by 7 %, which is more than
most effects that a simulation is asked about, so a number without a unit is refused.
"""

from __future__ import annotations

import re
from fractions import Fraction

from expert_residency.errors import HardwareError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
MOST = 10**18
"""Largest number, and largest size in bytes, that is read: 64 bits hold sums of it."""

_CANONICAL = {"B": 1, "kB": KB, "MB": MB, "GB": GB, "TB": TB, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
# Whole words in one case are taken too; a mixed "Mb" is not, because it may mean bits.
_UNITS = {spelling: n for unit, n in _CANONICAL.items() for spelling in (unit, unit.lower(), unit.upper())}
_TEXT = re.compile(r"\s*([+-]?\d+(?:_\d+)*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)\s*(/\s*s)?\s*")


def parse_size(text: str | int | float) -> int:
    """Bytes of a size such as ``4000MiB``, ``64 GB`` or ``1.5TiB``.

    Parameters
    ----------
    text
        Number and unit: B, kB, MB, GB, TB (powers of ten) or KiB, MiB, GiB, TiB (powers of two).

    Returns
    -------
    int
        Whole bytes, fractions of a byte cut off.

    Raises
    ------
    HardwareError
        For a bare number, an unknown unit, or a negative size.
    """
    number, unit = _split(text)
    if not unit and not number:
        raise HardwareError(f"size {text} has no unit; write 0B for none, else a number and a unit, as in 4000MiB")
    if not unit:
        raise HardwareError(
            f"size {text} has no unit; write {text}MB for {int(number * MB):,} bytes, {text}MiB for "
            f"{int(number * MIB):,} bytes or {text}GB for {int(number * GB):,} bytes"
        )
    nbytes = int(number * _unit(unit, text))
    if nbytes > MOST:
        raise HardwareError(f"size {text} is more than any machine has")
    return nbytes


def format_bytes(nbytes: int) -> str:
    """Both readings of a size: ``4.19 GB (3.91 GiB)``; below 10^9 bytes in MB and MiB, below 10^6 in bytes."""
    magnitude = abs(nbytes)
    if magnitude >= TB:
        return f"{nbytes / TB:.2f} TB ({nbytes / TIB:.2f} TiB)"
    if magnitude >= GB:
        return f"{nbytes / GB:.2f} GB ({nbytes / GIB:.2f} GiB)"
    if magnitude >= MB:
        return f"{nbytes / MB:.2f} MB ({nbytes / MIB:.2f} MiB)"
    return f"{nbytes:,} B"


def ns_for_bytes(nbytes: int, mb_per_s: int) -> int:
    """Nanoseconds to move `nbytes` at `mb_per_s` (10^6 bytes a second), rounded up; no latency in it."""
    if nbytes < 0 or mb_per_s <= 0:
        raise HardwareError(f"cannot time {nbytes} bytes at {mb_per_s} MB/s; bytes >= 0 and a rate > 0 are needed")
    return -(-nbytes * 1000 // mb_per_s)


def mb_per_s(gb_per_s: float) -> int:
    """Whole MB/s of a rate in GB/s."""
    return round(gb_per_s * 1000)


def ns_from_us(us: float) -> int:
    """Whole nanoseconds of a time in microseconds."""
    return round(us * 1000)


def bytes_from_gib(gib: float) -> int:
    """Whole bytes of a size in GiB, fractions cut off."""
    return int(gib * GIB)


def bytes_from_mib(mib: float) -> int:
    """Whole bytes of a size in MiB, fractions cut off."""
    return int(mib * MIB)


def _split(text: str | int | float) -> tuple[Fraction, str]:
    found = _TEXT.fullmatch(str(text))
    if not found:
        raise HardwareError(f"cannot read the size {str(text)!r}; write a number and a unit, as in 4000MiB")
    if len(found[1].lower().partition("e")[2]) > 4 or abs(number := Fraction(found[1].replace("_", ""))) > MOST:
        raise HardwareError(f"size {text} is more than any machine has")
    if number < 0:
        raise HardwareError(f"size {text} is negative")
    if found[2] and found[3]:
        raise HardwareError(f"{str(text)!r} is not a size; drop /s, as in 4000MiB")
    return number, found[2]


def _unit(unit: str, text: str | int | float) -> int:
    if unit not in _UNITS:
        raise HardwareError(f"unknown unit {unit!r} in {str(text)!r}; valid units are {', '.join(_CANONICAL)}")
    return _UNITS[unit]
