"""Cards and host as the planner sees them: whole numbers out of hardware profiles, for one quantization family."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from expert_residency.errors import SimError
from expert_residency.hwmodels.profile import Gpu, HardwareProfile
from expert_residency.sim.timed import attention, rules


@dataclass(frozen=True)
class Card:
    """One card and its link. Rates in MB/s, times in ns; equal cards compare equal.

    Parameters
    ----------
    name
        Of the profile.
    usable_bytes, reserve_bytes
        What the driver gives, and what of it stays free.
    dense_mb_per_s, expert_mb_per_s
        Effective rates of the quantization family.
    flop_per_ns, launch_ns, sync_ns
        Arithmetic, one kernel launch, router ids to the host.
    h2d_mb_per_s, h2d_pageable_mb_per_s, d2h_mb_per_s, copy_t0_ns, submit_ns
        Copies.
    handoff_ns, handoff_mb_per_s
        Activations to the next card through mapped host memory.
    p2p_ns, p2p_mb_per_s
        The same peer to peer; a rate of 0: the profile has none.
    root_port, root_port_mb_per_s
        Port that cards of the same name share; empty: its own.
    attention_mb_per_s
        Rate of KV cells.
    kernel_ns
        A kernel of a captured graph, at least.
    gpu
        The card in its profile.
    """

    name: str
    usable_bytes: int
    reserve_bytes: int
    dense_mb_per_s: int
    expert_mb_per_s: int
    flop_per_ns: int
    launch_ns: int
    sync_ns: int
    h2d_mb_per_s: int
    h2d_pageable_mb_per_s: int
    d2h_mb_per_s: int
    copy_t0_ns: int
    submit_ns: int
    handoff_ns: int
    handoff_mb_per_s: int
    p2p_ns: int = 0
    p2p_mb_per_s: int = 0
    root_port: str = ""
    root_port_mb_per_s: int = 0
    attention_mb_per_s: int = 1
    kernel_ns: int = 0
    gpu: Gpu | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, profile: HardwareProfile, family: str) -> Card:
        """Card of a profile for one quantization family."""
        gpu, link = profile.gpu, profile.link
        p2p = link.p2p_gb_per_s is not None and link.p2p_us is not None
        card = cls(
            name=profile.name,
            usable_bytes=gpu.vram_usable_bytes,
            reserve_bytes=gpu.vram_reserve_bytes,
            dense_mb_per_s=gpu.dense_gb_per_s.mb_per_s(family),
            expert_mb_per_s=gpu.expert_gb_per_s.mb_per_s(family),
            flop_per_ns=gpu.compute_flop_per_ns,
            launch_ns=gpu.launch_ns,
            sync_ns=gpu.sync_ns,
            h2d_mb_per_s=link.h2d_mb_per_s,
            h2d_pageable_mb_per_s=link.h2d_pageable_mb_per_s,
            d2h_mb_per_s=link.d2h_mb_per_s,
            copy_t0_ns=link.copy_t0_ns,
            submit_ns=link.submit_ns,
            handoff_ns=link.handoff_ns,
            handoff_mb_per_s=link.handoff_mb_per_s,
            p2p_ns=link.p2p_ns if p2p else 0,
            p2p_mb_per_s=link.p2p_mb_per_s if p2p else 0,
            attention_mb_per_s=gpu.dense_gb_per_s.mb_per_s(attention.FAMILY),
            kernel_ns=gpu.kernel_ns,
            gpu=gpu,
        )
        if link.root_port is None:
            return card
        port = link.root_port_mb_per_s
        # Alone on its port, a card still gets no more than the port gives.
        return replace(
            card,
            root_port=link.root_port,
            root_port_mb_per_s=port,
            h2d_mb_per_s=min(card.h2d_mb_per_s, port),
            h2d_pageable_mb_per_s=min(card.h2d_pageable_mb_per_s, port),
            d2h_mb_per_s=min(card.d2h_mb_per_s, port),
        )


@dataclass(frozen=True)
class HostSide:
    """What the cards share. Rates in MB/s, sizes in bytes.

    Parameters
    ----------
    name
        Of the profile.
    ram_bytes, pin_limit_bytes
        Memory fitted, and how much may be page-locked.
    arena_mb_per_s, pageable_mb_per_s, complement_mb_per_s, page_cache_mb_per_s
        The CPU pool reading experts that are page-locked, pageable, in a page-locked complement, cached pages.
    cpu_flop_per_ns, dispatch_ns
        Arithmetic of the pool (0: unknown), and posting an event.
    dram_mb_per_s
        The server that CPU reads and all copies share.
    disk_mb_per_s, disk_latency_ns
        Of the drive by the kernel's read-ahead, as the timed engine reads mapped files.
    """

    name: str
    ram_bytes: int
    pin_limit_bytes: int
    arena_mb_per_s: int
    pageable_mb_per_s: int
    complement_mb_per_s: int
    page_cache_mb_per_s: int
    cpu_flop_per_ns: int
    dispatch_ns: int
    dram_mb_per_s: int
    disk_mb_per_s: int
    disk_latency_ns: int

    @classmethod
    def of(cls, profile: HardwareProfile, family: str, ram_bytes: int | None = None) -> HostSide:
        """Host of a profile; `ram_bytes` replaces the memory that is fitted.

        What the profile cannot page-lock of its own memory, it cannot of another amount either.

        Parameters
        ----------
        profile
            Whose processor, memory and drive they are.
        family
            Quantization family of the experts.
        ram_bytes
            Memory that is fitted; the profile's own if None.

        Returns
        -------
        HostSide
            Whole bytes and MB/s.
        """
        cpu, disk, ram = profile.cpu, profile.disk, profile.ram
        total = ram.total_bytes if ram_bytes is None else ram_bytes
        return cls(
            name=profile.name,
            ram_bytes=total,
            pin_limit_bytes=max(0, min(ram.pin_limit_bytes, total - ram.total_bytes + ram.pin_limit_bytes)),
            arena_mb_per_s=cpu.expert_mb_per_s("pinned", family),
            pageable_mb_per_s=cpu.expert_mb_per_s("pageable", family),
            complement_mb_per_s=cpu.expert_mb_per_s("budget", family),
            page_cache_mb_per_s=cpu.expert_mb_per_s("page_cache", family),
            cpu_flop_per_ns=round(cpu.arithmetic.value),
            dispatch_ns=cpu.dispatch_ns,
            dram_mb_per_s=profile.dram.shared_mb_per_s,
            disk_mb_per_s=disk.read_ahead_mb_per_s,
            disk_latency_ns=disk.latency_ns,
        )


def together_mb_per_s(cards: tuple[Card, ...], host: HostSide) -> int:
    """Rate at which all cards take copies at once: links add up, root ports and host memory limit them."""
    ports: dict[str, int] = {}
    free = 0
    for card in cards:
        if card.root_port:
            ports[card.root_port] = ports.get(card.root_port, 0) + card.h2d_mb_per_s
        else:
            free += card.h2d_mb_per_s
    limits = {card.root_port: card.root_port_mb_per_s for card in cards if card.root_port}
    return min(host.dram_mb_per_s, free + sum(min(rate, limits[port]) for port, rate in ports.items()))


def handoff_ns(before: Card, after: Card, nbytes: int, *, p2p: bool) -> int:
    """Time to hand `nbytes` from one card to the next, at the slower of the two links.

    Parameters
    ----------
    before, after
        Cards of two stages that follow each other.
    nbytes
        Activations of all rows.
    p2p
        Peer to peer, not through host memory.

    Returns
    -------
    int
        Ns.

    Raises
    ------
    SimError
        If peer to peer is asked for and a card's profile has no figure for it.
    """
    if not p2p:
        return max(rules.handoff_ns(nbytes, card.handoff_ns, card.handoff_mb_per_s) for card in (before, after))
    for card in (before, after):
        if not card.p2p_mb_per_s:
            raise SimError(f"the profile {card.name} has no p2p_gb_per_s, so it cannot hand over peer to peer")
    return max(rules.handoff_ns(nbytes, card.p2p_ns, card.p2p_mb_per_s) for card in (before, after))
