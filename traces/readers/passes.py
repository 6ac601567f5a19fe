"""Passes of rows: how they are told apart, which phase they are, and whether one lacks rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.files import Place
from expert_residency.traces.trace import IntArray, Phase

MAX_VERIFY_ROWS = 5
"""Rows of a pass up to which a many-row pass after the prompt is taken for a verify window, where the format
does not say: 1 + 4 drafts is the longest in common use."""
INFERRED = "phases and requests are inferred from the rows of each pass, tokens of verify passes counted as 1"


def number_passes(layer: IntArray, new_event: npt.NDArray[np.bool_] | None = None) -> IntArray:
    """Pass of each row where a pass ends when the layer falls.

    With `new_event` (rows that begin a new event) a layer that comes again also begins a pass, so that a
    model with one MoE layer is read right.
    """
    new = layer[1:] < layer[:-1]
    if new_event is not None:
        new = new | (new_event[1:] & (layer[1:] == layer[:-1]))
    return np.concatenate([[0], np.cumsum(new)]).astype(np.int64)


def row_table(row_pass: IntArray, row_layer: IntArray, n_layers: int) -> IntArray:
    """(P, L) rows of each pass at each layer index.

    Parameters
    ----------
    row_pass
        (R,) pass of each row.
    row_layer
        (R,) layer index of each row.
    n_layers
        MoE layers of the model.

    Returns
    -------
    IntArray
        (P, L) counts.
    """
    n_passes = int(row_pass.max()) + 1
    return np.bincount(row_pass * n_layers + row_layer, minlength=n_passes * n_layers).reshape(n_passes, n_layers)


def check_complete(
    rows_at: IntArray, geometry: ModelGeometry, path: Path, place: Place, *, short_last: npt.NDArray[np.bool_]
) -> None:
    """Every layer of a pass has as many rows as the first; where `short_last` (P,), the last may have one.

    `place` takes the pass number.

    Parameters
    ----------
    rows_at
        (P, L) rows of each pass at each layer.
    geometry
        The model.
    path
        The trace, for the message.
    place
        Words for where a pass stands, from its number.
    short_last
        (P,) whether the last layer may have one row only.

    Raises
    ------
    TraceError
        Rows are missing or repeated.
    """
    wrong = _wrong_rows(rows_at, short_last)
    if wrong.any():
        absent = np.flatnonzero(~rows_at.any(axis=0))
        if len(absent) and len(rows_at) > 1:
            _refuse_partial(rows_at, geometry, path)
        number, index = (int(i) for i in np.argwhere(wrong)[0])
        layer, first = geometry.layer_ids[index], geometry.layer_ids[0]
        found, expected = int(rows_at[number, index]), int(rows_at[number, 0])
        why = (
            f"layer {layer} has {found} rows, layer {first} has {expected}"
            if found
            else f"no rows of layer {layer}"
        )
        raise TraceError(
            f"{why} (rows are missing or repeated, or the file is cut off)", path=path, place=place(number)
        )


def whole_passes(rows_at: IntArray, short_last: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """(P,) whether a pass has all its rows, by the rule of `check_complete`; `rows_at` is (P, L)."""
    return np.asarray(~_wrong_rows(rows_at, short_last).any(axis=1))


def _wrong_rows(rows_at: IntArray, short_last: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    wrong = rows_at != rows_at[:, :1]
    wrong[:, -1] &= ~(short_last & (rows_at[:, -1] == 1))
    return np.asarray(wrong | (rows_at == 0))


def _refuse_partial(rows_at: IntArray, geometry: ModelGeometry, path: Path) -> None:
    """The error of a file in which layers are missing throughout."""
    seen = rows_at.any(axis=0)
    absent = geometry.layer_ids[int(np.flatnonzero(~seen)[0])]
    raise TraceError(
        f"no rows of layer {absent} in any pass: the file has {int(seen.sum())} of the {geometry.n_layers} MoE "
        f"layers of "
        f"{geometry.label}, and times and hits made of it would be wrong by the share left out; --partial takes "
        f"the "
        "layers that are there and says so in every result",
        path=path,
    )


def infer_phases(rows: IntArray, request: IntArray | None = None) -> tuple[IntArray, IntArray, IntArray]:
    """Phase, request and emitted tokens of passes of which only the number of rows is known.

    Parameters
    ----------
    rows
        (P,) rows of each pass.
    request
        (P,) where the file has it; each is then taken by itself.

    Returns
    -------
    phase, request, emits
        (P,) each.

    Notes
    -----
    One row is a decode step. Many rows are a prompt chunk before the first decode step and wherever they
    are more than `MAX_VERIFY_ROWS`; else a verify window. A prompt chunk after a decode step begins another
    request; only a request's last chunk emits a token.
    """
    if request is not None:
        parts = [np.flatnonzero(request == one) for one in dict.fromkeys(request.tolist())]
        phase, emits = np.zeros(len(rows), dtype=np.int64), np.ones(len(rows), dtype=np.int64)
        for part in parts:
            phase[part], _, emits[part] = infer_phases(rows[part])
        return phase, request, emits
    single = rows == 1
    after = np.concatenate([[False], np.cumsum(single)[:-1] > 0])
    prompt = ~single & (~after | (rows > MAX_VERIFY_ROWS))
    phase = np.where(prompt, Phase.PREFILL, np.where(single, Phase.DECODE, Phase.VERIFY))
    request = np.cumsum(prompt & np.concatenate([[False], ~prompt[:-1]]))
    emits = np.ones(len(rows), dtype=np.int64)
    emits[:-1][prompt[:-1] & prompt[1:]] = 0
    return phase, request, emits


def counted_positions(
    row_pass: IntArray, row_layer: IntArray, table: IntArray, request: IntArray, phase: IntArray, emits: IntArray
) -> IntArray:
    """Positions where a file has none: rows of a request one after another, in the order of its passes.

    A verify pass leaves only the tokens that it emits: the next one begins behind those.

    Parameters
    ----------
    row_pass, row_layer : (R,)
        Pass and layer index of each row, rows of one event in the order of tokens.
    table : (P, L)
        Rows of each pass at each layer index; a layer with fewer than others has the last ones.
    request, phase, emits : (P,)
        Request, phase and emitted tokens of each pass.

    Returns
    -------
    IntArray
        (R,) positions, from 0 in each request.
    """
    rows = table.max(axis=1)
    tokens = np.where(phase == Phase.VERIFY, emits, rows)
    order = np.argsort(request, kind="stable")
    behind = np.cumsum(tokens[order]) - tokens[order]
    first = np.flatnonzero(np.diff(request[order], prepend=request[order[:1]] - 1))
    start = np.empty(len(rows), dtype=np.int64)
    start[order] = behind - np.repeat(behind[first], np.diff(np.append(first, len(rows))))
    event = row_pass * table.shape[1] + row_layer
    by_event = np.argsort(event, kind="stable")
    counts = table.reshape(-1)
    rank = np.empty(len(event), dtype=np.int64)
    rank[by_event] = np.arange(len(event)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(start[row_pass] + (rows[row_pass] - counts[event]) + rank)
