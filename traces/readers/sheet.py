"""A table of a file: CSV, TSV, JSONL or Parquet, and its columns as whole numbers, lists of them, or floats."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.readers.base import read_bytes, read_text
from expert_residency.traces.readers.files import Place, json_lines
from expert_residency.traces.trace import IntArray, csr_offsets

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan", re.IGNORECASE)
_MOST_COLUMNS = 4096
_NUMERIC = r"^-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
_LAST_NUMBER = r"(?:^|\D)(?P<n>\d{1,9})\D*$"
_MAX_EXACT = 2**53


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

    def whole(self, column: str) -> IntArray:
        """A column of whole numbers, or of texts that end in one."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = self.data.column(column)
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            texts = pc.utf8_ltrim(pc.utf8_trim_whitespace(values), "+")
            named = pc.struct_field(pc.extract_regex(texts, _LAST_NUMBER), "n")
            numeric = pc.match_substring_regex(texts, _NUMERIC)  # "1.5" is a number, and none that ends in a 5
            values = pc.cast(pc.if_else(numeric, texts, named), pa.float64())
        elif not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise self.wrong(f"column {column} is {values.type}, expected whole numbers")
        missing = np.flatnonzero(values.is_null().to_numpy())
        if len(missing):
            raise self.wrong(f"column {column} has no whole number", int(missing[0]))
        numbers = values.to_numpy()
        bad = np.flatnonzero(
            ~np.isfinite(numbers) | (numbers != np.floor(numbers)) | (np.abs(numbers) > _MAX_EXACT)
        )
        if len(bad):
            at = int(bad[0])
            raise self.wrong(f"column {column}: {self._cell(column, at)} is no whole number", at)
        return np.asarray(numbers, dtype=np.int64)

    def whole_or_none(self, column: str) -> IntArray:
        """A column of whole numbers, -1 where a cell is empty."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = self.data.column(column)
        if pa.types.is_null(values.type):
            return np.full(self.data.num_rows, -1, dtype=np.int64)
        if pa.types.is_string(values.type):  # one cell of text makes it a column of texts
            texts = [str(text).strip() for text in values.to_pylist()]
            at = next((i for i, text in enumerate(texts) if not text.removeprefix("-").isdecimal()), 0)
            raise self.wrong(f"column {column}: {self._cell(column, at)} is no expert id", at)
        if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise self.wrong(f"column {column} is {values.type}, expected whole numbers")
        filled = np.asarray(pc.fill_null(values, -1).to_numpy(), dtype=np.float64)
        filled = np.where(np.isnan(filled), -1, filled)
        bad = np.flatnonzero((filled != np.floor(filled)) | (np.abs(filled) > 2**31))
        if len(bad):
            at = int(bad[0])
            raise self.wrong(
                f"column {column} holds numbers that are no expert ids ({self._cell(column, at)})", at
            )
        return filled.astype(np.int64)

    def lists(self, column: str, kind: Callable[[Any], Any]) -> tuple[IntArray, npt.NDArray[Any]]:
        """Lengths and flat values of a column of lists, or of texts that hold numbers."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = self.data.column(column).combine_chunks()
        if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
            counts = pc.fill_null(pc.list_value_length(values), 0).to_numpy().astype(np.int64)
            flat = pc.list_flatten(values)
            if flat.null_count or not (pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type)):
                raise self.wrong(f"column {column} holds lists of {flat.type}, expected numbers")
            found = flat.to_numpy()
            uneven = np.flatnonzero(found != np.floor(found))
            if kind is int and len(uneven):
                row = int(np.searchsorted(csr_offsets(counts), uneven[0], side="right")) - 1
                raise self.wrong(f"column {column}: {found[uneven[0]]} is no expert id", row)
            return counts, found
        if not pa.types.is_string(values.type):
            if kind is int and pa.types.is_integer(values.type):  # k = 1: a list of one
                return np.ones(len(values), dtype=np.int64), self.whole(column)
            raise self.wrong(f"column {column} is {values.type}, expected lists of numbers")
        rows = []
        for i, cell in enumerate(values.to_pylist()):
            items = _NUMBER.findall(cell or "")
            rest = _NUMBER.sub("", cell or "").strip("[](){} ,;|\t\"'")
            if not items or re.sub(r"[\s,;|]", "", rest):
                raise self.wrong(f"column {column}: {str(cell)[:40]!r} is no list of numbers", i)
            try:
                rows.append([kind(item) for item in items])
            except ValueError:
                raise self.wrong(f"column {column}: {str(cell)[:40]!r} is no list of whole numbers", i) from None
        try:
            flat = np.asarray(
                [item for row in rows for item in row], dtype=np.int64 if kind is int else np.float64
            )
        except OverflowError:
            raise self.wrong(f"column {column} holds numbers that are too large") from None
        return np.asarray([len(row) for row in rows], dtype=np.int64), flat

    def floats(self, title: str) -> npt.NDArray[np.float32]:
        """A column of numbers, nan where a cell is empty."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.data.column(title)
        if pa.types.is_null(column.type):
            return np.full(self.data.num_rows, np.nan, dtype=np.float32)
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            raise self.wrong(f"column {title} is {column.type}, expected numbers")
        return np.asarray(pc.fill_null(pc.cast(column, pa.float32()), float("nan")).to_numpy(), dtype=np.float32)

    def _cell(self, column: str, row: int) -> str:
        return repr(self.data.column(column)[row].as_py())[:40]


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
        if head.lstrip().startswith(b"["):
            return _of_objects(_list_of_rows(path), path, "row")
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
            read_options=csv.ReadOptions(use_threads=False),  # its pool may abort a process that ends early
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


def _list_of_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Rows of a file that is one JSON list of them, with their numbers."""
    try:
        rows = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"cannot be read as JSON ({error})", path=path) from None
    wrong = next((n for n, row in enumerate(rows, 1) if not isinstance(row, dict)), None)
    if wrong is not None:
        raise TraceError("expected an object with the row's fields", path=path, place=f"row {wrong}")
    return list(enumerate(rows, 1))


def _of_objects(numbered: list[tuple[int, dict[str, Any]]], path: Path, unit: str = "line") -> Sheet:
    """Objects that have the first one's fields; lines of another kind, as a first line of facts, are left out."""
    import pyarrow as pa

    objects = [data for _, data in numbered]
    if not objects:
        raise TraceError("the trace has no routing rows", path=path)
    usual = max((frozenset(o) for o in objects[:50]), key=[frozenset(o) for o in objects[:50]].count)
    names = list(next(o for o in objects[:50] if frozenset(o) == usual))
    chosen = [o for o in objects if usual <= set(o)]
    if len(chosen) < len(objects) - 8:
        raise TraceError(f"{len(objects) - len(chosen)} {unit}s lack fields that most have", path=path)
    lines = [line for line, data in numbered if usual <= set(data)]
    try:
        return Sheet(pa.table({n: [o[n] for o in chosen] for n in names}), path, lambda i: f"{unit} {lines[i]}")
    except pa.ArrowException as error:
        raise TraceError(
            f"values of different kinds in one field ({str(error).splitlines()[0]})", path=path
        ) from None
