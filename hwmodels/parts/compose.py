"""A machine's profile put together from parts, each number with its kind and what it rests on."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.parts.conditions import CONDITIONS, changed
from expert_residency.hwmodels.parts.rows import CpuRow, GpuRow, find_cpu, gpus, the_gpu
from expert_residency.hwmodels.parts.rules import CODEBOOKS, OLD_CORES, Rules, architecture_of
from expert_residency.hwmodels.units import GIB, parse_size
from expert_residency.text import check_known, parse_call, unknown

PARTS = ("cpu", "ram", "link", "workers", "os")
SYSTEMS = ("linux", "windows", "wsl2")
Figure = dict[str, Any]
Tables = dict[str, Any]

NO_CARD = ("none", "cpu", "cpu-only")
_LANE_GB_PER_S = {"1.0": 0.2, "2.0": 0.4, "3.0": 0.78, "4.0": 1.65, "5.0": 3.35}
"""Read on slots of 16 lanes: 11.8-13.2, 24-28.4 and 50-57 GB/s of generations 3 to 5; older ones as the third."""
_CABLES = {"tb3": 2.6, "tb4": 2.6, "usb4": 2.9, "tb5": 5.5, "oculink": 6.5}
_LANES = (1, 2, 4, 8, 16)
_LLAMA_7B_GB, _LLAMA_7B_BLOCKS, _LAUNCHES_A_BLOCK, _MOST_SHARE = 3.83, 32, 10, 0.9
"""Behind shares by 7B Q4_0: the file, its blocks, a block's launches, which those shares contain; no kernel
that was measured reads faster."""
_LOW_BIT_SHARE = 0.26
"""Of Pascal: below 4 bits unpacking binds, not memory (91-95 of 346 GB/s on a P40)."""
_NO_DP4A, _EMULATED_SHARE = "sm_60", 0.35
"""Compute capability without the integer dot product (CUDA C++ guide: DP4A from 6.1 on); half of copies'."""
_LOW_BITS = ("iq1", "iq2", "iq3", "q2", "q3")
_PROMPT_SHARE = {"sm_": 0.65}
_OTHER_PROMPT_SHARE = 0.4
_FLOP_PER_CYCLE = {"avx2": 32, "avx512": 64, "amx": 64, "neon": 32}
_GIVEN_TO_GPU = {"apple": 0.75, "sm_": 0.93, "gfx": 0.8}
_CONTEXT_GIB = 0.37
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
_OLD_CORE_SHARE, _OLD_CORE_SPREAD = 0.37, (0.295, 0.586)
_SYNC_US = 15.0
"""As `_generic` has it."""
SHIPPED = Rules()


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


def machine(text: str, known: dict[str, Tables], rules: Rules = SHIPPED) -> Tables:
    """Tables of a profile (over `_generic`) from `CARD:cpu=...,ram=...,link=...`, and its conditions.

    Parameters
    ----------
    text
        The parts.
    known
        Shipped profiles by name and alias, bases merged in: what they have measured wins.
    rules
        What data sheets become.

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
    made = _of_parts(text, name, words, known, rules)
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


def _of_parts(text: str, name: str, words: dict[str, str], known: dict[str, Tables], rules: Rules) -> Tables:
    """Tables of the machine as its parts are.

    Parameters
    ----------
    text
        The whole of what was asked, for messages.
    name, words
        Card and parts.
    known, rules
        As `machine` takes them.

    Returns
    -------
    dict
        What a profile's file would hold.

    Raises
    ------
    HardwareError
        A part that no table has.
    """
    memory = parse_memory(words["ram"]) if "ram" in words else Memory()
    cpu = find_cpu(words["cpu"]) if "cpu" in words else None
    link = words.get("link")
    workers = _whole(words["workers"]) if "workers" in words else 0
    system = words.get("os", SYSTEMS[0])
    check_known(f"machine {name}: os", system, SYSTEMS, HardwareError)
    if name.lower() in NO_CARD:
        if link is not None:
            raise HardwareError(f"machine {text}: without a card there is no link")
        return _without_card(cpu, memory, workers, rules)
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
        return _unified(row, cpu, memory, workers, rules)
    own = name in known
    label = (base or {}).get("gpu", {}).get("name") if own or row is None else row.label
    made: Tables = {"gpu": dict(base["gpu"]) if base else _gpu(_required(row), rules)}
    if own and base is not None:
        made |= {part: dict(base[part]) for part in ("link", "cpu", "dram", "ram", "disk") if part in base}
    if link is not None or "link" not in made:
        made["link"] = _link(link, row, base, rules)
    if cpu is not None or "cpu" not in made or workers:
        same = cpu is not None and "cpu" in made and _same_cpu(made["cpu"]["name"], *cpu)
        same &= "numa" not in words  # its own figures are of one placement
        if not same or memory.mt_per_s or workers:
            made |= _host(cpu, memory, workers, rules)
        if not same:
            made.pop("disk", None)  # another machine has another drive
    if memory.nbytes or "ram" not in made:
        made["ram"] = _ram(memory, named=cpu is not None)
    if system == "wsl2":
        made["gpu"]["sync_us"] = _virtual(made["gpu"].get("sync_us"), rules)
    parts = [str(label), made["link"]["pcie"], made["cpu"]["name"], f"{made['ram']['total_gib']['value']:g} GiB"]
    title = f"{row.name if row and not own else name}-{cpu[0].name if cpu else 'parts'}"
    return made | _title(title if words else title.removesuffix("-parts"), parts)


def _whole(text: str) -> int:
    """A number of threads.

    Raises
    ------
    HardwareError
        It is none.
    """
    if not re.fullmatch(r"[1-9]\d{0,3}", text):
        raise HardwareError(f"workers {text!r}: expected a whole number from 1 to 9999")
    return int(text)


def _virtual(own: Figure | None, rules: Rules) -> Figure:
    """What a notice from card to host takes in a guest of WSL2."""
    added = rules["wsl2 us"]
    why = f"{added:.0f} us (rule wsl2 us) beside the {_SYNC_US if own is None else own['value']:g} of a host"
    return _figure(added + (_SYNC_US if own is None else own["value"]), "assumed", why)


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


def share_of(row: GpuRow, rules: Rules = SHIPPED) -> tuple[float, str, str]:
    """Part of the bandwidth that kernels reach, launches apart, its kind, and why."""
    if row.arch == _NO_DP4A:
        return _EMULATED_SHARE, "assumed", "the card has no DP4A, which quantized kernels then emulate"
    if not row.share:
        group = architecture_of(row.arch)
        why = f"rules card share and card share {group}, by measured speeds (residency validate --group machine)"
        return rules.card_share(row.arch), "assumed", why
    ms = _LLAMA_7B_GB / (row.share * row.mem_gb_per_s) * 1000
    launches = _LLAMA_7B_BLOCKS * _LAUNCHES_A_BLOCK * rules.launch_us(row.arch) / 1000
    share = min(_MOST_SHARE, row.share * ms / (ms - launches))
    return share, "derived", f"{row.source}, {launches:.1f} ms of launches taken off"


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


def _rates(row: GpuRow, rules: Rules, *, experts: bool = False) -> Tables:
    share, kind, why = share_of(row, rules)
    share *= rules["card experts"] if experts else 1.0
    said = f"{share:.2f} x {row.mem_gb_per_s:g} GB/s: {why}"
    rates = {"default": _figure(row.mem_gb_per_s * share, kind, said)}
    if row.arch.startswith("sm_6"):
        said = f"{_LOW_BIT_SHARE} x {row.mem_gb_per_s:g} GB/s: below 4 bits unpacking binds, as on a P40"
        rates |= dict.fromkeys(_LOW_BITS, _figure(row.mem_gb_per_s * _LOW_BIT_SHARE, "assumed", said))
    return rates


def launch_of(row: GpuRow, rules: Rules = SHIPPED) -> Figure:
    """Time of a launch on a card of this architecture."""
    group = architecture_of(row.arch)
    made = _figure(
        rules.launch_us(row.arch), "derived",
        f"rules launch us and launch {group}: what a block costs on such cards beside its bytes, by measured "
        "speeds (residency validate --group machine)",
    )  # fmt: skip
    spread = math.exp(rules.spread_of(f"launch {group}"))
    return made | {"spread": [round(made["value"] / spread, 2), round(made["value"] * spread, 2)]}


def core_share_of(row: CpuRow) -> Tables:
    """What a core of this design gets through beside a newer one: table `core_share`, empty for newer ones."""
    if row.arch not in OLD_CORES:
        return {}
    seen = "" if row.arch == "skylake" else f"; {row.arch} as those, no figure of its own"
    made = _figure(
        _OLD_CORE_SHARE, "derived" if row.arch == "skylake" else "assumed",
        "published speeds of llama.cpp on four Skylake-kind processors of 4 to 10 cores "
        f"(residency validate --group llamacpp){seen}",
    )  # fmt: skip
    return {"core_share": made | {"spread": list(_OLD_CORE_SPREAD)}}


def _gpu(row: GpuRow, rules: Rules) -> Tables:
    return {
        "launch_us": launch_of(row, rules),
        "kernel_us": launch_of(row, rules),
        "name": row.label,
        "compute_capability": row.arch,
        "vram_total_gib": _figure(row.vram_gib, "datasheet", row.source),
        "vram_usable_gib": _figure(
            row.vram_gib - _CONTEXT_GIB, "assumed", "less the driver's context, without a desktop"
        ),
        "mem_gb_per_s": _figure(row.mem_gb_per_s, "datasheet", row.source),
        "compute_tflops": _compute(row),
        "expert_gb_per_s": _rates(row, rules, experts=True),
        "dense_gb_per_s": _rates(row, rules),
    }


def _link(text: str | None, row: GpuRow | None, base: Tables | None, rules: Rules) -> Tables:
    said = text or (row.link if row is not None and row.link else "") or "4.0x16"
    name, rate = parse_link(said)
    if text is not None and row is not None and row.link:
        own, most = parse_link(row.link)
        if most < rate:
            name, rate = own, most
    rate *= rules["link share"]
    why = (
        f"{rules['link share']:.2f} of what a probe reaches, as queued copies of 1 to 3 MB; probes "
        "reached 0.8 to 0.9 of the slot's rate: 11.8-13.2, 24-28.4, 50-57 GB/s of x16 in generations 3 to 5"
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


def _host(cpu: tuple[CpuRow, int] | None, memory: Memory, workers: int, rules: Rules) -> Tables:
    """Tables cpu and dram.

    Parameters
    ----------
    cpu
        Processor and how many; None: not named.
    memory
        As given.
    workers
        Threads of the pool; 0: one a core.
    rules
        What data sheets become.

    Returns
    -------
    dict
        Two tables of a profile.
    """
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
    cores = sockets * row.cores
    flop = _FLOP_PER_CYCLE[row.simd]
    gflops = cores * row.ghz * flop * 0.3
    arithmetic = f"0.3 x {cores} cores x {row.ghz:g} GHz x {flop} ({row.simd})"

    count = workers or cores
    busy = rules.busy(count, cores)

    old = row.arch in OLD_CORES

    def pool(source: str, *, codebook: bool) -> Figure:
        rate = rules.pool_gb_per_s(theory, busy, row.simd, sockets, codebook=codebook, old=old)
        beside = f"{rules[source]:.2f} ({source}) of " if source else ""
        of = " of weights that are looked up" if codebook else ""
        said = (
            f"{beside}what {theory:g} GB/s of memory and {count} workers on {cores} cores ({row.simd}) give "
            f"together{of}, by measured speeds (rules memory share, core GB/s)"
        )
        return _figure(rate * (rules[source] if source else 1.0), "assumed", said)

    def rates(source: str = "") -> Tables:
        looked_up = dict.fromkeys(CODEBOOKS, pool(source, codebook=True))
        return {"default": pool(source, codebook=False)} | looked_up

    most = 2 * cores  # threads that share cores, or efficiency cores
    points = sorted({1, *(max(1, cores * n // 8) for n in range(1, 9)), most, count})
    by_workers = {n: rules.pool_gb_per_s(theory, rules.busy(n, cores), row.simd, sockets, old=old) for n in points}
    scale = {n: _figure(rate, "assumed", "the same rules by workers") for n, rate in by_workers.items()}
    return {
        "cpu": {
            "name": label,
            "cores": _figure(cores, "assumed" if assumed else "datasheet", row.source),
            "workers": _figure(count, "assumed", "as given" if workers else "one a core"),
            **core_share_of(row),
            "gflops": _figure(gflops, "assumed", arithmetic),
            "expert_gb_per_s": {
                "pinned": rates(),
                "pageable": rates(),
                "page_cache": rates("mapped"),
                "budget": rates("complement"),
            },
            "expert_gb_per_s_by_workers": scale,
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


def _unified(row: GpuRow, cpu: tuple[CpuRow, int] | None, memory: Memory, workers: int, rules: Rules) -> Tables:
    """A chip whose card and processor share one memory: what the card may have is VRAM, the rest is the host's.

    Parameters
    ----------
    row, cpu, memory, workers, rules
        The chip, its processor if another is named, memory fitted, threads (0: one a core), the rules.

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
    made = _gpu(row, rules)
    made |= {
        "vram_total_gib": _figure(total, "datasheet", f"shared memory, {said}"),
        "vram_usable_gib": _figure(
            usable, "assumed", f"{given} of the shared memory, which the system lets the card have"
        ),
        "vram_reserve_mib": _figure(0, "assumed", "inside what the card may have"),
    }
    host = _host((processor, sockets), Memory(0, round(row.mem_gb_per_s * 1000 / 8), 1), workers, rules)
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


def _without_card(cpu: tuple[CpuRow, int] | None, memory: Memory, workers: int, rules: Rules) -> Tables:
    """A processor alone: it computes everything, and its memory is what a card's would be.

    Parameters
    ----------
    cpu, memory, workers, rules
        As `_host` takes them.

    Returns
    -------
    dict
        Tables of a profile.

    Raises
    ------
    HardwareError
        No processor.
    """
    if cpu is None:
        raise HardwareError("a machine without a card needs its processor, as none:cpu=epyc-7763,ram=256GB")
    host = _host(cpu, memory, workers, rules)
    total = memory.nbytes / GIB if memory.nbytes else 32.0
    reserve = min(4.0, total / 4)
    rates = host["cpu"]["expert_gb_per_s"]["pinned"]
    stream, gflops = host["dram"]["stream_gb_per_s"], host["cpu"]["gflops"]
    free = _figure(0, "assumed", "the processor launches nothing and copies nothing")
    copy = _figure(stream["value"] / 2, "assumed", "a copy inside the memory reads and writes it")
    size = _figure(total, *(("datasheet", "as given") if memory.nbytes else ("assumed", "no memory was named")))
    return {
        "gpu": {
            "name": f"none ({host['cpu']['name']})", "compute_capability": "cpu", "vram_total_gib": size,
            "vram_usable_gib": _figure(total - reserve, "assumed", f"less {reserve:g} GiB of the system"),
            "vram_reserve_mib": _figure(0, "assumed", "inside what is usable"),
            "mem_gb_per_s": host["dram"]["theory_gb_per_s"], "launch_us": free, "kernel_us": free, "sync_us": free,
            "compute_tflops": _figure(gflops["value"] / 1000, "assumed", gflops["source"]),
            "expert_gb_per_s": rates, "dense_gb_per_s": rates,
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
