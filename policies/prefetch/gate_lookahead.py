"""Predictions that the trace holds: of the router of a later layer, asked early, or of a learned predictor.

    propose: when an event is done, what was predicted `depth` layers ahead for the event `depth` further on,
             in the recorded order, which is that of the scores: the first `top` (0: all) of those whose score
             is `threshold` or more
    nothing is proposed where nothing was recorded (the first layers of a pass)

A trace without predictions of that depth is an error; `gate-lookahead-parametric` assumes a recall instead.
Published recall, one layer ahead: 88.6 % (Qwen3-30B-A3B), 80.7 % (Qwen3.6-35B), 71.6 to 73.6 % (GLM-5.2).
Source: arXiv 2312.17238 (Mixtral-offloading), HOBBIT, Fate, JustVugg/colibri, Helldez/BigMoeOnEdge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from expert_residency.errors import PolicyError
from expert_residency.policies.parameters import Ahead, Count, Level
from expert_residency.policies.protocol import Allocator, Event, Future, Ints, Pool, Predictions, PrefetchPolicy

EVERY_SCORE = -1e9
"""A threshold that leaves nothing out."""


class GateLookaheadState(NamedTuple):
    """Predictions in CSR form by the event they are for."""

    offsets: Sequence[int]
    experts_of: Sequence[int]
    layers: int
    experts: int
    depth: int


@dataclass(frozen=True)
class GateLookahead(PrefetchPolicy):
    """Predictions that the trace holds, `depth` layers ahead: the best `top`, of `threshold` or more."""

    name: ClassVar[str] = "gate-lookahead"
    source: ClassVar[str] = "arXiv 2312.17238; Helldez/BigMoeOnEdge"
    compiled: ClassVar[bool] = True
    at_layer: ClassVar[bool] = True

    depth: Ahead = 1
    top: Count = 0
    threshold: Level = EVERY_SCORE

    def start(self, pool: Pool, alloc: Allocator, future: Future | None, predictions: Any) -> GateLookaheadState:
        """Predictions of one depth.

        Raises
        ------
        PolicyError
            If the trace has none of that depth, or no scores to hold against a threshold.
        """
        known = sorted(predictions or {})
        if self.depth not in known:
            found = f"depths {', '.join(map(str, known))}" if known else "no predictions"
            raise PolicyError(
                f"prefetch policy gate-lookahead: depth {self.depth} is not in the trace, which has {found}; "
                "gate-lookahead-parametric assumes a recall instead"
            )
        made = []
        for column in self._chosen(predictions[self.depth]):
            values = alloc.ints(len(column))
            for i, value in enumerate(column.tolist()):
                values[i] = value
            made.append(values)
        return GateLookaheadState(made[0], made[1], pool.layers, pool.experts, self.depth)

    def _chosen(self, held: Predictions) -> tuple[Any, Any]:
        """Offsets and experts of those that `top` and `threshold` leave."""
        kept = np.ones(len(held.experts), dtype=bool)
        event = np.repeat(np.arange(len(held.offsets) - 1), np.diff(held.offsets))
        if self.threshold > EVERY_SCORE:
            if held.scores is None:
                raise PolicyError(
                    f"prefetch policy {self.name}: the trace's predictions have no scores to hold against a "
                    "threshold; top= takes the first of each event"
                )
            kept &= np.asarray(held.scores) >= self.threshold
        if self.top:
            rank = np.cumsum(kept) - kept
            kept &= rank - rank[held.offsets[:-1][event]] < self.top if len(event) else kept
        counts = np.bincount(event[kept], minlength=len(held.offsets) - 1)
        return np.concatenate([[0], np.cumsum(counts)]), held.experts[kept]

    @staticmethod
    def propose(state: GateLookaheadState, event: Event, keys: Ints, deadlines: Ints) -> int:
        """The prediction for the event `depth` ahead."""
        ahead = event.number + state.depth
        if ahead >= len(state.offsets) - 1:
            return 0
        layer = (event.layer + state.depth) % state.layers
        n = 0
        for i in range(state.offsets[ahead], state.offsets[ahead + 1]):
            keys[n] = layer * state.experts + state.experts_of[i]
            deadlines[n] = ahead
            n += 1
        return n
