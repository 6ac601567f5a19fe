"""Checks and conversions that several readers share; each names the place that the reader gives it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
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
    except (ValueError, RecursionError) as error:
        raise TraceError(f"not JSON that a trace would be ({_why(error)})", path=path) from None


def _why(error: ValueError | RecursionError) -> str:
    """Why Python reads no JSON, in words of the file."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "nested too deeply" if isinstance(error, RecursionError) else "a number of thousands of digits"


def text_lines(path: Path, partial: bool, said: list[str]) -> list[str]:
    """Lines of a file whose every line has an end; the last one is cut off where it has none.

    Parameters
    ----------
    path
        The file.
    partial
        Whether a line that is cut off is left out, and said, rather than an error.
    said
        Notes, to which that is added.

    Returns
    -------
    list[str]
        At least one.

    Raises
    ------
    TraceError
        A line that is cut off, or none.
    """
    lines = read_text(path, partial=partial).split("\n")
    tail = lines.pop()
    if tail:
        if not partial:
            raise TraceError(
                "the last line has no end: the file is cut off", path=path, place=f"line {len(lines) + 1}"
            )
        said.append(f"line {len(lines) + 1}, which the end of the file cuts off, is left out")
    if not lines:
        raise TraceError("the file has no whole line", path=path)
    return lines


def json_lines(path: Path, partial: bool, said: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects of a JSONL file with their line numbers; blank lines are skipped.

    Parameters
    ----------
    path
        The file.
    partial
        Whether a last line that is cut off is left out, and said, rather than an error.
    said
        Notes, to which that is added.

    Yields
    ------
    tuple[int, dict[str, Any]]
        Line number and object.

    Raises
    ------
    TraceError
        A line that is no JSON object.
    """
    lines = read_text(path, partial=partial).split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            if partial and number == len(lines):
                said.append(f"line {number}, which the end of the file cuts off, is left out")
                return
            why = f"not valid JSON ({_why(error)})"
            raise TraceError(why, path=path, place=f"line {number}") from None
        if not isinstance(data, dict):
            raise TraceError("expected an object", path=path, place=f"line {number}")
        yield number, data


def whole_numbers(value: Any, what: str, path: Path, place: str) -> list[int]:
    """A list of whole numbers, at least one.

    Parameters
    ----------
    value
        As JSON gave it.
    what
        Name of the field.
    path
        The file, for the message.
    place
        Where in it.

    Returns
    -------
    list[int]
        The value.

    Raises
    ------
    TraceError
        Anything else.
    """
    if not isinstance(value, list) or not value or any(type(item) is not int for item in value):
        raise TraceError(f"{what} is not a list of whole numbers", path=path, place=place)
    return value


def whole_number(value: Any, what: str, path: Path, place: str) -> int:
    """A whole number of 0 or more.

    Parameters
    ----------
    value
        As JSON gave it.
    what
        Name of the field.
    path
        The file, for the message.
    place
        Where in it.

    Returns
    -------
    int
        The value.

    Raises
    ------
    TraceError
        Anything else.
    """
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise TraceError(f"{what} {str(value)[:40]!r}: expected a whole number", path=path, place=place)
    return value


def numbers(value: Any, n: int, what: str, path: Path, place: str) -> list[float]:
    """A list of `n` numbers.

    Parameters
    ----------
    value
        As JSON gave it.
    n
        How many there must be.
    what
        Name of the field.
    path
        The file, for the message.
    place
        Where in it.

    Returns
    -------
    list[float]
        The value.

    Raises
    ------
    TraceError
        Anything else.
    """
    if (
        not isinstance(value, list)
        or len(value) != n
        or any(isinstance(item, bool) or not isinstance(item, int | float) for item in value)
    ):
        raise TraceError(f"{what} is not a list of {n} numbers", path=path, place=place)
    return value


def need_fields(data: dict[str, Any], names: Sequence[str], path: Path, place: str) -> None:
    """All of the names are fields of the object.

    Parameters
    ----------
    data
        The object.
    names
        Required fields.
    path
        The file, for the message.
    place
        Where in it.

    Raises
    ------
    TraceError
        Those that are missing.
    """
    missing = [name for name in names if name not in data]
    if missing:
        raise TraceError(f"field(s) {', '.join(missing)} missing", path=path, place=place)


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


def check_ragged_experts(
    experts: IntArray, counts: IntArray, geometry: ModelGeometry, path: Path, place: Place
) -> None:
    """As `check_experts`, for rows of any lengths; `place` takes the row.

    Parameters
    ----------
    experts
        (N,) expert ids.
    counts
        (R,) ids of each row.
    geometry
        The model.
    path
        The trace, for the message.
    place
        Words for where a row stands, from its number.

    Raises
    ------
    TraceError
        An empty row, an id out of range, or one twice in a row.
    """
    empty = np.flatnonzero(counts <= 0)
    if len(empty):
        raise TraceError("a row without experts", path=path, place=place(int(empty[0])))
    row = np.repeat(np.arange(len(counts)), counts)
    wrong = np.flatnonzero((experts < 0) | (experts >= geometry.experts))
    if len(wrong):
        at = int(wrong[0])
        why = f"expert id {int(experts[at])}, expected 0..{geometry.experts - 1}"
        raise TraceError(why, path=path, place=place(int(row[at])))
    code = np.sort(row * geometry.experts + experts)
    twice = np.flatnonzero(code[1:] == code[:-1])
    if len(twice):
        at, expert = divmod(int(code[twice[0]]), geometry.experts)
        raise TraceError(f"expert {expert} twice in one row", path=path, place=place(at))


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


INFERRED = "phases and requests are inferred from the rows of each pass, tokens of verify passes counted as 1"
