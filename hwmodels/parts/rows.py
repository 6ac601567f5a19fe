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


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _MAKERS.sub("", text.lower()))


def find_gpu(name: str) -> GpuRow | None:
    """The card of a name in any spelling (`RTX 3060`, `rtx3060-12gb`); None if there is none."""
    wanted = _plain(name)
    forms = {form: row for row in gpus().values() for form in (_plain(row.label), _plain(row.name))}
    short = _plain(re.sub(r"\b\d+\s?gi?b\b", "", name.lower()))  # a size that the name does not need
    found = forms.get(wanted) or forms.get(short)
    if found is not None:
        return found
    for text in (wanted, short):
        pattern = rf"(?:rtx|gtx|rx|tesla|arc)?{text}(?:pcie|sxm2?|\(.*\))?(?:\d+gb|blackwell)?(?:\w*ryzen\w*)?"
        longer = sorted(form for form in forms if re.fullmatch(pattern, form))
        if text and longer:
            return forms[longer[-1]]
    return None


def find_cpu(name: str) -> tuple[CpuRow, int]:
    """The processor of a name in any spelling, and how many of them (`2x-xeon-e5-2698v4`).

    Raises
    ------
    HardwareError
        It is not in the table.
    """
    number, _, rest = name.lower().replace(" ", "-").partition("x-")
    sockets = int(number) if number.isdecimal() and rest else 1
    wanted = _plain(rest if number.isdecimal() and rest else name)
    forms = {form: row for row in cpus().values() for form in (_plain(row.label), _plain(row.name))}
    found = forms.get(wanted)
    if found is None:
        close = sorted(form for form in forms if form.endswith(wanted)) if len(wanted) > 3 else []
        found = forms[close[0]] if len({forms[form].name for form in close}) == 1 else None
    if found is None or not 1 <= sockets <= 8:
        raise HardwareError(
            unknown("processor", name, cpus()) + "; another one: a profile of your own (list hardware --template)"
        )
    return found, sockets
