"""The drive: a queue in front of some lanes that share its rate.

A read costs one latency and then its bytes at a lane's rate, slowed when all lanes together ask for more than
the drive gives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from expert_residency.sim.timed.channels.shared import SharedNet
from expert_residency.sim.timed.rules import read_ns


class Read:
    """A read asked for."""

    __slots__ = ("began", "key", "nbytes", "on_end", "submitted")

    def __init__(self, key: int, nbytes: int, on_end: Callable[[Read], None]) -> None:
        self.key = key
        self.nbytes = nbytes
        self.on_end = on_end
        self.submitted = 0
        self.began = 0


class Disk:
    """Lanes of one drive.

    Parameters
    ----------
    net, server
        The drive's own server in the shared net.
    lanes
        Reads in flight at most.
    latency_ns, lane_mb_per_s
        Of one read.
    page_bytes
        Reads are whole pages.
    """

    def __init__(
        self, net: SharedNet, server: int, lanes: int, latency_ns: int, lane_mb_per_s: int, page_bytes: int = 4096
    ) -> None:
        self.net = net
        self.servers = (server,)
        self.lanes = lanes
        self.latency_ns = latency_ns
        self.lane_mb_per_s = lane_mb_per_s
        self.page_bytes = page_bytes
        self.queue: deque[Read] = deque()
        self.active = 0
        self.nbytes = 0
        self.reads = 0
        self.observer: Callable[[str, Read, int, int], None] | None = None

    def submit(self, read: Read) -> None:
        """Queue a read; it starts at once if a lane is free."""
        read.submitted = self.net.env.now
        if self.active < self.lanes:
            self._begin(read)
        else:
            self.queue.append(read)

    def alone_ns(self, nbytes: int) -> int:
        """Time of a read that has the drive to itself."""
        return read_ns(nbytes, self.latency_ns, self.lane_mb_per_s)

    def book(self, nbytes: int) -> int:
        """Count a read that another channel carries out, and say how long the drive takes for it."""
        self.nbytes += nbytes
        self.reads += 1
        return self.alone_ns(nbytes)

    def _begin(self, read: Read) -> None:
        self.active += 1
        read.began = self.net.env.now
        self.net.start(self.alone_ns(read.nbytes), self.lane_mb_per_s, self.servers, lambda: self._ended(read))

    def _ended(self, read: Read) -> int:
        self.active -= 1
        self.nbytes += read.nbytes
        self.reads += 1
        if self.observer is not None:
            self.observer("disk", read, read.began, self.net.env.now)
        if self.queue:
            self._begin(self.queue.popleft())
        read.on_end(read)
        return 0
