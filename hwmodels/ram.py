"""Where host memory goes: page-locked, pageable, and the page cache that is left.

What may be page-locked is limited apart from what there is: a driver refuses an arena that fits in memory. What
passes the limit stays pageable, and is read and copied at the slower rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.profile import Ram
from expert_residency.hwmodels.units import GIB, format_bytes
from expert_residency.hwmodels.vram import Line


@dataclass(frozen=True)
class HostBudget:
    """Host memory: page-locked, pageable and, of what is left, the page cache.

    Parameters
    ----------
    total_bytes
        Memory fitted.
    lines
        What is taken; `pinned_bytes` of it is page-locked.
    pinned_bytes, pageable_bytes
        Split of what was asked for: page-locked up to the limit, the rest pageable.
    """

    total_bytes: int
    pinned_bytes: int
    pageable_bytes: int
    lines: tuple[Line, ...] = field(default=())

    @property
    def free_bytes(self) -> int:
        """What is left, and so the largest page cache; negative when it does not fit."""
        return self.total_bytes - sum(line.nbytes for line in self.lines)

    @property
    def page_cache_bytes(self) -> int:
        """Capacity of the page cache = memory - page-locked - anonymous.

        Raises
        ------
        HardwareError
            If memory is over-committed, by how much.
        """
        if self.free_bytes < 0:
            raise HardwareError(
                f"host memory of {format_bytes(self.total_bytes)} is {-self.free_bytes / GIB:.2f} GiB short: "
                + ", ".join(f"{line.name} {format_bytes(line.nbytes)}" for line in self.lines)
            )
        return self.free_bytes


def host_budget(
    ram: Ram, experts_bytes: int, *, pin: bool = True, pinned_first: Sequence[Line] = ()
) -> HostBudget:
    """Split of host memory.

    Parameters
    ----------
    ram
        The machine's memory, its reserve and its limit on page-locked bytes (which is not its size).
    experts_bytes
        Experts held in RAM by the engine itself (an arena or a resident complement; 0 for a mapped file).
    pin
        Whether the engine asks for page-locked memory for them; what passes the limit is pageable and slower.
    pinned_first
        Page-locked lines that come before the experts (streamed KV, staging).

    Returns
    -------
    HostBudget
        The lines, and what is page-locked and pageable (bytes).
    """
    before = sum(line.nbytes for line in pinned_first)
    pinned = min(experts_bytes, max(0, ram.pin_limit_bytes - before)) if pin else 0
    lines = (
        Line("system and program", ram.os_reserve_bytes, ram.os_reserve_gib.source),
        *pinned_first,
        Line("experts, page-locked", pinned, ram.pin_limit_gib.source),
        Line(
            "experts, pageable",
            experts_bytes - pinned,
            "above the limit on page-locked memory" if pin else "as asked",
        ),
    )
    return HostBudget(ram.total_bytes, before + pinned, experts_bytes - pinned, lines)
