"""Everything that moves bytes in one run: copy engines, CPU pool, disk, and the servers that they share."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from expert_residency.hwmodels.profile import Disk as DiskProfile
from expert_residency.policies.protocol import NEVER
from expert_residency.sim.timed.channels import (
    ADAPT,
    DEMAND,
    PREFETCH,
    Batch,
    CopyEngine,
    CpuPool,
    Disk,
    SharedNet,
)
from expert_residency.sim.timed.host import DISK, PINNED, Host, HostPlan
from expert_residency.sim.timed.machine import Machine
from expert_residency.sim.timed.page_cache import PageCache
from expert_residency.sim.timed.result import PrefetchStats
from expert_residency.sim.timed.rules import common_ns, copy_ns, disk_part_ns, move_ns
from expert_residency.sim.timed.watch import Watch

DRAM_SERVER, DISK_SERVER = 0, 1


def drive_rates(disk: DiskProfile, access: str) -> tuple[int, int, int]:
    """(lanes, MB/s of one, MB/s of all) of a drive.

    Direct reads keep all lanes busy until the drive saturates. A page fault is served before the thread goes on to
    the next one, so faults are one lane: at the rate of the kernel's read-ahead, or that of bare faults.
    """
    if access == "direct":
        lanes = disk.lanes.count
        return lanes, disk.lane_mb_per_s, min(disk.seq_mb_per_s, lanes * disk.lane_mb_per_s)
    rate = disk.read_ahead_mb_per_s if access == "read-ahead" else disk.mmap_fault_mb_per_s
    return 1, rate, rate


def shared_servers(machine: Machine, drive_mb_per_s: int) -> tuple[list[int], list[int]]:
    """Rates of all servers (DRAM, the drive, root ports), and of each card the server of its port or -1."""
    rates = [machine.host.dram.shared_mb_per_s, drive_mb_per_s]
    ports: dict[str, int] = {}
    port_of = []
    for card in machine.cards:
        port = card.link.root_port
        if port is not None and port not in ports:
            ports[port] = len(rates)
            rates.append(card.link.root_port_mb_per_s)
        port_of.append(-1 if port is None else ports[port])
    return rates, port_of


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
    watch
        Told of every transfer and queue, or None.
    stats
        Accounts of prefetching.
    in_order
        Copies to the card go as they were asked for.
    copy_ns
        Host time to send each copy of a demand out of page-locked memory.
    link_reads
        A copy of an expert on the disk is its read: one transfer of the copy engine, as long as both.
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
        watch: Watch | None,
        stats: PrefetchStats,
        in_order: bool = False,
        link_reads: bool = False,
        copy_ns: int = 0,
    ) -> None:
        self.env = env
        self.sizes = sizes
        self.card_of = card_of
        host = machine.host
        lanes, lane_rate, drive_rate = drive_rates(host.disk, host_plan.access)
        capacities, ports = shared_servers(machine, drive_rate)
        links = [[DRAM_SERVER] if port < 0 else [DRAM_SERVER, port] for port in ports]
        self.net = SharedNet(env, capacities)
        self.h2d = [
            CopyEngine(self.net, servers, card.link.copy_t0_ns, is_stale, f"H2D card {number}", in_order)
            for number, (card, servers) in enumerate(zip(machine.cards, links, strict=True))
        ]
        self.d2h = [
            CopyEngine(self.net, servers, card.link.copy_t0_ns, is_stale, f"D2H card {number}")
            for number, (card, servers) in enumerate(zip(machine.cards, links, strict=True))
        ]
        self.cpu = CpuPool(self.net, (DRAM_SERVER,))
        self.disk = Disk(self.net, DISK_SERVER, lanes, host.disk.latency_ns, lane_rate, host.disk.page_bytes.count)
        self.host = Host(host_plan, sizes, page_cache, self.disk)
        self.link_reads = link_reads
        self.copy_ns = copy_ns
        self.stats = stats
        self.ahead_read = [0] * len(sizes)
        """Bytes of the drive that a prefetched copy of each key asked for, until its account is settled."""
        self.h2d_rate = [(card.link.h2d_mb_per_s, card.link.h2d_pageable_mb_per_s) for card in machine.cards]
        self.d2h_rate = [card.link.d2h_mb_per_s for card in machine.cards]
        self.submit_ns = [card.link.submit_ns for card in machine.cards]
        if watch is not None:
            channels: tuple[CopyEngine | CpuPool | Disk, ...] = (*self.h2d, *self.d2h, self.cpu, self.disk)
            for channel in channels:
                channel.observer = watch.transfer
            for link in self.h2d:
                link.changed = lambda link: watch.queue(link.name, env.now, *link.before())

    def fetch(
        self,
        keys: list[int],
        source: int,
        priority: int,
        deadline: int,
        on_landed: Callable[[Batch, int], None],
    ) -> Batch:
        """Ask for host-to-device copies of experts of one card that all lie at `source`, as one batch.

        An expert on the disk is read first; such batches hold one expert each.

        Parameters
        ----------
        keys
            Experts of one card.
        source
            Where they lie on the host.
        priority
            DEMAND, ADAPT or PREFETCH.
        deadline
            Event after which a prefetch is of no use.
        on_landed
            Called with the batch and a position at each landing, with -1 if it is cancelled.

        Returns
        -------
        Batch
            The batch, queued or waiting for its read.
        """
        batch = self.batch(keys, source, priority, deadline, on_landed)
        self.submit(batch, source)
        return batch

    def batch(
        self,
        keys: list[int],
        source: int,
        priority: int,
        deadline: int,
        on_landed: Callable[[Batch, int], None],
    ) -> Batch:
        """The batch of `fetch`, not yet asked for.

        Parameters
        ----------
        keys
            Experts of one card.
        source
            Where they lie on the host.
        priority
            DEMAND, ADAPT or PREFETCH.
        deadline
            Event after which a prefetch is of no use.
        on_landed
            Called with the batch and a position at each landing, with -1 if it is cancelled.

        Returns
        -------
        Batch
            The batch.
        """
        card = self.card_of[keys[0]]
        rate = self.h2d_rate[card][0 if source == PINNED else 1]
        sizes, floor = self.sizes, self.submit_ns[card]
        nbytes = [sizes[key] for key in keys]
        solo_ns = [copy_ns(n, rate, floor) for n in nbytes]
        host_ns = len(keys) * self.copy_ns if priority == DEMAND and source == PINNED else 0
        return Batch(keys, nbytes, solo_ns, rate, priority, deadline, self.env.now, on_landed, host_ns)

    def submit(self, batch: Batch, source: int) -> None:
        """Queue a batch whose experts lie at `source`."""
        engine = self.h2d[self.card_of[batch.keys[0]]]
        key = batch.keys[0]
        if source == DISK and self.link_reads:
            batch.read_ns = self.host.read_by_link(key)
            batch.leave = partial(self.host.unread_by_link, key)
            self._asked_ahead(batch, self.host.link_read_bytes(key))
            engine.submit(batch)
        elif source == DISK:
            self._read_first(batch, engine)
        else:
            engine.submit(batch)

    def _read_first(self, batch: Batch, engine: CopyEngine) -> None:
        """Queue a batch when the drive has read its expert."""
        key = batch.keys[0]

        def ready() -> None:
            batch.leave = batch.urge = None
            batch.begun_bytes = asked
            engine.submit(batch)

        asked = self.read(key, ready, batch.priority)
        batch.leave = partial(self.host.leave, key, ready, asked)
        batch.urge = partial(self.host.urge, key)
        self._asked_ahead(batch, asked)
        if batch.priority == PREFETCH:
            engine.reading.append(batch)

    def _asked_ahead(self, batch: Batch, nbytes: int) -> None:
        if batch.priority == PREFETCH and nbytes:
            self.stats.ask_drive(nbytes)
            self.ahead_read[batch.keys[0]] = nbytes

    def read(self, key: int, on_ready: Callable[[], None], priority: int) -> int:
        """`Host.read`; a demand or swap that joins the read of a prefetch has found it late.

        Parameters
        ----------
        key
            The expert.
        on_ready
            Called when it is there.
        priority
            DEMAND, ADAPT or PREFETCH.

        Returns
        -------
        int
            Bytes that this asks of the drive.
        """
        if priority != PREFETCH and not self.stats.pages and self.ahead_read[key] and self.host.is_reading(key):
            self.stats.late_read(self.settled(key))
        return self.host.read(key, on_ready, priority)

    def settled(self, key: int) -> int:
        """Bytes that the drive was asked for ahead for `key`; their account is closed."""
        nbytes = self.ahead_read[key]
        self.ahead_read[key] = 0
        return nbytes

    def copy_back(self, keys: list[int], on_landed: Callable[[Batch, int], None]) -> None:
        """Copy residents of one card to the host, one after the other."""
        card = self.card_of[keys[0]]
        rate, floor = self.d2h_rate[card], self.submit_ns[card]
        nbytes = [self.sizes[key] for key in keys]
        solo_ns = [copy_ns(n, rate, floor) for n in nbytes]
        self.d2h[card].submit(Batch(keys, nbytes, solo_ns, rate, ADAPT, NEVER, self.env.now, on_landed))

    def move(self, nbytes: int, on_done: Callable[[], None]) -> None:
        """Move bytes within host memory: each is read and written, at the rate of the memory."""
        rate = self.net.capacity[DRAM_SERVER]

        def done() -> int:
            on_done()
            return 0

        self.net.start(move_ns(nbytes, rate), rate, (DRAM_SERVER,), done)

    def wait(self, batch: Batch, at: int) -> Generator[Any, Any, tuple[int, int]]:
        """Wait until copy `at` of a batch has landed; returns (ns waited for its disk read, for the link).

        If the link reads the file, the link's part is the copy itself, and all before it is the drive's.
        """
        began = self.env.now
        while batch.landed <= at:
            yield self.net.wake
        waited = self.env.now - began
        read_ns = batch.read_ns
        disk_ns = disk_part_ns(waited, batch.submitted - began, read_ns, batch.solo_ns[0])
        return disk_ns, waited - disk_ns

    def wait_cpu(self) -> Generator[Any, Any, tuple[int, int]]:
        """Wait for the CPU pool; returns (ns in which it waited for the disk, ns in which it worked)."""
        began = self.env.now
        while not self.cpu.idle:
            yield self.net.wake
        now = self.env.now
        disk_ns = sum(common_ns(start, end, began, now) for start, end in self.cpu.waits)
        return disk_ns, now - began - disk_ns
