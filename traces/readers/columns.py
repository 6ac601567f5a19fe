"""Which column of a table means what: by the user's mapping, or by names that are usual."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from expert_residency.errors import TraceError
from expert_residency.text import check_known
from expert_residency.traces.parquet import column_names

_ALIASES = {
    "layer": ("layer", "layer_id", "layer_idx", "Layer ID"),
    "experts": ("experts", "expert_ids", "topk_ids", "topk_experts", "selected_experts", "Activated Expert IDs"),
    "expert": ("expert", "expert_id", "expert_idx"),
    "weights": ("weights", "topk_weights", "gate_weights", "gating_probs"),
    "weight": ("weight", "gate_weight"),
    "request": (
        "request", "request_id", "req", "req_id", "reqid", "rid", "seq", "seq_id", "sequence", "sequence_id",
        "sample", "sample_id", "prompt_id", "prompt_index", "problem_id", "conversation_id", "session_id",
    ),
    "pass": ("pass", "step", "pass_id", "forward", "forward_id"),
    "token": ("token", "token_idx", "token_index"),
    "position": ("position", "token_position", "pos"),
    "phase": ("phase",),
    "rank": ("rank", "slot"),
}  # fmt: skip
_NUMBERED = {
    "experts": ("e", "expert", "expert_", "experts_", "id", "topk_", "topk_id_"),
    "weights": ("w", "weight", "weight_", "weights_", "gate", "topk_weight_"),
}
"""How columns of one expert each begin, before their number."""
AHEAD = re.compile(r"(predicted|score)_d([1-9]\d?)")
Columns = dict[str, list[str]]


def fits(head: bytes, path: Path) -> bool:
    """Whether columns of a file have the usual names of a layer and its experts."""
    names = _names(head, path)
    has = {field for field, likely in _ALIASES.items() if names & set(likely)}
    has |= {field for field in _NUMBERED if _numbered(field, names)}
    return "layer" in has and bool(has & {"experts", "expert"})


def _names(head: bytes, path: Path) -> set[str]:
    """Columns or fields by the first bytes of a file; none if it is no table. Never raises."""
    if head.startswith(b"PAR1"):
        return set(column_names(path))
    text = head.decode("utf-8", "replace").lstrip()
    if text.startswith("["):  # a list of rows
        text = text[1:].lstrip()
        try:
            first, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return set()
        return set(first) if isinstance(first, dict) else set()
    lines = text.split("\n", 2)[:2]
    if not lines[0].startswith("{"):
        return {name.strip().strip('"') for name in re.split("[\t,;]", lines[0])}
    names: set[str] = set()
    for line in lines:  # the first one may hold facts
        try:
            names |= set(json.loads(line))
        except (ValueError, RecursionError, TypeError):
            continue
    return names


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
        if not AHEAD.fullmatch(field):
            check_known("field of --columns", field, [*_ALIASES, "predicted_d1", "score_d1"], TraceError)
        if field in found:
            raise TraceError(f"columns: {field} is given twice", path=path)
        found[field] = _expanded(wanted.strip(), names, path)
    if not spec:
        for field, likely in _ALIASES.items():
            column = next((n for n in likely if n in names), None)
            if column is not None:
                found[field] = [column]
            elif numbered := _numbered(field, names):
                found[field] = numbered
        found |= {n: [n] for n in names if AHEAD.fullmatch(n)}
    if "layer" not in found and (column := next((n for n in _ALIASES["layer"] if n in names), None)) is not None:
        found["layer"] = [column]
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


def _numbered(field: str, names: Iterable[str]) -> list[str]:
    """Columns `e0, e1, ...` of a field, in order, from 0 or 1 on without a gap; two at least."""
    every = set(names)
    for start in _NUMBERED.get(field, ()):
        for low in (0, 1):
            run = list(takewhile(every.__contains__, (f"{start}{n}" for n in range(low, 4096))))
            if len(run) > 1:
                return run
    return []


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
