"""llama.cpp `moe-trace` CSV: `layer,expert`, one line for each routed activation and nothing else.

Source of the format: ggml-org/llama.cpp PR 28544 and thecodacus/llama-moe-trace. Tokens are rebuilt: k lines
of one layer are a token, a run of n x k lines is n tokens, and a pass ends when the layer falls. The file does not
say k: it is the model's, or `top_k`. A second header line, as `cat` leaves it between files, begins another
request.

A k that divides the run's makes another trace of the file without an error (k = 2 reads a token of 8 experts as a
batch of 4), so passes that all have the same n > 1 rows are refused unless k was said.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.checks import check_experts, layer_indices, need_model
from expert_residency.traces.readers.files import text_lines
from expert_residency.traces.readers.rows import Rows, trace_of
from expert_residency.traces.trace import IntArray, RoutingTrace

name = "moe-trace-csv"
description = "llama.cpp moe-trace CSV: layer,expert (needs --model; k is the model's, or -o top_k=)"


def _names(line: str) -> list[str]:
    return [name.strip() for name in line.split(",")]


def sniff(head: bytes, path: Path) -> bool:
    """The two column names, and no other, on the first line."""
    return sorted(_names(head[:256].split(b"\n", 1)[0].decode("latin-1"))) == ["expert", "layer"]


def read(path: Path, model: ModelGeometry | None = None, top_k: int = 0, partial: bool = False) -> RoutingTrace:
    """Read with the geometry of `model`.

    Parameters
    ----------
    path
        The file, gzipped or not.
    model
        Shape and sizes.
    top_k
        Experts of a token in this run; 0: the model's.
    partial
        Keep the whole passes of a file that is cut off.

    Returns
    -------
    RoutingTrace
        The trace.

    Raises
    ------
    TraceError
        Lines that are no numbers, runs that are no whole tokens, or a k that makes batches of all passes.
    """
    geometry = need_model(path, model, "expert bytes and no k")
    said: list[str] = []
    lines = text_lines(path, partial, said)
    names = _names(lines[0])
    if sorted(names) != ["expert", "layer"]:
        raise TraceError(f"expected the columns layer,expert, found {lines[0][:60]!r}", path=path, place="line 1")
    header = np.asarray(
        [i for i, line in enumerate(lines) if line.startswith(("l", "e")) and _names(line) == names]
    )
    body = [line for i, line in enumerate(lines) if i not in set(header.tolist())]
    if not any(line.strip() for line in body):
        raise TraceError("the trace has no routing rows", path=path)
    try:
        values = np.loadtxt(io.StringIO("\n".join(body)), delimiter=",", dtype=np.int64, ndmin=2, comments=None)
    except (ValueError, OverflowError):
        values = np.zeros((0, 0), dtype=np.int64)
    if values.shape[1] != 2 or len(values) != len(body):
        raise _bad_line(lines, set(header.tolist()), path)
    line = np.delete(np.arange(1, len(lines) + 1), header)
    layer, expert = values[:, names.index("layer")], values[:, names.index("expert")]
    request = np.searchsorted(header, line - 1) - 1

    def place(i: int) -> str:
        return f"line {int(line[i])}"

    layer_indices(layer, geometry, path, place)
    check_experts(expert, geometry, path, place)
    k = top_k or geometry.top_k
    begin = (np.diff(layer, prepend=-1) != 0) | (np.diff(request, prepend=-1) != 0)
    start = np.flatnonzero(begin)
    length = np.diff(np.append(start, len(layer)))
    whole = length // k * k
    if partial and whole[-1] < length[-1]:
        said.append(
            f"{int(length[-1] - whole[-1])} lines of a token that the end of the file cuts off are left out"
        )
        cut = int(start[-1] + whole[-1])
        layer, expert, request, line = layer[:cut], expert[:cut], request[:cut], line[:cut]
        length[-1] = whole[-1]
    wrong = np.flatnonzero(length % k)
    if len(wrong):
        at = int(start[wrong[0]])
        what = (
            f"a run of {int(length[wrong[0]])} lines of layer {int(layer[at])}, expected a multiple of k = {k} "
            f"(lines are "
            "missing or repeated, or the file is cut off, or the run had another k: -o top_k=)"
        )
        raise TraceError(what, path=path, place=f"line {int(line[at])}")
    if not top_k:
        _check_k(length[length > 0] // k, k, path)
    if len(header) > 1:
        said.append(f"{len(header)} files joined, each a request of its own")
    rows = Rows(
        layer=layer[::k],
        counts=np.full(len(layer[::k]), k),
        experts=expert,
        place=lambda i: place(i * k),
        request=request[::k] if len(header) > 1 else None,
    )
    return trace_of(rows, geometry, path, "llama.cpp moe-trace", *said, partial=partial)


def _check_k(tokens: IntArray, k: int, path: Path) -> None:
    """Refuse where the usual number of tokens of a (pass, layer) is more than one: then k is probably another."""
    values, times = np.unique(tokens, return_counts=True)
    usual = int(values[times.argmax()])
    if usual > 1 and times.max() * 2 > len(tokens) and len(tokens) > 4:
        raise TraceError(
            f"by k = {k}, which the file does not say, {int(times.max())} of {len(tokens)} (pass, layer) have "
            f"{usual} tokens "
            f"each: the run's k is probably {k * usual} (-o top_k={k * usual}); if they are batches, say -o "
            f"top_k={k}",
            path=path,
        )


def _bad_line(lines: list[str], header: set[int], path: Path) -> TraceError:
    for number, line in enumerate(lines, 1):
        cells = line.split(",")
        if number - 1 in header:
            continue
        if len(cells) != 2 or not all(cell.strip().lstrip("-").isdecimal() for cell in cells):
            return TraceError(
                f"expected two whole numbers, found {line[:60]!r}", path=path, place=f"line {number}"
            )
    return TraceError("cannot be parsed as two columns of whole numbers", path=path)
