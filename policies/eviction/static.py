"""A fixed set: whoever is placed at the start stays.

    victim: nobody; the newcomer is not admitted

Slots that the placement leaves empty take the first misses, which then stay too. The set comes from the
placement policy: `hindsight` (most used over the scored trace, an upper bound for any profile) unless another
is named.
Source: ktransformers placement by frequency; thecodacus/llama.cpp#5; Strata profiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from expert_residency.policies.protocol import Allocator, EvictionPolicy, Future, Pool


@dataclass(frozen=True)
class Static(EvictionPolicy):
    """Nobody leaves: a pinned hot set."""

    name: ClassVar[str] = "static"
    source: ClassVar[str] = "ktransformers; thecodacus/llama.cpp#5; Niko1221/Strata profiles"
    compiled: ClassVar[bool] = True
    default_placement: ClassVar[str] = "hindsight"

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> tuple[()]:
        """No state."""
        return ()

    @staticmethod
    def victim(state: tuple[()], scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """The newcomer is turned away."""
        return incoming
