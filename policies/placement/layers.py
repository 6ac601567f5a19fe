"""Whole layers on the card, the last ones first; the experts of the other layers stay off it.

    rank: all experts of the last layer, of the one before, ..., of `count` layers (0: of as many as fit whole)

Source: ggml-org/llama.cpp, `--n-cpu-moe N` keeps the experts of the first N layers on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from expert_residency.errors import PolicyError
from expert_residency.policies.parameters import Count
from expert_residency.policies.protocol import Future, PlacementPolicy, Pool


@dataclass(frozen=True)
class WholeLayers(PlacementPolicy):
    """The last layers whole."""

    name: ClassVar[str] = "layers"
    source: ClassVar[str] = "ggml-org/llama.cpp --n-cpu-moe"

    count: Count = 0

    def rank(self, pool: Pool, future: Future | None) -> list[int]:
        """Keys layer by layer from the end, as long as a whole layer fits its scope."""
        if not 0 <= self.count <= pool.layers:
            raise PolicyError(f"placement layers: count is {self.count}, expected 0 to {pool.layers}")
        room = list(pool.capacity)
        ranked: list[int] = []
        for layer in range(pool.layers - 1, pool.layers - 1 - (self.count or pool.layers), -1):
            keys = range(layer * pool.experts, (layer + 1) * pool.experts)
            scope = pool.scope_of[keys[0]]
            room[scope] -= sum(pool.size_of[key] for key in keys)
            if room[scope] >= 0:
                ranked += keys
            elif self.count:
                raise PolicyError(f"placement layers: {self.count} whole layers of experts do not fit the cache")
        return ranked
