"""The drive: queues in front of some lanes that share its rate.

A read costs one latency and then its bytes at a lane's rate, slowed while the lanes that move bytes ask for more
than the drive gives. Reads go demand > adapt > prefetch and first come, first served within a class, as copies do
on the link; a lane is not preempted. One that becomes more urgent is promoted, and what has not begun of one that
nobody wants any more can be withdrawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from expert_residency.sim.timed.channels.copy_engine import DEMAND, PREFETCH
from expert_residency.sim.timed.channels.shared import SharedNet
from expert_residency.sim.timed.rules import bytes_ns, read_ns


class Read:
    """A read asked for, in slices of one size.

    Parameters
    ----------
    key, nbytes
        The expert, and bytes of one slice.
    on_end
        Called with the read at the end of each slice.
    slices, priority
        How many slices, and the class.
    """

    __slots__ = ("flying", "key", "nbytes", "on_end", "priority", "queued", "submitted")

    def __init__(
        self, key: int, nbytes: int, on_end: Callable[[Read], None], slices: int = 1, priority: int = DEMAND
    ) -> None:
        self.key = key
        self.nbytes = nbytes
        self.on_end = on_end
        self.queued = slices
        """Slices that have not begun."""
        self.flying = 0
        """Slices under way."""
        self.priority = priority
        self.submitted = 0


class Disk:
    """Lanes of one drive.

    Parameters
    ----------
    net, server
        The drive's own server in the shared net.
    lanes
        Slices in flight at most.
    latency_ns, lane_mb_per_s
        Of one slice.
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
        self.queues: tuple[deque[Read], ...] = (deque(), deque(), deque())
        self.active = 0
        self.nbytes = 0
        self.reads = 0
        self.blocked_ns = 0
        """Time in which demands stood behind slices of prefetches."""
        self.blocking_bytes = 0
        """Of those slices."""
        self._blocked_since = -1
        self._ahead = 0
        """Slices of prefetches under way."""
        self.observer: Callable[[str, Read, int, int], None] | None = None

    def submit(self, read: Read) -> None:
        """Queue a read; slices start at once while lanes are free."""
        read.submitted = self.net.env.now
        self.queues[read.priority].append(read)
        self._fill_lanes()
        self._note_blocked()

    def promote(self, read: Read, priority: int) -> None:
        """Move what has not begun of a read to the end of a more urgent class."""
        if priority >= read.priority:
            return
        if read.queued:
            self.queues[read.priority].remove(read)
            self.queues[priority].append(read)
        if read.priority == PREFETCH:
            self._ahead -= read.flying
        read.priority = priority
        self._note_blocked()

    def withdraw(self, read: Read) -> int:
        """Take the slices that have not begun out of the queue; returns how many."""
        slices = read.queued
        if slices:
            self.queues[read.priority].remove(read)
            read.queued = 0
        return slices

    def alone_ns(self, nbytes: int) -> int:
        """Time of a read that has the drive to itself."""
        return read_ns(nbytes, self.latency_ns, self.lane_mb_per_s)

    def book(self, nbytes: int) -> int:
        """Count a read that another channel carries out, and say how long the drive takes for it."""
        self.nbytes += nbytes
        self.reads += 1
        return self.alone_ns(nbytes)

    def unbook(self, nbytes: int) -> None:
        """Such a read was not carried out."""
        self.nbytes -= nbytes
        self.reads -= 1

    def _note_blocked(self) -> None:
        if self._blocked_since < 0 and self._ahead and self.queues[DEMAND]:
            self._blocked_since = self.net.env.now

    def _fill_lanes(self) -> None:
        for queue in self.queues:
            while queue and self.active < self.lanes:
                read = queue[0]
                read.queued -= 1
                if not read.queued:
                    queue.popleft()
                self._begin(read)

    def _begin(self, read: Read) -> None:
        self.active += 1
        read.flying += 1
        if read.priority == PREFETCH:
            self._ahead += 1
        began = self.net.env.now
        solo_ns = bytes_ns(read.nbytes, self.lane_mb_per_s)
        self.net.start(
            solo_ns, self.lane_mb_per_s, self.servers, lambda: self._ended(read, began), self.latency_ns
        )

    def _ended(self, read: Read, began: int) -> int:
        now = self.net.env.now
        self.active -= 1
        read.flying -= 1
        self.nbytes += read.nbytes
        self.reads += 1
        if self._blocked_since >= 0:
            if read.priority == PREFETCH:
                self.blocked_ns += now - self._blocked_since
                self.blocking_bytes += read.nbytes
            self._blocked_since = -1
        if read.priority == PREFETCH:
            self._ahead -= 1
        if self.observer is not None:
            self.observer("disk", read, began, now)
        self._fill_lanes()
        self._note_blocked()
        read.on_end(read)
        return 0
