"""BigMoeOnEdge `--route-trace`: CSV with a preamble, one line for each routed expert.

Source of the format: github.com/Helldez/BigMoeOnEdge, `route_trace v1`. Columns only ever get appended in
v1, so they are found by name and later ones are ignored. `turn` is the request and `step` the context
position. A pass is a run of lines over which the layer does not fall, so every decode step is one pass and
so is the prompt (or each chunk of it). The last MoE layer of a prompt routes the last token only, because
the engine gathers output rows first; a chunk that is not the last may lack that layer.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.families import quant_family
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.base import read_text, source_meta
from expert_residency.traces.readers.checks import check_experts, layer_indices
from expert_residency.traces.readers.passes import check_complete, number_passes, row_table
from expert_residency.traces.readers.rows import ragged_notes
from expert_residency.traces.trace import IntArray, Phase, RoutingTrace, assemble

name = "bigmoe-edge"
description = "BigMoeOnEdge --route-trace CSV (route_trace v1), with the engine's own hit or miss"

_COLUMNS = ("turn", "phase", "step", "layer", "slot", "expert", "weight", "residency")


def sniff(head: bytes, path: Path) -> bool:
    """The version line, whatever the version, so that `read` can name a wrong one."""
    return head.startswith(b"# route_trace v")


def read(path: Path, model: ModelGeometry | None = None, partial: bool = False) -> RoutingTrace:
    """Read; a given model replaces the sizes of the preamble, `partial` keeps the whole passes of a cut file."""
    text = read_text(path, partial=partial)
    notes = []
    if partial and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        notes.append("the last line, which the end of the file cuts off, is left out")
    preamble, header, body, first_line = _split(text, path)
    geometry = _geometry(preamble, path, model)
    table = _parse(header, body, first_line, path)
    if partial:
        table = _whole_passes(table, geometry, notes, path)

    def place(i: int) -> str:
        return f"line {first_line + i}"

    layer = layer_indices(table["layer"], geometry, path, place)
    check_experts(table["expert"], geometry, path, place)
    start = np.flatnonzero(_row_starts(table))
    _check_slots(table, start, geometry.top_k, path, place)
    row = {name: table[name][start] for name in ("turn", "phase", "step")}
    row_pass = _passes(row, layer[start])
    _check_repeats(row, layer[start], start, path, place)
    first = np.flatnonzero(np.diff(row_pass, prepend=-1))
    phase, request = row["phase"][first], row["turn"][first]
    rows_at = row_table(row_pass, layer[start], geometry.n_layers)
    emits = np.ones(len(first), dtype=np.int32)
    more_prompt = (phase[:-1] == Phase.PREFILL) & (phase[1:] == Phase.PREFILL) & (request[:-1] == request[1:])
    emits[:-1][more_prompt] = 0
    rows_at[emits == 0, -1] = np.maximum(rows_at[emits == 0, -1], 1)  # a chunk before the last may lack that layer
    check_complete(rows_at, geometry, path, lambda p: f"the pass from {place(int(start[first[p]]))}",
                   short_last=phase == Phase.PREFILL)  # fmt: skip
    phase = np.where((phase == Phase.DECODE) & (rows_at.max(axis=1) > 1), Phase.VERIFY, phase)
    kept = table["dropped"] == 0
    counts = np.add.reduceat(kept.astype(np.int64), start)
    if (counts == 0).any():
        raise TraceError("all experts of a row are dropped", path=path,
                         place=place(int(start[np.flatnonzero(counts == 0)[0]])))  # fmt: skip
    if not kept.all():
        notes.append(f"{int((~kept).sum())} routed experts that the engine dropped are left out")
    notes += ragged_notes(rows_at, phase == Phase.PREFILL)
    if (phase == Phase.VERIFY).any():
        notes.append("tokens emitted by verify passes are unknown and counted as 1")
    return assemble(
        geometry,
        pass_request=request,
        pass_phase=phase,
        pass_emits=emits,
        row_pass=row_pass,
        row_layer=layer[start],
        row_position=row["step"],
        row_counts=counts,
        row_experts=table["expert"][kept],
        row_weights=table["weight"][kept],
        row_residency=table["residency"][kept],
        meta=source_meta(path, "BigMoeOnEdge", *notes),
    )


def _whole_passes(
    table: dict[str, npt.NDArray[Any]], geometry: ModelGeometry, notes: list[str], path: Path
) -> dict[str, npt.NDArray[Any]]:
    """The table without the pass that the end of the file cuts."""
    start = np.flatnonzero(_row_starts(table))
    row = {name: table[name][start] for name in ("turn", "phase", "step")}
    layer = table["layer"][start]
    last = np.flatnonzero(_passes(row, layer) == _passes(row, layer)[-1])
    rows = [int((layer[last] == one).sum()) for one in geometry.layer_ids]
    whole = len(table["slot"]) - int(start[-1]) == geometry.top_k and all(rows)
    if whole and (len(set(rows)) == 1 or (row["phase"][-1] == Phase.PREFILL and rows[-1] == 1)):
        return table
    cut = int(start[last[0]])
    if not cut:
        raise TraceError("the file has not one whole pass", path=path)
    notes.append(f"the file is cut off: its last pass, of {len(last)} rows, is left out")
    return {name: column[:cut] for name, column in table.items()}


def _split(text: str, path: Path) -> tuple[list[tuple[int, dict[str, str]]], list[str], str, int]:
    """Preamble lines as (line, key=value pairs), column names, the data, and the line it starts on."""
    lines: list[tuple[int, dict[str, str]]] = []
    at, number = 0, 0
    while at < len(text):
        end = text.find("\n", at)
        line = text[at : end if end >= 0 else len(text)].rstrip("\r")
        number, at = number + 1, (end + 1 if end >= 0 else len(text))
        if number == 1 and line.strip() != "# route_trace v1":
            raise TraceError(f"expected '# route_trace v1', found {line[:40]!r}", path=path, place="line 1")
        if not line.startswith("#"):
            header = [name.strip() for name in line.split(",")]
            missing = [name for name in _COLUMNS if name not in header]
            if missing:
                raise TraceError(f"column(s) {', '.join(missing)} missing, found {line[:120]!r}", path=path,
                                 place=f"line {number}")  # fmt: skip
            if len(set(header)) != len(header):
                raise TraceError(f"a column name twice in {line[:120]!r}", path=path, place=f"line {number}")
            if at >= len(text):
                raise TraceError("no routing rows after the column names", path=path, place=f"line {number}")
            if not text.endswith("\n"):
                last = number + text.count("\n", at) + 1
                raise TraceError("the last line has no end: the file is cut off", path=path, place=f"line {last}")
            return lines, header, text[at:], number + 1
        lines.append((number, dict(re.findall(r"(\w+)=(\S*)", line))))
    raise TraceError("the file ends before the column names", path=path, place=f"line {number}")


def _geometry(
    preamble: list[tuple[int, dict[str, str]]], path: Path, model: ModelGeometry | None
) -> ModelGeometry:
    run: dict[str, str] = {}
    sizes: dict[int, tuple[int, int]] = {}
    for number, pairs in preamble:
        try:
            if "n_layer" in pairs:
                run = pairs
            if "layer" in pairs and "expert_bytes" in pairs:
                sizes[int(pairs["layer"])] = int(pairs["expert_bytes"]), int(pairs.get("dense_bytes", 0))
        except ValueError:
            raise TraceError(f"not a whole number in {pairs}", path=path, place=f"line {number}") from None
    try:
        n_layer, experts, top_k = (int(run[k]) for k in ("n_layer", "n_expert", "n_expert_used"))
    except (KeyError, ValueError):
        raise TraceError(
            "n_layer, n_expert and n_expert_used expected in the preamble", path=path, place="line 2"
        ) from None
    if model is not None:
        lost = [layer for layer in model.layer_ids if layer >= n_layer]
        if lost or model.experts != experts:
            span = f"MoE layers {model.layer_ids[0]}..{model.layer_ids[-1]} of {model.experts}"
            raise TraceError(
                f"the file has {n_layer} layers of {experts} experts, {model.label} {span}", path=path
            )
        return model.with_top_k(top_k)
    for layer in range(n_layer):
        if layer not in sizes:
            why = f"expert bytes of layer {layer} are missing from the preamble; give --model for the sizes"
            raise TraceError(why, path=path)
    strangers = sorted(layer for layer in sizes if not 0 <= layer < n_layer)
    if strangers:
        raise TraceError(f"layer {strangers[0]} in the preamble of a model with {n_layer} layers", path=path)
    moe = [layer for layer in range(n_layer) if sizes[layer][0] > 0]
    file = run.get("model", "").rsplit("/", 1)[-1].removesuffix(".gguf")
    return ModelGeometry(
        name=file or run.get("arch", "unknown"),
        layer_ids=tuple(moe),
        experts=experts,
        top_k=top_k,
        expert_bytes=tuple(sizes[layer][0] for layer in moe),
        dense_bytes=tuple(sizes[layer][1] for layer in moe),
        dense_only_bytes=sum(dense for layer, (_, dense) in sizes.items() if layer not in moe),
        # gpt-oss GGUFs keep their experts in MXFP4 whatever the file's name says
        quant_family="mxfp4" if run.get("arch") == "gpt-oss" else quant_family(file),
        total_layers=n_layer,
        source=f"preamble of {path.name}",
    )


def _parse(header: list[str], body: str, first_line: int, path: Path) -> dict[str, npt.NDArray[Any]]:
    """Columns as numpy arrays; `dropped` is 0 where the file has no such column."""
    import pyarrow as pa
    import pyarrow.csv as csv

    wanted = [*_COLUMNS, *(["dropped"] if "dropped" in header else [])]
    kinds = {n: pa.float32() if n == "weight" else pa.int32() for n in wanted}
    try:
        table = csv.read_csv(
            io.BytesIO(body.encode()),
            read_options=csv.ReadOptions(column_names=header, use_threads=False),  # as in sheet.py
            parse_options=csv.ParseOptions(ignore_empty_lines=False),
            convert_options=csv.ConvertOptions(column_types=kinds, include_columns=wanted,
                                               null_values=[], strings_can_be_null=False),
        )  # fmt: skip
    except pa.ArrowInvalid as error:
        raise _bad_line(header, wanted, body, first_line, path, str(error)) from None
    columns = {n: np.asarray(table.column(n).to_numpy()) for n in wanted}
    columns.setdefault("dropped", np.zeros(table.num_rows, dtype=np.int32))
    for n, values in (("phase", (0, 1)), ("residency", (0, 1, 2)), ("dropped", (0, 1))):
        wrong = np.flatnonzero(~np.isin(columns[n], values))
        if len(wrong):
            at = int(wrong[0])
            why = f"{n} {int(columns[n][at])}, expected one of {', '.join(map(str, values))}"
            raise TraceError(why, path=path, place=f"line {first_line + at}")
    return {n: c if n == "weight" else c.astype(np.int64) for n, c in columns.items()}


def _bad_line(
    header: list[str], wanted: list[str], body: str, first_line: int, path: Path, why: str
) -> TraceError:
    """Find the line that the fast parser refused."""
    for number, line in enumerate(body.splitlines(), first_line):
        cells = line.split(",")
        if len(cells) != len(header):
            return TraceError(
                f"expected {len(header)} columns, found {len(cells)}", path=path, place=f"line {number}"
            )
        for column in wanted:
            cell = cells[header.index(column)]
            try:
                float(cell) if column == "weight" else np.int32(int(cell))
            except (ValueError, OverflowError):
                return TraceError(
                    f"{column} {cell!r} is not a number that fits", path=path, place=f"line {number}"
                )
    return TraceError(f"cannot be parsed ({why})", path=path)


def _row_starts(table: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
    """Where a routing row begins: rank 0, or another token or layer than the line before."""
    start = table["slot"] == 0
    for column in ("turn", "phase", "step", "layer"):
        start[1:] |= table[column][1:] != table[column][:-1]
    start[0] = True
    return np.asarray(start)


def _check_slots(table: dict[str, npt.NDArray[Any]], start: IntArray, k: int, path: Path, place: Any) -> None:
    lengths = np.diff(np.append(start, len(table["slot"])))
    expected = np.arange(len(table["slot"])) - np.repeat(start, lengths)
    wrong = np.flatnonzero(table["slot"] != expected)
    if len(wrong):
        at = int(wrong[0])
        why = f"slot {int(table['slot'][at])}, expected {int(expected[at])} (a line is missing or repeated)"
        raise TraceError(why, path=path, place=place(at))
    short = np.flatnonzero(lengths != k)
    if len(short):
        at = int(short[0])
        why = f"a row of {int(lengths[at])} experts, expected {k} (a line is missing or repeated)"
        raise TraceError(why, path=path, place=place(int(start[at])))


def _passes(row: dict[str, IntArray], layer: IntArray) -> IntArray:
    """Pass number of each row: a new one where the layer falls, or turn or phase change."""
    new = np.diff(number_passes(layer)) > 0
    if layer.min() == layer.max():  # one MoE layer never falls: a decode step is a pass
        new = (row["phase"][1:] == Phase.DECODE) & (row["step"][1:] != row["step"][:-1])
    for column in ("turn", "phase"):
        new = new | (row[column][1:] != row[column][:-1])
    return np.concatenate([[0], np.cumsum(new)]).astype(np.int64)


def _check_repeats(row: dict[str, IntArray], layer: IntArray, start: IntArray, path: Path, place: Any) -> None:
    """(turn, phase, step, layer) is unique; step -1 means that the engine could not tell."""
    order = np.lexsort((layer, row["step"], row["phase"], row["turn"]))
    same = row["step"][order][1:] >= 0
    for values in (*row.values(), layer):
        same = same & (values[order][1:] == values[order][:-1])
    if same.any():
        at = int(order[1:][same].min())
        raise TraceError(f"turn {row['turn'][at]}, step {row['step'][at]} is repeated in this layer", path=path,
                         place=place(int(start[at])))  # fmt: skip
