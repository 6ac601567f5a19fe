"""Cliffs: sizes beyond which an engine falls off, named before the run.

`vram`: experts beyond what VRAM leaves over-commit the card. `floor`: a global LRU smaller than a token's look-ups
hits nothing. `memory`: a mapped file of which memory does not hold what no card holds is read from the drive again
and again, and dense weights in the same memory are evicted by expert traffic. `workers`: more workers than the
memory feeds gain nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from expert_residency.hwmodels.units import GIB
from expert_residency.sim.studies.advise.task import CORE_GB_PER_S, Ask


@dataclass(frozen=True)
class Cliff:
    """One of them: its word, where it begins (bytes, or workers), and a sentence."""

    kind: str
    at: float
    text: str


def cliffs(ask: Ask, room: int | None) -> list[Cliff]:
    """Cliffs of an engine, a model and a machine.

    Parameters
    ----------
    ask
        What is asked.
    room
        Bytes that VRAM leaves for experts; None of an engine that places whole layers.

    Returns
    -------
    list of Cliff
        Those that are within reach.
    """
    return [*_vram(ask, room), *_floor(ask, room), *_memory(ask, room), *_workers(ask)]


def _vram(ask: Ask, room: int | None) -> Iterator[Cliff]:
    whole = ask.traces[0].geometry.all_expert_bytes
    if room is not None and room < whole:
        yield Cliff(
            "vram", room,
            f"VRAM: more than {room / GIB:.2f} GiB of experts beside weights, a context of {ask.context:,} tokens "
            "and the reserve over-commits the card, which then reads over the link",
        )  # fmt: skip


def _floor(ask: Ask, room: int | None) -> Iterator[Cliff]:
    if room is None or ask.preset.policy.get("eviction", "lru") != "lru" or not ask.preset.fill:
        return
    floor = ask.traces[0].geometry.lru_floor_bytes()
    if ask.preset.policy.get("scope", "global") == "global" and floor < ask.traces[0].geometry.all_expert_bytes:
        held = "" if room >= floor else f": the {room / GIB:.2f} GiB that are left are below it"
        yield Cliff("floor", floor, f"cache: below {floor / GIB:.2f} GiB a global LRU hits nothing{held}")


def _memory(ask: Ask, room: int | None) -> Iterator[Cliff]:
    geometry, profile = ask.traces[0].geometry, ask.profiles[0]
    outside = geometry.all_expert_bytes - (room or 0)
    if room is None:
        cards = sum(one.gpu.vram_usable_bytes for one in ask.profiles)
        outside = max(0, geometry.all_expert_bytes - cards)
    have = profile.ram.total_bytes - profile.ram.os_reserve_bytes
    if outside > have:
        yield Cliff(
            "memory", outside,
            f"memory: {outside / GIB:.1f} GiB of experts lie on no card and {have / GIB:.1f} GiB of memory can "
            f"hold them: below {(outside + profile.ram.os_reserve_bytes) / GIB:.0f} GiB the page cache evicts "
            "experts, and dense weights of a mapped file with them, and they are read from the drive again",
        )  # fmt: skip


def _workers(ask: Ask) -> Iterator[Cliff]:
    if ask.preset.miss not in ("cpu", "hybrid"):
        return
    cpu, family = ask.profiles[0].cpu, ask.traces[0].geometry.quant_family
    own = ask.preset.cpu_core_gb_per_s
    core = cpu.most_gb_per_s(own.value) / cpu.cores.count if own else CORE_GB_PER_S
    rate = min(cpu.expert_mb_per_s("pinned", family), ask.profiles[0].dram.shared_mb_per_s) / 1000
    n = math.ceil(rate / core)
    if n < (cpu.cores.count if own else cpu.workers.count):
        how = "gain nothing" if own else "gain less and less, and a pool of all threads disturbs the host thread"
        yield Cliff("workers", n, f"workers: beyond {n} the memory's {rate:.0f} GB/s bind, and more {how}")
