"""A cache that starts full of experts in the order of their numbers: warm slots, nothing known of who is hot.

    rank: expert 0 of every layer, then expert 1 of every layer, ...

With room for all experts, everything is resident from the start.
Source: engines fill every slot before the first token; their profiles are not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from expert_residency.policies.protocol import Future, PlacementPolicy, Pool


@dataclass(frozen=True)
class Full(PlacementPolicy):
    """Every slot is filled, by expert number."""

    name: ClassVar[str] = "full"
    source: ClassVar[str] = "slots filled before the first token"

    def rank(self, pool: Pool, future: Future | None) -> list[int]:
        """Keys by expert, then layer."""
        return [layer * pool.experts + expert for expert in range(pool.experts) for layer in range(pool.layers)]
