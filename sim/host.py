"""Where the experts lie on the host.

`arena`: one copy of all experts in RAM, page-locked up to the machine's pin limit, pageable beyond it.
`mmap`: the expert file through the page cache, with a start state of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hwmodels.profile import HardwareProfile
from sim.channels.disk import Disk, Read
from sim.errors import SimError
from sim.page_cache import PageCache
from traces import ModelGeometry

PINNED, PAGEABLE, PAGE_CACHE, DISK = 0, 1, 2, 3
SOURCES: tuple[Literal["pinned", "pageable", "page_cache"], ...] = ("pinned", "pageable", "page_cache")
HostMode = Literal["arena", "mmap"]
StartState = Literal["cold", "warm"]
HOST_MODES: tuple[str, ...] = ("arena", "mmap")


@dataclass(frozen=True)
class HostPlan:
    """RAM budget of one way to hold the experts, in bytes."""

    mode: HostMode
    pinned_bytes: int
    pageable_bytes: int
    page_cache_bytes: int
    source_of: list[int]
    """(keys,) tier of each expert; with `mmap` all are PAGE_CACHE and the cache's state decides."""


def plan_host(geometry: ModelGeometry, profile: HardwareProfile, mode: HostMode) -> HostPlan:
    """Split the experts over the tiers of the host.

    Raises
    ------
    SimError
        An unknown mode, or an arena that is larger than the RAM.
    """
    if mode not in HOST_MODES:
        raise SimError(f"unknown host mode {mode!r} (known: {', '.join(HOST_MODES)})")
    usable = profile.ram.total_bytes - profile.ram.os_reserve_bytes
    if mode == "mmap":
        return HostPlan(mode, 0, 0, usable, [PAGE_CACHE] * geometry.n_experts)
    total = geometry.all_expert_bytes
    if total > usable:
        raise SimError(
            f"an arena of {geometry.label} takes {total / 2**30:.1f} GiB, {profile.name} has "
            f"{usable / 2**30:.1f} GiB of RAM for it; use --host mmap, or a smaller quantization"
        )
    limit = profile.ram.pin_limit_bytes
    source, pinned = [], 0
    for size in geometry.expert_bytes:
        for _ in range(geometry.experts):
            fits = pinned + size <= limit
            source.append(PINNED if fits else PAGEABLE)
            pinned += size if fits else 0
    return HostPlan(mode, pinned, total - pinned, usable - total, source)


class Host:
    """The host side of one run: answers where an expert is and reads what is not in memory.

    Parameters
    ----------
    plan, sizes
        Tiers and bytes of the experts.
    cache
        Page cache for `mmap`, else None.
    disk
        The drive.
    """

    def __init__(self, plan: HostPlan, sizes: list[int], cache: PageCache | None, disk: Disk) -> None:
        self.plan = plan
        self.sizes = sizes
        self.cache = cache
        self.disk = disk
        self._reading: dict[int, list[Callable[[], None]]] = {}

    def source(self, key: int) -> int:
        """Tier of `key` now; a use as far as the page cache is concerned."""
        if self.cache is None:
            return self.plan.source_of[key]
        if key in self._reading:
            return DISK
        return PAGE_CACHE if self.cache.touch(key) else DISK

    def read(self, key: int, on_ready: Callable[[], None]) -> None:
        """Bring `key` into the page cache; a read already under way is joined."""
        assert self.cache is not None
        waiting = self._reading.get(key)
        if waiting is not None:
            waiting.append(on_ready)
            return
        self._reading[key] = [on_ready]
        pages = -(-self.sizes[key] // self.cache.page_bytes)
        self.disk.submit(Read(key, pages * self.cache.page_bytes, self._landed))

    def _landed(self, read: Read) -> None:
        assert self.cache is not None
        self.cache.insert(read.key, self.sizes[read.key])
        for ready in self._reading.pop(read.key):
            ready()
