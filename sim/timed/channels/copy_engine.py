"""One direction of a card's host link: a queue of copies, one in service.

FIFO within priority classes demand > adapt > prefetch, not preemptive. Copies that one decision asks for come as
a *batch*, which is served copy by copy: between two of them a more urgent batch goes first. The set-up time is
paid only by a copy that finds the engine idle, since queued copies hide theirs. A queued prefetch that becomes
a demand is promoted; one whose deadline has passed is cancelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from expert_residency.sim.timed.channels.shared import SharedNet
from expert_residency.sim.timed.rules import bytes_ns, own_rate

DEMAND, ADAPT, PREFETCH = 0, 1, 2
CLASSES = ("demand", "adapt", "prefetch")
WAITING, QUEUED, COPYING, DONE, CANCELLED = 0, 1, 2, 3, 4
"""States of a batch; one that is WAITING has not been submitted, since its bytes come from the disk first."""


class Batch:
    """Copies asked for together, in order.

    Parameters
    ----------
    keys, nbytes, solo_ns
        One entry a copy; `solo_ns` is its time alone on the link.
    mb_per_s
        Rate of all of them.
    priority, deadline
        Class; event after which a prefetch is of no use.
    asked
        When the engine wanted them (ns); bytes on the disk are submitted later.
    on_landed
        Called with the batch and a position at each landing, and with -1 if the batch is cancelled.
    host_ns
        Host time to send the batch; an idle engine waits for it.
    """

    __slots__ = (
        "asked", "began", "begun_bytes", "deadline", "host_ns", "keys", "landed", "leave", "mb_per_s", "nbytes",
        "on_landed", "priority", "read_ns", "solo_ns", "state", "submitted", "urge",
    )  # fmt: skip

    def __init__(
        self,
        keys: list[int],
        nbytes: list[int],
        solo_ns: list[int],
        mb_per_s: int,
        priority: int,
        deadline: int,
        asked: int,
        on_landed: Callable[[Batch, int], None],
        host_ns: int = 0,
    ) -> None:
        self.keys = keys
        self.nbytes = nbytes
        self.solo_ns = solo_ns
        self.mb_per_s = mb_per_s
        self.priority = priority
        self.deadline = deadline
        self.asked = asked
        self.on_landed = on_landed
        self.host_ns = host_ns
        self.landed = 0
        """Copies that have landed: the first so many."""
        self.state = WAITING
        self.submitted = -1
        self.began = -1
        """When the copy in service began."""
        self.read_ns = 0
        """Time of a read from the drive that the link carries out before the first copy."""
        self.begun_bytes = 0
        """What the drive has read for it."""
        self.leave: Callable[[], int] | None = None
        """Gives up the read that it waits for; returns bytes of it that have begun."""
        self.urge: Callable[[int], None] | None = None
        """Makes the read that it waits for more urgent."""

    @property
    def flow_mb_per_s(self) -> int:
        """What the next copy asks of the servers."""
        at = self.landed
        return own_rate(
            self.nbytes[at], self.solo_ns[at], bytes_ns(self.nbytes[at], self.mb_per_s), self.mb_per_s
        )  # fmt: skip

    def so_far(self) -> int:
        """Bytes that the drive has begun to read for a batch that is given up."""
        return self.begun_bytes if self.leave is None else self.leave()

    @property
    def before_ns(self) -> int:
        """What comes before the next copy on the link."""
        return 0 if self.landed else self.read_ns


class CopyEngine:
    """Serves copies one after the other.

    Parameters
    ----------
    net, servers
        Where the bytes pass (DRAM, perhaps a root port).
    set_up_ns
        Paid by a copy that finds the engine idle.
    is_stale
        Tells from a deadline whether a prefetch may be dropped instead of started.
    name
        Track name for timelines.
    in_order
        Copies go as they were asked for, whatever their class, and are never taken back: what a queue on the
        card does.
    """

    def __init__(
        self,
        net: SharedNet,
        servers: Sequence[int],
        set_up_ns: int,
        is_stale: Callable[[int], bool],
        name: str,
        in_order: bool = False,
    ) -> None:
        self.net = net
        self.in_order = in_order
        self.servers = servers
        self.set_up_ns = set_up_ns
        self.is_stale = is_stale
        self.name = name
        self.queues: tuple[deque[Batch], ...] = (deque(), deque(), deque())
        self.reading: list[Batch] = []
        """Prefetches whose bytes come from the drive first."""
        self.current: Batch | None = None
        self._flow_mb_per_s = 0
        """Of the copy in service."""
        self.nbytes = [0, 0, 0]
        """Bytes landed, by class."""
        self.blocked_ns = 0
        """Time in which demands stood behind a prefetch in service that nobody waited for."""
        self.blocking_bytes = 0
        """Of those prefetches."""
        self._blocked_since = -1
        self._awaited = False
        """Whether somebody waits for the prefetch in service."""
        self.observer: Callable[[str, Batch, int, int], None] | None = None
        self.changed: Callable[[CopyEngine], None] | None = None
        """Called when copies come, go or change their class."""

    def before(self) -> tuple[list[int], int]:
        """Copies of each class that are queued or in service, and their bytes."""
        counts, nbytes = [0, 0, 0], 0
        for batch in (*((self.current,) if self.current else ()), *(b for queue in self.queues for b in queue)):
            counts[batch.priority] += len(batch.keys) - batch.landed
            nbytes += sum(batch.nbytes[batch.landed :])
        return counts, nbytes

    def ahead_of(self, batch: Batch) -> list[tuple[int, int]]:
        """(class, key) of the copy in service and of those that go before a batch, in order."""
        found: list[tuple[int, int]] = []
        if batch is self.current:
            return found
        if self.current is not None:
            found.append((self.current.priority, self.current.keys[self.current.landed]))
        for queue in self.queues:
            for other in queue:
                if other is batch:
                    return found
                found += [(other.priority, key) for key in other.keys[other.landed :]]
        return found[:1]  # it is not queued yet: its bytes are being read

    def submit(self, batch: Batch) -> None:
        """Queue a batch; it starts at once if the engine is idle."""
        batch.submitted = self.net.env.now
        if batch.state == CANCELLED:
            return
        if batch in self.reading:
            self.reading.remove(batch)
        batch.state = QUEUED
        self._enqueue(batch)
        if self.current is None:
            following = self._next()
            if following is not None:
                self._begin(following, self.set_up_ns + following.host_ns)
        self._tell()

    def promote(self, batch: Batch, priority: int) -> None:
        """Move a batch that is not in service to the end of a more urgent class."""
        if batch is self.current:
            self._awaited = True
        if batch.state == WAITING and batch.urge is not None:
            batch.urge(priority)
        if self.in_order or priority >= batch.priority or batch.state not in (WAITING, QUEUED):
            return
        queued = batch.state == QUEUED
        if queued:
            self.queues[batch.priority].remove(batch)
        elif batch in self.reading:
            self.reading.remove(batch)
        batch.priority = priority
        if queued:
            self._enqueue(batch)
            self._tell()

    def cancel(self, batch: Batch) -> bool:
        """Drop a batch of which nothing has begun; False if something has."""
        if self.in_order or batch.state not in (WAITING, QUEUED) or batch.landed:
            return False
        if batch.state == QUEUED:
            self.queues[batch.priority].remove(batch)
        elif batch in self.reading:
            self.reading.remove(batch)
        self._drop(batch)
        return True

    def drop_stale(self) -> None:
        """Cancel the prefetches, queued or being read, whose deadline has passed."""
        for batch in [batch for batch in (*self.queues[PREFETCH], *self.reading) if self.is_stale(batch.deadline)]:
            self.cancel(batch)

    def _drop(self, batch: Batch) -> None:
        batch.state = CANCELLED
        batch.begun_bytes = batch.so_far()
        batch.on_landed(batch, -1)
        self._tell()

    def _tell(self) -> None:
        if self.changed is not None:
            self.changed(self)

    def _enqueue(self, batch: Batch) -> None:
        self.queues[DEMAND if self.in_order else batch.priority].append(batch)
        if batch.priority == DEMAND and self._blocked_since < 0:
            current = self.current
            if current is not None and current.priority == PREFETCH:
                self._blocked_since = self.net.env.now

    def _begin(self, batch: Batch, set_up_ns: int) -> None:
        self.current = batch
        batch.state = COPYING
        batch.began = self.net.env.now
        self._flow_mb_per_s = batch.flow_mb_per_s
        fixed_ns = set_up_ns + batch.before_ns
        self.net.start(batch.solo_ns[batch.landed], self._flow_mb_per_s, self.servers, self._ended, fixed_ns)

    def _ended(self) -> int:
        batch = self.current
        assert batch is not None
        now = self.net.env.now
        at = batch.landed
        batch.landed = at + 1
        self.nbytes[batch.priority] += batch.nbytes[at]
        if self.observer is not None:
            self.observer(self.name, batch, batch.began, now)
        self._tell()
        if self._blocked_since >= 0:
            if not self._awaited:
                self.blocked_ns += now - self._blocked_since
                self.blocking_bytes += batch.nbytes[at]
            self._blocked_since = -1
        self._awaited = False
        more = batch.landed < len(batch.keys)
        if not more:
            batch.state = DONE
        batch.on_landed(batch, at)
        following: Batch | None = batch
        if not more or self._more_urgent(batch.priority):
            if more:
                batch.state = QUEUED
                self.queues[batch.priority].appendleft(batch)
            following = self._next()
        self.current = None
        if following is None:
            return 0
        if following.flow_mb_per_s == self._flow_mb_per_s and not following.before_ns:
            self.current = following
            following.state = COPYING
            following.began = now
            return following.solo_ns[following.landed]
        self._begin(following, 0)
        return 0

    def _more_urgent(self, priority: int) -> bool:
        """Whether a batch of a class before `priority` is queued."""
        if self.in_order:
            return False
        return priority > DEMAND and bool(self.queues[DEMAND] or (priority > ADAPT and self.queues[ADAPT]))

    def _next(self) -> Batch | None:
        for queue in self.queues:
            while queue:
                batch = queue.popleft()
                droppable = batch.priority == PREFETCH and not batch.landed and not self.in_order
                if droppable and self.is_stale(batch.deadline):
                    self._drop(batch)
                    continue
                return batch
        return None
