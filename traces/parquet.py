"""The on-disk trace: Parquet, zstd, one row for each routing row.

Columns, in the order of the file:

========== ======================= ============================================================
request    int32                   request of the pass
pass       int32                   forward pass, from 0 without gaps
row        int32                   row within its (pass, layer), from 0 without gaps
phase      dictionary of string    `prefill`, `decode` or `verify`, the same for a whole pass
position   int32                   context position of the token, -1 if unknown
layer      int16                   as the model numbers it
experts    list<int16>             ids, best rank first
weights    list<float32>           mixing weights, as long as `experts`, or null on every row
residency  list<int8>              only if the engine reported it: 0 miss, 1 hit, 2 prefetched, -1 unknown
predicted_d<n>  list<int16>        only if recorded: what was predicted for this layer n layers ahead
score_d<n> list<float32>           only if recorded: the scores of `predicted_d<n>`, as long
========== ======================= ============================================================

A look-ahead prediction belongs to an event, so an event's predicted set is the union of its rows' lists, in
the order in which they first occur, or, where they have scores, in falling order of an expert's highest; the
writer puts the whole set on the event's first row.

File metadata, key `expert_residency`: JSON with `format_version`, `geometry` (`ModelGeometry.to_dict`),
`emits` (pass number to tokens, only for passes that emit other than one) and `meta` (`source_engine`,
`source_sha256`, `synthetic`, `notes`, and whatever else the trace carries). `content_sha256`, `parts_sha256` (for
whoever reads it in parts) and `header_sha256` are hashes of the trace and of the block itself; pages carry
checksums. All are checked at reading, where they are there.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.files import atomic
from expert_residency.traces.ahead import united
from expert_residency.traces.digest import parts_hash
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.header import FORMAT_VERSION, check_content, parse, seal
from expert_residency.traces.sizes import check_unpacked
from expert_residency.traces.trace import IntArray, Phase, RoutingTrace, assemble, csr_offsets, ragged_take

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

METADATA_KEY = b"expert_residency"
_REQUIRED = ("request", "pass", "row", "phase", "position", "layer", "experts")
_OPTIONAL = ("weights", "residency")
_ROWS_PER_GROUP = 1 << 18
_PREDICTED = re.compile(r"(?:predicted|score)_d(\d{1,4})")
_VALUE_BYTES = 8
"""Of a value in memory, at most."""


def write_parquet(trace: RoutingTrace, path: str | os.PathLike[str]) -> None:
    """Write a trace, whole or not at all.

    Raises
    ------
    FileError
        The file cannot be written.
    """
    import pyarrow.parquet as pq

    header = {
        "format_version": FORMAT_VERSION,
        "geometry": trace.geometry.to_dict(),
        "emits": {str(p): int(trace.pass_emits[p]) for p in np.flatnonzero(trace.pass_emits != 1)},
        "meta": trace.meta,
    }
    schema = _schema(trace).with_metadata({METADATA_KEY: seal(header, trace.content_hash, parts_hash(trace))})
    with (
        atomic(path) as part,
        pq.ParquetWriter(part, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for start in range(0, trace.n_rows, _ROWS_PER_GROUP):
            writer.write_table(_group(trace, start, min(start + _ROWS_PER_GROUP, trace.n_rows), schema))


def _schema(trace: RoutingTrace) -> pa.Schema:
    import pyarrow as pa

    fields = [
        ("request", pa.int32()),
        ("pass", pa.int32()),
        ("row", pa.int32()),
        ("phase", pa.dictionary(pa.int8(), pa.string())),
        ("position", pa.int32()),
        ("layer", pa.int16()),
        ("experts", pa.list_(pa.int16())),
        ("weights", pa.list_(pa.float32())),
    ]
    if trace.row_residency is not None:
        fields.append(("residency", pa.list_(pa.int8())))
    for depth in sorted(trace.predictions):
        fields.append((f"predicted_d{depth}", pa.list_(pa.int16())))
        if depth in trace.prediction_scores:
            fields.append((f"score_d{depth}", pa.list_(pa.float32())))
    return pa.schema(fields)


def _group(trace: RoutingTrace, start: int, stop: int, schema: pa.Schema) -> pa.Table:
    """Rows `start..stop` as an Arrow table."""
    import pyarrow as pa

    rows = np.arange(start, stop)
    event = np.searchsorted(trace.event_row_offsets, rows, side="right") - 1
    passes = trace.event_pass[event]
    lo, hi = int(trace.row_offsets[start]), int(trace.row_offsets[stop])
    offsets = trace.row_offsets[start : stop + 1] - lo

    def lists(values: npt.NDArray[Any] | None, kind: pa.DataType, at: IntArray = offsets) -> pa.Array:
        if values is None:
            return pa.nulls(stop - start, pa.list_(kind))
        return pa.ListArray.from_arrays(pa.array(at, pa.int32()), pa.array(values, kind))

    columns = {
        "request": trace.pass_request[passes],
        "pass": passes,
        "row": rows - trace.event_row_offsets[event],
        "phase": pa.DictionaryArray.from_arrays(
            pa.array(trace.pass_phase[passes], pa.int8()), [phase.name.lower() for phase in Phase]
        ),
        "position": trace.row_position[start:stop],
        "layer": np.asarray(trace.geometry.layer_ids)[trace.event_layer[event]],
        "experts": lists(trace.row_experts[lo:hi], pa.int16()),
        "weights": lists(None if trace.row_weights is None else trace.row_weights[lo:hi], pa.float32()),
    }
    if trace.row_residency is not None:
        columns["residency"] = lists(trace.row_residency[lo:hi], pa.int8())
    for depth, (at, values) in sorted(trace.predictions.items()):
        first = rows == trace.event_row_offsets[event]
        per_row = np.where(first, np.diff(at)[event], 0)
        offset = csr_offsets(per_row)
        begin = int(at[event[0]]) if first[0] else int(at[event[0] + 1])
        stop_at = begin + int(offset[-1])
        columns[f"predicted_d{depth}"] = lists(values[begin:stop_at], pa.int16(), offset)
        if depth in trace.prediction_scores:
            columns[f"score_d{depth}"] = lists(trace.prediction_scores[depth][begin:stop_at], pa.float32(), offset)
    arrays = [c if isinstance(c, pa.Array) else pa.array(c, schema.field(n).type) for n, c in columns.items()]
    return pa.Table.from_arrays(arrays, schema=schema)


def read_parquet(path: str | os.PathLike[str]) -> RoutingTrace:
    """Read a trace; column by column, so that it is not held twice.

    Raises
    ------
    TraceError
        Not Parquet, cut off or damaged, no `expert_residency` block, another format version, missing or unknown
        columns, a geometry without expert bytes (the layer is named), duplicate or missing rows.
    """
    with open_parquet(path) as file:
        header, geometry = _header(file, path)
        trace = read_table(file, header, geometry, path)
    check_content(header, trace.content_hash, path)
    return trace


def read_geometry(path: str | os.PathLike[str]) -> tuple[dict[str, Any], ModelGeometry]:
    """Metadata block and geometry of a trace; raises as `read_parquet`."""
    with open_parquet(path) as file:
        return _header(file, path)


HAS_BLOCK = "expert_residency metadata"
"""Stands among the names of `column_names` where the file is a trace of ours."""


def column_names(path: str | os.PathLike[str]) -> list[str]:
    """Columns of a Parquet file, for telling formats apart; none if it cannot be read. Never raises."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError):
        return []
    return [*schema.names, *([HAS_BLOCK] if METADATA_KEY in (schema.metadata or {}) else [])]


@contextlib.contextmanager
def open_parquet(path: str | os.PathLike[str]) -> Iterator[pq.ParquetFile]:
    """A Parquet file whose pages are checked as they are read.

    Raises
    ------
    TraceError
        Whatever the Parquet library finds, then and while it is open, in one sentence.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            _check_size(file, path)
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise TraceError("no such file", path=path) from None
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TraceError(f"not a whole Parquet file ({reason})", path=path) from None


def _check_size(file: pq.ParquetFile, path: str | os.PathLike[str]) -> None:
    """Refuse a small file that claims to hold far more than traces do."""
    groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
    values = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
    check_unpacked(_VALUE_BYTES * values, os.path.getsize(path), path)


def _header(file: pq.ParquetFile, path: object) -> tuple[dict[str, Any], ModelGeometry]:
    block = (file.schema_arrow.metadata or {}).get(METADATA_KEY)
    if block is None:
        raise TraceError(
            "Parquet file without the metadata block 'expert_residency': not a routing trace", path=path
        )
    found = parse(block, path)
    names = file.schema_arrow.names
    missing = [name for name in _REQUIRED if name not in names]
    if missing:
        raise TraceError(f"missing column(s) {', '.join(missing)} (found: {', '.join(names)})", path=path)
    unknown = [n for n in names if n not in (*_REQUIRED, *_OPTIONAL) and not _PREDICTED.fullmatch(n)]
    if unknown:
        raise TraceError(f"unknown column(s) {', '.join(unknown)}", path=path)
    for name in names:
        if name.startswith("score_d") and (of := name.replace("score", "predicted")) not in names:
            raise TraceError(f"column {name} without {of}", path=path)
    return found


def read_table(
    file: pq.ParquetFile | pa.Table, header: dict[str, Any], geometry: ModelGeometry, path: object
) -> RoutingTrace:
    """Trace of all rows of a file or table whose metadata block is `header`; raises as `read_parquet`.

    Parameters
    ----------
    file
        Rows in the columns of the module's docstring.
    header
        The metadata block, parsed.
    geometry
        Shape and sizes, of the header or the caller's.
    path
        Named in errors.

    Returns
    -------
    RoutingTrace
        The trace.

    Raises
    ------
    TraceError
        Rows, passes or experts that are missing, repeated or out of range.
    """
    names = file.schema_arrow.names if hasattr(file, "schema_arrow") else file.column_names
    row_pass, row, layer = (_numbers(file, name, path) for name in ("pass", "row", "layer"))
    if len(row_pass) == 0:
        raise TraceError("the trace has no routing rows", path=path)
    if not 0 <= int(row_pass.min()) <= int(row_pass.max()) < len(row_pass):
        raise TraceError(
            f"passes go from {row_pass.min()} to {row_pass.max()} in {len(row_pass):,} rows", path=path
        )
    layer_index = _layer_index(layer, geometry, path)
    code = row_pass * geometry.n_layers + layer_index
    order = np.lexsort((row, code)) if _unsorted(code, row) else np.arange(len(row))
    _check_rows(code[order], row[order], geometry, path)
    phase, request = _phases(file, path), _numbers(file, "request", path)
    first = np.unique(row_pass, return_index=True)[1]
    for what, values in (("phase", phase), ("request", request)):
        mixed = np.flatnonzero(values != values[first][row_pass])
        if len(mixed):
            raise TraceError(f"{what} changes within a pass", path=path, place=f"pass {row_pass[mixed[0]]}")
    emits = np.ones(len(first), dtype=np.int32)
    for number, count in header.get("emits", {}).items():
        if not 0 <= int(number) < len(emits):
            raise TraceError(f"emits names pass {number}, the file has {len(emits)}", path=path)
        emits[int(number)] = count
    counts, experts = _lists(file, "experts", path)
    if (counts == 0).any():
        raise TraceError("a row without experts", path=path, place=f"row {int(np.flatnonzero(counts == 0)[0])}")
    aligned = {n: _aligned(file, n, counts, path) if n in names else None for n in _OPTIONAL}
    if not np.array_equal(order, np.arange(len(order))):
        entries = ragged_take(csr_offsets(counts), order)
        counts, experts = counts[order], experts[entries]
        aligned = {n: None if c is None else c[entries] for n, c in aligned.items()}
    try:
        trace = assemble(
            geometry,
            pass_request=request[first],
            pass_phase=phase[first],
            pass_emits=emits,
            row_pass=row_pass[order],
            row_layer=layer_index[order],
            row_position=_numbers(file, "position", path)[order],
            row_counts=counts,
            row_experts=experts,
            row_weights=aligned["weights"],
            row_residency=aligned["residency"],
            meta=dict(header.get("meta", {})),
        )
    except TraceError as error:
        raise TraceError(str(error), path=path) from None
    for name in names:
        if (match := _PREDICTED.fullmatch(name)) and name.startswith("predicted"):
            _add_predictions(file, int(match[1]), trace, order, path)
    return trace


def _column(file: pq.ParquetFile | pa.Table, name: str) -> Any:
    return file.read([name]).column(0) if hasattr(file, "read") else file.column(name)


def _numbers(file: pq.ParquetFile | pa.Table, name: str, path: object) -> IntArray:
    import pyarrow as pa

    column = _column(file, name)
    if column.null_count:
        raise TraceError(f"column {name} has empty cells", path=path)
    if not pa.types.is_integer(column.type):
        raise TraceError(f"column {name} is {column.type}, expected integers", path=path)
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _phases(file: pq.ParquetFile | pa.Table, path: object) -> IntArray:
    column = _column(file, "phase").combine_chunks().dictionary_encode()
    if column.null_count:
        raise TraceError("column phase has empty cells", path=path)
    names = column.dictionary.to_pylist()
    known = {phase.name.lower(): int(phase) for phase in Phase}
    wrong = [name for name in names if name not in known]
    if wrong:
        raise TraceError(f"unknown phase {wrong[0]!r} (known: {', '.join(known)})", path=path)
    numbers = np.asarray([known[name] for name in names], dtype=np.int64)
    return np.asarray(numbers[np.asarray(column.indices.to_numpy())])


def _lists(file: pq.ParquetFile | pa.Table, name: str, path: object) -> tuple[IntArray, npt.NDArray[Any]]:
    """Lengths and flat values of a list column; null counts as empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _column(file, name)
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise TraceError(f"column {name} is {column.type}, expected a list", path=path)
    of_floats = name == "weights" or name.startswith("score_d")
    kind, is_kind = ("numbers", pa.types.is_floating) if of_floats else ("integers", pa.types.is_integer)
    if not is_kind(column.type.value_type):
        raise TraceError(f"column {name} has lists of {column.type.value_type}, expected {kind}", path=path)
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    flat = pc.list_flatten(column)
    if flat.null_count:
        raise TraceError(f"column {name} has empty list items", path=path)
    return counts.astype(np.int64), np.asarray(flat.to_numpy())


def _aligned(
    file: pq.ParquetFile | pa.Table, name: str, counts: IntArray, path: object
) -> npt.NDArray[Any] | None:
    """Flat values of a column that has one for each expert of every row, or none at all."""
    return _of_ids(file, name, counts, path) if _lists(file, name, path)[0].any() else None


def _of_ids(file: pq.ParquetFile | pa.Table, name: str, counts: IntArray, path: object) -> npt.NDArray[Any]:
    """Flat values of a column that has one for each id of every row."""
    found, values = _lists(file, name, path)
    wrong = np.flatnonzero(found != counts)
    if len(wrong):
        at = int(wrong[0])
        of = name.replace("score", "predicted") if name.startswith("score_d") else "experts"
        raise TraceError(f"{int(found[at])} {name} for {int(counts[at])} {of}", path=path, place=f"row {at}")
    return values


def _add_predictions(
    file: pq.ParquetFile | pa.Table, depth: int, trace: RoutingTrace, order: IntArray, path: object
) -> None:
    """Predictions of a depth, with scores where the file has them, into the trace; raises as `read_parquet`."""
    name, scored = f"predicted_d{depth}", f"score_d{depth}"
    counts, ids = _lists(file, name, path)
    names = file.schema_arrow.names if hasattr(file, "schema_arrow") else file.column_names
    scores = _of_ids(file, scored, counts, path) if scored in names else None
    taken = ragged_take(csr_offsets(counts), order)
    event = np.repeat(np.arange(trace.n_events), trace.event_rows)
    try:
        offsets, experts, kept = united(
            event, counts[order], ids[taken].astype(np.int64), None if scores is None else scores[taken],
            n_events=trace.n_events, experts=trace.geometry.experts,
        )  # fmt: skip
    except TraceError as error:
        raise TraceError(f"column {name}: {error}", path=path) from None
    trace.predictions[depth] = offsets, experts
    if kept is not None:
        trace.prediction_scores[depth] = kept


def _layer_index(layer: IntArray, geometry: ModelGeometry, path: object) -> IntArray:
    ids = np.asarray(geometry.layer_ids)
    index = np.minimum(np.searchsorted(ids, layer), len(ids) - 1)
    wrong = np.flatnonzero(ids[index] != layer)
    if len(wrong):
        raise TraceError(
            f"layer {int(layer[wrong[0]])} is not an MoE layer of {geometry.label} "
            f"(its {len(ids)} layers: {ids[0]}..{ids[-1]})",
            path=path, place=f"row {int(wrong[0])}",
        )  # fmt: skip
    return index


def _unsorted(code: IntArray, row: IntArray) -> bool:
    step = np.diff(code)
    return bool(((step < 0) | ((step == 0) & (np.diff(row) <= 0))).any())


def _check_rows(code: IntArray, row: IntArray, geometry: ModelGeometry, path: object) -> None:
    """Passes 0..P-1 and, in each event, rows 0..n-1; `code` is pass x layers + layer index, sorted."""
    start = np.flatnonzero(np.concatenate([[True], np.diff(code) != 0]))
    expected = np.arange(len(row)) - np.repeat(start, np.diff(np.concatenate([start, [len(row)]])))
    wrong = np.flatnonzero(row != expected)
    if len(wrong):
        at = int(wrong[0])
        number, layer = divmod(int(code[at]), geometry.n_layers)
        what = "repeated" if at and row[at] == row[at - 1] and code[at] == code[at - 1] else "missing"
        found = int(row[at]) if what == "repeated" else int(expected[at])
        raise TraceError(f"row {found} is {what}", path=path,
                         place=f"pass {number}, layer {geometry.layer_ids[layer]}")  # fmt: skip
    passes = np.unique(code // geometry.n_layers)
    gap = np.flatnonzero(passes != np.arange(len(passes)))
    if len(gap):
        raise TraceError(f"pass {int(gap[0])} is missing (found {int(passes[gap[0]])})", path=path)
