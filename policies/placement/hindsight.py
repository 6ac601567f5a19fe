"""The most used experts of the scored trace itself: what no profile can beat as a fixed set.

    rank: uses over the whole trace, most first; ties: lower key; experts that are never used are left out

Source: "static hindsight" of harshithkantamneni/moe-speed-of-light.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from expert_residency.policies.protocol import Future, PlacementPolicy, Pool, require_future


@dataclass(frozen=True)
class Hindsight(PlacementPolicy):
    """Most used experts over the scored trace, known in advance."""

    name: ClassVar[str] = "hindsight"
    source: ClassVar[str] = "harshithkantamneni/moe-speed-of-light"
    needs_future: ClassVar[bool] = True

    def rank(self, pool: Pool, future: Future | None) -> list[int]:
        """Keys by uses."""
        future = require_future(future, "placement hindsight")
        used = [key for key in range(pool.keys) if future.counts[key] > 0]
        return sorted(used, key=lambda key: (-future.counts[key], key))
