"""A Parquet trace in parts of whole passes, for traces larger than memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.digest import PartsDigest
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.header import PARTS, check_content
from expert_residency.traces.parquet import open_parquet, read_geometry, read_table
from expert_residency.traces.trace import RoutingTrace

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 1 << 16
"""Routing rows of a part, about; a part has at least one pass."""


def stream_geometry(path: str | os.PathLike[str]) -> ModelGeometry:
    """The model of a Parquet trace, without reading its rows.

    Raises
    ------
    TraceError
        As `traces.parquet.read_parquet`.
    """
    return read_geometry(path)[1]


def stream_parquet(path: str | os.PathLike[str], rows: int = ROWS) -> Iterator[RoutingTrace]:
    """Traces of consecutive passes, each counting its passes from 0.

    Raises
    ------
    TraceError
        As `traces.parquet.read_parquet` (places count from the part's first row and pass; the hash of the content
        is checked after the last part), or rows that are not in the order of passes.
    """
    import pyarrow as pa

    header, geometry = read_geometry(path)
    digest, done = PartsDigest(), 0
    rest: Any = None
    with open_parquet(path) as file:
        if file.metadata.num_rows == 0:
            raise TraceError("the trace has no routing rows", path=path)
        for batch in file.iter_batches(batch_size=rows):
            table = pa.Table.from_batches([batch])
            rest = table if rest is None else pa.concat_tables([rest, table])
            numbers = _passes(rest, done, path)
            whole = int(np.searchsorted(numbers, numbers[-1]))
            if whole:
                part = _part(rest.slice(0, whole), header, geometry, done, path)
                digest.add(part)
                yield part
                done = int(numbers[-1])
                rest = rest.slice(whole)
        part = _part(rest, header, geometry, done, path)
        digest.add(part)
        yield part
    check_content(header, digest.hexdigest(), path, PARTS)


def _passes(table: pa.Table, done: int, path: object) -> Any:
    column = table.column("pass")
    if column.null_count:
        raise TraceError("column pass has empty cells", path=path)
    numbers = column.to_numpy()
    if numbers[0] != done or (np.diff(numbers) < 0).any():
        raise TraceError(
            "rows are not in the order of passes, so the trace cannot be read in parts; read it whole", path=path
        )
    return numbers


def _part(
    table: pa.Table, header: dict[str, Any], geometry: ModelGeometry, first: int, path: object
) -> RoutingTrace:
    import pyarrow as pa

    numbers = table.column("pass").to_numpy() - first
    table = table.set_column(table.schema.get_field_index("pass"), "pass", pa.array(numbers))
    last = int(numbers[-1])
    emits = {str(int(n) - first): count for n, count in header.get("emits", {}).items()}
    own = {number: count for number, count in emits.items() if 0 <= int(number) <= last}
    return read_table(table, header | {"emits": own}, geometry, path)
