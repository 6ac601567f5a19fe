"""Checks and conversions that several readers share; each names the place that the reader gives it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry, list_models, load_model
from expert_residency.traces.readers.base import read_text
from expert_residency.traces.trace import IntArray, Phase

Place = Callable[[int], str]

MAX_VERIFY_ROWS = 5
"""Rows of a pass up to which a many-row pass after the prompt is taken for a verify window, where the format
does not say: 1 + 4 drafts is the longest in common use."""


def load_json(path: Path) -> Any:
    """The file's JSON, or where it stops being JSON."""
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        what = "the file is cut off" if error.pos >= len(text.rstrip()) - 1 else "not valid JSON"
        raise TraceError(
            f"{what} ({error.msg})", path=path, place=f"line {error.lineno}, column {error.colno}"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists in lists
        raise TraceError(f"not JSON that a trace would be ({error})", path=path) from None


def need_model(path: Path, model: ModelGeometry | None, lacks: str = "expert bytes") -> ModelGeometry:
    """The given model, or the error that says to give one.

    Parameters
    ----------
    path
        The trace, for the message.
    model
        What the user gave, or None.
    lacks
        What the format does not hold.

    Returns
    -------
    ModelGeometry
        The model.

    Raises
    ------
    TraceError
        No model was given.
    """
    if model is None:
        raise TraceError(
            f"this format has no {lacks}; give --model (known: {', '.join(list_models())})", path=path
        )
    return model


def named_model(path: Path, name: str, model: ModelGeometry | None) -> ModelGeometry:
    """The given model, or the packaged one whose name begins the file's own.

    Parameters
    ----------
    path
        The trace, for the message.
    name
        Of the model, as the file has it.
    model
        What the user gave, or None.

    Returns
    -------
    ModelGeometry
        The model.
    """
    if model is not None:
        return model
    known = [known for known in list_models() if name.lower().startswith(known)]
    return need_model(path, load_model(max(known, key=len)) if known else None)


def with_sizes_of(model: ModelGeometry | None, own: ModelGeometry, path: Path) -> ModelGeometry:
    """The file's own geometry, or `model`'s sizes in its place, with the file's k, if their shapes agree.

    Parameters
    ----------
    model
        What the user gave, or None.
    own
        Geometry in the file.
    path
        The trace, for the message.

    Returns
    -------
    ModelGeometry
        Geometry to use.

    Raises
    ------
    TraceError
        The two have other layers or experts.
    """
    if model is None:
        return own
    if model.layer_ids != own.layer_ids or model.experts != own.experts:
        mine, given = (f"{g.n_layers} MoE layers of {g.experts} experts" for g in (own, model))
        raise TraceError(f"the file has {mine}, {model.label} has {given}", path=path)
    return replace(model, top_k=own.top_k)


def check_size(found: int, expected: int, what: str, path: Path, place: str | None = None) -> None:
    """One size of the file equals the model's.

    Parameters
    ----------
    found
        In the file.
    expected
        Of the model.
    what
        The size in words.
    path
        The trace, for the message.
    place
        Where in the file, or None.

    Raises
    ------
    TraceError
        The two differ.
    """
    if found != expected:
        raise TraceError(f"{found} {what}, expected {expected}", path=path, place=place)


def layer_indices(layer: IntArray, geometry: ModelGeometry, path: Path, place: Place) -> IntArray:
    """Index into `geometry.layer_ids` of each layer id; a stranger is an error at `place(its position)`.

    Parameters
    ----------
    layer
        (R,) layer ids of rows.
    geometry
        The model.
    path
        The trace, for the message.
    place
        Words for where a row stands, from its number.

    Returns
    -------
    IntArray
        (R,) layer indices, from 0.

    Raises
    ------
    TraceError
        A layer that is no MoE layer of the model.
    """
    ids = np.asarray(geometry.layer_ids)
    index = np.minimum(np.searchsorted(ids, layer), len(ids) - 1)
    wrong = np.flatnonzero(ids[index] != layer)
    if len(wrong):
        at = int(wrong[0])
        span = f"{len(ids)} layers, {ids[0]}..{ids[-1]}"
        raise TraceError(
            f"layer {int(layer[at])} is not an MoE layer of {geometry.label} ({span})", path=path, place=place(at)
        )
    return index


def check_experts(experts: npt.NDArray[Any], geometry: ModelGeometry, path: Path, place: Place) -> None:
    """Expert ids (N,) are in range, or those of rows (R, k) also differ; `place` takes the first index.

    Parameters
    ----------
    experts
        (N,) or (R, k) expert ids.
    geometry
        The model.
    path
        The trace, for the message.
    place
        Words for where an entry or row stands, from its number.

    Raises
    ------
    TraceError
        An id out of range, or twice in a row.
    """
    flat = experts.reshape(len(experts), -1)
    wrong = np.argwhere((flat < 0) | (flat >= geometry.experts))
    if len(wrong):
        row, column = wrong[0]
        found = int(flat[row, column])
        raise TraceError(
            f"expert id {found}, expected 0..{geometry.experts - 1}", path=path, place=place(int(row))
        )
    ordered = np.sort(flat, axis=1)
    twice = np.argwhere(ordered[:, 1:] == ordered[:, :-1])
    if len(twice):
        row, column = twice[0]
        raise TraceError(f"expert {int(ordered[row, column])} twice in one row", path=path, place=place(int(row)))


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
        (R,) pass of each row, not descending.
    row_layer
        (R,) layer index of each row.
    n_layers
        MoE layers of the model.

    Returns
    -------
    IntArray
        (P, L) counts.
    """
    n_passes = int(row_pass[-1]) + 1
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
    wrong = rows_at != rows_at[:, :1]
    wrong[:, -1] &= ~(short_last & (rows_at[:, -1] == 1))
    wrong |= rows_at == 0
    if wrong.any():
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


def infer_phases(rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Phase, request and emitted tokens of passes of which only the number of rows is known.

    One row is a decode step. Many rows are a prompt chunk before the first decode step and wherever they
    are more than `MAX_VERIFY_ROWS`; else a verify window. A prompt chunk after a decode step begins another
    request; only a request's last chunk emits a token.
    """
    single = rows == 1
    after = np.concatenate([[False], np.cumsum(single)[:-1] > 0])
    prompt = ~single & (~after | (rows > MAX_VERIFY_ROWS))
    phase = np.where(prompt, Phase.PREFILL, np.where(single, Phase.DECODE, Phase.VERIFY))
    request = np.cumsum(prompt & np.concatenate([[False], ~prompt[:-1]]))
    emits = np.ones(len(rows), dtype=np.int64)
    emits[:-1][prompt[:-1] & prompt[1:]] = 0
    return phase, request, emits


INFERRED = "phases and requests are inferred from the rows of each pass, tokens of verify passes counted as 1"
