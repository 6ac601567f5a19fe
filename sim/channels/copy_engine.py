"""One direction of a card's host link: a queue of copies, one in service.

FIFO within priority classes demand > adapt > prefetch; not preemptive. The set-up time is paid only by a copy
that finds the engine idle, since queued copies hide theirs; a copy never takes less than its submission costs
the host. A queued prefetch that becomes a demand is promoted; one whose deadline has passed is cancelled
when its turn comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from sim.channels.shared import SharedNet

DEMAND, ADAPT, PREFETCH = 0, 1, 2
CLASSES = ("demand", "adapt", "prefetch")
WAITING, QUEUED, COPYING, DONE, CANCELLED = 0, 1, 2, 3, 4
"""States of a copy; one that is WAITING has not been submitted, since its bytes come from the disk first."""


class Copy:
    """A copy asked for."""

    __slots__ = (
        "asked", "began", "deadline", "keep", "key", "mb_per_s", "nbytes", "on_end", "priority", "solo_ns",
        "state", "submitted",
    )  # fmt: skip

    def __init__(
        self,
        key: int,
        nbytes: int,
        solo_ns: int,
        mb_per_s: int,
        priority: int,
        on_end: Callable[[Copy], None],
        deadline: int,
        asked: int,
        keep: bool,
    ) -> None:
        self.key = key
        self.nbytes = nbytes
        self.solo_ns = solo_ns
        self.mb_per_s = mb_per_s
        self.priority = priority
        self.on_end = on_end
        self.deadline = deadline
        self.asked = asked
        """When the engine wanted it; bytes on the disk are submitted later."""
        self.keep = keep
        """Whether it fills a slot (else a staging buffer)."""
        self.state = WAITING
        self.submitted = -1
        self.began = -1


class CopyEngine:
    """Serves copies one after the other.

    Parameters
    ----------
    net, servers
        Where the copies' bytes pass (DRAM, perhaps a root port).
    set_up_ns
        Paid by a copy that finds the engine idle.
    is_stale
        Tells from a copy's deadline whether it may be dropped instead of started.
    name
        Track name for timelines.
    """

    def __init__(
        self,
        net: SharedNet,
        servers: Sequence[int],
        set_up_ns: int,
        is_stale: Callable[[int], bool],
        name: str,
    ) -> None:
        self.net = net
        self.servers = servers
        self.set_up_ns = set_up_ns
        self.is_stale = is_stale
        self.name = name
        self.queues: tuple[deque[Copy], ...] = (deque(), deque(), deque())
        self.current: Copy | None = None
        self.nbytes = [0, 0, 0]
        """Bytes moved, by class."""
        self.busy_ns = 0
        self.observer: Callable[[str, Copy, int, int], None] | None = None

    def submit(self, copy: Copy) -> None:
        """Queue a copy; it starts at once if the engine is idle."""
        copy.submitted = self.net.env.now
        if copy.state == CANCELLED:
            return
        if self.current is None:
            if copy.priority == PREFETCH and self.is_stale(copy.deadline):
                copy.state = CANCELLED
                copy.on_end(copy)
                return
            self._begin(copy, self.set_up_ns)
        else:
            copy.state = QUEUED
            self.queues[copy.priority].append(copy)

    def promote(self, copy: Copy, priority: int) -> None:
        """Move a queued copy to the end of a more urgent class; one in service is left alone."""
        if priority >= copy.priority:
            return
        if copy.state == QUEUED:
            self.queues[copy.priority].remove(copy)
            self.queues[priority].append(copy)
        if copy.state in (WAITING, QUEUED):
            copy.priority = priority

    def cancel(self, copy: Copy) -> bool:
        """Drop a copy that has not begun; False if it has. `on_end` is called for it."""
        if copy.state not in (WAITING, QUEUED):
            return False
        if copy.state == QUEUED:
            self.queues[copy.priority].remove(copy)
        copy.state = CANCELLED
        copy.on_end(copy)
        return True

    def drain(self) -> list[Copy]:
        """Copies still queued."""
        return [copy for queue in self.queues for copy in queue]

    def _begin(self, copy: Copy, set_up_ns: int) -> None:
        self.current = copy
        copy.state = COPYING
        copy.began = self.net.env.now
        self.net.start(copy.solo_ns + set_up_ns, copy.mb_per_s, self.servers, self._ended)

    def _ended(self) -> None:
        copy = self.current
        assert copy is not None
        now = self.net.env.now
        copy.state = DONE
        self.nbytes[copy.priority] += copy.nbytes
        self.busy_ns += now - copy.began
        if self.observer is not None:
            self.observer(self.name, copy, copy.began, now)
        self.current = None
        following = self._next()
        if following is not None:
            self._begin(following, 0)
        copy.on_end(copy)

    def _next(self) -> Copy | None:
        for queue in self.queues:
            while queue:
                copy = queue.popleft()
                if copy.priority == PREFETCH and self.is_stale(copy.deadline):
                    copy.state = CANCELLED
                    copy.on_end(copy)
                    continue
                return copy
        return None
