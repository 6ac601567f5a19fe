"""No prefetching: the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from expert_residency.policies.protocol import Allocator, Event, Future, Ints, Pool, PrefetchPolicy


@dataclass(frozen=True)
class NoPrefetch(PrefetchPolicy):
    """Nothing is copied ahead of need."""

    name: ClassVar[str] = "none"
    source: ClassVar[str] = "baseline"
    compiled: ClassVar[bool] = True

    def start(self, pool: Pool, alloc: Allocator, future: Future | None, predictions: Any) -> tuple[()]:
        """No state."""
        return ()

    @staticmethod
    def propose(state: tuple[()], event: Event, keys: Ints, deadlines: Ints) -> int:
        """Nothing."""
        return 0
