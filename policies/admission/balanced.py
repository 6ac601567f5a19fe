"""As many misses take a slot as the link can bring while the CPU computes the others.

    select: q* = misses x link / host rate; of the two whole numbers around it the one that ends sooner, where q
            copies take q / link and the others take (misses - q) / (host - link), for both read one RAM;
            the smaller on a tie; the last q in routing order

Rates left at 0 are the machine's, as the engine tells them; a replay without a machine must name them.
Source: FreeToken (integer neighbour, bandwidths measured while overlapping); JustVugg/colibri #1202 (q*).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

from policies.protocol import AdmissionPolicy, Allocator, Event, Ints, PolicyError, Pool
from policies.structures import last_first


class BalancedState(NamedTuple):
    """Share of the host's rate that the link takes."""

    share: float


@dataclass(frozen=True)
class Balanced(AdmissionPolicy):
    """Link and CPU finish an event's misses together; those that the link brings are admitted."""

    name: ClassVar[str] = "balanced"
    source: ClassVar[str] = "FreeToken; JustVugg/colibri #1202"
    compiled: ClassVar[bool] = True

    link_gb_per_s: float = 0.0
    host_gb_per_s: float = 0.0

    def at_rates(self, link_mb_per_s: int, host_mb_per_s: int) -> Self:
        """Fill in the rates that were left open."""
        return replace(
            self,
            link_gb_per_s=self.link_gb_per_s or link_mb_per_s / 1000,
            host_gb_per_s=self.host_gb_per_s or host_mb_per_s / 1000,
        )

    def start(self, pool: Pool, alloc: Allocator) -> BalancedState:
        """Check the rates."""
        if self.link_gb_per_s <= 0 or self.host_gb_per_s <= 0:
            raise PolicyError("policy balanced: give link_gb_per_s and host_gb_per_s, both more than 0")
        return BalancedState(min(1.0, self.link_gb_per_s / self.host_gb_per_s))

    @staticmethod
    def learn(state: BalancedState, event: Event) -> None:
        """Nothing to learn."""

    @staticmethod
    def select(state: BalancedState, event: Event, misses: Ints, n: int) -> int:
        """The whole number of copies that ends sooner."""
        low = int(n * state.share)
        if low < n:
            # Times in units of (host rate x link rate): copies low + 1 against CPU work on n - low.
            copying = (low + 1) * (1.0 - state.share)
            computing = (n - low) * state.share
            if copying < computing:
                low += 1
        return last_first(misses, n, low)
