"""The host side of one run: answers where an expert is and reads what is not in memory."""

from __future__ import annotations

from collections.abc import Callable

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
        self._reading: dict[int, list[Callable[[], None]]] = {}

    def source(self, key: int) -> int:
        """Tier of `key` now; a use as far as the page cache is concerned."""
        tier = self.source_of[key]
        if tier != PAGE_CACHE:
            return tier
        assert self.cache is not None
        if key in self._reading:
            return DISK
        return PAGE_CACHE if self.cache.touch(self._page + key) else DISK

    def read(self, key: int, on_ready: Callable[[], None]) -> None:
        """Bring `key` into memory; a read already under way is joined."""
        waiting = self._reading.get(key)
        if waiting is not None:
            waiting.append(on_ready)
            return
        self._reading[key] = [on_ready]
        slices = self.plan.slices
        left = [slices]
        nbytes = page_bytes_of(self.sizes[key], slices, self.disk.page_bytes)

        def landed(read: Read) -> None:
            left[0] -= 1
            if not left[0]:
                self._landed(read.key)

        for _ in range(slices):
            self.disk.submit(Read(key, nbytes, landed))

    def read_by_link(self, key: int) -> int:
        """The copy engine reads `key` itself: ns that this adds to the copy. Who asks later stands behind it."""
        assert self.cache is not None
        self.cache.insert(self._page + key, self.sizes[key])
        return self.disk.book(page_bytes_of(self.sizes[key], 1, self.disk.page_bytes))

    def warm(self, key: int) -> bool:
        """Ask for pages of `key` ahead of need, as a look-ahead does; False if nothing is to be read."""
        if self.source_of[key] != PAGE_CACHE or key in self._reading:
            return False
        assert self.cache is not None
        if self._page + key in self.cache:
            return False
        self.read(key, _nothing)
        return True

    def exchange(self, newcomer: int, victim: int) -> None:
        """The victim takes the newcomer's place in RAM; a newcomer from the file leaves it none but the file."""
        self.source_of[victim] = self.source_of[newcomer]

    def _landed(self, key: int) -> None:
        if self.cache is not None:
            self.cache.insert(self._page + key, self.sizes[key])
        for ready in self._reading.pop(key):
            ready()


def _nothing() -> None:
    """Nobody waits for a page that was asked for ahead."""
