"""An empty cache at the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from expert_residency.policies.protocol import Future, PlacementPolicy, Pool


@dataclass(frozen=True)
class Empty(PlacementPolicy):
    """Nobody is resident at the start."""

    name: ClassVar[str] = "none"
    source: ClassVar[str] = "cold start"

    def rank(self, pool: Pool, future: Future | None) -> list[int]:
        """Nobody."""
        return []
