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
score_d<n>         their scores, as long: kept too, and an event's predictions are then in falling order
=================  =========================================================================================

Without `columns` those names and some common ones are looked for, and a file of no other format whose columns have
them is taken for a table. Where neither pass nor token is known, a pass ends when the layer falls, and phases are
inferred from the number of rows. Ids of -1 and empty cells of `e0..e5` are padding.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.text import check_known
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.parquet import column_names
from expert_residency.traces.readers.base import read_bytes, read_text
from expert_residency.traces.readers.checks import Place, json_lines, need_model
from expert_residency.traces.readers.rows import Rows, trace_of
from expert_residency.traces.trace import IntArray, Phase, RoutingTrace, csr_offsets

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
_NUMERIC = r"^-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
_LAST_NUMBER = r"(?:^|\D)(?P<n>\d{1,9})\D*$"
_MAX_EXACT = 2**53
Columns = dict[str, list[str]]


@dataclass(frozen=True)
class Sheet:
    """A table as it stands in a file.

    Parameters
    ----------
    data
        Its columns.
    path
        The file.
    place
        Words for where a row stands in it, from its number.
    """

    data: pa.Table
    path: Path
    place: Place

    def wrong(self, why: str, row: int | None = None) -> TraceError:
        """The error of a row, or of the whole."""
        return TraceError(why, path=self.path, place=None if row is None else self.place(row))


def sniff(head: bytes, path: Path) -> bool:
    """Never: a table is read when it is asked for, or where no other format knows the file."""
    return False


def fallback(head: bytes, path: Path) -> bool:
    """Whether columns of a file that no format knows have the names that are looked for."""
    names = _names(head, path)
    has = {field for field, likely in _ALIASES.items() if names & set(likely)}
    return "layer" in has and bool(has & {"experts", "expert"})


def _names(head: bytes, path: Path) -> set[str]:
    """Columns or fields by the first bytes of a file; none if it is no table. Never raises."""
    if head.startswith(b"PAR1"):
        return set(column_names(path))
    lines = head.decode("utf-8", "replace").lstrip().split("\n", 2)[:2]
    if not lines[0].startswith("{"):
        return {name.strip().strip('"') for name in re.split("[\t,;]", lines[0])}
    names: set[str] = set()
    for line in lines:  # the first one may hold facts
        try:
            names |= set(json.loads(line))
        except (ValueError, RecursionError, TypeError):
            continue
    return names


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
    sheet = load(path, partial, said)
    names = sheet.data.column_names
    mapping = mapped(columns, names, path)
    rows = rows_of_table(sheet, mapping)
    if "expert" in mapping:
        _check_apart(rows, mapping, geometry, path)
    if note := _copies(rows):
        said.append(note)
    unused = [n for n in names if n not in {c for names in mapping.values() for c in names}]
    shown = ",".join(f"{field}={_short(names)}" for field, names in mapping.items())
    more = f"; not used: {', '.join(unused[:8])}{', ...' if len(unused) > 8 else ''}" if unused else ""
    return trace_of(
        rows, geometry, path, "table", f"columns: {shown}{more}", *said, partial=partial, columns=mapping
    )


def _short(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"


def load(path: Path, partial: bool, said: list[str]) -> Sheet:
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
    Sheet
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
            return Sheet(pq.read_table(io.BytesIO(read_bytes(path))), path, lambda i: f"row {i + 1}")
        if head.lstrip().startswith(b"{"):
            return _of_objects(list(json_lines(path, partial, said)), path)
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
    lines = [n for n, line in enumerate(text.split("\n"), 1) if line.strip("\r")][1:]
    counted = len(lines) == table.num_rows  # not where a quoted cell goes over several lines
    return Sheet(
        table.rename_columns(names), path, lambda i: f"line {lines[i]}" if counted else f"row {i + 1} of the table"
    )


def _of_objects(numbered: list[tuple[int, dict[str, Any]]], path: Path) -> Sheet:
    """Objects that have the first one's fields; lines of another kind, as a first line of facts, are left out."""
    import pyarrow as pa

    objects = [data for _, data in numbered]
    if not objects:
        raise TraceError("the trace has no routing rows", path=path)
    usual = max((frozenset(o) for o in objects[:50]), key=[frozenset(o) for o in objects[:50]].count)
    names = list(next(o for o in objects[:50] if frozenset(o) == usual))
    chosen = [o for o in objects if usual <= set(o)]
    if len(chosen) < len(objects) - 8:
        raise TraceError(f"{len(objects) - len(chosen)} lines lack fields that most lines have", path=path)
    lines = [line for line, data in numbered if usual <= set(data)]
    try:
        return Sheet(pa.table({n: [o[n] for o in chosen] for n in names}), path, lambda i: f"line {lines[i]}")
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
            f"{', ...' if len(names) > 12 else ''}: --columns layer=COLUMN,experts=FIRST..LAST (of import; "
            "-o columns=... elsewhere)",
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


def rows_of_table(sheet: Sheet, mapping: Columns) -> Rows:
    """Rows by a mapping of columns; raises as `read`."""
    if not sheet.data.num_rows:
        raise sheet.wrong("the trace has no routing rows")
    number = {
        field: _kinds(sheet, field, column) if field in ("request", "phase") else _whole(sheet, column)
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
    expert = _whole(sheet, mapping["expert"][0])
    if any(_AHEAD.fullmatch(field) for field in mapping):
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
        weights = _floats(sheet, mapping["weight"][0])
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


def _check_apart(rows: Rows, mapping: Columns, geometry: ModelGeometry, path: Path) -> None:
    """Lines of one expert each: nothing says that a row is of two tokens, where no column tells tokens apart."""
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


def _copies(rows: Rows) -> str:
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


def _whole(sheet: Sheet, column: str) -> IntArray:
    """A column of whole numbers, or of texts that end in one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = sheet.data.column(column)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        texts = pc.utf8_ltrim(pc.utf8_trim_whitespace(values), "+")
        named = pc.struct_field(pc.extract_regex(texts, _LAST_NUMBER), "n")
        numeric = pc.match_substring_regex(texts, _NUMERIC)  # "1.5" is a number, and none that ends in a 5
        values = pc.cast(pc.if_else(numeric, texts, named), pa.float64())
    elif not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise sheet.wrong(f"column {column} is {values.type}, expected whole numbers")
    missing = np.flatnonzero(values.is_null().to_numpy())
    if len(missing):
        raise sheet.wrong(f"column {column} has no whole number", int(missing[0]))
    numbers = values.to_numpy()
    bad = np.flatnonzero(~np.isfinite(numbers) | (numbers != np.floor(numbers)) | (np.abs(numbers) > _MAX_EXACT))
    if len(bad):
        at = int(bad[0])
        raise sheet.wrong(f"column {column}: {_cell(sheet, column, at)} is no whole number", at)
    return np.asarray(numbers, dtype=np.int64)


def _cell(sheet: Sheet, column: str, row: int) -> str:
    return repr(sheet.data.column(column)[row].as_py())[:40]


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
        stacked = np.stack([_whole_or_none(sheet, column) for column in columns], axis=1)
        counts: IntArray = np.full(len(stacked), len(columns), dtype=np.int64)
        ids = stacked.reshape(-1)
    else:
        counts, flat = _lists(sheet, columns[0], int)
        ids = flat.astype(np.int64)
    below = np.flatnonzero(ids < -1)
    if len(below):
        row = int(np.searchsorted(csr_offsets(counts), below[0], side="right")) - 1
        raise sheet.wrong(f"expert id {int(ids[below[0]])}, expected 0 or more (or -1, padding)", row)
    return counts, ids


def _whole_or_none(sheet: Sheet, column: str) -> IntArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    values = sheet.data.column(column)
    if pa.types.is_null(values.type):
        return np.full(sheet.data.num_rows, -1, dtype=np.int64)
    if pa.types.is_string(values.type):  # one cell of text makes it a column of texts
        texts = [str(text).strip() for text in values.to_pylist()]
        at = next((i for i, text in enumerate(texts) if not text.removeprefix("-").isdecimal()), 0)
        raise sheet.wrong(f"column {column}: {_cell(sheet, column, at)} is no expert id", at)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise sheet.wrong(f"column {column} is {values.type}, expected whole numbers")
    filled = np.asarray(pc.fill_null(values, -1).to_numpy(), dtype=np.float64)
    filled = np.where(np.isnan(filled), -1, filled)
    bad = np.flatnonzero((filled != np.floor(filled)) | (np.abs(filled) > 2**31))
    if len(bad):
        at = int(bad[0])
        raise sheet.wrong(f"column {column} holds numbers that are no expert ids ({_cell(sheet, column, at)})", at)
    return filled.astype(np.int64)


def _lists(sheet: Sheet, column: str, kind: Callable[[Any], Any]) -> tuple[IntArray, npt.NDArray[Any]]:
    """Lengths and flat values of a column of lists, or of texts that hold numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = sheet.data.column(column).combine_chunks()
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        counts = pc.fill_null(pc.list_value_length(values), 0).to_numpy().astype(np.int64)
        flat = pc.list_flatten(values)
        if flat.null_count or not (pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type)):
            raise sheet.wrong(f"column {column} holds lists of {flat.type}, expected numbers")
        found = flat.to_numpy()
        uneven = np.flatnonzero(found != np.floor(found))
        if kind is int and len(uneven):
            row = int(np.searchsorted(csr_offsets(counts), uneven[0], side="right")) - 1
            raise sheet.wrong(f"column {column}: {found[uneven[0]]} is no expert id", row)
        return counts, found
    if not pa.types.is_string(values.type):
        if kind is int and pa.types.is_integer(values.type):  # k = 1: a list of one
            return np.ones(len(values), dtype=np.int64), _whole(sheet, column)
        raise sheet.wrong(f"column {column} is {values.type}, expected lists of numbers")
    rows = []
    for i, cell in enumerate(values.to_pylist()):
        items = _NUMBER.findall(cell or "")
        rest = _NUMBER.sub("", cell or "").strip("[](){} ,;|\t\"'")
        if not items or re.sub(r"[\s,;|]", "", rest):
            raise sheet.wrong(f"column {column}: {str(cell)[:40]!r} is no list of numbers", i)
        try:
            rows.append([kind(item) for item in items])
        except ValueError:
            raise sheet.wrong(f"column {column}: {str(cell)[:40]!r} is no list of whole numbers", i) from None
    try:
        flat = np.asarray([item for row in rows for item in row], dtype=np.int64 if kind is int else np.float64)
    except OverflowError:
        raise sheet.wrong(f"column {column} holds numbers that are too large") from None
    return np.asarray([len(row) for row in rows], dtype=np.int64), flat


def _floats(sheet: Sheet, title: str) -> npt.NDArray[np.float32]:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = sheet.data.column(title)
    if pa.types.is_null(column.type):
        return np.full(sheet.data.num_rows, np.nan, dtype=np.float32)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise sheet.wrong(f"column {title} is {column.type}, expected numbers")
    return np.asarray(pc.fill_null(pc.cast(column, pa.float32()), float("nan")).to_numpy(), dtype=np.float32)


def _values(sheet: Sheet, columns: list[str], counts: IntArray, what: str) -> npt.NDArray[np.float32]:
    """Flat numbers that belong to ids."""
    if len(columns) > 1:
        stacked = np.stack([_floats(sheet, c) for c in columns], axis=1)
        found: IntArray = np.full(len(stacked), len(columns), dtype=np.int64)
        flat: npt.NDArray[Any] = stacked.reshape(-1)
    else:
        found, flat = _lists(sheet, columns[0], float)
    wrong = np.flatnonzero(found != counts)
    if len(wrong):
        at = int(wrong[0])
        raise sheet.wrong(f"{int(found[at])} {what} for {int(counts[at])} experts", at)
    return flat.astype(np.float32)


def _ahead(sheet: Sheet, mapping: Columns) -> dict[int, tuple[IntArray, IntArray, npt.NDArray[np.float32] | None]]:
    """Predictions of each row by depth: lengths, ids, scores."""
    found: dict[int, tuple[IntArray, IntArray, npt.NDArray[np.float32] | None]] = {}
    for field in mapping:
        match = _AHEAD.fullmatch(field)
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


assert {int(phase) for phase in Phase} == set(_PHASES.values())
