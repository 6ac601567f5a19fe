"""A profile of a given quality: a fixed set that holds a given share of the scored trace's look-ups.

    rank: the experts with most uses in the scored trace, until they hold `hits` of all look-ups; then those with
          fewest uses, until the cache is full; then the others, most uses first

For engines whose published hit rate is known and whose profile is not: residents that the run does not want stand
for those that other prompts had wanted. Ties: lower key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from expert_residency.policies.parameters import Share
from expert_residency.policies.protocol import Future, PlacementPolicy, Pool, require_future


@dataclass(frozen=True)
class Matched(PlacementPolicy):
    """Experts that hold a given share of the look-ups, known in advance."""

    name: ClassVar[str] = "matched"
    source: ClassVar[str] = "hit rates of published runs"
    needs_future: ClassVar[bool] = True

    hits: Share = 0.5

    def rank(self, pool: Pool, future: Future | None) -> list[int]:
        """Keys by uses as far as needed, then by least use, then the others by uses."""
        future = require_future(future, "placement matched")
        counts = future.counts
        ranked = sorted(range(pool.keys), key=lambda key: (-counts[key], key))
        left, taken = self.hits * sum(counts), 0
        while taken < len(ranked) and left >= counts[ranked[taken]] > 0:
            left -= counts[ranked[taken]]
            taken += 1
        spare = max(0, min(sum(pool.slots), pool.keys) - taken)
        rest = ranked[taken:]
        return ranked[:taken] + rest[len(rest) - spare :][::-1] + rest[: len(rest) - spare]
