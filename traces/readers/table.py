"""Any table of routing: CSV, TSV, JSONL, a JSON list of rows or Parquet, by a mapping of its columns.

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

Without `columns` those names, numbered ones (`e0, e1, ...`) and some common ones are looked for, and a file of
no other format whose columns have them is taken for a table. Where neither pass nor token is known, a pass ends
when the layer falls, and phases are inferred from the number of rows. Ids of -1 and empty cells of `e0..e5` are
padding.
"""

from __future__ import annotations

from pathlib import Path

from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.checks import need_model
from expert_residency.traces.readers.columns import fits as fallback
from expert_residency.traces.readers.columns import mapped
from expert_residency.traces.readers.rows import trace_of
from expert_residency.traces.readers.sheet import load
from expert_residency.traces.readers.table_rows import check_apart, check_one_request, copies, rows_of_table
from expert_residency.traces.trace import RoutingTrace

name = "table"
description = (
    "any CSV, TSV, JSONL or Parquet table of routing, by --columns layer=l,experts=e0..e5,... (needs --model)"
)

__all__ = ["description", "fallback", "name", "read", "sniff"]


def sniff(head: bytes, path: Path) -> bool:
    """Never: a table is read when it is asked for, or where no other format knows the file."""
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
    sheet = load(path, partial, said)
    names = sheet.data.column_names
    mapping = mapped(columns, names, path)
    rows = rows_of_table(sheet, mapping)
    if "expert" in mapping:
        check_apart(rows, mapping, geometry, path)
    check_one_request(rows, path)
    if note := copies(rows):
        said.append(note)
    unused = [n for n in names if n not in {c for names in mapping.values() for c in names}]
    shown = ",".join(f"{field}={_short(names)}" for field, names in mapping.items())
    more = f"; not used: {', '.join(unused[:8])}{', ...' if len(unused) > 8 else ''}" if unused else ""
    return trace_of(
        rows, geometry, path, "table", f"columns: {shown}{more}", *said, partial=partial, columns=mapping
    )


def _short(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"
