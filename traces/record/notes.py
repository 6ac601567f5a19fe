"""What a recording saw, event by event, and the trace that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.traces.ahead import united
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.trace import RoutingTrace, assemble

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclass
class Notes:
    """Columns of routing rows; one entry of each list an event."""

    counts: list[Ids] = field(default_factory=list)
    """Experts of each row."""
    ids: list[Ids] = field(default_factory=list)
    weights: list[Floats] = field(default_factory=list)
    place: list[tuple[int, int, int]] = field(default_factory=list)
    """(pass, layer index, first position) of each event."""
    predicted: dict[tuple[int, int, int], tuple[Ids, Floats]] = field(default_factory=dict)
    """(depth, pass, layer index) to what was predicted for that event's rows, and the scores it was given."""

    def trace(
        self, geometry: ModelGeometry, passes: Sequence[tuple[int, int, int]], meta: dict[str, Any]
    ) -> RoutingTrace:
        """The trace of `passes`, each (request, phase, tokens emitted).

        Parameters
        ----------
        geometry
            The model; k is what rows have.
        passes
            Of the whole run.
        meta
            Where the trace comes from.

        Returns
        -------
        RoutingTrace
            With weights, positions, and predictions with their scores.
        """
        table = np.asarray(passes, dtype=np.int32)
        rows = np.asarray([len(counts) for counts in self.counts])
        counts = np.concatenate(self.counts)
        place = np.repeat(np.asarray(self.place, dtype=np.int32), rows, axis=0)
        trace = assemble(
            geometry.with_top_k(int(counts.max())),
            pass_request=table[:, 0],
            pass_phase=table[:, 1],
            pass_emits=table[:, 2],
            row_pass=place[:, 0],
            row_layer=place[:, 1],
            row_position=place[:, 2] + np.concatenate([np.arange(n) for n in rows]),
            row_counts=counts,
            row_experts=np.concatenate(self.ids),
            row_weights=np.concatenate(self.weights),
            meta=meta,
        )
        return self._with_predictions(trace)

    def _with_predictions(self, trace: RoutingTrace) -> RoutingTrace:
        """The trace with look-ahead and its scores; events that nothing could predict have an empty set."""
        predictions, scored = {}, {}
        events = zip(trace.event_pass.tolist(), trace.event_layer.tolist(), strict=True)
        place = {event: i for i, event in enumerate(events)}
        for depth in sorted({depth for depth, _, _ in self.predicted}):
            own = {place[p, at]: found for (d, p, at), found in self.predicted.items() if d == depth}
            offsets, experts, kept = united(
                np.asarray(list(own)),
                np.asarray([len(ids) for ids, _ in own.values()]),
                np.concatenate([ids for ids, _ in own.values()]),
                np.concatenate([scores for _, scores in own.values()]),
                n_events=trace.n_events,
                experts=trace.geometry.experts,
            )
            assert kept is not None
            predictions[depth], scored[depth] = (offsets, experts), kept
        return replace(trace, predictions=predictions, prediction_scores=scored)
