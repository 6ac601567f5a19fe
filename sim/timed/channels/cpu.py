"""The CPU pool: experts of an event one after the other, each with its rows over all workers.

The bytes of an expert are read once however many rows want it. Work comes in *segments*; a segment waits until
its bytes are in memory (a disk read, say), then reads at the pool's rate for its source through the DRAM server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from expert_residency.sim.timed.channels.shared import SharedNet


class Segment:
    """Part of an event's work: bytes of one source; `fault` asks for those that are read only when needed.

    `fixed_ns` is paid once before; then the pool reads at `mb_per_s`, less than the rate of the source if
    arithmetic takes longer than reading. `keys` are its experts.
    """

    __slots__ = ("fault", "fixed_ns", "keys", "label", "mb_per_s", "nbytes", "ready", "solo_ns")

    def __init__(
        self,
        nbytes: int,
        solo_ns: int,
        mb_per_s: int,
        ready: bool = True,
        label: str = "",
        keys: Sequence[int] = (),
    ) -> None:
        self.fault: Callable[[], object] | None = None
        self.fixed_ns = 0
        self.nbytes = nbytes
        self.solo_ns = solo_ns
        self.mb_per_s = mb_per_s
        self.ready = ready
        self.label = label
        self.keys = keys


class CpuPool:
    """One event's work at a time.

    Parameters
    ----------
    net, servers
        Where the bytes pass.
    """

    def __init__(self, net: SharedNet, servers: Sequence[int]) -> None:
        self.net = net
        self.servers = servers
        self.nbytes = 0
        self.busy_ns = 0
        self.waits: list[tuple[int, int]] = []
        """Intervals of the current event in which the pool waited for bytes from the disk."""
        self.observer: Callable[[str, Segment, int, int], None] | None = None
        self._segments: list[Segment] = []
        self._at = 0
        self._began = 0
        self._waiting_since = -1
        self.idle = True
        """Whether no work is in hand."""

    def run(self, segments: list[Segment]) -> None:
        """Work through `segments` in order; the pool must be idle."""
        assert self.idle
        self._segments = segments
        self._at = 0
        self.idle = False
        self.waits = []
        self._advance()

    def arrived(self, segment: Segment) -> None:
        """The bytes of `segment` are in memory now."""
        segment.ready = True
        if self._waiting_since >= 0 and self._segments[self._at] is segment:
            self.waits.append((self._waiting_since, self.net.env.now))
            self._waiting_since = -1
            self._advance()

    def _advance(self) -> None:
        if self._at == len(self._segments):
            self.idle = True
            return
        segment = self._segments[self._at]
        if segment.ready:
            self._began = self.net.env.now
            self.net.start(segment.solo_ns, segment.mb_per_s, self.servers, self._segment_done, segment.fixed_ns)
        else:
            self._waiting_since = self.net.env.now
            if segment.fault is not None:
                segment.fault()

    def _segment_done(self) -> int:
        segment = self._segments[self._at]
        now = self.net.env.now
        self.nbytes += segment.nbytes
        self.busy_ns += now - self._began
        if self.observer is not None:
            self.observer("CPU pool", segment, self._began, now)
        self._at += 1
        self._advance()
        return 0
