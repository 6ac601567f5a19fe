"""The machine of a measured row: its parts by data sheet, and which rows are held out together."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.parts.compose import parse_link
from expert_residency.hwmodels.parts.rows import CpuRow, GpuRow, find_cpu, find_gpu
from expert_residency.hwmodels.runs import MeasuredRun

NOT_NAMED = "a processor that is not named"


@dataclass(frozen=True)
class Rig:
    """Parts of a machine.

    Parameters
    ----------
    name
        Card and processor: rows of one name are held out together.
    card
        One of its cards; a chip that shares its memory is one too.
    cards
        How many.
    cpu
        Processor; None where the row names none.
    sockets
        Processors.
    ram_gb_per_s
        Of memory in theory, all channels; 0 where no processor is named.
    ram_gib
        Memory of the host; 0 where the row does not say.
    link_gb_per_s
        What copies reach: a probe's figure, else by generation and lanes.
    link_probed
        Whether the row prints a probe's figure.
    workers
        Threads of the pool where the row says how many, else 0.
    words
        The machine as users name it: `CARD:cpu=...,ram=...,link=...`.
    """

    name: str
    card: GpuRow
    cards: int
    cpu: CpuRow | None
    sockets: int
    ram_gb_per_s: float
    ram_gib: float
    link_gb_per_s: float
    link_probed: bool
    workers: int
    words: str

    @property
    def cores(self) -> int:
        """Of all processors."""
        return self.cpu.cores * self.sockets if self.cpu else 0


def machine_of(row: MeasuredRun) -> Rig | str:
    """The machine of a row, or what is missing in words."""
    if row.gpu == "none":
        return _without_card(row)
    if " + " in row.gpu:
        return f"cards of different kinds ({row.gpu})"
    size = re.fullmatch(r"(\d+) GB card", row.ram)
    card = (find_gpu(f"{row.gpu}-{size[1]}gb") if size else None) or find_gpu(_plain_card(row.gpu))
    if card is None:
        return f"no data sheet of the card {row.gpu}"
    cpu, sockets = _cpu(row.cpu)
    link = _link(row.link, card)
    name = card.label if card.shared else f"{card.label} + {cpu.label if cpu else _unnamed(row.cpu)}"
    return Rig(
        name, card, max(1, row.n_gpus), cpu, sockets, _memory(row.ram, cpu, sockets), _size(row.ram), link[0],
        link[1], _workers(row.cpu), _words(row, card, cpu, sockets),
    )  # fmt: skip


_NODES = 4
"""NUMA nodes of a processor that has several (EPYC 7002, Threadripper 3990X)."""
_ROOMY_GIB = 1024
"""Of memory where a row does not say how much: what ran had room."""


def _words(row: MeasuredRun, card: GpuRow, cpu: CpuRow | None, sockets: int) -> str:
    """The machine in the product's own words."""
    said = [f"cpu={sockets}x-{cpu.name}" if sockets > 1 else f"cpu={cpu.name}"] if cpu else []
    if cpu is not None and not card.shared:
        speed, channels = _fitted(row.ram, cpu)
        if "on one node" in row.workload:  # its channels and cores are what its threads have
            channels = max(1, channels // _NODES)
            said.append(f"workers={max(1, cpu.cores // _NODES)}")
        size = _size(row.ram) or _ROOMY_GIB
        said.append(f"ram={size:g}GiB@{speed}x{channels}" if speed and channels else f"ram={size:g}GiB")
    if (found := re.search(r"PCIe(\d) x(\d+)", row.link)) and not card.shared and card.arch != "cpu":
        said.append(f"link={found[1]}.0x{found[2]}")
    if "WSL" in row.ram and not card.shared:
        said.append("os=wsl2")
    name = "none" if card.arch == "cpu" else card.name
    return name + (":" if said else "") + ",".join(said)


def _without_card(row: MeasuredRun) -> Rig | str:
    """A processor alone, which stands where a card would."""
    cpu, sockets = _cpu(row.cpu)
    if cpu is None:
        return f"no data sheet of the processor {row.cpu}"
    ram = _memory(row.ram, cpu, sockets)
    card = GpuRow(cpu.name, cpu.label, "cpu", True, 1024.0, ram, 0.0, "", 0.0, "", cpu.source)
    # the size decides nothing but whether it fits, and it ran
    words = _words(row, replace(card, shared=False), cpu, sockets)
    return Rig(cpu.label, card, 1, cpu, sockets, ram, _size(row.ram), ram / 2, False, _workers(row.cpu), words)


def held_out(one: str, other: str) -> bool:
    """Whether two machines may be one: of one name, or of one card where a processor is not named."""
    if one == other:
        return True
    (card, _, cpu), (card2, _, cpu2) = one.partition(" + "), other.partition(" + ")
    return card == card2 and (NOT_NAMED in (cpu, cpu2))


def _plain_card(text: str) -> str:
    text = re.sub(r"\b\d+ W\b|\bunified\b|^Apple ", " ", text).replace("GB10", "DGX Spark")
    text = re.sub(r"(M\d \w+|DGX Spark).*", r"\1", text)
    return re.sub(r"^AMD Ryzen.*780M$", "780M", " ".join(text.split()))


def _cpu(text: str) -> tuple[CpuRow | None, int]:
    """The processor in a row's words: `Core i9-13900HX (23 workers, AVX2)`."""
    plain = re.sub(r"\(.*|\bAVX-?\d*\b|\b\d+-Core.*|\b\d+c\b.*|\b\d+P\+.*|w/.*|\bAMD\b|\bIntel\b", " ", text)
    plain = re.sub(r"\bTR\b|\bRyzen Threadripper\b", "Threadripper", plain)
    plain = " ".join(plain.split())
    if not plain:
        return None, 1
    try:
        return find_cpu(plain)
    except HardwareError:
        return None, 1


def _unnamed(text: str) -> str:
    return text if re.search(r"\d+ workers", text) else NOT_NAMED


def _workers(text: str) -> int:
    found = re.search(r"\b(\d+) workers", text)
    return int(found[1]) + ("host" in text) if found else 0


def _memory(text: str, cpu: CpuRow | None, sockets: int) -> float:
    """Theory of all channels in GB/s: as fitted, or the fastest that the processor's maker names."""
    if cpu is None:
        return 0.0
    speed, channels = _fitted(text, cpu)
    return sockets * channels * 8 * speed / 1000


def _fitted(text: str, cpu: CpuRow) -> tuple[int, int]:
    """MT/s and channels of one processor."""
    speed, channels = re.search(r"DDR\d-(\d{4})", text), re.search(r"(\d+)-ch", text)
    return int(speed[1]) if speed else cpu.mt_per_s, int(channels[1]) if channels else cpu.channels


def _size(text: str) -> float:
    """GiB of memory; a row's GB of memory are GiB, as they are sold."""
    if "card" in text:
        return 0.0
    found = re.search(r"([\d.]+) (?:GB|TB)\b", text)
    return float(found[1]) * (1024 if found and "TB" in found[0] else 1) if found else 0.0


def _link(text: str, card: GpuRow) -> tuple[float, bool]:
    if found := re.search(r"([\d.]+) GB/s", text):
        return float(found[1]), "SSD" not in text
    if found := re.search(r"PCIe(\d) x(\d+)", text):
        return parse_link(f"{found[1]}.0x{found[2]}")[1], False
    return (parse_link(card.link)[1] if card.link else card.mem_gb_per_s / 2), False
