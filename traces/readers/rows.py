"""From routing rows in a file's own order to a trace: what nearly every reader does, done once.

A reader turns its file into `Rows`, columns in the order of the file, and says by `Rows` how passes are told
apart: by a pass number, by a token number with the phase, or, where the file has neither, by the layer that falls.
`trace_of` then finds layers, checks ids, numbers passes, tells phases, checks that nothing is missing, and writes
down as notes whatever it had to assume, leave out or sort.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.ahead import check_depth, united
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.base import source_meta
from expert_residency.traces.readers.checks import check_ragged_experts, layer_indices
from expert_residency.traces.readers.files import Place
from expert_residency.traces.readers.passes import (
    INFERRED,
    check_complete,
    counted_positions,
    infer_phases,
    number_passes,
    row_table,
    whole_passes,
)
from expert_residency.traces.trace import IntArray, Phase, RoutingTrace, assemble, csr_offsets, ragged_take

MAX_DRAFT_LAYERS = 4
"""Layers after the last one up to which a row is taken for a draft (multi-token prediction) layer's."""
RAGGED = "the last layer of {} has one row, the last prompt token's, as llama.cpp gathers it"
SORTED = "rows were not in the order of passes and tokens and were sorted"
SHORT = "{:,} of {:,} rows have fewer than {} experts ({:,} ids fewer in all)"
OTHER_K = "k is {} in this file, where the model uses {} experts a token"
GAPS = "pass numbers have gaps: {:,} missing, the first after pass {} of {}"
COUNTED = "positions are not recorded: they are counted from the rows of each request"
NO_PHASES = "the format has no phases: every token is a decode pass"


Predicted = tuple[IntArray, IntArray, npt.NDArray[np.float32] | None]


@dataclass(frozen=True)
class Rows:
    """Routing rows in the order of the file; R rows, N = sum of k over rows.

    Parameters
    ----------
    layer, counts : (R,)
        Layer as the file numbers it, and k, of each row.
    experts : (N,)
        Ids, best rank first.
    place
        Words for where a row stands in the file, from its number.
    weights, residency : (N,) or None
        As in `RoutingTrace`.
    request, phase, position : (R,) or None
        As in `RoutingTrace`, for each row.
    pass_number : (R,) or None
        Rows of one request and pass number are one pass.
    token : (R,) or None
        Number of the token in its request, where passes are made of it: each token a pass, but prompt tokens that
        follow one another are one.
    new_event : (R,) bool or None
        Where a new (pass, layer) begins; tells passes of a model with one MoE layer apart.
    predicted
        By depth, what was predicted for each row's layer: lengths (R,), ids, and scores or None.
    """

    layer: IntArray
    counts: IntArray
    experts: IntArray
    place: Place
    weights: npt.NDArray[Any] | None = None
    residency: IntArray | None = None
    request: IntArray | None = None
    phase: IntArray | None = None
    position: IntArray | None = None
    pass_number: IntArray | None = None
    token: IntArray | None = None
    new_event: npt.NDArray[np.bool_] | None = None
    predicted: Mapping[int, Predicted] = field(default_factory=dict)

    def check_tokens(self, layer: IntArray, request: IntArray, path: Path) -> None:
        """Where passes are made of tokens: none twice in a layer, none missing between the first and the last.

        Parameters
        ----------
        layer, request
            (R,) of each row.
        path
            The file, for the message.

        Raises
        ------
        TraceError
            The first fault.
        """
        assert self.token is not None
        order = np.lexsort((layer, self.token, request))
        by = np.stack([request, self.token, layer], axis=1)[order]
        same = np.flatnonzero((by[1:] == by[:-1]).all(axis=1))
        if len(same):
            at = int(order[same[0] + 1])
            why = f"layer {int(self.layer[at])}, token {int(self.token[at])} is repeated"
            raise TraceError(why, path=path, place=self.place(at))
        step = np.diff(by[:, 1])
        gap = np.flatnonzero((by[1:, 0] == by[:-1, 0]) & (step > 1))
        if len(gap):
            raise TraceError(f"token {int(by[gap[0], 1]) + 1} is missing", path=path,
                             place=self.place(int(order[gap[0] + 1])))  # fmt: skip

    def take(self, chosen: IntArray) -> Rows:
        """The chosen rows, in that order."""
        entries = ragged_take(csr_offsets(self.counts), chosen)
        place = self.place

        def some(column: npt.NDArray[Any] | None) -> Any:
            return None if column is None else column[chosen]

        return Rows(
            layer=self.layer[chosen],
            counts=self.counts[chosen],
            experts=self.experts[entries],
            place=lambda i: place(int(chosen[i])),
            weights=None if self.weights is None else self.weights[entries],
            residency=None if self.residency is None else self.residency[entries],
            request=some(self.request),
            phase=some(self.phase),
            position=some(self.position),
            pass_number=some(self.pass_number),
            token=some(self.token),
            new_event=some(self.new_event),
            predicted={depth: _taken(one, chosen) for depth, one in self.predicted.items()},
        )


def _taken(predicted: Predicted, chosen: IntArray) -> Predicted:
    counts, ids, scores = predicted
    entries = ragged_take(csr_offsets(counts), chosen)
    return counts[chosen], ids[entries], None if scores is None else scores[entries]


def rows_of(
    layers: Sequence[int],
    ids: Sequence[Sequence[int]],
    place: Place,
    *,
    weights: Sequence[Sequence[float]] | None = None,
    **columns: Sequence[int] | None,
) -> Rows:
    """Rows from lists.

    Parameters
    ----------
    layers
        (R,) layer of each row.
    ids
        Expert ids of each row.
    place
        As in `Rows`.
    weights
        As long as `ids`, or None (empty likewise).
    columns
        Further columns of `Rows`, (R,) each or None.

    Returns
    -------
    Rows
        The same, as arrays.

    Raises
    ------
    TraceError
        No row at all, or numbers that do not fit.
    """
    if not len(layers):
        raise TraceError("the trace has no routing rows")
    counts = np.asarray([len(row) for row in ids], dtype=np.int64)
    try:
        given: dict[str, Any] = {
            name: None if values is None else np.asarray(values, dtype=np.int64)
            for name, values in columns.items()
        }
        return Rows(
            layer=np.asarray(layers, dtype=np.int64),
            counts=counts,
            experts=np.asarray([i for row in ids for i in row], dtype=np.int64),
            place=place,
            weights=np.asarray([w for row in weights for w in row], dtype=np.float32) if weights else None,
            **given,
        )
    except OverflowError:
        raise TraceError("a number that does not fit 64 bits") from None


def trace_of(
    rows: Rows,
    geometry: ModelGeometry,
    path: Path,
    engine: str,
    *notes: str,
    drafts: bool = False,
    partial: bool = False,
    phases: Callable[[IntArray], tuple[IntArray, IntArray]] | None = None,
    **meta: Any,
) -> RoutingTrace:
    """The trace of a file's rows.

    Parameters
    ----------
    rows
        All rows of the file.
    geometry
        The model; k becomes the file's largest.
    path
        The file, for messages.
    engine
        What wrote it.
    notes
        What the reader itself has to say.
    drafts
        Whether rows of layers after the last one are a draft layer's, to be left out and counted.
    partial
        Keep what is whole: passes before the one that the file's end cuts, and the layers that the file has.
    phases
        Where neither rows nor their shape say it: from (P,) rows of each pass its phase and the tokens it emits.
    meta
        Further entries of the trace's `meta`.

    Returns
    -------
    RoutingTrace
        The trace, with notes of what was assumed, left out or sorted.

    Raises
    ------
    TraceError
        One sentence with the place.
    """
    said, n_layers = list(notes), geometry.n_layers
    if not len(rows.layer):
        raise TraceError("the trace has no routing rows", path=path)
    if drafts:
        rows = _without_drafts(rows, geometry, path, said)
    layer = layer_indices(rows.layer, geometry, path, rows.place)
    check_ragged_experts(rows.experts, rows.counts, geometry, path, rows.place)
    _check_weights(rows, path)
    said += _left_out(rows, geometry)
    if rows.token is not None and rows.pass_number is None:
        rows.check_tokens(
            layer, np.zeros(len(layer), dtype=np.int64) if rows.request is None else rows.request, path
        )
    row_pass, order = _passes(rows, layer)
    if order is not None:
        rows, layer, row_pass = rows.take(order), layer[order], row_pass[order]
        said.append(SORTED)
        meta["sorted"] = True
    first = np.unique(row_pass, return_index=True)[1]
    table = row_table(row_pass, layer, geometry.n_layers)
    phase, request, told = _phases(rows, row_pass, first, table, path)
    if phases is not None:
        phase, emits = phases(table[:, 0])
        request = np.zeros(len(phase), dtype=np.int64) if rows.request is None else request
    else:
        said += told[1]
        emits = told[0]
    prefill = phase == Phase.PREFILL
    position = rows.position
    if position is None:
        position = counted_positions(row_pass, layer, table, request, phase, emits)
        meta["positions"] = "counted"
    if partial:
        kept, seen = _whole(table, prefill, said, geometry)
        chosen = np.flatnonzero(kept[row_pass])
        if not len(chosen):
            raise TraceError("the file has not one whole pass", path=path)
        rows, layer, row_pass, position = rows.take(chosen), layer[chosen], row_pass[chosen], position[chosen]
        n = int(kept.sum())  # whole passes come first
        if n < len(kept):
            meta["cut"] = True
        phase, request, emits, table, prefill = phase[:n], request[:n], emits[:n], table[:n], prefill[:n]
        if not seen.all():
            meta["partial"] = [int(seen.sum()), geometry.n_layers]
            geometry = geometry.only_layers(np.flatnonzero(seen).tolist())
            layer, table = (np.cumsum(seen) - 1)[layer], table[:, seen]
        first = np.unique(row_pass, return_index=True)[1]
    check_complete(
        table, geometry, path, lambda p: f"the pass from {rows.place(int(first[p]))}", short_last=prefill
    )
    said += ragged_notes(table, prefill)
    if (phase == Phase.VERIFY).any() and INFERRED not in said:
        said.append("tokens emitted by verify passes are unknown and counted as 1")
    said += [COUNTED] * (rows.position is None)
    trace = assemble(
        geometry.with_top_k(int(rows.counts.max())),
        pass_request=request,
        pass_phase=phase,
        pass_emits=emits,
        row_pass=row_pass,
        row_layer=layer,
        row_position=position,
        row_counts=rows.counts,
        row_experts=rows.experts,
        row_weights=rows.weights,
        row_residency=rows.residency,
        meta=source_meta(path, engine, *said) | meta,
    )
    event = np.unique(row_pass * geometry.n_layers + layer, return_inverse=True)[1].reshape(-1)
    for depth, predicted in rows.predicted.items():
        try:
            check_depth(depth, n_layers)
            offsets, ids, scores = united(event, *predicted, n_events=trace.n_events, experts=geometry.experts)
        except TraceError as error:
            raise TraceError(f"predicted_d{depth}: {error}", path=path) from None
        trace.predictions[depth] = offsets, ids
        if scores is not None:
            trace.prediction_scores[depth] = scores
    return trace


def _check_weights(rows: Rows, path: Path) -> None:
    """Weights are numbers of 0 or more, or nan where a format has none for an expert."""
    if rows.weights is None:
        return
    wrong = np.flatnonzero((rows.weights < 0) | np.isinf(rows.weights))
    if len(wrong):
        row = int(np.searchsorted(csr_offsets(rows.counts), wrong[0], side="right")) - 1
        why = f"the weight of an expert is {float(rows.weights[wrong[0]]):g}, expected a number of 0 or more"
        raise TraceError(why, path=path, place=rows.place(row))


def _left_out(rows: Rows, geometry: ModelGeometry) -> list[str]:
    """Notes of what the file seems to lack: experts of rows, passes between others."""
    said = []
    k = int(rows.counts.max())
    short = rows.counts < k
    if short.any():
        said.append(SHORT.format(int(short.sum()), len(short), k, int((k - rows.counts).sum())))
    if k < geometry.top_k:
        said.append(OTHER_K.format(k, geometry.top_k))
    if rows.pass_number is not None:
        request = np.zeros(len(short), dtype=np.int64) if rows.request is None else rows.request
        said += _gaps(request, rows.pass_number)
    return said


def _gaps(request: IntArray, number: IntArray) -> list[str]:
    """What to say of pass numbers that no row has, between those of a request.

    Requests that do not all begin at the same number share one numbering, as where an engine counts its passes.
    """
    pairs = np.unique(np.stack([request, number], axis=1), axis=0)
    begins = np.flatnonzero(np.diff(pairs[:, 0], prepend=pairs[0, 0] - 1))
    if len(np.unique(pairs[begins, 1])) > 1:
        pairs = np.unique(pairs * [0, 1], axis=0)
    step = np.where(np.diff(pairs[:, 0]) == 0, np.diff(pairs[:, 1]) - 1, 0)
    wide = np.flatnonzero(step > 0)
    if not len(wide):
        return []
    last = int(pairs[pairs[:, 0] == pairs[wide[0], 0], 1].max())
    return [GAPS.format(int(step.sum()), int(pairs[wide[0], 1]), last)]


def ragged_notes(table: IntArray, prefill: npt.NDArray[np.bool_]) -> list[str]:
    """What to say of prompt passes whose last layer has fewer rows; `table` is (P, L) rows."""
    short = int((prefill & (table[:, -1] < table[:, 0])).sum())
    return [RAGGED.format("the prompt's pass" if short == 1 else f"{short} prompt passes")] if short else []


def _without_drafts(rows: Rows, geometry: ModelGeometry, path: Path, said: list[str]) -> Rows:
    last = geometry.layer_ids[-1]
    draft = (rows.layer > last) & (rows.layer <= last + MAX_DRAFT_LAYERS)
    if not draft.any():
        return rows
    if draft.all():
        raise TraceError(f"no row of a layer of {geometry.label}", path=path)
    said.append(f"{int(draft.sum()):,} rows of draft layers (after layer {last}) are left out")
    return rows.take(np.flatnonzero(~draft))


def _passes(rows: Rows, layer: IntArray) -> tuple[IntArray, IntArray | None]:
    """Pass of each row, from 0 in the order of the passes, and the rows' order if they must be sorted."""
    n = len(layer)
    request = np.zeros(n, dtype=np.int64) if rows.request is None else rows.request
    number = rows.pass_number
    if number is None and rows.token is not None:
        number = _blocks(request, rows.token, rows.phase)
    if number is None:
        single = np.ones(n, dtype=bool) if rows.new_event is None else rows.new_event
        row_pass = number_passes(layer, single if layer.max() == layer.min() else rows.new_event)
        if rows.request is not None:  # another request is another pass, wherever the layer stands
            row_pass = row_pass + np.concatenate([[0], np.cumsum(np.diff(request) != 0)])
            row_pass = np.unique(row_pass, return_inverse=True)[1]
        return row_pass, None
    key = np.stack([request, number], axis=1)
    keys, at, inverse = np.unique(key, axis=0, return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    appear = np.argsort(at, kind="stable")
    rank = np.empty(len(appear), dtype=np.int64)
    rank[appear] = np.arange(len(appear))
    falls = (np.diff(rank) < 0) & (keys[1:, 0] == keys[:-1, 0])  # numbers of a request fall in the file
    if falls.any():
        begin = np.full(int(keys[:, 0].max()) + 1, len(keys))
        np.minimum.at(begin, keys[:, 0], rank)
        by_number = np.lexsort((keys[:, 1], begin[keys[:, 0]]))
        rank[by_number] = np.arange(len(by_number))
    row_pass = rank[inverse]
    token = rows.token if rows.token is not None else rows.position
    within = np.arange(n) if token is None else token
    code = row_pass * (int(layer.max()) + 1) + layer
    order = np.lexsort((np.arange(n), within, code))
    # what is sorted is said if tokens of an event or passes were out of order; layers may come in any order
    grouped = np.argsort(code, kind="stable")
    return row_pass, order if falls.any() or not np.array_equal(order, grouped) else None


def _blocks(request: IntArray, token: IntArray, phase: IntArray | None) -> IntArray:
    """Pass number of each row: its token, or for prompt tokens the first of the tokens that follow one another."""
    if phase is None:
        return token
    pairs, at, inverse = np.unique(
        np.stack([request, token], axis=1), axis=0, return_index=True, return_inverse=True
    )
    prompt = phase[at] == Phase.PREFILL
    begins = ~prompt | (np.diff(pairs[:, 0], prepend=-1) != 0) | ~np.concatenate([[False], prompt[:-1]])
    start = np.maximum.accumulate(np.where(begins, np.arange(len(pairs)), 0))
    return np.asarray(pairs[start, 1][inverse.reshape(-1)])


def _phases(
    rows: Rows, row_pass: IntArray, first: IntArray, table: IntArray, path: Path
) -> tuple[IntArray, IntArray, tuple[IntArray, list[str]]]:
    """Phase and request of each pass, tokens that it emits, and what to say of them."""
    n = len(first)
    request = np.zeros(n, dtype=np.int64) if rows.request is None else rows.request[first]
    if rows.phase is None and rows.token is None:
        phase, inferred, emits = infer_phases(table.max(axis=1), request if rows.request is not None else None)
        return phase, inferred if rows.request is None else request, (emits, [INFERRED])
    if rows.phase is None:
        phase = np.where(table.max(axis=1) > 1, Phase.VERIFY, Phase.DECODE)
        return phase, request, (np.ones(n, dtype=np.int64), [NO_PHASES])
    mixed = np.flatnonzero(rows.phase != rows.phase[first][row_pass])
    if len(mixed):
        raise TraceError("phase changes within a pass", path=path, place=rows.place(int(mixed[0])))
    phase = rows.phase[first]
    emits = np.ones(n, dtype=np.int64)
    prefill = phase == Phase.PREFILL
    emits[:-1][prefill[:-1] & prefill[1:] & (request[:-1] == request[1:])] = 0
    return np.where((phase == Phase.DECODE) & (table.max(axis=1) > 1), Phase.VERIFY, phase), request, (emits, [])


def _whole(
    table: IntArray, prefill: npt.NDArray[np.bool_], said: list[str], geometry: ModelGeometry
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Passes (P,) to keep, those before the one that the file's end cuts, and layers (L,) that the file has."""
    seen = np.asarray((table[:-1] if len(table) > 1 else table).any(axis=0))
    whole = whole_passes(table[:, seen], prefill) & ~table[:, ~seen].any(axis=1)
    kept = np.ones(len(table), dtype=bool)
    if not whole[-1]:
        kept[-1] = False
        said.append(f"the file is cut off: its last pass, of {int(table[-1].sum())} rows, is left out")
    return kept, seen


def prompt_first(prompt_tokens: int, path: Path) -> Callable[[IntArray], tuple[IntArray, IntArray]]:
    """For `trace_of`: the passes of the first `prompt_tokens` rows are the prompt, the rest is generated."""

    def phases(rows: IntArray) -> tuple[IntArray, IntArray]:
        phase = np.where(rows == 1, Phase.DECODE, Phase.VERIFY)
        emits = np.ones(len(rows), dtype=np.int64)
        if prompt_tokens:
            ends = np.cumsum(rows)
            n = int(np.searchsorted(ends, prompt_tokens)) + 1
            if n > len(rows) or ends[n - 1] != prompt_tokens:
                raise TraceError(
                    f"no pass ends after {prompt_tokens} prompt tokens (the file has {ends[-1]} rows)", path=path
                )
            phase[:n], emits[: n - 1] = Phase.PREFILL, 0
        return phase, emits

    return phases
