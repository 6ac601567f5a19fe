"""The true experts of the next events: the ceiling of any predictor.

    propose: when an event is done, the set of the next event again (what found no room before), then the sets
             of the events up to `window` ahead that were not in sight yet

`window` counts events, i.e. layers: 1 is the next layer, the model's layers make one token.
Source: "oracle" arms of Niko1221/Strata PR #3265.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from expert_residency.policies.parameters import Ahead
from expert_residency.policies.protocol import (
    Allocator,
    Event,
    Future,
    Ints,
    Pool,
    PrefetchPolicy,
    require_future,
)


class OracleState(NamedTuple):
    """The trace's look-ups; `done` holds the last event proposed so far."""

    keys: Sequence[int]
    offsets: Sequence[int]
    done: Ints
    window: int


@dataclass(frozen=True)
class Oracle(PrefetchPolicy):
    """Perfect look-ahead over `window` events."""

    name: ClassVar[str] = "oracle"
    source: ClassVar[str] = "Niko1221/Strata PR #3265"
    compiled: ClassVar[bool] = True
    needs_future: ClassVar[bool] = True
    at_layer: ClassVar[bool] = True

    window: Ahead = 1

    def start(self, pool: Pool, alloc: Allocator, future: Future | None, predictions: Any) -> OracleState:
        """Nothing proposed."""
        future = require_future(future, f"policy {self.name}")
        return OracleState(future.keys, future.event_offsets, alloc.ints(1, -1), self.window)

    @staticmethod
    def propose(state: OracleState, event: Event, keys: Ints, deadlines: Ints) -> int:
        """The next event's set, and those that have come into sight."""
        n = 0
        last = min(event.number + state.window, len(state.offsets) - 2)
        fresh = max(event.number + 2, state.done[0] + 1)
        for ahead in range(event.number + 1, last + 1):
            if ahead == event.number + 1 or ahead >= fresh:
                for look_up in range(state.offsets[ahead], state.offsets[ahead + 1]):
                    if n == len(keys):
                        return n
                    keys[n] = state.keys[look_up]
                    deadlines[n] = ahead
                    n += 1
        state.done[0] = max(state.done[0], last)
        return n
