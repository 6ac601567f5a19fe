"""How often each expert was used, from files that count without order: enough for a placement, not for a trace.

moe-trace and profile CSV, colibri's `.coli_usage`, llama.cpp's importance matrices (GGUF, `<tensor>.counts`),
activation tables of ktransformers (`.pt`), any matrix [layers, experts], or [passes, layers, experts].
"""

from __future__ import annotations

import csv
import io
import pickle
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.files import atomic
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.arrays import any_arrays
from expert_residency.traces.readers.base import read_bytes, read_text
from expert_residency.traces.weights.gguf import MAGIC, read_floats

Counts = npt.NDArray[np.float64]
_IMATRIX = re.compile(r"blk\.(\d+)\.ffn_(?:gate|up|down|gate_up)_exps\.weight\.counts")


def read_usage(path: Path, geometry: ModelGeometry) -> Counts:
    """Uses of each expert.

    Parameters
    ----------
    path
        The file, gzipped or not.
    geometry
        The model; layers of the file are its own numbers.

    Returns
    -------
    Counts
        (MoE layers, experts).

    Raises
    ------
    TraceError
        A form that is not known, layers or experts that the model lacks, counts that are none, or no use at all.
    """
    head = read_bytes(path, 16)
    if head.startswith(MAGIC):
        counts = _imatrix(path, geometry)
    elif head.startswith((b"\x93NUMPY", b"PK")) or head[8:9] == b"{":
        counts = _matrix(any_arrays(path), geometry, path)
    else:
        counts = _lines(path, geometry)
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise TraceError("counts below 0, or no numbers", path=path)
    if not counts.any():
        raise TraceError("no expert was used", path=path)
    return counts


def _lines(path: Path, geometry: ModelGeometry) -> Counts:
    """CSV with columns layer, expert and perhaps count, or `layer expert count` of colibri."""
    found = np.zeros((geometry.n_layers, geometry.experts))
    index = {layer: i for i, layer in enumerate(geometry.layer_ids)}
    for place, row in _cells(read_text(path), path):
        try:
            layer, expert, count = int(row[0]), int(row[1]), float(row[2])
        except (ValueError, OverflowError):
            raise TraceError(f"expected layer, expert, count, found {row}", path=path, place=place) from None
        if layer not in index or not 0 <= expert < geometry.experts:
            why = f"layer {layer}, expert {expert} is outside {geometry.label}"
            raise TraceError(why, path=path, place=place)
        found[index[layer], expert] += count
    return found


def _cells(text: str, path: Path) -> Iterator[tuple[str, list[str]]]:
    """Place, and layer, expert and count as texts, of each line."""
    first = text.split("\n", 1)[0]
    if re.fullmatch(r"-?\d+ -?\d+ -?\d+\s*", first):
        for number, line in enumerate(text.splitlines(), 1):
            cells = line.split()
            if not line.strip() or (len(cells) == 3 and cells[0] in ("-1", "-2")):  # facts of model and version
                continue
            if len(cells) != 3:
                raise TraceError(f"expected three numbers, found {line[:40]!r}", path=path, place=f"line {number}")
            yield f"line {number}", cells
        return
    table = csv.reader(io.StringIO(text, newline=""))
    names = [name.strip() for name in next(table, [])]
    if not {"layer", "expert"} <= set(names):
        raise TraceError(
            f"neither columns layer,expert[,count] nor another form of counts: it begins with {first[:40]!r}",
            path=path,
        )
    where = [names.index(name) if name in names else -1 for name in ("layer", "expert", "count")]
    for row in table:
        if [cell.strip() for cell in row] == names or not row:
            continue
        if len(row) != len(names):
            why = f"{len(row)} cells, expected {len(names)}"
            raise TraceError(why, path=path, place=f"line {table.line_num}")
        yield f"line {table.line_num}", [row[i] if i >= 0 else "1" for i in where]


def _matrix(held: Any, geometry: ModelGeometry, path: Path) -> Counts:
    """The one array of [.., layers, experts] that a file holds."""
    shapes = {(geometry.n_layers, geometry.experts), (geometry.total_layers, geometry.experts)}
    todo, arrays = [held], []
    while todo:
        item = todo.pop()
        if isinstance(item, np.ndarray):
            arrays.append(item)
        elif isinstance(item, dict | list | tuple):
            todo += list(item.values() if isinstance(item, dict) else item)
    fitting = [a for a in arrays if a.ndim in (2, 3) and a.shape[-2:] in shapes and a.dtype.kind in "iuf"]
    if len(fitting) != 1:
        seen = ", ".join(str(a.shape) for a in arrays[:4]) or "no array"
        raise TraceError(
            f"{len(fitting)} arrays of [{geometry.n_layers} layers, {geometry.experts} experts], expected one "
            f"(found: {seen})",
            path=path,
        )
    matrix = fitting[0].astype(np.float64)
    matrix = matrix.sum(axis=0) if matrix.ndim == 3 else matrix
    return matrix if len(matrix) == geometry.n_layers else matrix[list(geometry.layer_ids)]


def _imatrix(path: Path, geometry: ModelGeometry) -> Counts:
    """Of llama-imatrix: a count for each expert of each expert tensor, the same for a layer's tensors."""
    found = np.zeros((geometry.n_layers, geometry.experts))
    index = {layer: i for i, layer in enumerate(geometry.layer_ids)}
    for name, values in read_floats(path, _IMATRIX.fullmatch).items():
        match = _IMATRIX.fullmatch(name)
        layer = int(match[1]) if match else -1
        if layer not in index or values.size != geometry.experts:
            why = f"{values.size} counts of layer {layer}, {geometry.label} has {geometry.experts} experts a layer"
            raise TraceError(why, path=path, place=name)
        found[index[layer]] = np.maximum(found[index[layer]], values.reshape(-1))
    return found


def write_matrix(path: str | Path, counts: Counts) -> None:
    """Write a matrix as `torch.save` would, for ktransformers; PyTorch is not needed.

    Raises
    ------
    FileError
        The file cannot be written.
    """
    data = np.ascontiguousarray(counts, dtype="<f4")

    def text(word: str) -> bytes:
        return pickle.BINUNICODE + struct.pack("<I", len(word)) + word.encode()

    def number(n: int) -> bytes:
        return pickle.BININT + struct.pack("<i", n)

    def row(*items: bytes) -> bytes:
        return pickle.MARK + b"".join(items) + pickle.TUPLE

    kind = b"ctorch\nFloatStorage\n"
    storage = row(text("storage"), kind, text("0"), text("cpu"), number(data.size)) + pickle.BINPERSID
    shape, stride = row(*map(number, data.shape)), row(number(data.shape[1]), number(1))
    hooks = b"ccollections\nOrderedDict\n" + pickle.EMPTY_TUPLE + pickle.REDUCE
    made = row(storage, number(0), shape, stride, pickle.NEWFALSE, hooks)
    program = pickle.PROTO + b"\x02" + b"ctorch._utils\n_rebuild_tensor_v2\n" + made + pickle.REDUCE + pickle.STOP
    with atomic(path) as part, zipfile.ZipFile(part, "w") as file:
        for name, content in (
            ("data.pkl", program), ("byteorder", b"little"), ("data/0", data.tobytes()), ("version", b"3\n")
        ):  # fmt: skip
            file.writestr(zipfile.ZipInfo(f"archive/{name}", (1980, 1, 1, 0, 0, 0)), content)


def override_tensors(counts: Counts, geometry: ModelGeometry, slots: int) -> str:
    """llama.cpp's `-ot` that keeps as many whole layers of experts on the card as `slots` hold, most used first.

    Parameters
    ----------
    counts : (layers x experts,)
        Uses of each expert.
    geometry
        The model.
    slots
        Room in whole experts.

    Returns
    -------
    str
        The option; empty where every layer is kept.

    Raises
    ------
    TraceError
        Not one whole layer fits, since llama.cpp keeps no parts of one.
    """
    whole = slots // geometry.experts
    if not whole:
        raise TraceError(
            f"{slots:,} slots hold no whole layer of {geometry.experts} experts; llama.cpp keeps no parts of one"
        )
    uses = counts.reshape(geometry.n_layers, geometry.experts).sum(axis=1)
    kept = set(np.argsort(-uses, kind="stable")[:whole].tolist())
    away = [str(layer) for index, layer in enumerate(geometry.layer_ids) if index not in kept]
    return rf'-ot "blk\.({"|".join(away)})\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"' if away else ""
