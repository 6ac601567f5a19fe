"""moe-l2 (`LLAMA_EXPERT_LOG=1`): lines `EXPERT|L<layer>|T<n>: [ids] [ids] ...` in a llama.cpp server's log.

Source of the format: github.com/yalun753/moe-l2. One bracket for each token of the pass; the number after T is
read differently by its own tools, so only the brackets count. Other lines of the log are skipped. Phases are
inferred from the number of rows.
"""

from __future__ import annotations

import re
from pathlib import Path

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.checks import need_model
from expert_residency.traces.readers.files import text_lines
from expert_residency.traces.readers.rows import rows_of, trace_of
from expert_residency.traces.trace import RoutingTrace

name = "moe-l2"
description = "moe-l2 LLAMA_EXPERT_LOG: EXPERT|L0|T1: [ids] lines of a server log (needs --model)"

_LINE = re.compile(r"EXPERT\|L(\d{1,9})\|T\d+:((?:\s*\[\s*\d{1,9}(?:\s*,\s*\d{1,9})*\s*\])+)\s*")


def sniff(head: bytes, path: Path) -> bool:
    """A line begins with the prefix."""
    return head.startswith(b"EXPERT|L") or b"\nEXPERT|L" in head


def read(path: Path, model: ModelGeometry | None = None, partial: bool = False) -> RoutingTrace:
    """Read with the geometry of `model`; k is the file's."""
    geometry = need_model(path, model)
    said: list[str] = []
    lines: list[int] = []
    layers: list[int] = []
    ids: list[list[int]] = []
    for number, line in enumerate(text_lines(path, partial, said), 1):
        if not line.startswith("EXPERT|"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            why = f"expected 'EXPERT|L<layer>|T<n>: [ids] ...', found {line[:60]!r}"
            raise TraceError(why, path=path, place=f"line {number}")
        tokens = [[int(i) for i in part.split(",")] for part in re.findall(r"\[([^\]]*)\]", found[2])]
        lines += [number] * len(tokens)
        layers += [int(found[1])] * len(tokens)
        ids += tokens
    rows = rows_of(layers, ids, lambda i: f"line {lines[i]}")
    return trace_of(rows, geometry, path, "moe-l2", *said, partial=partial)
