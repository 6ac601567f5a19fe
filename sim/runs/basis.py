"""What a ranking of policies stands on, in words. `sim.choices.caveats` says when that is too little."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from expert_residency.traces import Phase, RoutingTrace


def generated(trace: RoutingTrace) -> tuple[set[int], int]:
    """Requests that decode in a trace or a part of one, and the tokens that they emit."""
    chosen = np.asarray(trace.pass_phase) != Phase.PREFILL
    return set(np.unique(trace.pass_request[chosen]).tolist()), int(trace.pass_emits[chosen].sum())


@dataclass(frozen=True)
class Basis:
    """Requests, and tokens generated in them; prompts alone rank nothing."""

    requests: int
    tokens: int

    @classmethod
    def of(cls, trace: RoutingTrace) -> Basis:
        """Of the passes that generate."""
        requests, tokens = generated(trace)
        return cls(len(requests), tokens)

    @property
    def words(self) -> str:
        """As in `1 request, 448 tokens`."""
        return f"{self.requests:,} request{'s' if self.requests != 1 else ''}, {self.tokens:,} tokens"
