"""A fixed share of an event's misses takes a slot.

    select: the last floor(share x misses) in routing order

Source: FreeToken hybrid mode; Niko1221/Strata `pcie-frac` (floor, last in routing order; 0.55 native, 0.2 for Q2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.parameters import Share
from expert_residency.policies.protocol import AdmissionPolicy, Allocator, Event, Ints, Pool
from expert_residency.policies.structures import last_first


class FractionState(NamedTuple):
    """The share."""

    share: float


@dataclass(frozen=True)
class Fraction(AdmissionPolicy):
    """A share of each event's misses is admitted."""

    name: ClassVar[str] = "fraction"
    source: ClassVar[str] = "FreeToken hybrid mode; Niko1221/Strata pcie-frac"
    compiled: ClassVar[bool] = True

    share: Share = 0.55

    def start(self, pool: Pool, alloc: Allocator) -> FractionState:
        """Only the share."""
        return FractionState(self.share)

    @staticmethod
    def select(state: FractionState, event: Event, misses: Ints, n: int) -> int:
        """The last share of them."""
        return last_first(misses, n, int(n * state.share))
