"""A trace as the sequence of steps that a replay takes under a contract."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from expert_residency.policies.protocol import Future
from expert_residency.sim.residency.future import future_of, prompt_rows
from expert_residency.traces import RoutingTrace

if TYPE_CHECKING:
    from expert_residency.sim.kernel.counts.replay import StepArrays

IntArray = npt.NDArray[np.integer[Any]]


@dataclass
class Steps:
    """The trace as a sequence of steps: whole events, or single look-ups under the sequential contracts.

    Replays that share one also share what oracles know and the arrays of the kernel.
    """

    trace: RoutingTrace
    offsets: IntArray
    layers: IntArray
    passes: IntArray
    keys: IntArray
    rows: IntArray
    back: IntArray | None
    """(look-ups,) position of each step's look-up in the trace, None if it is the same."""

    @classmethod
    def of(cls, trace: RoutingTrace, contract: str = "event") -> Steps:
        """Steps of a trace under a contract."""
        offsets, keys, rows = trace.event_offsets, trace.keys, trace.rows_wanting
        layers, passes = trace.event_layer, trace.event_pass
        back = None
        if contract != "event":
            event = np.repeat(np.arange(trace.n_events), np.diff(offsets))
            sign = 1 if contract == "sequential" else -1
            back = np.lexsort((sign * keys.astype(np.int64), event))
            keys, rows, layers, passes = keys[back], rows[back], layers[event], passes[event]
            offsets = np.arange(len(keys) + 1)
        return cls(trace, offsets, layers, passes, keys, rows, back)

    @cached_property
    def future(self) -> Future:
        """What an oracle may know, as lists."""
        return future_of(self.keys.tolist(), self.offsets.tolist(), prompt_rows(self.trace))

    @cached_property
    def arrays(self) -> StepArrays:
        """As the kernel wants them."""
        from expert_residency.sim.kernel.counts.replay import StepArrays

        return StepArrays.of(
            self.offsets, self.layers, self.passes, self.keys, self.rows, self.trace.pass_phase,
            self.trace.pass_request,
        )  # fmt: skip

    @cached_property
    def future_arrays(self) -> Future:
        """What an oracle may know, as arrays."""
        from expert_residency.sim.kernel.counts.future import future_arrays

        return future_arrays(self.arrays, prompt_rows(self.trace))
