"""What a machine's state does to its figures: its drive, what else holds memory, its clock, its NUMA nodes.

Each is a word after the card, as in `tesla-p40:cpu=2x xeon-e5-2698-v4,numa=one,card=far`:

`drive`
    `hdd`, `sata`, `gen3`, `gen4`, `gen5`, or the GB/s of large reads.
`system`
    Memory that the system and other programs hold, as `4.9GB`: it is neither for experts nor for the page cache.
`clock`
    Share of its full clock that the processor runs at: 2.19 of 3.32 GHz is 0.66.
`numa`
    Of two sockets: `spread` (the pool on both, memory wherever it fell; the default), `placed` (each reads its own
    node) or `one` (pool and experts on one node, whose memory is half).
`card`
    `near` (the card is on the node of the experts; the default) or `far`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.units import GIB, parse_size
from expert_residency.text import check_known

CONDITIONS = ("drive", "system", "clock", "numa", "card")
NUMA = ("spread", "placed", "one")
CARD = ("near", "far")
CARDLESS = ("none", "cpu")
"""Compute capability of machines whose processor runs the layers as well."""
Tables = dict[str, Any]

DRIVES: Mapping[str, tuple[float, float, float, str]] = {
    "hdd": (0.15, 0.15, 8000.0, "a disk's outer tracks, one seek a read; no figure for this one"),
    "sata": (0.53, 0.45, 110.0, "the SATA link's 6 Gb/s; no figure for this drive"),
    "gen3": (3.2, 2.35, 90.0, "a Gen3 NVMe (Niko1221/Strata docs/DETAILS.md)"),
    "gen4": (
        6.4,
        4.25,
        90.0,
        "6.4-6.5 GB/s in 18 MB reads (0xBakeer/deepseek-v41-flash-spark#2)",
    ),
    "gen5": (
        11.0,
        6.0,
        80.0,
        "0.75 of the link, as Gen4; mapped pages come below 6 (ik_llama.cpp PR 386)",
    ),
}
"""GB/s of all lanes and of one, us before the first byte, and what that rests on."""
_LANE_SHARE = 0.736
_FAR_LINK = 0.32
_FAR_WHY = (
    "of the near node's rate: 3.78 GB/s on the wrong node, 11.8 on the right one of 3.0 x16 "
    "(P100, mpicbg-scicomp/gearshifft#82)"
)
_PLACED = 0.61
_PLACED_WHY = (
    "67-68 of 110.8 GB/s placed by node, 35-40 without (2x Xeon Silver 4510, JustVugg/colibri#537); no more than "
    "0.37 where ktransformers decodes DeepSeek-V3 on 2x Xeon Gold 6454S"
)
_LEAST_PLACED = 0.37


def changed(made: Tables, words: Mapping[str, str], *, sockets: int) -> Tables:
    """A machine's tables under the conditions that are said.

    Parameters
    ----------
    made
        Of the machine as its parts are.
    words
        Condition to text; others are left alone.
    sockets
        Of its processor.

    Returns
    -------
    dict
        New tables; every figure that moves says by what.

    Raises
    ------
    HardwareError
        A text that says nothing, or nodes of one socket.
    """
    tables = {name: dict(part) if isinstance(part, dict) else part for name, part in made.items()}
    alone = tables["gpu"]["compute_capability"] == "cpu"  # put together, all memory but the system's is the gpu's
    if alone and "system" in words:
        raise HardwareError(f"system={words['system']}: without a card, say the memory that is left: ram=, --ram")
    if "numa" in words or "card" in words:
        if alone and words.get("numa") == "one":
            raise HardwareError("numa=one: without a card, name one node's processor and memory instead")
        _nodes(tables, words.get("numa", "spread"), words.get("card", "near"), sockets)
    if "drive" in words:
        tables["disk"] = _drive(words["drive"])
    if "clock" in words:
        _clocked(tables, _share(words["clock"]))
    if "system" in words:
        held = parse_size(words["system"]) / GIB
        total = tables["ram"]["total_gib"]["value"]
        if not 0 <= held < total:
            raise HardwareError(f"system {words['system']}: expected 0 up to the host's {total:g} GiB")
        tables["ram"]["os_reserve_gib"] = {"value": round(held, 3), "kind": "datasheet", "source": "as given"}
        lock = tables["ram"].get("pin_limit_gib")
        if lock and lock["value"] > total - held:
            tables["ram"]["pin_limit_gib"] = _times(lock, (total - held) / lock["value"], "what the system leaves")
    return tables


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.05 <= share <= 1.5:
        raise HardwareError(f"clock {text!r}: expected the share of its full clock, as 0.66 for 2.19 of 3.32 GHz")
    return share


def _times(figure: Tables, factor: float, why: str) -> Tables:
    """A figure times a factor, its spread with it."""
    kind = "assumed" if figure["kind"] == "assumed" else "derived"
    made = {"value": round(figure["value"] * factor, 4), "kind": kind, "source": f"{figure['source']}; {why}"}
    if spread := figure.get("spread"):
        made["spread"] = [round(end * factor, 4) for end in spread]
    return made


def _drive(text: str) -> Tables:
    name = text.strip().lower().replace(" ", "").removesuffix("gb/s").removeprefix("nvme-")
    if name in DRIVES:
        rate, lane, latency, why = DRIVES[name]
        label = f"{name} drive"
    else:
        try:
            rate = float(name)
        except ValueError:
            rate = 0.0
        if not 0.01 <= rate <= 200:
            check_known("drive", name, (*DRIVES, "GB/s as a number, as 5.2"), HardwareError)
        lane, latency, why, label = rate * _LANE_SHARE, 90.0, f"{rate:g} GB/s as given", "drive as given"

    def figure(value: float, kind: str = "assumed") -> Tables:
        return {"value": round(value, 4), "kind": kind, "source": why}

    given = "datasheet" if name not in DRIVES else "assumed"
    # A fault without read-ahead waits for the drive once a page, on a disk once in the 80 KiB around it.
    page = 81920 if name == "hdd" else 4096
    fault = page / (latency * 1000 + page / lane)
    return {
        "name": label, "seq_gb_per_s": figure(rate, given), "lane_gb_per_s": figure(lane),
        "read_ahead_gb_per_s": figure(lane), "latency_us": figure(latency),
        "mmap_fault_gb_per_s": figure(fault), "lanes": {"value": 2, "kind": "assumed", "source": why},
    }  # fmt: skip


def _clocked(tables: Tables, clock: float) -> None:
    """Rates of the processor at another clock: what cores limit follows it, what memory limits does not."""
    why = f"at {clock:g} of its full clock"
    tables["cpu"] = cpu = dict(tables["cpu"])
    memory = tables["dram"]["stream_gb_per_s"]["value"]
    cpu["expert_gb_per_s"] = {
        source: _slower(rates, memory, clock, why) for source, rates in cpu["expert_gb_per_s"].items()
    }
    if "gflops" in cpu:
        cpu["gflops"] = _times(cpu["gflops"], clock, why)
    if points := cpu.get("expert_gb_per_s_by_workers"):
        cpu["expert_gb_per_s_by_workers"] = _slower(points, memory, clock, why)
    tables["gpu"] = gpu = dict(tables["gpu"])
    if gpu["compute_capability"] in CARDLESS:
        memory = gpu["mem_gb_per_s"]["value"]
        for name in ("expert_gb_per_s", "dense_gb_per_s"):
            gpu[name] = _slower(gpu[name], memory, clock, why)
        gpu["compute_tflops"] = _times(gpu["compute_tflops"], clock, why)


def _slower(rates: Tables, memory: float, clock: float, why: str) -> Tables:
    return {name: _times(rate, _at_clock(rate["value"], memory, clock), why) for name, rate in rates.items()}


def _at_clock(rate: float, memory: float, clock: float) -> float:
    """Factor on a rate: time is the memory's, which stays, and the cores', which grows as their clock falls."""
    if rate >= memory:
        return 1.0
    return 1.0 / (rate / memory + (1 - rate / memory) / clock)


def _nodes(tables: Tables, numa: str, card: str, sockets: int) -> None:
    check_known("numa", numa, NUMA, HardwareError)
    check_known("card", card, CARD, HardwareError)
    if sockets < 2:
        raise HardwareError("numa and card say where things lie on several sockets: name them, as cpu=2x NAME")
    if card == "far":
        tables["link"] = link = dict(tables["link"])
        if link["pcie"] in ("none", "unified"):
            raise HardwareError("card=far: there is no link")
        for name in ("h2d_gb_per_s", "d2h_gb_per_s", "h2d_pageable_gb_per_s"):
            far = _times(link[name], _FAR_LINK, f"{_FAR_LINK} {_FAR_WHY}") | {"kind": "assumed"}
            link[name] = far | {"spread": [far["value"], round(link[name]["value"], 4)]}
    if numa == "spread":
        return
    tables["cpu"] = cpu = dict(tables["cpu"])
    theory = tables["dram"]["theory_gb_per_s"]["value"]
    if numa == "one":
        theory /= sockets
        half = f"one of {sockets} nodes"
        tables["dram"] = {name: _times(figure, 1 / sockets, half) if name != "shared_fraction" else figure
                          for name, figure in tables["dram"].items()}  # fmt: skip
        tables["ram"] = {name: _times(figure, 1 / sockets, half) if name != "os_reserve_gib" else figure
                         for name, figure in tables["ram"].items()}  # fmt: skip
        cpu["cores"] = _times(cpu["cores"], 1 / sockets, half) | {"kind": "datasheet"}
        cpu["workers"] = _times(cpu["workers"], 1 / sockets, half) | {"kind": "assumed"}
        for name in ("cores", "workers"):
            cpu[name]["value"] = max(1, round(cpu[name]["value"]))
        if "gflops" in cpu:
            cpu["gflops"] = _times(cpu["gflops"], 1 / sockets, half)
        share, why = 0.65, "expert kernels reached 0.6 to 0.7 of theory on one socket"
    else:
        share, why = _PLACED, _PLACED_WHY
    reads = {"value": round(theory * share, 3), "kind": "assumed", "source": f"{share} x {theory:g} GB/s: {why}"}
    if numa == "placed":
        reads["spread"] = [round(theory * _LEAST_PLACED, 3), reads["value"]]
    cached = _times(reads, 1 / 1.79, "pinned / 1.79, as arena to warm mmap on a Ryzen 5 7600")
    cpu["expert_gb_per_s"] = {
        "pinned": {"default": reads}, "pageable": {"default": reads}, "page_cache": {"default": cached}
    }  # fmt: skip
    if tables["gpu"]["compute_capability"] in CARDLESS:
        tables["gpu"] = tables["gpu"] | {key: {"default": reads} for key in ("expert_gb_per_s", "dense_gb_per_s")}
