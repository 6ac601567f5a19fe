"""A router asked early, for traces that recorded no predictions: a noisy oracle with a published recall.

    recall at `depth` layers ahead = recall - drop x (depth - 1), not below 0
    propose: when an event is done, of the true set `depth` layers further on in the same pass each expert with
             that probability, and as many wrong ones as make precision equal recall (a router gives top-k)

It looks into the future of the trace: use it to ask what a predictor of known quality would bring, not as a
policy that could run. Draws as in `noisy-oracle`.
Defaults: 88.6 % one layer ahead, 3.75 points less for each further one (Qwen3-30B-A3B; 80.7 % on Qwen3.6-35B).
Source: Helldez/BigMoeOnEdge, look-ahead recall measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from expert_residency.policies.parameters import Ahead, Share
from expert_residency.policies.prefetch.noisy_oracle import (
    NoisyOracleState,
    propose_noisy,
    start_noisy,
)
from expert_residency.policies.protocol import (
    Allocator,
    Event,
    Future,
    Ints,
    Pool,
    PrefetchPolicy,
    require_future,
)


@dataclass(frozen=True)
class GateLookaheadParametric(PrefetchPolicy):
    """Noisy oracle (needs the future) with the published recall of router look-ahead."""

    name: ClassVar[str] = "gate-lookahead-parametric"
    source: ClassVar[str] = "Helldez/BigMoeOnEdge"
    compiled: ClassVar[bool] = True
    needs_future: ClassVar[bool] = True
    at_layer: ClassVar[bool] = True

    depth: Ahead = 1
    recall: Share = 0.886
    drop: Share = 0.0375
    seed: int = 1

    def start(self, pool: Pool, alloc: Allocator, future: Future | None, predictions: Any) -> NoisyOracleState:
        """A seed for each event.

        Raises
        ------
        PolicyError
            Without a future.
        """
        future = require_future(future, f"policy {self.name}")
        reached = max(0.0, self.recall - self.drop * (self.depth - 1))
        return start_noisy(
            pool, alloc, future, recall=reached, precision=max(reached, 0.01), decay=1.0, nearest=self.depth,
            furthest=self.depth, within_pass=True, seed=self.seed,
        )  # fmt: skip

    @staticmethod
    def propose(state: NoisyOracleState, event: Event, keys: Ints, deadlines: Ints) -> int:
        """The degraded set of the event `depth` ahead."""
        return propose_noisy(state, event, keys, deadlines)
