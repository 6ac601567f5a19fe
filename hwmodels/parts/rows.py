"""The tables of cards and processors, and what a user's spelling of a name means."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from expert_residency.errors import HardwareError
from expert_residency.text import unknown


@dataclass(frozen=True)
class GpuRow:
    """A card by data sheet.

    Parameters
    ----------
    name, label, arch
        As users type it, as its maker calls it, and its architecture.
    shared
        Whether it has the processor's memory; `vram_gib` is then the most that is sold.
    vram_gib, mem_gb_per_s, fp32_tflops
        Memory, its bandwidth, arithmetic in float32.
    link
        Its own end of the link, `4.0x16`; empty where the memory is shared.
    share
        Part of the bandwidth that its kernels read at; 0: that of its architecture.
    profile
        Shipped profile with figures measured on this card; empty if there is none.
    source
        Where the figures come from.
    """

    name: str
    label: str
    arch: str
    shared: bool
    vram_gib: float
    mem_gb_per_s: float
    fp32_tflops: float
    link: str
    share: float
    profile: str
    source: str


@dataclass(frozen=True)
class CpuRow:
    """A processor by data sheet.

    Parameters
    ----------
    name, label, arch
        As users type it, as its maker calls it, and the design of its cores.
    cores, ghz
        Cores that compute (performance cores of mixed ones), base clock.
    simd
        avx2, avx512, amx or neon.
    channels, mt_per_s
        Memory channels of 64 bits, and the fastest memory that its maker names; 0: the chip's own memory.
    source
        Where the figures come from.
    """

    name: str
    label: str
    arch: str
    cores: int
    ghz: float
    simd: str
    channels: int
    mt_per_s: int
    source: str


@cache
def gpus() -> dict[str, GpuRow]:
    """Cards by name."""
    rows = _rows("gpus.csv")
    return {
        r["name"]: GpuRow(
            r["name"], r["label"], r["arch"], r["memory"] == "shared", float(r["vram_gib"]),
            float(r["mem_gb_per_s"]), float(r["fp32_tflops"]), r["link"], float(r["share"] or 0),
            r["profile"], r["source"],
        )
        for r in rows
    }  # fmt: skip


@cache
def cpus() -> dict[str, CpuRow]:
    """Processors by name."""
    return {
        r["name"]: CpuRow(
            r["name"], r["label"], r["arch"], int(r["cores"]), float(r["ghz"]), r["simd"], int(r["channels"]),
            int(r["mt_per_s"]), r["source"],
        )
        for r in _rows("cpus.csv")
    }  # fmt: skip


def _rows(name: str) -> list[dict[str, str]]:
    text = resources.files("expert_residency.hwmodels").joinpath("parts", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


_MAKERS = re.compile(r"nvidia|geforce|amd|radeon|intel|apple(?!-m$)|instinct|\(r\)|\(tm\)")


def plain(text: str) -> str:
    """A name without its maker, blanks and case, by which spellings are compared."""
    return re.sub(r"[^a-z0-9]", "", _MAKERS.sub("", text.lower()))


def find_gpu(name: str) -> GpuRow | None:
    """The card of a name in any spelling (`RTX 3060`, `rtx3060-12gb`); None if there is none."""
    wanted = plain(name)
    forms = {form: row for row in gpus().values() for form in (plain(row.label), plain(row.name))}
    short = plain(re.sub(r"\b\d+\s?gi?b\b", "", name.lower()))  # a size that the name does not need
    found = forms.get(wanted) or forms.get(short)
    if found is not None:
        return found
    for text in (wanted, short):
        pattern = rf"(?:rtx|gtx|rx|tesla|arc)?{text}(?:pcie|sxm2?|\(.*\))?(?:\d+gb|blackwell)?(?:\w*ryzen\w*)?"
        longer = sorted(form for form in forms if re.fullmatch(pattern, form))
        if text and longer:
            return forms[longer[-1]]
    return None


_SIZE = re.compile(r"[\s-]*\b(\d+)\s?gi?b\b", re.IGNORECASE)


def the_gpu(name: str) -> GpuRow | None:
    """The card that a user means, whose memory is not guessed; None if there is none.

    Raises
    ------
    HardwareError
        It is sold with several sizes of memory and the name says none, or it says one that the card has not.
    """
    found, size = find_gpu(name), _SIZE.search(name)
    if found is None or plain(name) == plain(found.name):
        return found
    if found.shared and size is not None:
        raise HardwareError(f"{name}: {found.label} shares its memory, which is said by ram={size[1]}GB")
    alike = [row for row in gpus().values() if _SIZE.sub("", row.name) == _SIZE.sub("", found.name)]
    if size is not None and not found.shared:
        fits = [row for row in alike if row.vram_gib == float(size[1])]
        if not fits:
            listed = " or ".join(f"{row.name} with {row.vram_gib:g} GiB" for row in alike)
            raise HardwareError(
                f"{name}: known is {listed}; another is a profile of your own, with it as its base"
            )
        return found if found in fits else fits[0]
    if len(alike) > 1 and plain(name) != plain(found.label):
        raise HardwareError(f"{name}: say which, {' or '.join(row.name for row in alike)}")
    return found


def _by_cores(wanted: str) -> CpuRow | None:
    """A processor of which the cores are all that is said, `24c`: no design, and the commonest memory."""
    said = re.fullmatch(r"(\d{1,3})(?:c|cores?)", wanted)
    if said is None or not 1 <= int(said[1]) <= 256:
        return None
    return CpuRow(
        f"{said[1]}c", f"{said[1]} cores, not named", "", int(said[1]), 3.0, "avx2", 2, 3200,
        "cores as given; 3 GHz, avx2 and two channels of DDR4-3200 taken for granted",
    )  # fmt: skip


def find_cpu(name: str) -> tuple[CpuRow, int]:
    """The processor of a name in any spelling, and how many of them (`2x-xeon-e5-2698v4`).

    Raises
    ------
    HardwareError
        It is not in the table.
    """
    number, _, rest = name.lower().replace(" ", "-").partition("x-")
    sockets = int(number) if number.isdecimal() and rest else 1
    wanted = plain(rest if number.isdecimal() and rest else name)
    forms = {form: row for row in cpus().values() for form in (plain(row.label), plain(row.name))}
    found = forms.get(wanted) or _by_cores(wanted)
    if found is None:
        close = sorted(form for form in forms if form.endswith(wanted)) if len(wanted) > 3 else []
        found = forms[close[0]] if len({forms[form].name for form in close}) == 1 else None
    if found is None or not 1 <= sockets <= 8:
        raise HardwareError(
            unknown("processor", name, cpus(), listed="residency list cpus")
            + ", or say its cores, as 24c or 2x 24c, and its memory, as --ram 192GB@2933x6"
        )
    return found, sockets
