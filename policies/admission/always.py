"""Every miss may take a slot.

    select: all misses, in the event's order

Source: the behaviour of FreeToken's `gpu` mode, BigMoeOnEdge and imp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from expert_residency.policies.protocol import AdmissionPolicy, Allocator, Event, Ints, Pool


@dataclass(frozen=True)
class Always(AdmissionPolicy):
    """Every miss is admitted."""

    name: ClassVar[str] = "always"
    source: ClassVar[str] = "FreeToken gpu mode; BigMoeOnEdge; imp"
    compiled: ClassVar[bool] = True

    def start(self, pool: Pool, alloc: Allocator) -> tuple[()]:
        """No state."""
        return ()

    @staticmethod
    def select(state: tuple[()], event: Event, misses: Ints, n: int) -> int:
        """All of them."""
        return n
