"""The trace in memory: routing rows in CSR form, and the events made of them.

A *routing row* is one token at one MoE layer: k expert ids in rank order. A *pass* is one forward pass of
the model. An *event* is one (pass, layer): the set of distinct experts that its rows want. Events are the
unit of every look-up, miss, copy and read.

Distinct experts of an event are kept in the order of their **last** row, the order in which a cache that
touches row by row leaves them; with one row this is rank order. (Checked against an engine's own residency
column: 39,526 of 39,526 first touches; the order of first rows gives 39,519.)
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.validation import validate

IntArray = npt.NDArray[np.integer[Any]]


class Phase(enum.IntEnum):
    """What a pass is."""

    PREFILL = 0
    DECODE = 1
    VERIFY = 2


@dataclass(frozen=True)
class RoutingTrace:
    """A recorded or generated routing trace.

    Arrays are aligned as follows; R routing rows, E events, P passes, N = sum of k over rows, U = look-ups.

    Parameters
    ----------
    geometry
        The model; layers below are indices into `geometry.layer_ids`.
    pass_request, pass_phase, pass_emits : (P,)
        Request of each pass, its `Phase`, and how many tokens it emits.
    event_pass, event_layer : (E,)
        Ascending by (pass, layer).
    event_row_offsets : (E + 1,)
        Rows of each event.
    row_position : (R,)
        Context position of the row's token, -1 if unknown.
    row_offsets : (R + 1,), row_experts : (N,)
        Expert ids of each row, best rank first.
    row_weights : (N,) or None
        Mixing weights, float32, nan if unknown.
    row_residency : (N,) or None
        What the engine itself reported: 0 miss, 1 hit, 2 first hit on a prefetched expert, -1 unknown.
    predictions : dict of look-ahead depth to (offsets (E + 1,), experts)
        Predictions recorded with the trace, by how many layers ahead they were made; often empty.
    prediction_scores : dict of look-ahead depth to (N,) float32
        Scores of those predictions where they were recorded, by which each event's experts then fall.
    meta
        Source engine, file hash, notes, `synthetic`.
    """

    geometry: ModelGeometry
    pass_request: IntArray
    pass_phase: IntArray
    pass_emits: IntArray
    event_pass: IntArray
    event_layer: IntArray
    event_row_offsets: IntArray
    row_position: IntArray
    row_offsets: IntArray
    row_experts: IntArray
    row_weights: npt.NDArray[np.float32] | None = None
    row_residency: IntArray | None = None
    predictions: dict[int, tuple[IntArray, IntArray]] = field(default_factory=dict)
    prediction_scores: dict[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validate(self)

    # ---- sizes -------------------------------------------------------------------------------

    @property
    def n_passes(self) -> int:
        """Forward passes."""
        return len(self.pass_phase)

    @property
    def n_events(self) -> int:
        """(pass, layer) pairs that have rows."""
        return len(self.event_layer)

    @property
    def n_rows(self) -> int:
        """Routing rows."""
        return len(self.row_position)

    @property
    def n_routed(self) -> int:
        """Routed (row, expert) pairs: the *routed* denominator."""
        return len(self.row_experts)

    @property
    def n_lookups(self) -> int:
        """Distinct experts summed over events: the *distinct* denominator."""
        return len(self.keys)

    @property
    def n_tokens_emitted(self) -> int:
        """Tokens that the passes emit."""
        return int(self.pass_emits.sum())

    @property
    def synthetic(self) -> bool:
        """Whether the trace was generated rather than recorded."""
        return bool(self.meta.get("synthetic", False))

    # ---- events ------------------------------------------------------------------------------

    @cached_property
    def _events(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        return _distinct(self)

    @property
    def event_offsets(self) -> IntArray:
        """(E + 1,) look-ups of each event."""
        return self._events[0]

    @property
    def keys(self) -> IntArray:
        """(U,) int32 keys `layer_index * experts + expert`, each event's in order of last row."""
        return self._events[1]

    @property
    def rows_wanting(self) -> IntArray:
        """(U,) int32 how many rows of the event want the expert."""
        return self._events[2]

    @property
    def first_entry(self) -> IntArray:
        """(U,) index into `row_experts` of the expert's first routing in the event."""
        return self._events[3]

    @cached_property
    def event_rows(self) -> IntArray:
        """(E,) rows of each event."""
        return np.diff(self.event_row_offsets)

    @cached_property
    def pass_event_offsets(self) -> IntArray:
        """(P + 1,) events of each pass."""
        counts = np.bincount(self.event_pass, minlength=self.n_passes)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    @cached_property
    def event_phase(self) -> IntArray:
        """(E,) phase of each event's pass."""
        return np.asarray(self.pass_phase[self.event_pass])

    @cached_property
    def next_use(self) -> IntArray:
        """(U,) index of the next event that wants the same key; `n_events` if none. For oracles only."""
        out = np.full(self.n_lookups, self.n_events, dtype=np.int64)
        event = np.repeat(np.arange(self.n_events, dtype=np.int64), np.diff(self.event_offsets))
        order = np.lexsort((event, self.keys))
        same = self.keys[order][1:] == self.keys[order][:-1]
        out[order[:-1][same]] = event[order[1:][same]]
        return out

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over geometry and arrays: equal traces have equal hashes however they were stored and named."""
        digest = hashlib.sha256()
        sizes = self.geometry.to_dict()
        del sizes["source"]  # says where sizes come from, often with a file's name
        digest.update(repr(sorted(sizes.items())).encode())
        for name, dtype in (
            ("pass_request", np.int32), ("pass_phase", np.int8), ("pass_emits", np.int32),
            ("event_pass", np.int32), ("event_layer", np.int16), ("event_row_offsets", np.int64),
            ("row_position", np.int32), ("row_offsets", np.int64), ("row_experts", np.int16),
        ):  # fmt: skip
            digest.update(np.ascontiguousarray(getattr(self, name), dtype=dtype).tobytes())
        if self.row_weights is not None:
            digest.update(b"weights" + np.ascontiguousarray(self.row_weights, dtype=np.float32).tobytes())
        if self.row_residency is not None:
            digest.update(b"residency" + np.ascontiguousarray(self.row_residency, dtype=np.int8).tobytes())
        for depth, (offsets, experts) in sorted(self.predictions.items()):
            digest.update(f"predictions {depth}".encode())
            digest.update(np.ascontiguousarray(offsets, dtype=np.int64).tobytes())
            digest.update(np.ascontiguousarray(experts, dtype=np.int16).tobytes())
        for depth, scores in sorted(self.prediction_scores.items()):
            digest.update(f"scores {depth}".encode() + np.ascontiguousarray(scores, dtype=np.float32).tobytes())
        return digest.hexdigest()

    def select_passes(self, wanted: npt.NDArray[np.bool_]) -> RoutingTrace:
        """Trace of the passes where `wanted` (P,) is true, renumbered from 0."""
        ev = np.flatnonzero(wanted[self.event_pass])
        rows = ragged_take(self.event_row_offsets, ev)
        ent = ragged_take(self.row_offsets, rows)
        renumber = np.cumsum(wanted) - 1
        return RoutingTrace(
            geometry=self.geometry,
            pass_request=self.pass_request[wanted],
            pass_phase=self.pass_phase[wanted],
            pass_emits=self.pass_emits[wanted],
            event_pass=renumber[self.event_pass[ev]].astype(np.int32),
            event_layer=self.event_layer[ev],
            event_row_offsets=csr_offsets(self.event_rows[ev]),
            row_position=self.row_position[rows],
            row_offsets=csr_offsets(np.diff(self.row_offsets)[rows]),
            row_experts=self.row_experts[ent],
            row_weights=None if self.row_weights is None else self.row_weights[ent],
            row_residency=None if self.row_residency is None else self.row_residency[ent],
            predictions={d: _select_csr(o, x, ev) for d, (o, x) in self.predictions.items()},
            prediction_scores={
                d: scores[ragged_take(self.predictions[d][0], ev)] for d, scores in self.prediction_scores.items()
            },
            meta=self.meta,
        )


def csr_offsets(counts: IntArray) -> IntArray:
    """(n + 1,) int64 offsets of segments of the given lengths."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def ragged_take(offsets: IntArray, chosen: IntArray) -> IntArray:
    """Flat indices of the chosen segments of a CSR array, in the order of `chosen`."""
    lengths = np.diff(offsets)[chosen]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(offsets[:-1][chosen] - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)


def _select_csr(offsets: IntArray, values: IntArray, chosen: IntArray) -> tuple[IntArray, IntArray]:
    return csr_offsets(np.diff(offsets)[chosen]), values[ragged_take(offsets, chosen)]


def assemble(
    geometry: ModelGeometry,
    *,
    pass_request: IntArray,
    pass_phase: IntArray,
    pass_emits: IntArray,
    row_pass: IntArray,
    row_layer: IntArray,
    row_position: IntArray,
    row_counts: IntArray,
    row_experts: IntArray,
    row_weights: npt.NDArray[Any] | None = None,
    row_residency: IntArray | None = None,
    meta: dict[str, Any] | None = None,
) -> RoutingTrace:
    """Trace from rows in any order: sorted by (pass, layer index), the order of an event's rows kept.

    Parameters
    ----------
    geometry
        Shape and sizes.
    pass_request, pass_phase, pass_emits : (P,)
        Table of passes.
    row_pass, row_layer, row_position, row_counts : (R,)
        Pass, layer *index*, context position and k of each row.
    row_experts, row_weights, row_residency : (N,)
        Flat, N = sum of `row_counts`.
    meta
        Where the trace comes from.

    Returns
    -------
    RoutingTrace
        The trace, validated.

    Raises
    ------
    TraceError
        No rows, a pass without rows, or anything that `validate` refuses.
    """
    if len(row_pass) == 0:
        raise TraceError("the trace has no routing rows")
    present = np.bincount(row_pass, minlength=len(pass_phase))
    if (present == 0).any():
        raise TraceError(f"pass {int(np.flatnonzero(present == 0)[0])} has no routing rows")
    code = np.asarray(row_pass, dtype=np.int64) * geometry.n_layers + row_layer
    if (np.diff(code) < 0).any():
        order = np.argsort(code, kind="stable")
        entries = ragged_take(csr_offsets(row_counts), order)
        code, row_position, row_counts = code[order], row_position[order], row_counts[order]
        row_experts = row_experts[entries]
        row_weights = None if row_weights is None else row_weights[entries]
        row_residency = None if row_residency is None else row_residency[entries]
    start = np.flatnonzero(np.concatenate([[True], np.diff(code) != 0]))
    return RoutingTrace(
        geometry=geometry,
        pass_request=_int32(pass_request, "pass_request"),
        pass_phase=np.asarray(pass_phase, dtype=np.int8),
        pass_emits=_int32(pass_emits, "pass_emits"),
        event_pass=(code[start] // geometry.n_layers).astype(np.int32),
        event_layer=(code[start] % geometry.n_layers).astype(np.int16),
        event_row_offsets=np.concatenate([start, [len(code)]]).astype(np.int64),
        row_position=_int32(row_position, "row_position"),
        row_offsets=csr_offsets(row_counts),
        row_experts=_narrow(row_experts, geometry.experts),
        row_weights=None if row_weights is None else np.asarray(row_weights, dtype=np.float32),
        row_residency=None if row_residency is None else np.asarray(row_residency, dtype=np.int8),
        meta=meta or {},
    )


def _int32(values: IntArray, name: str) -> IntArray:
    """A column of 32 bits; what does not fit is refused, since numpy would make another number of it."""
    limit = np.iinfo(np.int32)
    wide = np.asarray(values, dtype=np.int64)
    if len(wide) and not limit.min <= int(wide.min()) <= int(wide.max()) <= limit.max:
        raise TraceError(f"{name} goes from {wide.min()} to {wide.max()}, more than 32 bits hold")
    return wide.astype(np.int32)


def _narrow(experts: IntArray, limit: int) -> IntArray:
    """Expert ids as int16 if all are in range; as they came if not, so that `validate` can name the bad one."""
    inside = bool(((experts >= 0) & (experts < limit)).all())
    return np.asarray(experts, dtype=np.int16) if inside else np.asarray(experts, dtype=np.int64)


def _distinct(t: RoutingTrace) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Distinct experts of each event, ordered by last routing entry."""
    experts = t.geometry.experts
    if t.n_rows == t.n_events:  # one row an event: rank order, nothing repeats
        layer = np.repeat(t.event_layer.astype(np.int32), np.diff(t.row_offsets))
        keys = layer * np.int32(experts) + t.row_experts.astype(np.int32)
        return t.row_offsets, keys, np.ones(len(keys), dtype=np.int32), np.arange(len(keys), dtype=np.int64)
    row_event = np.repeat(np.arange(t.n_events, dtype=np.int64), np.diff(t.event_row_offsets))
    entry_event = np.repeat(row_event, np.diff(t.row_offsets))
    code = entry_event * experts + t.row_experts.astype(np.int64)
    order = np.argsort(code, kind="stable")
    sorted_code = code[order]
    if len(order) == 0:
        empty = np.zeros(0, dtype=np.int64)
        return np.zeros(t.n_events + 1, dtype=np.int64), empty.astype(np.int32), empty.astype(np.int32), empty
    start = np.flatnonzero(np.concatenate([[True], sorted_code[1:] != sorted_code[:-1]]))
    counts = np.diff(np.concatenate([start, [len(order)]]))
    first, last = order[start], order[start + counts - 1]
    event = entry_event[first]
    by_last = np.lexsort((last, event))
    keys = t.event_layer[event].astype(np.int64) * experts + t.row_experts[first].astype(np.int64)
    per_event = np.bincount(event, minlength=t.n_events)
    return (
        csr_offsets(per_event),
        keys[by_last].astype(np.int32),
        counts[by_last].astype(np.int32),
        first[by_last],
    )
