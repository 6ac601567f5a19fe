"""The host side of one run: answers where an expert is and reads what is not in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from expert_residency.sim.timed.channels.copy_engine import PREFETCH
from expert_residency.sim.timed.channels.disk import Disk, Read
from expert_residency.sim.timed.host.plan import DISK, PAGE_CACHE, HostPlan
from expert_residency.sim.timed.page_cache import PageCache
from expert_residency.sim.timed.rules import page_bytes_of


class Host:
    """Experts on the host during one run.

    Parameters
    ----------
    plan, sizes
        Tiers and bytes of the experts.
    cache
        Page cache over the files, or None where none is used.
    disk
        The drive.
    """

    def __init__(self, plan: HostPlan, sizes: list[int], cache: PageCache | None, disk: Disk) -> None:
        self.plan = plan
        self.sizes = sizes
        self.cache = cache
        self.disk = disk
        self.source_of = list(plan.source_of)
        self._page = plan.file * len(sizes)
        """Page-cache key of expert 0: files have keys of their own."""
        self._reading: dict[int, _Reading] = {}

    def source(self, key: int) -> int:
        """Tier of `key` now; a use as far as the page cache is concerned."""
        tier = self.source_of[key]
        if tier != PAGE_CACHE:
            return tier
        assert self.cache is not None
        if key in self._reading:
            return DISK
        return PAGE_CACHE if self.cache.touch(self._page + key) else DISK

    def is_reading(self, key: int) -> bool:
        """Whether a read of `key` is under way."""
        return key in self._reading

    def read(self, key: int, on_ready: Callable[[], None], priority: int) -> int:
        """Bring `key` into memory; a read already under way is joined, and made as urgent.

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
            Bytes that this asks of the drive: 0 if a read is joined.
        """
        reading = self._reading.get(key)
        if reading is None:
            nbytes = page_bytes_of(self.sizes[key], self.plan.slices, self.disk.page_bytes)
            read = Read(key, nbytes, self._slice_ended, self.plan.slices, priority)
            self._reading[key] = _Reading(read, [on_ready], self.plan.slices)
            self.disk.submit(read)
            return self.plan.slices * nbytes
        reading.waiting.append(on_ready)
        if not reading.missing:
            self.disk.promote(reading.read, priority)
            return 0
        read, slices = reading.read, reading.missing  # it was given up: the rest of it is asked for again
        reading.missing = 0
        self.disk.promote(read, priority)
        read.queued = slices
        self.disk.submit(read)
        return slices * read.nbytes

    def urge(self, key: int, priority: int) -> None:
        """Somebody waits for the read of `key`."""
        if key in self._reading:
            self.disk.promote(self._reading[key].read, priority)

    def leave(self, key: int, on_ready: Callable[[], None], asked_bytes: int) -> int:
        """Wait for `key` no more; what has not begun of a read that nobody waits for is taken back.

        Parameters
        ----------
        key
            The expert.
        on_ready
            As it was given.
        asked_bytes
            That it asked of the drive.

        Returns
        -------
        int
            Of these, bytes that have begun.
        """
        reading = self._reading[key]
        reading.waiting.remove(on_ready)
        if reading.waiting:
            return asked_bytes
        reading.missing = self.disk.withdraw(reading.read)
        if reading.missing and not reading.read.flying:
            del self._reading[key]
        return max(0, asked_bytes - reading.missing * reading.read.nbytes)

    def read_by_link(self, key: int) -> int:
        """The copy engine reads `key` itself: ns that this adds to the copy. Who asks later stands behind it."""
        assert self.cache is not None
        self.cache.insert(self._page + key, self.sizes[key])
        return self.disk.book(self.link_read_bytes(key))

    def link_read_bytes(self, key: int) -> int:
        """Bytes of such a read."""
        return page_bytes_of(self.sizes[key], 1, self.disk.page_bytes)

    def unread_by_link(self, key: int) -> int:
        """The copy was dropped before its read: 0, the bytes that have begun."""
        assert self.cache is not None
        self.cache.forget(self._page + key)
        self.disk.unbook(self.link_read_bytes(key))
        return 0

    def warm(self, key: int) -> int:
        """Ask for pages of `key` ahead of need, as a look-ahead does; bytes to be read, 0 if there are none."""
        if self.source_of[key] != PAGE_CACHE or key in self._reading:
            return 0
        assert self.cache is not None
        if self._page + key in self.cache:
            return 0
        return self.read(key, _nothing, PREFETCH)

    def exchange(self, newcomer: int, victim: int) -> None:
        """The victim takes the newcomer's place in RAM; a newcomer from the file leaves it none but the file."""
        self.source_of[victim] = self.source_of[newcomer]

    def _slice_ended(self, read: Read) -> None:
        key = read.key
        reading = self._reading[key]
        reading.left -= 1
        if reading.missing:
            if not read.flying:
                del self._reading[key]  # given up: a part of an expert is of no use
            return
        if reading.left:
            return
        if self.cache is not None:
            self.cache.insert(self._page + key, self.sizes[key])
        for ready in self._reading.pop(key).waiting:
            ready()


@dataclass
class _Reading:
    """A read under way: who waits for it, slices that have not landed, and those that were taken back."""

    read: Read
    waiting: list[Callable[[], None]]
    left: int
    missing: int = 0


def _nothing() -> None:
    """Nobody waits for a page that was asked for ahead."""
