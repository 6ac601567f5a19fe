"""Any table of routing: CSV, TSV, JSONL or Parquet, by a mapping of its columns.

`columns="request=req,pass=step,layer=l,experts=e0..e5,weights=w0..w5,phase=kind"` says which column means what:

=================  =========================================================================================
layer              the MoE layer (a number, or text that ends in one); required
experts            ids of a row, best first: columns `e0..e5` or `a|b|c`, or one column of lists (`[3, 7]`, `3 7`)
expert             instead of `experts` in a long table: one id a line, in order of `rank` if that is given
weights, weight    likewise
request            any value that tells requests apart
pass               number of the forward pass within its request
token              number of the token where no pass is known: each is a decode pass, prompt tokens are one
position           context position of the row's token; stands for `token` where neither that nor `pass` is given
phase              prefill, prompt or 0; decode, generated or 1; verify or 2
predicted_d<n>     ids predicted for this layer n layers ahead, as `experts`
score_d<n>         their scores, as long: an event's predictions are then kept in falling order
=================  =========================================================================================

Without `columns` those names and some common ones are looked for. Where neither pass nor token is known, a pass
ends when the layer falls, and phases are inferred from the number of rows. Ids of -1 are padding.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.text import check_known
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.base import read_bytes, read_text
from expert_residency.traces.readers.checks import json_lines, need_model
from expert_residency.traces.readers.rows import Rows, trace_of
from expert_residency.traces.trace import IntArray, Phase, RoutingTrace

if TYPE_CHECKING:
    import pyarrow as pa

name = "table"
description = (
    "any CSV, TSV, JSONL or Parquet table of routing, by --columns layer=l,experts=e0..e5,... (needs --model)"
)

_ALIASES = {
    "layer": ("layer", "layer_id", "layer_idx", "Layer ID"),
    "experts": ("experts", "expert_ids", "topk_ids", "topk_experts", "selected_experts", "Activated Expert IDs"),
    "expert": ("expert", "expert_id", "expert_idx"),
    "weights": ("weights", "topk_weights", "gate_weights", "gating_probs"),
    "weight": ("weight", "gate_weight"),
    "request": ("request", "request_id", "req", "prompt_index", "problem_id"),
    "pass": ("pass", "step"),
    "token": ("token", "token_idx", "token_index"),
    "position": ("position", "token_position", "pos"),
    "phase": ("phase",),
    "rank": ("rank", "slot"),
}
_AHEAD = re.compile(r"(predicted|score)_d([1-9]\d?)")
_PHASES = {
    "prefill": 0, "prompt": 0, "extend": 0, "0": 0, "decode": 1, "generated": 1, "generate": 1, "generation": 1,
    "1": 1, "verify": 2, "2": 2,
}  # fmt: skip
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan", re.IGNORECASE)
_MOST_COLUMNS = 4096
Columns = dict[str, list[str]]


def sniff(head: bytes, path: Path) -> bool:
    """Never: a table is read when it is asked for."""
    return False


def read(path: Path, model: ModelGeometry | None = None, columns: str = "", partial: bool = False) -> RoutingTrace:
    """Read with the geometry of `model`; k is the table's.

    Parameters
    ----------
    path
        The file, gzipped or not.
    model
        Shape and sizes.
    columns
        Which column means what, as the module says.
    partial
        Keep the whole passes, and the layers, of a table that is cut off.

    Returns
    -------
    RoutingTrace
        The trace; its `meta` has the mapping under `columns`.

    Raises
    ------
    TraceError
        A mapping that names no column of the table or leaves out what is needed, or cells that do not fit.
    """
    geometry = need_model(path, model)
    said: list[str] = []
    table = load(path, partial, said)
    mapping = mapped(columns, table.column_names, path)
    rows = rows_of_table(table, mapping, path)
    unused = [n for n in table.column_names if n not in {c for names in mapping.values() for c in names}]
    shown = ",".join(f"{field}={_short(names)}" for field, names in mapping.items())
    more = f"; not used: {', '.join(unused[:8])}{', ...' if len(unused) > 8 else ''}" if unused else ""
    return trace_of(
        rows, geometry, path, "table", f"columns: {shown}{more}", *said, partial=partial, columns=mapping
    )


def _short(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"


def load(path: Path, partial: bool, said: list[str]) -> pa.Table:
    """The table, by what the file begins with.

    Parameters
    ----------
    path
        The file, gzipped or not; named in messages.
    partial
        Keep the whole passes, and the layers, of a file that is cut off.
    said
        Notes, to which what was left out is added.

    Returns
    -------
    pa.Table
        The result.

    Raises
    ------
    TraceError
        Cells that are no table.
    """
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    head = read_bytes(path, 4096, partial=False) if not partial else read_bytes(path, partial=True)[:4096]
    try:
        if head.startswith(b"PAR1"):
            return pq.read_table(io.BytesIO(read_bytes(path)))
        if head.lstrip().startswith(b"{"):
            return _of_objects([data for _, data in json_lines(path, partial, said)], path)
        text = read_text(path, partial=partial)
        if partial and not text.endswith("\n"):
            said.append("the last line, which the end of the file cuts off, is left out")
            text = text[: text.rfind("\n") + 1]
        first = text.split("\n", 1)[0]
        separator = max("\t,;", key=first.count)
        if not first.count(separator):
            raise TraceError(f"expected a line of column names, found {first[:60]!r}", path=path, place="line 1")
        if first.count(separator) > _MOST_COLUMNS:
            raise TraceError(f"more than {_MOST_COLUMNS} columns", path=path, place="line 1")
        table = csv.read_csv(
            io.BytesIO(text.encode()),
            parse_options=csv.ParseOptions(delimiter=separator),
        )
    except (pa.ArrowException, OSError) as error:
        raise TraceError(f"cannot be read as a table ({str(error).splitlines()[0]})", path=path) from None
    names = [n.strip() for n in table.column_names]
    if len(set(names)) != len(names):
        raise TraceError("a column name twice", path=path, place="line 1")
    return table.rename_columns(names)


def _of_objects(objects: list[dict[str, Any]], path: Path) -> pa.Table:
    """Objects that have the first one's fields; lines of another kind, as a first line of facts, are left out."""
    import pyarrow as pa

    if not objects:
        raise TraceError("the trace has no routing rows", path=path)
    usual = max((frozenset(o) for o in objects[:50]), key=[frozenset(o) for o in objects[:50]].count)
    names = list(next(o for o in objects[:50] if frozenset(o) == usual))
    chosen = [o for o in objects if usual <= set(o)]
    if len(chosen) < len(objects) - 8:
        raise TraceError(f"{len(objects) - len(chosen)} lines lack fields that most lines have", path=path)
    try:
        return pa.table({n: [o[n] for o in chosen] for n in names})
    except pa.ArrowException as error:
        raise TraceError(
            f"values of different kinds in one field ({str(error).splitlines()[0]})", path=path
        ) from None


def mapped(spec: str, names: list[str], path: Path) -> Columns:
    """Columns of each field.

    Parameters
    ----------
    spec
        The user's mapping; empty: by name.
    names
        Columns of the table.
    path
        The table, for messages.

    Returns
    -------
    dict[str, list[str]]
        Fields in the order of the module's table.

    Raises
    ------
    TraceError
        A field that is not known, a column that is not there, or no layer or experts.
    """
    found: Columns = {}
    for part in filter(None, (p.strip() for p in spec.split(","))):
        field, equals, wanted = part.partition("=")
        field = field.strip()
        if not equals or not wanted:
            raise TraceError(f"columns {part!r}: expected FIELD=COLUMN, such as layer=l", path=path)
        if not _AHEAD.fullmatch(field):
            check_known("field of --columns", field, [*_ALIASES, "predicted_d1", "score_d1"], TraceError)
        if field in found:
            raise TraceError(f"columns: {field} is given twice", path=path)
        found[field] = _expanded(wanted.strip(), names, path)
    if not spec:
        for field, likely in _ALIASES.items():
            column = next((n for n in likely if n in names), None)
            if column is not None:
                found[field] = [column]
        found |= {n: [n] for n in names if _AHEAD.fullmatch(n)}
    if "experts" in found and "expert" in found:
        if spec:
            raise TraceError("columns: experts (a row a line) or expert (an expert a line), not both", path=path)
        del found["expert"]
    lacks = [] if "layer" in found else ["layer="]
    lacks += [] if {"experts", "expert"} & set(found) else ["experts= or expert="]
    if lacks:
        raise TraceError(
            f"columns: {' and '.join(lacks)} is missing; the table has {', '.join(names[:12])}"
            f"{', ...' if len(names) > 12 else ''}: --columns layer=COLUMN,experts=FIRST..LAST",
            path=path,
        )
    used = [c for columns in found.values() for c in columns]
    twice = sorted({c for c in used if used.count(c) > 1})
    if twice:
        raise TraceError(f"columns: column {twice[0]!r} stands for two fields", path=path)
    return found


def _expanded(wanted: str, names: list[str], path: Path) -> list[str]:
    """Columns of `name`, `a|b|c` or `e0..e5`."""
    columns = wanted.split("|")
    ends = [re.fullmatch(r"(.*?)(\d{1,4})", end) for end in wanted.split("..")] if ".." in wanted else []
    if wanted not in names and len(ends) == 2 and ends[0] and ends[1] and ends[0][1] == ends[1][1]:
        low, high = int(ends[0][2]), int(ends[1][2])
        columns = [f"{ends[0][1]}{n}" for n in range(low, high + 1)]
        width = len(ends[0][2])
        columns = [c if c in names else f"{ends[0][1]}{n:0{width}d}" for n, c in enumerate(columns, low)]
        if low > high:
            raise TraceError(f"columns: {wanted} runs backwards", path=path)
    if wanted in names:
        columns = [wanted]
    for column in columns:
        check_known(f"{path}: column", column, names, TraceError)
    return columns


def rows_of_table(table: pa.Table, mapping: Columns, path: Path) -> Rows:
    """Rows by a mapping of columns; raises as `read`.

    Parameters
    ----------
    table
        The table.
    mapping
        Columns of each field.
    path
        The file, gzipped or not; named in messages.

    Returns
    -------
    Rows
        The result.

    Raises
    ------
    TraceError
        What does not fit, in one sentence with its place.
    """
    if not table.num_rows:
        raise TraceError("the trace has no routing rows", path=path)

    def place(i: int) -> str:
        return f"row {i + 1}"

    number = {
        field: (
            _kinds(table, field, column, path) if field in ("request", "phase") else _whole(table, column, path)
        )
        for field in ("layer", "request", "pass", "token", "position", "phase", "rank")
        for column in mapping.get(field, [])[:1]
    }
    if "expert" in mapping:
        return _long(table, mapping, number, path)
    counts, experts = _ids(table, mapping["experts"], path)
    weights = _values(table, mapping["weights"], counts, "weights", path) if "weights" in mapping else None
    kept = experts >= 0
    row = np.repeat(np.arange(len(counts)), counts)
    rows = Rows(
        layer=number["layer"],
        counts=np.bincount(row[kept], minlength=len(counts)),
        experts=experts[kept],
        place=place,
        weights=None if weights is None else weights[kept],
        predicted=_ahead(table, mapping, path),
    )
    return _with_columns(rows, number)


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


def _long(table: pa.Table, mapping: Columns, number: dict[str, IntArray], path: Path) -> Rows:
    """Rows of a table with one expert a line."""
    expert = _whole(table, mapping["expert"][0], path)
    if any(_AHEAD.fullmatch(field) for field in mapping):
        raise TraceError("columns: predictions need a table of one row a line (experts=)", path=path)
    keys = [values for field, values in number.items() if field != "rank"]
    new = np.zeros(len(expert), dtype=bool)
    for values in keys:
        new[1:] |= values[1:] != values[:-1]
    rank = number.get("rank")
    if rank is not None:
        new[1:] |= rank[1:] <= rank[:-1]
    new[0] = True
    start = np.flatnonzero(new)
    weights = None
    if "weight" in mapping:
        weights = _floats(table.column(mapping["weight"][0]), mapping["weight"][0], path)
    rows = Rows(
        layer=number["layer"][start],
        counts=np.diff(np.append(start, len(expert))),
        experts=expert,
        place=lambda i: f"row {int(start[i]) + 1}",
        weights=weights,
    )
    return _with_columns(rows, {field: values[start] for field, values in number.items() if field != "rank"})


def _whole(table: pa.Table, column: str, path: Path) -> IntArray:
    """A column of whole numbers, or of texts that end in one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = table.column(column)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = pc.struct_field(pc.extract_regex(values, r"(?P<n>\d{1,9})\D*$"), "n")
        values = pc.cast(values, pa.int64())
    if values.null_count:
        at = int(np.flatnonzero(values.is_null().to_numpy())[0])
        raise TraceError(f"column {column} has no whole number", path=path, place=f"row {at + 1}")
    numbers = values.to_numpy()
    if numbers.dtype.kind not in "iuf" or (numbers != np.floor(numbers)).any() or (np.abs(numbers) > 2**53).any():
        raise TraceError(f"column {column} is {values.type}, expected whole numbers", path=path)
    return np.asarray(numbers, dtype=np.int64)


def _kinds(table: pa.Table, field: str, column: str, path: Path) -> IntArray:
    """Requests as numbers in the order in which they appear, or phases."""
    codes = table.column(column).combine_chunks().dictionary_encode()
    if codes.null_count:
        raise TraceError(f"column {column} has empty cells", path=path)
    numbers = np.asarray(codes.indices.to_numpy(), dtype=np.int64)
    if field == "request":
        return numbers
    words = [str(word).strip().lower() for word in codes.dictionary.to_pylist()]
    for word in words:
        check_known(f"{path}: phase", word, _PHASES, TraceError)
    return np.asarray(np.asarray([_PHASES[word] for word in words], dtype=np.int64)[numbers])


def _ids(table: pa.Table, columns: list[str], path: Path) -> tuple[IntArray, IntArray]:
    """Length of each row and flat ids; -1 where a cell is padding."""
    if len(columns) > 1:
        stacked = np.stack([_whole_or_none(table, column, path) for column in columns], axis=1)
        return np.full(len(stacked), len(columns), dtype=np.int64), stacked.reshape(-1)
    counts, values = _lists(table, columns[0], path, int)
    return counts, values.astype(np.int64)


def _whole_or_none(table: pa.Table, column: str, path: Path) -> IntArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    values = table.column(column)
    if not (
        pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_null(values.type)
    ):
        raise TraceError(f"column {column} is {values.type}, expected whole numbers", path=path)
    if pa.types.is_null(values.type):
        return np.full(table.num_rows, -1, dtype=np.int64)
    filled = np.asarray(pc.fill_null(values, -1).to_numpy(), dtype=np.float64)
    filled = np.where(np.isnan(filled), -1, filled)
    if (filled != np.floor(filled)).any() or (np.abs(filled) > 2**31).any():
        raise TraceError(f"column {column} holds numbers that are no expert ids", path=path)
    return filled.astype(np.int64)


def _lists(
    table: pa.Table, column: str, path: Path, kind: Callable[[Any], Any]
) -> tuple[IntArray, npt.NDArray[Any]]:
    """Lengths and flat values of a column of lists, or of texts that hold numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = table.column(column).combine_chunks()
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        counts = pc.fill_null(pc.list_value_length(values), 0).to_numpy().astype(np.int64)
        flat = pc.list_flatten(values)
        if flat.null_count or not (pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type)):
            raise TraceError(f"column {column} holds lists of {flat.type}, expected numbers", path=path)
        return counts, flat.to_numpy()
    if not pa.types.is_string(values.type):
        if kind is int and pa.types.is_integer(values.type):  # k = 1: a list of one
            return np.ones(len(values), dtype=np.int64), _whole(table, column, path)
        raise TraceError(f"column {column} is {values.type}, expected lists of numbers", path=path)
    rows = []
    for i, cell in enumerate(values.to_pylist()):
        found = _NUMBER.findall(cell or "")
        rest = _NUMBER.sub("", cell or "").strip("[](){} ,;|\t\"'")
        if not found or re.sub(r"[\s,;|]", "", rest):
            why = f"column {column}: {str(cell)[:40]!r} is no list of numbers"
            raise TraceError(why, path=path, place=f"row {i + 1}")
        try:
            rows.append([kind(item) for item in found])
        except ValueError:
            raise TraceError(f"column {column}: {str(cell)[:40]!r} is no list of whole numbers", path=path,
                             place=f"row {i + 1}") from None  # fmt: skip
    try:
        flat = np.asarray([item for row in rows for item in row], dtype=np.int64 if kind is int else np.float64)
    except OverflowError:
        raise TraceError(f"column {column} holds numbers that are too large", path=path) from None
    return np.asarray([len(row) for row in rows], dtype=np.int64), flat


def _floats(column: pa.ChunkedArray, title: str, path: Path) -> npt.NDArray[np.float32]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise TraceError(f"column {title} is {column.type}, expected numbers", path=path)
    return np.asarray(pc.fill_null(pc.cast(column, pa.float32()), float("nan")).to_numpy(), dtype=np.float32)


def _values(
    table: pa.Table, columns: list[str], counts: IntArray, what: str, path: Path
) -> npt.NDArray[np.float32]:
    """Flat numbers that belong to ids."""
    if len(columns) > 1:
        stacked = np.stack([_floats(table.column(c), c, path) for c in columns], axis=1)
        found: IntArray = np.full(len(stacked), len(columns), dtype=np.int64)
        flat: npt.NDArray[Any] = stacked.reshape(-1)
    else:
        found, flat = _lists(table, columns[0], path, float)
    wrong = np.flatnonzero(found != counts)
    if len(wrong):
        at = int(wrong[0])
        why = f"{int(found[at])} {what} for {int(counts[at])} experts"
        raise TraceError(why, path=path, place=f"row {at + 1}")
    return flat.astype(np.float32)


def _ahead(
    table: pa.Table, mapping: Columns, path: Path
) -> dict[int, tuple[IntArray, IntArray, npt.NDArray[np.float32] | None]]:
    """Predictions of each row by depth: lengths, ids, scores."""
    found: dict[int, tuple[IntArray, IntArray, npt.NDArray[np.float32] | None]] = {}
    for field in mapping:
        match = _AHEAD.fullmatch(field)
        if match is None:
            continue
        depth = int(match[2])
        if match[1] == "score":
            if f"predicted_d{depth}" not in mapping:
                raise TraceError(f"columns: {field} without predicted_d{depth}", path=path)
            continue
        counts, ids = _ids(table, mapping[field], path)
        scores = None
        if f"score_d{depth}" in mapping:
            scores = _values(table, mapping[f"score_d{depth}"], counts, "scores", path)
        kept = ids >= 0
        row = np.repeat(np.arange(len(counts)), counts)
        found[depth] = (
            np.bincount(row[kept], minlength=len(counts)),
            ids[kept],
            None if scores is None else scores[kept],
        )
    return found


assert {int(phase) for phase in Phase} == set(_PHASES.values())
