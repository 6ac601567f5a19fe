"""Everything that moves bytes in one run: copy engines, CPU pool, disk, and the servers that they share."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from sim.channels import Copy, CopyEngine, CpuPool, Disk, SharedNet
from sim.channels.copy_engine import DONE
from sim.host import DISK, PINNED, Host, HostPlan
from sim.machine import Machine
from sim.page_cache import PageCache
from sim.timeline import Timeline

DRAM_SERVER, DISK_SERVER = 0, 1


class Transfers:
    """Channels of a machine.

    Parameters
    ----------
    env, machine
        The clock, and the machine whose channels are built.
    sizes
        Bytes of each key.
    card_of
        Card of each key.
    host_plan, page_cache
        Where experts lie on the host.
    is_stale
        Whether a queued prefetch with this deadline may be dropped.
    timeline
        Receives a slice for every transfer, or None.
    """

    def __init__(
        self,
        env: Any,
        machine: Machine,
        sizes: list[int],
        card_of: list[int],
        host_plan: HostPlan,
        page_cache: PageCache | None,
        is_stale: Callable[[int], bool],
        timeline: Timeline | None,
    ) -> None:
        self.env = env
        self.sizes = sizes
        self.card_of = card_of
        host = machine.host
        lanes = host.disk.lanes.count
        capacities = [host.dram.shared_mb_per_s, min(host.disk.seq_mb_per_s, lanes * host.disk.lane_mb_per_s)]
        ports: dict[str, int] = {}
        links = []
        for card in machine.cards:
            servers = [DRAM_SERVER]
            port = card.link.root_port
            if port is not None:
                if port not in ports:
                    ports[port] = len(capacities)
                    capacities.append(card.link.root_port_mb_per_s)
                servers.append(ports[port])
            links.append(servers)
        self.net = SharedNet(env, capacities)
        self.h2d = [
            CopyEngine(self.net, servers, card.link.copy_t0_ns, is_stale, f"H2D card {number}")
            for number, (card, servers) in enumerate(zip(machine.cards, links, strict=True))
        ]
        self.d2h = [
            CopyEngine(self.net, servers, card.link.copy_t0_ns, is_stale, f"D2H card {number}")
            for number, (card, servers) in enumerate(zip(machine.cards, links, strict=True))
        ]
        self.cpu = CpuPool(self.net, (DRAM_SERVER,))
        self.disk = Disk(self.net, DISK_SERVER, lanes, host.disk.latency_ns, host.disk.lane_mb_per_s)
        self.host = Host(host_plan, sizes, page_cache, self.disk)
        self.h2d_rate = [(card.link.h2d_mb_per_s, card.link.h2d_pageable_mb_per_s) for card in machine.cards]
        self.submit_ns = [card.link.submit_ns for card in machine.cards]
        self._waiting_for: Copy | None = None
        self._wake: Any = None
        self._cpu_wake: Any = None
        if timeline is not None:
            channels: tuple[CopyEngine | CpuPool | Disk, ...] = (*self.h2d, *self.d2h, self.cpu, self.disk)
            for channel in channels:
                channel.observer = timeline.transfer

    def fetch(
        self, key: int, source: int, priority: int, deadline: int, keep: bool, on_end: Callable[[Copy], None]
    ) -> Copy:
        """Ask for a host-to-device copy of `key` that lies at `source`; from the disk it is read first."""
        card = self.card_of[key]
        nbytes = self.sizes[key]
        rate = self.h2d_rate[card][0 if source == PINNED else 1]
        solo_ns = max(-(-nbytes * 1000 // rate), self.submit_ns[card])
        copy = Copy(key, nbytes, solo_ns, rate, priority, on_end, deadline, self.env.now, keep)
        if source == DISK:
            self.host.read(key, lambda: self.h2d[card].submit(copy))
        else:
            self.h2d[card].submit(copy)
        return copy

    def ended(self, copy: Copy) -> None:
        """A copy landed or was cancelled: wake up whoever waits for it."""
        if copy is self._waiting_for:
            self._waiting_for = None
            self._wake.succeed()

    def wait(self, copy: Copy) -> Generator[Any, Any, tuple[int, int]]:
        """Wait until `copy` has landed; returns (ns waited for its disk read, ns waited for the link)."""
        if copy.state == DONE:
            return 0, 0
        began = self.env.now
        self._waiting_for = copy
        self._wake = self.env.event()
        yield self._wake
        waited = self.env.now - began
        disk_ns = min(max(copy.submitted - began, 0), waited)
        return disk_ns, waited - disk_ns

    def cpu_ended(self) -> None:
        """The CPU pool has done its event."""
        if self._cpu_wake is not None:
            wake, self._cpu_wake = self._cpu_wake, None
            wake.succeed()

    def wait_cpu(self) -> Generator[Any, Any, tuple[int, int]]:
        """Wait for the CPU pool; returns (ns in which it waited for the disk, ns in which it worked)."""
        if self.cpu.idle:
            return 0, 0
        began = self.env.now
        self._cpu_wake = self.env.event()
        yield self._cpu_wake
        now = self.env.now
        disk_ns = sum(max(0, min(b, now) - max(a, began)) for a, b in self.cpu.waits)
        return disk_ns, now - began - disk_ns
