"""An expert takes a slot at its second miss.

    learn:  remember the pass before this one that wanted each member
    select: misses that some earlier pass wanted, not more than `within_passes` ago (0: ever)

Source: "two-hit" admission of content delivery networks (Maggs and Sitaraman 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.parameters import Count
from expert_residency.policies.protocol import AdmissionPolicy, Allocator, Event, Ints, Pool


class TwoHitState(NamedTuple):
    """(keys,) number, from 1, of the last pass and of the one before it that wanted each expert; 0: none."""

    last: Ints
    before: Ints
    within: int


@dataclass(frozen=True)
class TwoHit(AdmissionPolicy):
    """Admitted when wanted for the second time."""

    name: ClassVar[str] = "two-hit"
    source: ClassVar[str] = "Maggs and Sitaraman 2015"
    compiled: ClassVar[bool] = True

    within_passes: Count = 0

    def start(self, pool: Pool, alloc: Allocator) -> TwoHitState:
        """Nobody wanted yet."""
        return TwoHitState(alloc.ints(pool.keys), alloc.ints(pool.keys), self.within_passes)

    @staticmethod
    def learn(state: TwoHitState, event: Event) -> None:
        """Note this pass."""
        for key in event.keys:
            state.before[key] = state.last[key]
            state.last[key] = event.pass_index + 1

    @staticmethod
    def select(state: TwoHitState, event: Event, misses: Ints, n: int) -> int:
        """Those that were wanted before."""
        count = 0
        for i in range(n):
            before = state.before[event.keys[misses[i]]]
            age = event.pass_index + 1 - before
            if before > 0 and (state.within == 0 or age <= state.within):
                misses[count], misses[i] = misses[i], misses[count]
                count += 1
        return count
