"""What must hold of a trace's arrays; the first fault is named by pass, layer and row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from expert_residency.errors import TraceError

if TYPE_CHECKING:
    from expert_residency.traces.trace import RoutingTrace


def validate(t: RoutingTrace) -> None:
    """Check shapes and ranges; the first fault is raised as a `TraceError` that names pass, layer and row."""
    g = t.geometry
    if t.n_events == 0 or t.n_rows == 0:
        raise TraceError("the trace has no routing rows")
    if len(t.event_row_offsets) != t.n_events + 1 or t.event_row_offsets[-1] != t.n_rows:
        raise TraceError("event row offsets do not cover the rows")
    if len(t.row_offsets) != t.n_rows + 1 or t.row_offsets[-1] != t.n_routed:
        raise TraceError("row offsets do not cover the expert ids")
    _check_columns(t)
    if (np.diff(t.event_row_offsets) <= 0).any():
        raise TraceError("an event without rows")
    if int(t.event_layer.min()) < 0 or int(t.event_layer.max()) >= g.n_layers:
        raise TraceError(f"layer index outside the model's {g.n_layers} MoE layers")
    order = t.event_pass.astype(np.int64) * g.n_layers + t.event_layer
    if (np.diff(order) <= 0).any():
        at = int(np.flatnonzero(np.diff(order) <= 0)[0]) + 1
        raise TraceError(
            f"events out of order or repeated at pass {int(t.event_pass[at])}, "
            f"layer {g.layer_ids[int(t.event_layer[at])]}"
        )
    bad = np.flatnonzero((t.row_experts < 0) | (t.row_experts >= g.experts))
    if len(bad):
        raise TraceError(f"{place_of_entry(t, int(bad[0]))}: expert id {int(t.row_experts[bad[0]])} "
                         f"outside 0..{g.experts - 1}")  # fmt: skip
    row = np.repeat(np.arange(t.n_rows, dtype=np.int64), np.diff(t.row_offsets))
    code = np.sort(row * g.experts + t.row_experts)
    same = np.flatnonzero(code[1:] == code[:-1])
    if len(same):
        at_row = int(code[same[0]] // g.experts)
        raise TraceError(f"{place_of_row(t, at_row)}: expert {int(code[same[0]] % g.experts)} twice in one row")


def _check_columns(t: RoutingTrace) -> None:
    """Columns that belong together have one length."""
    for name in ("pass_request", "pass_emits"):
        if len(getattr(t, name)) != t.n_passes:
            raise TraceError(f"{name} has {len(getattr(t, name))} entries for {t.n_passes} passes")
    if int(t.pass_emits.min()) < 0:
        at = int(np.argmin(t.pass_emits))
        raise TraceError(f"pass {at} emits {int(t.pass_emits[at])} tokens, less than none")
    if len(t.event_pass) != t.n_events or int(t.event_pass.max()) >= t.n_passes:
        raise TraceError(f"events name pass {int(t.event_pass.max())} of {t.n_passes}")
    for name in ("row_weights", "row_residency"):
        column = getattr(t, name)
        if column is not None and len(column) != t.n_routed:
            raise TraceError(f"{name} has {len(column)} entries for {t.n_routed} routed experts")
    if t.row_weights is not None:
        wrong = np.flatnonzero((t.row_weights < 0) | np.isinf(t.row_weights))  # nan: unknown
        if len(wrong):
            at = int(wrong[0])
            raise TraceError(
                f"{place_of_entry(t, at)}: the weight of an expert is {float(t.row_weights[at]):g}, expected a "
                "number of 0 or more"
            )
    for depth, (offsets, experts) in t.predictions.items():
        if len(offsets) != t.n_events + 1 or offsets[-1] != len(experts):
            raise TraceError(f"predictions of depth {depth} do not cover the {t.n_events} events")
        if len(experts) and not 0 <= int(experts.min()) <= int(experts.max()) < t.geometry.experts:
            raise TraceError(f"predictions of depth {depth}: expert id outside 0..{t.geometry.experts - 1}")
    _check_scores(t)


def _check_scores(t: RoutingTrace) -> None:
    """Each score belongs to a prediction, is a number, and falls within its event."""
    for depth, scores in t.prediction_scores.items():
        if depth not in t.predictions:
            raise TraceError(f"scores of depth {depth}, but no predictions of it")
        offsets, experts = t.predictions[depth]
        if len(scores) != len(experts):
            raise TraceError(f"{len(scores)} scores for {len(experts)} predictions of depth {depth}")
        if not np.isfinite(scores).all():
            raise TraceError(f"a score of depth {depth} is no number")
        event = np.repeat(np.arange(t.n_events), np.diff(offsets))
        rises = np.flatnonzero((np.diff(scores) > 0) & (np.diff(event) == 0))
        if len(rises):
            at = int(event[rises[0]])
            raise TraceError(
                f"pass {int(t.event_pass[at])}, layer {t.geometry.layer_ids[int(t.event_layer[at])]}: "
                f"predictions of depth {depth} are not in falling order of score"
            )


def place_of_row(t: RoutingTrace, row: int) -> str:
    """`pass p, layer l, row r` of a routing row, for messages."""
    event = int(np.searchsorted(t.event_row_offsets, row, side="right")) - 1
    layer = t.geometry.layer_ids[int(t.event_layer[event])]
    return f"pass {int(t.event_pass[event])}, layer {layer}, row {row - int(t.event_row_offsets[event])}"


def place_of_entry(t: RoutingTrace, entry: int) -> str:
    """Place of one routed (row, expert) entry, for messages."""
    return place_of_row(t, int(np.searchsorted(t.row_offsets, entry, side="right")) - 1)
