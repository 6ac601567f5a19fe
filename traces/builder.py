"""A trace from rows, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.trace import Phase, RoutingTrace, assemble
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
        pass_index
            Number of the pass; the current one if None.

        Raises
        ------
        TraceError
            No such layer, no pass yet, or weights or residency on some rows only.
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
        trace = only_layers_seen(trace) if partial else trace
        if not whole and lacking(trace):
            return replace(trace, meta=trace.meta | {"incomplete": True})
        check_whole(trace)
        return trace


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
