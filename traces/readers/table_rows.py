"""Rows of a table by a mapping of its columns, and what is refused or said of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.text import check_known
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.columns import AHEAD, Columns
from expert_residency.traces.readers.rows import Predicted, Rows
from expert_residency.traces.readers.sheet import Sheet
from expert_residency.traces.trace import IntArray, Phase, csr_offsets

_PHASES = {
    "prefill": 0, "prompt": 0, "extend": 0, "0": 0, "decode": 1, "generated": 1, "generate": 1, "generation": 1,
    "1": 1, "verify": 2, "2": 2,
}  # fmt: skip
assert {int(phase) for phase in Phase} == set(_PHASES.values())


def rows_of_table(sheet: Sheet, mapping: Columns) -> Rows:
    """Rows by a mapping of columns; raises as `read`."""
    if not sheet.data.num_rows:
        raise sheet.wrong("the trace has no routing rows")
    number = {
        field: _kinds(sheet, field, column) if field in ("request", "phase") else sheet.whole(column)
        for field in ("layer", "request", "pass", "token", "position", "phase", "rank")
        for column in mapping.get(field, [])[:1]
    }
    if "expert" in mapping:
        rows = _long(sheet, mapping, number)
    else:
        counts, experts = _ids(sheet, mapping["experts"])
        weights = _values(sheet, mapping["weights"], counts, "weights") if "weights" in mapping else None
        kept = experts >= 0
        row = np.repeat(np.arange(len(counts)), counts)
        if weights is not None:
            _check_weights(sheet, weights[kept], row[kept])
        found = Rows(
            layer=number["layer"],
            counts=np.bincount(row[kept], minlength=len(counts)),
            experts=experts[kept],
            place=sheet.place,
            weights=None if weights is None else weights[kept],
            predicted=_ahead(sheet, mapping),
        )
        rows = _with_columns(found, number)
    _check_repeats(rows, sheet.path, by_position="token" not in mapping)
    return rows


def _with_columns(rows: Rows, number: dict[str, IntArray]) -> Rows:
    token = number.get("token")
    if token is None and "pass" not in number:
        token = number.get("position")
    return replace(
        rows,
        request=number.get("request"),
        phase=number.get("phase"),
        position=number.get("position", number.get("token")),
        pass_number=number.get("pass"),
        token=token,
    )


def _long(sheet: Sheet, mapping: Columns, number: dict[str, IntArray]) -> Rows:
    """Rows of a table with one expert a line."""
    expert = sheet.whole(mapping["expert"][0])
    if any(AHEAD.fullmatch(field) for field in mapping):
        raise sheet.wrong("columns: predictions need a table of one row a line (experts=)")
    keys = [values for field, values in number.items() if field != "rank"]
    new = np.zeros(len(expert), dtype=bool)
    for values in keys:
        new[1:] |= values[1:] != values[:-1]
    rank = number.get("rank")
    if rank is not None:
        new[1:] |= rank[1:] <= rank[:-1]
    new[0] = True
    start = np.flatnonzero(new)
    negative = np.flatnonzero(expert < 0)
    if len(negative):
        at = int(negative[0])
        raise sheet.wrong(f"expert id {int(expert[at])}, expected 0 or more", at)
    weights = None
    if "weight" in mapping:
        weights = sheet.floats(mapping["weight"][0])
        _check_weights(sheet, weights, np.arange(len(weights)))
    rows = Rows(
        layer=number["layer"][start],
        counts=np.diff(np.append(start, len(expert))),
        experts=expert,
        place=lambda i: sheet.place(int(start[i])),
        weights=weights,
    )
    return _with_columns(rows, {field: values[start] for field, values in number.items() if field != "rank"})


def _check_weights(sheet: Sheet, weights: npt.NDArray[np.float32], row: IntArray) -> None:
    """Every expert has a weight that is a number of 0 or more; `row` (N,) says where each stands."""
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        at = int(wrong[0])
        found = "is missing or no number" if np.isnan(weights[at]) else f"is {float(weights[at]):g}"
        raise sheet.wrong(f"the weight of an expert {found}, expected a number of 0 or more", int(row[at]))


def check_apart(rows: Rows, mapping: Columns, geometry: ModelGeometry, path: Path) -> None:
    """Lines of one expert each: nothing says that a row is of two tokens, where no column tells tokens apart.

    Parameters
    ----------
    rows, mapping
        Of the table.
    geometry
        The model, whose k no row may exceed.
    path
        The table, for the message.

    Raises
    ------
    TraceError
        A row that must be of several tokens.
    """
    if {"token", "position", "rank"} & set(mapping):
        return
    row = np.repeat(np.arange(len(rows.counts)), rows.counts)
    code = row * (int(rows.experts.max()) + 1) + rows.experts
    order = np.argsort(code, kind="stable")
    twice = row[order[1:][np.diff(code[order]) == 0]]
    wrong = np.concatenate([twice, np.flatnonzero(rows.counts > geometry.top_k)])
    if not len(wrong):
        return
    at = int(wrong.min())
    why = "the same expert twice" if at in twice else f"more than top-{geometry.top_k}"
    ask = " and ".join(f"{field}=COLUMN" for field in ("pass", "token") if field not in mapping)
    raise TraceError(
        f"{int(rows.counts[at])} lines of layer {int(rows.layer[at])} follow one another, {why}, and no "
        f"column tells tokens apart: give {ask} (or, of a CSV in which every token has k lines of layer,expert: "
        "--format moe-trace-csv -o top_k=K)",
        path=path,
        place=rows.place(at),
    )


def _check_repeats(rows: Rows, path: Path, *, by_position: bool) -> None:
    """No row of a (pass, token, layer) twice; where only positions tell tokens apart, no copy of a row."""
    token = rows.position if by_position else rows.token
    if rows.pass_number is None or token is None:
        return  # passes that are made of tokens are checked where they are made
    request = np.zeros(len(token), dtype=np.int64) if rows.request is None else rows.request
    key = np.stack([request, rows.pass_number, token, rows.layer], axis=1)
    order = np.lexsort((np.arange(len(token)), *key.T[::-1]))
    offsets = csr_offsets(rows.counts)
    for one in np.flatnonzero((key[order[1:]] == key[order[:-1]]).all(axis=1)).tolist():
        before, at = int(order[one]), int(order[one + 1])
        one_row, other = (rows.experts[offsets[r] : offsets[r + 1]] for r in (before, at))
        if by_position and not np.array_equal(one_row, other):
            continue  # of another sequence, perhaps
        why = (
            f"pass {int(rows.pass_number[at])}, {'position' if by_position else 'token'} {int(token[at])}, "
            f"layer {int(rows.layer[at])} is repeated (first on {rows.place(before)}"
            f"{'' if rows.request is not None else '; if requests share passes, give request=COLUMN'})"
        )
        raise TraceError(why, path=path, place=rows.place(at))


def check_one_request(rows: Rows, path: Path) -> None:
    """Pass numbers that begin again are of another request: as one, rows of several would be one pass.

    Whole passes lie between, so that it is no table in another order: the same layer of the same pass comes again
    after the numbers fell, and every stretch has as many rows as there are layers.

    Raises
    ------
    TraceError
        No column tells the requests apart.
    """
    numbers = rows.pass_number
    if rows.request is not None or numbers is None or rows.token is not None:
        return
    falls = np.flatnonzero(numbers[1:] < numbers[:-1]) + 1
    layers = len(np.unique(rows.layer))
    lengths = np.diff(np.concatenate([[0], falls, [len(numbers)]]))
    if not len(falls) or int(lengths.min()) < layers:
        return
    stretch = np.zeros(len(numbers), dtype=np.int64)
    stretch[falls] = 1
    seen = np.unique(np.stack([numbers, rows.layer, np.cumsum(stretch)], axis=1), axis=0)
    if len(np.unique(seen[:, :2], axis=0)) == len(seen):
        return
    at = int(falls[0])
    raise TraceError(
        f"pass {int(numbers[at])} comes after pass {int(numbers[at - 1])}: of another request? "
        "Give request=COLUMN, or number passes through",
        path=path,
        place=rows.place(at),
    )


def copies(rows: Rows) -> str:
    """What to say of passes in which every row stands twice, where no column tells tokens apart; else nothing."""
    if rows.pass_number is None or rows.position is not None:
        return ""
    import pandas as pd

    width = int(rows.counts.max())
    ids = np.full((len(rows.layer), width), -1, dtype=np.int64)
    ids[np.arange(width) < rows.counts[:, None]] = rows.experts
    request = np.zeros(len(rows.layer), dtype=np.int64) if rows.request is None else rows.request
    table = pd.DataFrame(np.column_stack([request, rows.pass_number, rows.layer, ids]))
    once = ~table.duplicated(keep=False)
    twice = len(table[[0, 1]].drop_duplicates()) - len(table.loc[once, [0, 1]].drop_duplicates())
    if not twice:
        return ""
    return (
        f"{twice:,} pass{'es have' if twice > 1 else ' has'} every row more than once, which is read as further "
        "tokens with the same experts: were lines written twice? (token=COLUMN would tell)"
    )


def _kinds(sheet: Sheet, field: str, column: str) -> IntArray:
    """Requests as numbers in the order in which they appear, or phases."""
    values = sheet.data.column(column)
    if values.null_count:
        raise sheet.wrong(f"column {column} has empty cells", int(np.flatnonzero(values.is_null().to_numpy())[0]))
    codes = values.combine_chunks().dictionary_encode()
    numbers = np.asarray(codes.indices.to_numpy(), dtype=np.int64)
    if field == "request":
        return numbers
    words = [str(word).strip().lower() for word in codes.dictionary.to_pylist()]
    for word in words:
        check_known(f"{sheet.path}: phase", word, _PHASES, TraceError)
    return np.asarray(np.asarray([_PHASES[word] for word in words], dtype=np.int64)[numbers])


def _ids(sheet: Sheet, columns: list[str]) -> tuple[IntArray, IntArray]:
    """Length of each row and flat ids; -1 where a cell is padding."""
    if len(columns) > 1:
        stacked = np.stack([sheet.whole_or_none(column) for column in columns], axis=1)
        counts: IntArray = np.full(len(stacked), len(columns), dtype=np.int64)
        ids = stacked.reshape(-1)
    else:
        counts, flat = sheet.lists(columns[0], int)
        ids = flat.astype(np.int64)
    below = np.flatnonzero(ids < -1)
    if len(below):
        row = int(np.searchsorted(csr_offsets(counts), below[0], side="right")) - 1
        raise sheet.wrong(f"expert id {int(ids[below[0]])}, expected 0 or more (or -1, padding)", row)
    return counts, ids


def _values(sheet: Sheet, columns: list[str], counts: IntArray, what: str) -> npt.NDArray[np.float32]:
    """Flat numbers that belong to ids."""
    if len(columns) > 1:
        stacked = np.stack([sheet.floats(c) for c in columns], axis=1)
        found: IntArray = np.full(len(stacked), len(columns), dtype=np.int64)
        flat: npt.NDArray[Any] = stacked.reshape(-1)
    else:
        found, flat = sheet.lists(columns[0], float)
    wrong = np.flatnonzero(found != counts)
    if len(wrong):
        at = int(wrong[0])
        raise sheet.wrong(f"{int(found[at])} {what} for {int(counts[at])} experts", at)
    return flat.astype(np.float32)


def _ahead(sheet: Sheet, mapping: Columns) -> dict[int, Predicted]:
    """Predictions of each row by depth: lengths, ids, scores."""
    found: dict[int, Predicted] = {}
    for field in mapping:
        match = AHEAD.fullmatch(field)
        if match is None:
            continue
        depth = int(match[2])
        if match[1] == "score":
            if f"predicted_d{depth}" not in mapping:
                raise sheet.wrong(f"columns: {field} without predicted_d{depth}")
            continue
        counts, ids = _ids(sheet, mapping[field])
        scores = None
        if f"score_d{depth}" in mapping:
            scores = _values(sheet, mapping[f"score_d{depth}"], counts, "scores")
        kept = ids >= 0
        row = np.repeat(np.arange(len(counts)), counts)
        found[depth] = (
            np.bincount(row[kept], minlength=len(counts)),
            ids[kept],
            None if scores is None else scores[kept],
        )
    return found
