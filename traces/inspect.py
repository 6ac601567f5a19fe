"""What a trace holds, in numbers that decide a cache: sizes, unions, overlap, skew, working set.

Definitions: *overlap at lag d* is, for a layer, the mean over decode tokens t of |A_t n A_(t+d)| / |A_t| inside
one request, then the mean over layers. *Share of the hottest 10 %* is the share of a layer's activations that
falls on its ceil(E / 10) most used experts; *normalised entropy* is that of the layer's activation counts,
divided by ln E; both then as mean over layers, over the whole trace. *Compulsory* look-ups are the first ones
of each expert: no cache that starts empty can hit them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.parquet import write_parquet
from expert_residency.traces.readers.base import read_trace
from expert_residency.traces.trace import Phase, RoutingTrace

LAGS = (1, 2, 4, 8, 16)
Floats = npt.NDArray[np.float64]


def describe(trace: RoutingTrace) -> dict[str, Any]:
    """Numbers of a trace as a JSON-able dict; a figure that the trace cannot give is None.

    Every size carries its unit in its name; `layers` has one entry for each MoE layer, with the model's own
    layer number.
    """
    g = trace.geometry
    uses = np.bincount(trace.keys, weights=trace.rows_wanting, minlength=g.n_experts)
    counts = uses.astype(np.float64).reshape(g.n_layers, g.experts)
    touched = counts > 0
    sizes = np.asarray(g.expert_bytes, dtype=np.int64)
    working_bytes = int((touched.sum(axis=1) * sizes).sum())
    overlap = lag_overlap(trace)
    hottest, entropy = _skew(counts)
    k = np.diff(trace.row_offsets)
    notes = trace.meta.get("notes", [])
    return {
        "model": g.label,
        "quant_family": g.quant_family,
        "moe_layers": g.n_layers,
        "experts_per_layer": g.experts,
        "source_engine": trace.meta.get("source_engine"),
        "synthetic": trace.synthetic,
        "notes": [notes] if isinstance(notes, str) else list(notes),
        "requests": len(np.unique(trace.pass_request)),
        "passes": {p.name.lower(): int((trace.pass_phase == p).sum()) for p in Phase},
        "tokens_emitted": trace.n_tokens_emitted,
        "events": trace.n_events,
        "rows": trace.n_rows,
        "routed": trace.n_routed,
        "lookups": trace.n_lookups,
        "k_min": int(k.min()),
        "k_max": int(k.max()),
        "has_weights": trace.row_weights is not None,
        "has_residency": trace.row_residency is not None,
        "prediction_depths": sorted(trace.predictions),
        "score_depths": sorted(trace.prediction_scores),
        "token_cycle_bytes": g.token_cycle_bytes,
        "token_cycle_mib": g.token_cycle_bytes / 2**20,
        "lru_floor_bytes": g.lru_floor_bytes(int(k.min())),
        "all_expert_bytes": g.all_expert_bytes,
        "all_expert_gb": g.all_expert_bytes / 1e9,
        "all_expert_gib": g.all_expert_bytes / 2**30,
        "dense_pass_bytes": sum(g.dense_bytes) + g.dense_only_bytes + g.head_bytes,
        "working_set_experts": int(touched.sum()),
        "working_set_share": float(touched.mean()),
        "working_set_bytes": working_bytes,
        "working_set_gib": working_bytes / 2**30,
        "compulsory_share": int(touched.sum()) / trace.n_lookups,
        "union": _unions(trace),
        "overlap": {f"lag_{lag}": _mean(values) for lag, values in overlap.items()},
        "hottest_10_percent_share": _mean(hottest),
        "normalised_entropy": _mean(entropy),
        "layers": _layers(trace, touched, overlap[1], hottest, entropy),
    }


def lag_overlap(trace: RoutingTrace, lags: tuple[int, ...] = LAGS) -> dict[int, Floats]:
    """Overlap of decode tokens by lag: (L,) for each lag, nan where a layer has no such pair."""
    g = trace.geometry
    decode = np.flatnonzero(trace.event_phase == Phase.DECODE)
    step = _decode_step(trace)[trace.event_pass[decode]]
    # a request's steps are kept further apart from the next request's than the longest lag
    stride = int(step.max(initial=0)) + max(lags) + 1
    request = np.unique(trace.pass_request, return_inverse=True)[1][trace.event_pass[decode]]
    moment = request.astype(np.int64) * stride + step
    layer = trace.event_layer[decode].astype(np.int64)
    width = np.diff(trace.event_offsets)[decode]
    events = np.sort(moment * g.n_layers + layer)
    keys = trace.keys[np.repeat(trace.event_phase == Phase.DECODE, np.diff(trace.event_offsets))]
    lookups = np.sort(np.repeat(moment, width) * g.n_experts + keys)
    lookup_layer = lookups % g.n_experts // g.experts
    found: dict[int, Floats] = {}
    for lag in lags:
        paired = _contains(events, (moment + lag) * g.n_layers + layer)
        again = _contains(lookups, lookups + lag * g.n_experts)
        hits = np.bincount(lookup_layer[again], minlength=g.n_layers).astype(np.float64)
        base = np.bincount(layer[paired], weights=width[paired], minlength=g.n_layers)
        found[lag] = np.divide(hits, base, out=np.full(g.n_layers, np.nan), where=base > 0)
    return found


def _decode_step(trace: RoutingTrace) -> npt.NDArray[np.int64]:
    """(P,) ordinal of each pass among its request's decode passes (of no meaning for other passes)."""
    decode = (trace.pass_phase == Phase.DECODE).astype(np.int64)
    order = np.argsort(trace.pass_request, kind="stable")
    running = np.cumsum(decode[order])
    request = trace.pass_request[order]
    start = np.flatnonzero(np.concatenate([[True], request[1:] != request[:-1]]))
    before = np.repeat((running - decode[order])[start], np.diff(np.append(start, len(order))))
    step = np.empty(len(order), dtype=np.int64)
    step[order] = running - decode[order] - before
    return step


def _contains(ordered: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    if not len(ordered):
        return np.zeros(len(wanted), dtype=bool)
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return np.asarray(ordered[at] == wanted)


def _skew(counts: Floats) -> tuple[Floats, Floats]:
    """Share of the hottest tenth and normalised entropy of each layer; nan for a layer without rows."""
    total = counts.sum(axis=1, keepdims=True)
    p = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    tenth = -(-counts.shape[1] // 10)
    hottest = np.sort(p, axis=1)[:, -tenth:].sum(axis=1)
    logs = np.log(p, out=np.zeros_like(p), where=p > 0)
    entropy = -(p * logs).sum(axis=1) / np.log(max(counts.shape[1], 2))
    empty = total[:, 0] == 0
    return np.where(empty, np.nan, hottest), np.where(empty, np.nan, entropy)


def _unions(trace: RoutingTrace) -> dict[str, dict[str, float | int]]:
    """Rows and distinct experts of an event, by phase (phases that occur)."""
    distinct = np.diff(trace.event_offsets)
    out: dict[str, dict[str, float | int]] = {}
    for phase in Phase:
        chosen = trace.event_phase == phase
        if chosen.any():
            rows, union = trace.event_rows[chosen], distinct[chosen]
            out[phase.name.lower()] = {
                "events": int(chosen.sum()),
                "rows_mean": float(rows.mean()),
                "rows_max": int(rows.max()),
                "distinct_mean": float(union.mean()),
                "distinct_max": int(union.max()),
            }
    return out


def _layers(
    trace: RoutingTrace, touched: npt.NDArray[np.bool_], overlap: Floats, hottest: Floats, entropy: Floats
) -> list[dict[str, Any]]:
    g = trace.geometry

    def total(weights: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        return np.bincount(trace.event_layer, weights=weights, minlength=g.n_layers).astype(np.int64)

    events, rows, lookups = total(None), total(trace.event_rows), total(np.diff(trace.event_offsets))
    return [
        {
            "layer": layer,
            "expert_bytes": g.expert_bytes[i],
            "dense_bytes": g.dense_bytes[i],
            "events": int(events[i]),
            "rows": int(rows[i]),
            "lookups": int(lookups[i]),
            "experts_touched": int(touched[i].sum()),
            "overlap_lag_1": _mean(overlap[i : i + 1]),
            "hottest_10_percent_share": _mean(hottest[i : i + 1]),
            "normalised_entropy": _mean(entropy[i : i + 1]),
        }
        for i, layer in enumerate(g.layer_ids)
    ]


def _mean(values: Floats) -> float | None:
    """Mean of what is known; None if nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def convert(
    source: str | Path,
    target: str | Path,
    format: str | None = None,  # noqa: A002 - the word that users type
    model: str | ModelGeometry | None = None,
    **options: Any,
) -> RoutingTrace:
    """Read a trace of any known format and write it as Parquet; returns the trace.

    Parameters
    ----------
    source
        Trace in any known format.
    target
        The Parquet file to write.
    format
        Name of a reader; sniffed from the first bytes if None.
    model
        Geometry, or its name or file, for formats without sizes.
    options
        Options of the reader.

    Returns
    -------
    RoutingTrace
        The trace that was written.
    """
    trace = read_trace(source, format, model, **options)
    write_parquet(trace, target)
    return trace
