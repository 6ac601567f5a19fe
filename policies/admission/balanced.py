"""As many misses take a slot as the link can bring while the CPU computes the others.

    select: q* = misses x link / host rate; of the two whole numbers around it the one that ends sooner, where q
            copies take q / link and the others take (misses - q) / (host - link), for both read one RAM;
            the smaller on a tie; the last q in routing order

Rates left at 0 are the machine's, the link that of the layer's card; a replay without a machine must name them.
Source: FreeToken (integer neighbour, bandwidths measured while overlapping); JustVugg/colibri #1202 (q*).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.errors import PolicyError
from expert_residency.policies.parameters import Weight
from expert_residency.policies.protocol import AdmissionPolicy, Allocator, Event, Floats, Ints, Pool
from expert_residency.policies.structures import last_first


class BalancedState(NamedTuple):
    """(layers,) share of the host's rate that the link of the layer's card takes."""

    share: Floats


@dataclass(frozen=True)
class Balanced(AdmissionPolicy):
    """Link and CPU finish an event's misses together; those that the link brings are admitted."""

    name: ClassVar[str] = "balanced"
    source: ClassVar[str] = "FreeToken; JustVugg/colibri #1202"
    compiled: ClassVar[bool] = True

    link_gb_per_s: Weight = 0.0
    host_gb_per_s: Weight = 0.0

    def start(self, pool: Pool, alloc: Allocator) -> BalancedState:
        """Shares from the rates given and, where none is, those of the machine."""
        state = BalancedState(alloc.floats(pool.layers))
        for layer, machines in enumerate(pool.link_mb_per_s or [0] * pool.layers):
            link = self.link_gb_per_s or machines / 1000
            host = self.host_gb_per_s or (machines + pool.cpu_mb_per_s) / 1000
            if link <= 0 or host <= 0:
                raise PolicyError("policy balanced: give link_gb_per_s and host_gb_per_s, both more than 0")
            state.share[layer] = min(1.0, link / host)
        return state

    @staticmethod
    def select(state: BalancedState, event: Event, misses: Ints, n: int) -> int:
        """The whole number of copies that ends sooner."""
        share = state.share[event.layer]
        low = int(n * share)
        if low < n:
            # Times in units of (host rate x link rate): copies low + 1 against CPU work on n - low.
            copying = (low + 1) * (1.0 - share)
            computing = (n - low) * share
            if copying < computing:
                low += 1
        return last_first(misses, n, low)
