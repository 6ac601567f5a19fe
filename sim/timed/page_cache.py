"""The kernel's page cache over the expert file, in whole experts counted in pages.

Two lists, as in Linux: what is read first goes to *inactive*; a second use moves it to *active*; room is made
from the old end of inactive; active may hold at most two thirds, beyond that its oldest go back to inactive. A
single scan of a file larger than the cache thus does not wash out what is used again and again. Simplified: an
expert comes and goes whole, there are no refault distances, and nothing else uses the cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

ACTIVE_SHARE = (2, 3)


class PageCache:
    """Which experts of the file are in memory.

    Parameters
    ----------
    capacity_bytes
        Memory left for the cache.
    page_bytes
        An expert takes whole pages.
    """

    def __init__(self, capacity_bytes: int, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.capacity = max(0, capacity_bytes) // page_bytes
        self.active: OrderedDict[int, int] = OrderedDict()
        self.inactive: OrderedDict[int, int] = OrderedDict()
        self.active_pages = 0
        self.inactive_pages = 0

    def __contains__(self, key: int) -> bool:
        return key in self.active or key in self.inactive

    @property
    def pages(self) -> int:
        """Pages in use."""
        return self.active_pages + self.inactive_pages

    def touch(self, key: int) -> bool:
        """Use of `key`: True if its pages are in memory."""
        if key in self.active:
            self.active.move_to_end(key)
            return True
        pages = self.inactive.pop(key, None)
        if pages is None:
            return False
        self.inactive_pages -= pages
        self.active[key] = pages
        self.active_pages += pages
        self._balance()
        return True

    def insert(self, key: int, nbytes: int) -> None:
        """`key` was read from the drive; the oldest make room."""
        pages = -(-nbytes // self.page_bytes)
        if key in self or pages > self.capacity:
            return
        while self.pages + pages > self.capacity:
            if self.inactive:
                _, freed = self.inactive.popitem(last=False)
                self.inactive_pages -= freed
            else:
                _, freed = self.active.popitem(last=False)
                self.active_pages -= freed
        self.inactive[key] = pages
        self.inactive_pages += pages

    def forget(self, key: int) -> None:
        """`key` was not read after all."""
        self.inactive_pages -= self.inactive.pop(key, 0)
        self.active_pages -= self.active.pop(key, 0)

    def resize(self, capacity_bytes: int) -> None:
        """Memory was taken from the cache or given back (page-locking, say)."""
        self.capacity = max(0, capacity_bytes) // self.page_bytes
        while self.pages > self.capacity:
            side = self.inactive or self.active
            _, freed = side.popitem(last=False)
            if side is self.inactive:
                self.inactive_pages -= freed
            else:
                self.active_pages -= freed

    def warm(self, keys: Iterable[int], sizes: list[int], file: int = 0) -> None:
        """State after a file was read once from front to back; files have keys of their own.

        Parameters
        ----------
        keys
            Experts in the order of the file.
        sizes
            (keys,) bytes.
        file
            Number of the file.
        """
        for key in keys:
            page_key = file * len(sizes) + key
            if not self.touch(page_key):
                self.insert(page_key, sizes[key])

    def _balance(self) -> None:
        share, whole = ACTIVE_SHARE
        while self.active_pages * whole > self.capacity * share and len(self.active) > 1:
            key, pages = self.active.popitem(last=False)
            self.active_pages -= pages
            self.inactive[key] = pages
            self.inactive_pages += pages
