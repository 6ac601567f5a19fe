"""At most so many misses of an event take a slot.

    select: the last `per_event` misses in routing order

Which misses win a capped upload is not published; the last in routing order are those that a `hybrid` engine
sends over the link, so a fetched expert is also the one that stays.
Source: llama.cpp #27861 (`--moe-expert-cache-inserts`, 2 in its headline run); FreeToken unprofiled: 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.parameters import Count
from expert_residency.policies.protocol import AdmissionPolicy, Allocator, Event, Ints, Pool
from expert_residency.policies.structures import last_first


class CapState(NamedTuple):
    """The limit."""

    per_event: int


@dataclass(frozen=True)
class Cap(AdmissionPolicy):
    """A few misses an event are admitted."""

    name: ClassVar[str] = "cap"
    source: ClassVar[str] = "llama.cpp #27861; FreeToken"
    compiled: ClassVar[bool] = True

    per_event: Count = 2

    def start(self, pool: Pool, alloc: Allocator) -> CapState:
        """Only the limit."""
        return CapState(self.per_event)

    @staticmethod
    def select(state: CapState, event: Event, misses: Ints, n: int) -> int:
        """The last few."""
        return last_first(misses, n, state.per_event)
