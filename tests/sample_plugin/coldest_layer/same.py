"""The next layer is asked for the same expert numbers: a predictor that knows nothing.

    propose: when an event is done, its expert numbers, one layer on

Source: control for look-ahead measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from expert_residency.policies import Event, Future, Pool, PrefetchPolicy
from expert_residency.policies.protocol import Allocator, Ints


@dataclass(frozen=True)
class SameIds(PrefetchPolicy):
    """Same expert numbers in the next layer."""

    name: ClassVar[str] = "same-ids"
    source: ClassVar[str] = "sample"
    at_layer: ClassVar[bool] = True

    def start(self, pool: Pool, alloc: Allocator, future: Future | None, predictions: Any) -> Pool:
        """Only the shape of the model."""
        return pool

    @staticmethod
    def propose(state: Pool, event: Event, keys: Ints, deadlines: Ints) -> int:
        """Same numbers, next layer."""
        layer = (event.layer + 1) % state.layers
        for i, key in enumerate(event.keys):
            keys[i] = layer * state.experts + key % state.experts
            deadlines[i] = event.number + 1
        return len(event.keys)
