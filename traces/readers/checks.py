"""Checks of fields, ids and sizes that several readers share; each names the place that the reader gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry, list_models, load_model
from expert_residency.traces.readers.files import Place
from expert_residency.traces.trace import IntArray


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
        if np.isin(layer - 1, ids).all():
            span += f"; the file has {int(layer.min())}..{int(layer.max())}, which are counted from 1: subtract 1"
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
