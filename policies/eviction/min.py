"""MIN: the optimum when a miss need not be admitted.

    learn:  note every member's next use
    victim: furthest next use among residents, members of the event included, and the newcomer itself

After each event the cache keeps those of (residents + event) that are used soonest: the most hits that any
policy can have for uniform sizes. A bypassed miss is still one read, so it bounds reads, not time.
Source: Belady 1966 (MIN); bypass and eviction of members as in arXiv 2608.07911.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from expert_residency.policies.eviction.belady import Belady, BeladyState
from expert_residency.policies.heaps import heap_first_free


@dataclass(frozen=True)
class Min(Belady):
    """Expert used furthest in the future leaves or is never admitted: the optimum in hits."""

    name: ClassVar[str] = "min"
    source: ClassVar[str] = "Belady 1966 with bypass"
    compiled: ClassVar[bool] = True
    may_evict_members: ClassVar[bool] = True

    @staticmethod
    def victim(state: BeladyState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Furthest next use, the newcomer's included."""
        found = heap_first_free(state.order, scope, guard, tick)
        if found < 0 or state.order.score[incoming] <= state.order.score[found]:
            return incoming
        return found
