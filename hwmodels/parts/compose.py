"""A machine's profile put together from parts, each number with its kind and what it rests on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.parts.conditions import CONDITIONS, changed
from expert_residency.hwmodels.parts.rows import CpuRow, GpuRow, find_cpu, gpus, the_gpu
from expert_residency.hwmodels.units import GIB, parse_size
from expert_residency.text import check_known, parse_call, unknown

PARTS = ("cpu", "ram", "link")
Figure = dict[str, Any]
Tables = dict[str, Any]

NO_CARD = ("none", "cpu", "cpu-only")
_LANE_GB_PER_S = {"1.0": 0.2, "2.0": 0.4, "3.0": 0.78, "4.0": 1.65, "5.0": 3.35}
"""Read on slots of 16 lanes: 11.8-13.2, 24-28.4 and 50-57 GB/s of generations 3 to 5; older ones as the third."""
_CABLES = {"tb3": 2.6, "tb4": 2.6, "usb4": 2.9, "tb5": 5.5, "oculink": 6.5}
_LANES = (1, 2, 4, 8, 16)
_SHARES = (
    ("sm_6", 0.60, "209 of 346 GB/s on a P40 with 4-bit weights (ggml-org/llama.cpp#4766)"),
    ("sm_", 0.77, "0.77-0.79 of the data sheet on an RTX 5070 and an RTX 5060 Ti"),
    (
        "gfx",
        0.55,
        "no figure for this card; a RX 7900 XT reached 94 of 190 tokens/s by bandwidth (discussion 15396)",
    ),
    ("apple", 0.60, "no figure for this chip; 0.4 to 0.8 on others (llama.cpp discussion 4167)"),
    ("xe", 0.45, "no figure for this card; its kernels are younger than the others'"),
)
_LAUNCH_US = 5.0
_LAUNCHES = (
    ("sm_6", 3.0, 1.4), ("sm_7", 1.3, 1.5), ("sm_86", 1.0, 1.2), ("sm_80", 1.0, 1.3), ("sm_89", 0.85, 1.2),
    ("sm_", 0.75, 1.2), ("gfx9", 4.0, 1.4), ("gfx", 2.0, 1.4), ("apple", 2.1, 1.3), ("xe", 2.0, 2.0),
)  # fmt: skip
"""Architecture, its launches beside those of an RTX 3090, and a factor either way."""
_LOW_BIT_SHARE = 0.26
"""Of Pascal: below 4 bits unpacking binds, not memory (91-95 of 346 GB/s on a P40)."""
_LOW_BITS = ("iq1", "iq2", "iq3", "q2", "q3")
_PROMPT_SHARE = {"sm_": 0.65}
_OTHER_PROMPT_SHARE = 0.4
_FLOP_PER_CYCLE = {"avx2": 32, "avx512": 64, "amx": 64, "neon": 32}
_GIVEN_TO_GPU = {"apple": 0.75, "sm_": 0.93, "gfx": 0.8}
_CONTEXT_GIB = 0.37
_CORE_GB_PER_S = 12.0
_PUT = "; put together from parts"
_MEMORY = re.compile(
    r"(?:(?P<modules>\d{1,2})\s*x\s*)?(?P<size>-?[\d.]+\s*[a-z]*)"
    r"(?:\s*@\s*(?:(?:lp)?ddr\dx?-)?(?P<mt>\d+)(?:x(?P<channels>\d+))?"
    r"|[\s,]+(?P<kind>(?:lp)?ddr\dx?)(?:[\s-]+(?P<sold>\d+))?)?"
    r"(?:[\s,]+(?P<ch>\d+)[\s-]*ch(?:annels?)?)?",
    re.IGNORECASE,
)
MEMORY_SHARE = 0.65
"""Of the memory's theory that expert kernels read at on one socket."""
_OLD_CORES = ("zen1", "haswell", "broadwell", "skylake")
_OLD_CORE_SHARE, _OLD_CORE_SPREAD = 0.37, (0.31, 0.54)


@dataclass(frozen=True)
class Memory:
    """Memory of the host in the user's words; 0 for what they do not say."""

    nbytes: int = 0
    mt_per_s: int = 0
    channels: int = 0


def parse_memory(text: str) -> Memory:
    """`64GB`, `64GB@6000` or `64GB@6000x2`: size, transfers (MT/s), channels of 64 bits.

    Also as it is sold and reported: `2x32GB@6000`, `64 GB DDR5-5600 2-ch`. Modules are no channels: four of them
    are two channels in one machine and four in another.

    Raises
    ------
    HardwareError
        Another form, or figures that no memory has.
    """
    found = _MEMORY.fullmatch(text.strip())
    if found is None or (found["kind"] and not found["sold"]):
        raise HardwareError(f"memory {text!r}: expected a size, MT/s and channels, as 64GB@6000x2")
    nbytes = int(found["modules"] or 1) * parse_size(found["size"])
    mt_per_s = int(found["mt"] or found["sold"] or 0)
    channels = int(found["channels"] or found["ch"] or 0)
    if nbytes <= 0:
        raise HardwareError(f"memory {text!r}: expected more than nothing, as 64GB")
    if mt_per_s and not 400 <= mt_per_s <= 20_000:
        raise HardwareError(f"memory {text!r}: {mt_per_s} MT/s, expected 400 to 20,000, as 64GB@6000x2")
    if (found["channels"] or found["ch"]) and not 1 <= channels <= 24:
        raise HardwareError(f"memory {text!r}: {channels} channels, expected 1 to 24, as 64GB@6000x2")
    return Memory(nbytes, mt_per_s, channels)


def parse_link(text: str) -> tuple[str, float]:
    """`4.0x8` (generation and lanes), or a cable (tb4, usb4, oculink): name and GB/s that copies reach.

    Raises
    ------
    HardwareError
        No generation or number of lanes that there is.
    """
    plain = text.lower().replace(" ", "").removeprefix("pcie").removeprefix("gen")
    if plain in _CABLES:
        return plain, _CABLES[plain]
    found = re.fullmatch(r"([1-5])(?:\.0)?x(\d+)", plain)
    if found is None or int(found[2]) not in _LANES:
        raise HardwareError(
            f"link {text!r}: expected generation and lanes, as 4.0x8 (1.0 to 5.0; 1 to 16 lanes), "
            f"or {', '.join(_CABLES)}"
        )
    generation = f"{found[1]}.0"
    return f"{generation} x{found[2]}", _LANE_GB_PER_S[generation] * int(found[2])


def is_machine(text: str) -> bool:
    """Whether a machine from parts is meant: a card by its name in the table, or words after a colon."""
    return ":" in text or text.strip().lower() in (*NO_CARD, *gpus())


def machine(text: str, known: dict[str, Tables]) -> Tables:
    """Tables of a profile (over `_generic`) from `CARD:cpu=...,ram=...,link=...`, and its conditions.

    Parameters
    ----------
    text
        The parts.
    known
        Shipped profiles by name and alias, bases merged in: what they have measured wins.

    Returns
    -------
    dict
        What a profile's file would hold.

    Raises
    ------
    HardwareError
        A part that no table has, words that are no parts.
    """
    name, words = parse_call(text, "machine", HardwareError)
    for word in words:
        check_known(f"machine {name}: part", word, (*PARTS, *CONDITIONS), HardwareError)
    made = _of_parts(text, name, words, known)
    said = {word: words[word] for word in CONDITIONS if word in words}
    if not said:
        return made
    if "numa" in said and "cpu" not in words:
        raise HardwareError(f"machine {text}: numa goes with cpu=2x NAME: a profile's figures hold for one")
    made = changed(made, said, sockets=_sockets(made["cpu"]["name"]))
    texts = [f"{word} {value}" for word, value in said.items()]
    return made | _title("-".join([made["name"], *said.values()]), [made["summary"], *texts])


def _sockets(cpu: str) -> int:
    """Of a processor by its name, `2x Xeon E5-2698 v4`."""
    found = re.match(r"(\d)x ", cpu)
    return int(found[1]) if found else 1


def _of_parts(text: str, name: str, words: dict[str, str], known: dict[str, Tables]) -> Tables:
    """Tables of the machine as its parts are; `text` is the whole of what was asked, for messages."""
    memory = parse_memory(words["ram"]) if "ram" in words else Memory()
    cpu = find_cpu(words["cpu"]) if "cpu" in words else None
    link = words.get("link")
    if name.lower() in NO_CARD:
        if link is not None:
            raise HardwareError(f"machine {text}: without a card there is no link")
        return _without_card(cpu, memory)
    row = None if name in known else the_gpu(name)
    base = known.get(name) or (known.get(row.profile) if row else None)
    if base is None and row is None:
        raise HardwareError(
            unknown(
                "hardware profile or card", name, [*known, *gpus()], listed="residency list hardware, list gpus"
            )
        )
    if row is not None and row.shared and name not in known:
        if link is not None:
            raise HardwareError(f"machine {text}: {row.label} shares the processor's memory, there is no link")
        return _unified(row, cpu, memory)
    own = name in known
    label = (base or {}).get("gpu", {}).get("name") if own or row is None else row.label
    made: Tables = {"gpu": dict(base["gpu"]) if base else _gpu(_required(row))}
    if own and base is not None:
        made |= {part: dict(base[part]) for part in ("link", "cpu", "dram", "ram", "disk") if part in base}
    if link is not None or "link" not in made:
        made["link"] = _link(link, row, base)
    if cpu is not None or "cpu" not in made:
        same = cpu is not None and "cpu" in made and _same_cpu(made["cpu"]["name"], *cpu)
        same &= "numa" not in words  # its own figures are of one placement
        if not same or memory.mt_per_s:
            made |= _host(cpu, memory)
        if not same:
            made.pop("disk", None)  # another machine has another drive
    if memory.nbytes or "ram" not in made:
        made["ram"] = _ram(memory, named=cpu is not None)
    parts = [str(label), made["link"]["pcie"], made["cpu"]["name"], f"{made['ram']['total_gib']['value']:g} GiB"]
    title = f"{row.name if row and not own else name}-{cpu[0].name if cpu else 'parts'}"
    return made | _title(title if words else title.removesuffix("-parts"), parts)


def _required(row: GpuRow | None) -> GpuRow:
    if row is None:
        raise HardwareError("no such card")
    return row


def _title(name: str, parts: list[str]) -> Tables:
    plain = re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.")
    said = ", ".join(part.removesuffix(_PUT) for part in parts)
    return {"name": plain, "summary": said + _PUT}


def _figure(value: float, kind: str, source: str) -> Figure:
    return {"value": round(value, 3), "kind": kind, "source": source}


def share_of(row: GpuRow) -> tuple[float, str, str]:
    """Part of the bandwidth that kernels reach, its kind, and why."""
    if row.share:
        return row.share, "assumed" if "assumed" in row.source else "derived", row.source
    share, why = next((share, why) for arch, share, why in _SHARES if row.arch.startswith(arch))
    return share, "assumed", why


def _compute(row: GpuRow) -> Figure:
    share = next((s for arch, s in _PROMPT_SHARE.items() if row.arch.startswith(arch)), _OTHER_PROMPT_SHARE)
    why = (
        "0.5 to 0.88 on eight NVIDIA cards by their prompts"
        if share != _OTHER_PROMPT_SHARE
        else "no prompt figure"
    )
    return _figure(
        row.fp32_tflops * share, "assumed", f"{share} x {row.fp32_tflops} TFLOP/s of float32 ({row.source}); {why}"
    )


def _rates(row: GpuRow) -> Tables:
    share, kind, why = share_of(row)
    rates = {"default": _figure(row.mem_gb_per_s * share, kind, f"{share} x {row.mem_gb_per_s:g} GB/s: {why}")}
    if row.arch.startswith("sm_6"):
        said = f"{_LOW_BIT_SHARE} x {row.mem_gb_per_s:g} GB/s: below 4 bits unpacking binds, as on a P40"
        rates |= dict.fromkeys(_LOW_BITS, _figure(row.mem_gb_per_s * _LOW_BIT_SHARE, "assumed", said))
    return rates


def launch_of(row: GpuRow) -> Figure:
    """Time of a launch on a card of this architecture."""
    slower, spread = next((s, w) for arch, s, w in _LAUNCHES if row.arch.startswith(arch))
    made = _figure(
        _LAUNCH_US * slower, "derived",
        f"{_LAUNCH_US} us x {slower}: what a block costs on such cards beside its bytes, by published speeds of "
        "llama.cpp (residency validate --group machine)",
    )  # fmt: skip
    return made | {"spread": [round(made["value"] / spread, 2), round(made["value"] * spread, 2)]}


def core_share_of(row: CpuRow) -> Tables:
    """What a core of this design gets through beside a newer one: table `core_share`, empty for newer ones."""
    if row.arch not in _OLD_CORES:
        return {}
    seen = "" if row.arch == "skylake" else f"; {row.arch} as those, no figure of its own"
    made = _figure(
        _OLD_CORE_SHARE, "derived" if row.arch == "skylake" else "assumed",
        "published speeds of llama.cpp on four Skylake-kind processors of 4 to 10 cores "
        f"(residency validate --group llamacpp){seen}",
    )  # fmt: skip
    return {"core_share": made | {"spread": list(_OLD_CORE_SPREAD)}}


def _gpu(row: GpuRow) -> Tables:
    return {
        "launch_us": launch_of(row),
        "name": row.label,
        "compute_capability": row.arch,
        "vram_total_gib": _figure(row.vram_gib, "datasheet", row.source),
        "vram_usable_gib": _figure(
            row.vram_gib - _CONTEXT_GIB, "assumed", "less the driver's context, without a desktop"
        ),
        "mem_gb_per_s": _figure(row.mem_gb_per_s, "datasheet", row.source),
        "compute_tflops": _compute(row),
        "expert_gb_per_s": _rates(row),
        "dense_gb_per_s": _rates(row),
    }


def _link(text: str | None, row: GpuRow | None, base: Tables | None) -> Tables:
    said = text or (row.link if row is not None and row.link else "") or "4.0x16"
    name, rate = parse_link(said)
    if text is not None and row is not None and row.link:
        own, most = parse_link(row.link)
        if most < rate:
            name, rate = own, most
    why = (
        "copies reached 0.8 to 0.9 of the slot's rate: 11.8-13.2, 24-28.4, 50-57 GB/s of x16 in generations 3 to 5"
    )
    if text is None:
        why = f"no link was named: the card's own ({name}), where the slot may have less; {why}"
    if base is not None and base.get("link", {}).get("pcie", "").replace(" ", "") == name.replace(" ", ""):
        return dict(base["link"])
    return {
        "pcie": name,
        "h2d_gb_per_s": _figure(rate, "assumed", why),
        "d2h_gb_per_s": _figure(rate, "assumed", "as host to device"),
        "h2d_pageable_gb_per_s": _figure(
            rate / 1.21, "assumed", "h2d / 1.21, as page-locking gave in ggml-org/llama.cpp#25859"
        ),
    }


def _same_cpu(own: str, row: CpuRow, sockets: int) -> bool:
    """Whether the processor asked for is the one that a profile has figures of."""
    both = [
        re.sub(r"[^a-z0-9]", "", text.lower())
        for text in (own, f"{sockets}x {row.label}" if sockets > 1 else row.label)
    ]
    return both[0] == both[1]


def _host(cpu: tuple[CpuRow, int] | None, memory: Memory) -> Tables:
    """Tables cpu and dram."""
    assumed = cpu is None
    row, sockets = cpu or find_cpu("ryzen-7-5800x")
    label = f"{sockets}x {row.label}" if sockets > 1 else row.label
    channels, speed = memory.channels or row.channels, memory.mt_per_s or row.mt_per_s
    if not channels or not speed:
        raise HardwareError(f"{row.label} has no memory channels of its own: name memory as 64GB@6000x2")
    theory = sockets * channels * 8 * speed / 1000
    known = "memory as given" if memory.mt_per_s else f"the fastest memory of its maker ({row.source})"
    how = f"{sockets * channels} channels x 8 B x {speed:,} MT/s, {known}"
    if assumed:
        label, how = "not named (8 cores, 2 channels)", f"no processor was named: {how}"
    kind = "derived" if memory.mt_per_s and not assumed else "assumed"
    share = 0.35 if sockets > 1 else MEMORY_SHARE
    why = ("35-40 of 110.8 GB/s without placement by NUMA node" if sockets > 1 else
           "expert kernels reached 0.6 to 0.7 of theory on one socket (7950X, 5955WX, 5700X3D)")  # fmt: skip
    rate = min(theory * share, sockets * row.cores * _CORE_GB_PER_S)
    reads = _figure(rate, "assumed", f"{share} x {theory:g} GB/s, at most {_CORE_GB_PER_S:g} a core: {why}")
    cores = sockets * row.cores
    flop = _FLOP_PER_CYCLE[row.simd]
    gflops = cores * row.ghz * flop * 0.3
    arithmetic = f"0.3 x {cores} cores x {row.ghz:g} GHz x {flop} ({row.simd})"
    cached = _figure(rate / 1.79, "assumed", "pinned / 1.79, as arena to warm mmap on a Ryzen 5 7600")
    return {
        "cpu": {
            "name": label,
            "cores": _figure(cores, "assumed" if assumed else "datasheet", row.source),
            "workers": _figure(cores, "assumed", "one a core"),
            **core_share_of(row),
            "gflops": _figure(gflops, "assumed", arithmetic),
            "expert_gb_per_s": {
                "pinned": {"default": reads},
                "pageable": {"default": reads},
                "page_cache": {"default": cached},
            },
        },
        "dram": {
            "stream_gb_per_s": _figure(theory * 0.8, "assumed", f"0.8 x {theory:g} GB/s"),
            "theory_gb_per_s": _figure(theory, kind, how),
        },
    }  # fmt: skip


def _ram(memory: Memory, *, named: bool) -> Tables:
    total = memory.nbytes / GIB if memory.nbytes else 32.0
    source = "as given" if memory.nbytes else "no memory was named"
    kind = "datasheet" if memory.nbytes else "assumed"
    return {
        "total_gib": _figure(total, kind, source),
        "pin_limit_gib": _figure(max(0.0, total - 4.0), "assumed", "total less the reserve, as Linux allows"),
    }


def _unified(row: GpuRow, cpu: tuple[CpuRow, int] | None, memory: Memory) -> Tables:
    """A chip whose card and processor share one memory: what the card may have is VRAM, the rest is the host's.

    Parameters
    ----------
    row, cpu, memory
        The chip, its processor if another is named, memory fitted.

    Returns
    -------
    dict
        Tables of a profile.
    """
    total = memory.nbytes / GIB if memory.nbytes else row.vram_gib
    given = next(share for arch, share in _GIVEN_TO_GPU.items() if row.arch.startswith(arch))
    usable = total * given
    said = "as given" if memory.nbytes else f"the most that is sold ({row.source})"
    own = {"apple": "apple-m", "sm_": "grace-20", "gfx1151": "ryzen-ai-max-395", "gfx1103": "ryzen-7-8745h"}
    processor, sockets = cpu or find_cpu(next(name for arch, name in own.items() if row.arch.startswith(arch)))
    made = _gpu(row)
    made |= {
        "vram_total_gib": _figure(total, "datasheet", f"shared memory, {said}"),
        "vram_usable_gib": _figure(
            usable, "assumed", f"{given} of the shared memory, which the system lets the card have"
        ),
        "vram_reserve_mib": _figure(0, "assumed", "inside what the card may have"),
    }
    host = _host((processor, sockets), Memory(0, round(row.mem_gb_per_s * 1000 / 8), 1))
    host["dram"]["theory_gb_per_s"] = _figure(row.mem_gb_per_s, "datasheet", row.source)
    copy = _figure(row.mem_gb_per_s / 2, "assumed", "a copy inside the memory reads and writes it")
    rest = total - usable
    return {
        "gpu": made,
        "link": {"pcie": "unified", "h2d_gb_per_s": copy, "d2h_gb_per_s": copy, "h2d_pageable_gb_per_s": copy,
                 "copy_t0_us": _figure(2.0, "assumed", "no figure: a copy inside the memory")},
        **host,
        "ram": {
            "total_gib": _figure(rest, "derived", f"what the card leaves of {total:g} GiB"),
            "os_reserve_gib": _figure(min(4.0, rest / 2), "assumed", "of the system, at most half of the rest"),
            "pin_limit_gib": _figure(rest / 2, "assumed", "half of the rest"),
        },
        **_title(row.name, [row.label, f"{total:g} GiB of shared memory", host["cpu"]["name"]]),
    }  # fmt: skip


def _without_card(cpu: tuple[CpuRow, int] | None, memory: Memory) -> Tables:
    """A processor alone: it computes everything, and its memory is what a card's would be."""
    if cpu is None:
        raise HardwareError("a machine without a card needs its processor, as none:cpu=epyc-7763,ram=256GB")
    host = _host(cpu, memory)
    total = memory.nbytes / GIB if memory.nbytes else 32.0
    reserve = min(4.0, total / 4)
    rate = host["cpu"]["expert_gb_per_s"]["pinned"]["default"]
    stream, gflops = host["dram"]["stream_gb_per_s"], host["cpu"]["gflops"]
    free = _figure(0, "assumed", "the processor launches nothing and copies nothing")
    copy = _figure(stream["value"] / 2, "assumed", "a copy inside the memory reads and writes it")
    size = _figure(total, *(("datasheet", "as given") if memory.nbytes else ("assumed", "no memory was named")))
    return {
        "gpu": {
            "name": f"none ({host['cpu']['name']})", "compute_capability": "cpu", "vram_total_gib": size,
            "vram_usable_gib": _figure(total - reserve, "assumed", f"less {reserve:g} GiB of the system"),
            "vram_reserve_mib": _figure(0, "assumed", "inside what is usable"),
            "mem_gb_per_s": host["dram"]["theory_gb_per_s"], "launch_us": free, "sync_us": free,
            "compute_tflops": _figure(gflops["value"] / 1000, "assumed", gflops["source"]),
            "expert_gb_per_s": {"default": rate}, "dense_gb_per_s": {"default": rate},
        },
        "link": {"pcie": "none", "h2d_gb_per_s": copy, "d2h_gb_per_s": copy, "h2d_pageable_gb_per_s": copy,
                 "copy_t0_us": free, "submit_us": free},
        **host,
        "ram": {
            "total_gib": _figure(reserve, "derived", "what is left of the memory beside the model"),
            "os_reserve_gib": _figure(reserve, "assumed", "of the system"),
            "pin_limit_gib": _figure(0, "assumed", "nothing is page-locked"),
        },
        **_title(f"cpu-{cpu[0].name}", [host["cpu"]["name"], f"{total:g} GiB, no card"]),
    }  # fmt: skip
