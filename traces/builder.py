"""A trace from rows, one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.ahead import check_depth, united
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.trace import IntArray, Phase, RoutingTrace, assemble
from expert_residency.traces.whole import check_whole, lacking, only_layers_seen


class TraceBuilder:
    """Collects rows in any order of layers and passes and makes a `RoutingTrace`.

    Call `begin_pass` once a pass, then `row` for each routing row. Rows of one (pass, layer) keep
    the order in which they came.
    """

    def __init__(self, geometry: ModelGeometry, **meta: Any) -> None:
        self.geometry = geometry
        self.meta = meta
        self._layer_index = {layer: i for i, layer in enumerate(geometry.layer_ids)}
        self._passes: list[tuple[int, int, int]] = []
        self._rows: list[tuple[int, int, int]] = []
        self._experts: list[Sequence[int]] = []
        self._weights: list[Sequence[float]] | None = None
        self._residency: list[Sequence[int]] | None = None
        self._predicted: dict[int, list[tuple[int, Sequence[int], Sequence[float] | None]]] = {}

    def begin_pass(self, phase: Phase, *, request: int = 0, emits: int | None = None) -> int:
        """Start a pass; returns its number. `emits` is 1 unless said.

        Parameters
        ----------
        phase
            Prefill, decode or verify.
        request
            Number of the request.
        emits
            Tokens that the pass emits; 1 if None.

        Returns
        -------
        int
            Number of the pass, from 0.
        """
        self._passes.append((request, int(phase), 1 if emits is None else emits))
        return len(self._passes) - 1

    def row(
        self,
        layer: int,
        experts: Sequence[int],
        *,
        position: int = -1,
        weights: Sequence[float] | None = None,
        residency: Sequence[int] | None = None,
        predicted: Mapping[int, Sequence[int]] | None = None,
        scores: Mapping[int, Sequence[float]] | None = None,
        pass_index: int | None = None,
    ) -> None:
        """Add one routing row of the current pass (or of `pass_index`); `layer` as the model numbers it.

        Parameters
        ----------
        layer
            MoE layer as the model numbers it.
        experts
            (k,) expert ids, best rank first.
        position
            Context position of the token, -1 if unknown.
        weights
            (k,) mixing weights; on every row or on none.
        residency
            (k,) 0 miss, 1 hit, 2 prefetched, -1 unknown; on every row or on none.
        predicted
            By look-ahead depth in layers, the experts that were predicted for this layer.
        scores
            By depth, a score for each of `predicted`; on every predicted row of a depth or on none.
        pass_index
            Number of the pass; the current one if None.

        Raises
        ------
        TraceError
            No such layer, no pass yet, weights or residency on some rows only, or scores of other experts than
            those predicted.
        """
        index = self._layer_index.get(layer)
        if index is None:
            raise TraceError(f"layer {layer} is not an MoE layer of {self.geometry.label}")
        at = len(self._passes) - 1 if pass_index is None else pass_index
        if at < 0:
            raise TraceError("a row before the first pass")
        self._rows.append((at, index, position))
        self._experts.append(experts)
        self._weights = _aligned(self._weights, weights, len(self._rows), "weights")
        self._residency = _aligned(self._residency, residency, len(self._rows), "residency")
        self._look_ahead(predicted or {}, scores or {})

    def _look_ahead(self, predicted: Mapping[int, Sequence[int]], scores: Mapping[int, Sequence[float]]) -> None:
        row = len(self._rows) - 1
        if extra := set(scores) - set(predicted):
            raise TraceError(f"row {row}: scores of depth {min(extra)}, but nothing predicted")
        for depth, ids in predicted.items():
            own = scores.get(depth)
            known = self._predicted.setdefault(depth, [])
            if own is not None and len(own) != len(ids):
                raise TraceError(f"row {row}: {len(own)} scores for {len(ids)} predictions of depth {depth}")
            if known and (known[0][2] is None) != (own is None):
                raise TraceError(f"row {row}: scores of depth {depth} on some rows only")
            known.append((row, ids, own))

    def build(self, *, whole: bool = True, partial: bool = False) -> RoutingTrace:
        """Sort, validate and freeze.

        Parameters
        ----------
        whole
            Refuse a trace that lacks rows, as readers of files do. If False it is only marked, for studies of
            caches on events of one's own making.
        partial
            Cut the model to the layers that the rows have; its name then says so.

        Returns
        -------
        RoutingTrace
            The trace.

        Raises
        ------
        TraceError
            No rows, or rows that are missing: every pass needs every MoE layer.
        """
        if not self._rows:
            raise TraceError("the trace has no routing rows")
        rows = np.asarray(self._rows, dtype=np.int64)
        passes = np.asarray(self._passes, dtype=np.int32).reshape(-1, 3)
        trace = assemble(
            self.geometry,
            pass_request=passes[:, 0],
            pass_phase=passes[:, 1],
            pass_emits=passes[:, 2],
            row_pass=rows[:, 0],
            row_layer=rows[:, 1],
            row_position=rows[:, 2],
            row_counts=np.asarray([len(experts) for experts in self._experts]),
            row_experts=np.concatenate([np.asarray(experts, dtype=np.int64) for experts in self._experts]),
            row_weights=None if self._weights is None else np.concatenate(self._weights),
            row_residency=None if self._residency is None else np.concatenate(self._residency),
            meta=self.meta,
        )
        trace = self._with_predictions(trace, rows)
        trace = only_layers_seen(trace) if partial else trace
        if not whole and lacking(trace):
            return replace(trace, meta=trace.meta | {"incomplete": True})
        check_whole(trace)
        return trace

    def _with_predictions(self, trace: RoutingTrace, rows: IntArray) -> RoutingTrace:
        """The trace with what rows were given as predicted, as sets of events."""
        predictions, scored = {}, {}
        event = np.unique(rows[:, 0] * self.geometry.n_layers + rows[:, 1], return_inverse=True)[1].reshape(-1)
        for depth, known in sorted(self._predicted.items()):
            own = None
            if known[0][2] is not None:
                own = np.asarray([s for _, _, scores in known for s in scores or ()], dtype=np.float32)
            at = event[[row for row, _, _ in known]]
            counts = np.asarray([len(ids) for _, ids, _ in known])
            flat = np.asarray([e for _, ids, _ in known for e in ids], dtype=np.int64)
            try:
                check_depth(depth, self.geometry.n_layers)
                offsets, experts, kept = united(
                    at, counts, flat, own, n_events=trace.n_events, experts=self.geometry.experts
                )
            except TraceError as error:
                raise TraceError(f"predictions of depth {depth}: {error}") from None
            predictions[depth] = offsets, experts
            if kept is not None:
                scored[depth] = kept
        return replace(trace, predictions=predictions, prediction_scores=scored)


def _aligned(column: list[Any] | None, value: Sequence[Any] | None, n_rows: int, what: str) -> list[Any] | None:
    """A column is present on every row or on none."""
    if value is None and column is None:
        return None
    if column is None:
        if n_rows > 1:
            raise TraceError(f"{what} given on row {n_rows - 1} but not on the rows before it")
        column = []
    if value is None:
        raise TraceError(f"{what} missing on row {n_rows - 1}")
    column.append(value)
    return column
