"""A miss takes a slot only if the expert was wanted before.

    learn:  remember the events that want each expert
    select: misses wanted at least `uses` times, this one included, in their order

Source: the second-hit rule, with a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from expert_residency.policies import AdmissionPolicy, Event, Pool
from expert_residency.policies.protocol import Allocator, Ints


@dataclass(frozen=True)
class FirstTouchNever(AdmissionPolicy):
    """Only experts that were wanted before take a slot."""

    name: ClassVar[str] = "first-touch-never"
    source: ClassVar[str] = "sample"

    uses: int = 2

    def start(self, pool: Pool, alloc: Allocator) -> tuple[Ints, int]:
        """No use seen."""
        return alloc.ints(pool.keys), self.uses

    @staticmethod
    def learn(state: tuple[Ints, int], event: Event) -> None:
        """Count."""
        for key in event.keys:
            state[0][key] += 1

    @staticmethod
    def select(state: tuple[Ints, int], event: Event, misses: Ints, n: int) -> int:
        """Those wanted often enough come first."""
        counts, uses = state
        known = [i for i in misses[:n] if counts[event.keys[i]] >= uses]
        new = [i for i in misses[:n] if counts[event.keys[i]] < uses]
        misses[:n] = known + new
        return len(known)
