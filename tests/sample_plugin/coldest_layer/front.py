"""Fill the slots from the first layer on.

    rank: experts by layer, then number

Source: `front-loading` of kvcache-ai/ktransformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from expert_residency.policies import Future, PlacementPolicy, Pool


@dataclass(frozen=True)
class FrontLoading(PlacementPolicy):
    """Whole layers from the first one on."""

    name: ClassVar[str] = "front-loading"
    source: ClassVar[str] = "kvcache-ai/ktransformers"

    def rank(self, pool: Pool, future: Future | None) -> list[int]:
        """Keys in ascending order."""
        return list(range(pool.keys))
