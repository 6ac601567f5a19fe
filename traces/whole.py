"""Whether a trace has every layer of every pass: a time made of less is wrong by the share that is missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.trace import Phase, RoutingTrace


def check_whole(trace: RoutingTrace) -> None:
    """Refuse a trace that lacks rows, by the rule of `lacking`, unless its maker marked it `incomplete`.

    Raises
    ------
    TraceError
        The first pass that lacks rows, or the layers that no pass has.
    """
    if not trace.meta.get("incomplete") and (why := lacking(trace)):
        raise TraceError(why)


def lacking(trace: RoutingTrace) -> str:
    """What rows are missing, in a sentence; empty if none.

    Every pass has rows of every MoE layer, as many as of its first. In a prompt's pass the last layer may have
    fewer, since engines route only the token that they need there, and a chunk that emits nothing may lack it.
    """
    g = trace.geometry
    rows = np.zeros((trace.n_passes, g.n_layers), dtype=np.int64)
    rows[trace.event_pass, trace.event_layer] = trace.event_rows
    seen = rows.any(axis=0)
    if not seen.all():
        absent = g.layer_ids[int(np.flatnonzero(~seen)[0])]
        return (
            f"the trace has rows of {int(seen.sum())} of the {g.n_layers} MoE layers of {g.label} (none of layer "
            f"{absent}), so times and hits made of it would be wrong by the share left out; cut it with --partial "
            "(in Python: TraceBuilder.build(partial=True)), and every result says so"
        )
    prompt = trace.pass_phase == Phase.PREFILL
    wrong = rows != rows[:, :1]
    fewer = rows[:, -1] <= rows[:, 0]
    wrong[:, -1] &= ~(prompt & fewer & ((rows[:, -1] > 0) | (trace.pass_emits == 0)))
    if not wrong.any():
        return ""
    at, layer = (int(i) for i in np.argwhere(wrong)[0])
    return (
        f"pass {at}: layer {g.layer_ids[layer]} has {int(rows[at, layer])} rows, layer {g.layer_ids[0]} has "
        f"{int(rows[at, 0])} (rows are missing or repeated)"
    )


def only_layers_seen(trace: RoutingTrace) -> RoutingTrace:
    """The trace on a model cut to the layers that it has, as the model's name then says; itself if it has all."""
    seen = np.bincount(trace.event_layer, minlength=trace.geometry.n_layers) > 0
    if seen.all():
        return trace
    geometry = trace.geometry.only_layers(np.flatnonzero(seen).tolist())
    layer = (np.cumsum(seen) - 1)[trace.event_layer].astype(np.int16)
    meta = trace.meta | {"partial": [geometry.n_layers, trace.geometry.n_layers]}
    return replace(trace, geometry=geometry, event_layer=layer, meta=meta)
