"""What a host tier decides: which memory each expert lies in, at what the pool reads it, and what a swap costs."""

from __future__ import annotations

from dataclasses import dataclass

from expert_residency.hwmodels.profile import ExpertSource
from expert_residency.sim.timed.host.weights import IN_MEMORY, MappedWeights

PINNED, PAGEABLE, PAGE_CACHE, DISK = 0, 1, 2, 3
"""Where an expert is. PAGE_CACHE in a plan means "in the file": the cache's state decides between it and DISK."""
SOURCES: tuple[ExpertSource, ...] = ("pinned", "pageable", "page_cache")
"""Rates of a profile by which the CPU pool reads the first three."""
BLOBS, GGUF = 0, 1
"""Files that can lie in the page cache: one blob an expert, or the model file with its slices apart."""


@dataclass(frozen=True)
class HostPlan:
    """RAM budget of one way to hold the experts, in bytes, and how it is read.

    Parameters
    ----------
    mode
        The specification that made it.
    pinned_bytes, pageable_bytes, page_cache_bytes
        Page-locked, anonymous, and what is left for the page cache.
    source_of : (keys,)
        Tier of each expert.
    cpu_sources
        Rate of the profile for each of PINNED, PAGEABLE and PAGE_CACHE.
    file, slices
        File that PAGE_CACHE experts are in, and how many reads make one expert of it.
    access
        `direct` reads on all lanes of the drive, page faults with `read-ahead`, or page faults alone (`fault`).
    swap
        What putting a newcomer in a victim's slot moves: `copy` (the newcomer; RAM has everybody), `exchange`
        (victim to a buffer, newcomer to the slot, memcpy to the newcomer's place; the host waits), `streams`
        (the same over a spare slot, both directions at once, nobody waits).
    load_bytes
        Read from the drive before the first pass.
    weights
        What of the weights beside experts is read again in every pass.
    """

    mode: str
    pinned_bytes: int
    pageable_bytes: int
    page_cache_bytes: int
    source_of: list[int]
    cpu_sources: tuple[ExpertSource, ...] = SOURCES
    file: int = BLOBS
    slices: int = 1
    access: str = "direct"
    swap: str = "copy"
    load_bytes: int = 0
    weights: MappedWeights = IN_MEMORY

    @property
    def swaps_only(self) -> str:
        """Why a run stops in which a miss takes a slot although the host keeps only what no card holds."""
        return (
            f"host {self.mode} keeps only what no card holds, so the cache may change by swaps alone: "
            "use admission strata-adaptive or never"
        )

    @property
    def from_file(self) -> bool:
        """Whether any expert is served from a file."""
        return PAGE_CACHE in self.source_of
