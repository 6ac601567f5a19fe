"""Lines and JSON of a trace's file, each fault named with its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from expert_residency.errors import TraceError
from expert_residency.traces.readers.base import read_text

Place = Callable[[int], str]
"""Words for where something stands, from its number."""


def load_json(path: Path) -> Any:
    """The file's JSON, or where it stops being JSON."""
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        what = "the file is cut off" if error.pos >= len(text.rstrip()) - 1 else "not valid JSON"
        raise TraceError(
            f"{what} ({error.msg})", path=path, place=f"line {error.lineno}, column {error.colno}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"not JSON that a trace would be ({_why(error)})", path=path) from None


def text_lines(path: Path, partial: bool, said: list[str]) -> list[str]:
    """Lines of a file whose every line has an end; the last one is cut off where it has none.

    Parameters
    ----------
    path
        The file.
    partial
        Whether a line that is cut off is left out, and said, rather than an error.
    said
        Notes, to which that is added.

    Returns
    -------
    list[str]
        At least one.

    Raises
    ------
    TraceError
        A line that is cut off, or none.
    """
    lines = read_text(path, partial=partial).split("\n")
    tail = lines.pop()
    if tail:
        if not partial:
            raise TraceError(
                "the last line has no end: the file is cut off", path=path, place=f"line {len(lines) + 1}"
            )
        said.append(f"line {len(lines) + 1}, which the end of the file cuts off, is left out")
    if not lines:
        raise TraceError("the file has no whole line", path=path)
    return lines


def json_lines(path: Path, partial: bool, said: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects of a JSONL file with their line numbers; blank lines are skipped.

    Parameters
    ----------
    path
        The file.
    partial
        Whether a last line that is cut off is left out, and said, rather than an error.
    said
        Notes, to which that is added.

    Yields
    ------
    tuple[int, dict[str, Any]]
        Line number and object.

    Raises
    ------
    TraceError
        A line that is no JSON object.
    """
    lines = read_text(path, partial=partial).split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            if partial and number == len(lines):
                said.append(f"line {number}, which the end of the file cuts off, is left out")
                return
            why = f"not valid JSON ({_why(error)})"
            raise TraceError(why, path=path, place=f"line {number}") from None
        if not isinstance(data, dict):
            raise TraceError("expected an object", path=path, place=f"line {number}")
        yield number, data


def _why(error: ValueError | RecursionError) -> str:
    """Why Python reads no JSON, in words of the file."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "nested too deeply" if isinstance(error, RecursionError) else "a number of thousands of digits"
