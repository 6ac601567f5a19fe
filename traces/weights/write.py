"""A model's file as TOML."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from expert_residency.files import write_text
from expert_residency.traces.model_file import ModelFile

_WIDTH = 100
_GROUPED_FROM = 1000


def model_toml(model: ModelFile, comment: str = "") -> str:
    """TOML of a model's file, which `read_model` reads back; fields that say nothing are left out.

    Parameters
    ----------
    model
        What to write.
    comment
        A line at the top.
    """
    data = model.model_dump(exclude_defaults=True)
    tables = {key: data.pop(key) for key in ("session", "draft") if key in data}
    quants = data.pop("quants")
    lines = [f"# {comment}"] if comment else []
    lines += [_line(key, value) for key, value in data.items()]
    for name, table in [*tables.items(), *((f"quants.{_key(q)}", quants[q]) for q in quants)]:
        lines += ["", f"[{name}]", *(_line(key, value) for key, value in table.items())]
    return "\n".join(lines) + "\n"


def write_model(path: Path, model: ModelFile, comment: str = "") -> None:
    """Write `model_toml` to a file.

    Parameters
    ----------
    path
        The file.
    model
        What to write.
    comment
        A line at the top.

    Raises
    ------
    FileError
        It cannot be written.
    """
    write_text(path, model_toml(model, comment))


def _key(name: str) -> str:
    return json.dumps(name)


def _line(key: str, value: Any) -> str:
    return f"{key} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}" if value >= _GROUPED_FROM else str(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_bare(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        flat = ", ".join(_value(v) for v in value)
        if len(flat) < _WIDTH - 20:
            return f"[{flat}]"
        if all(isinstance(v, str) for v in value):
            return "[\n" + "".join(f"    {_value(v)},\n" for v in value) + "]"
        wrapped = textwrap.wrap(flat + ",", _WIDTH - 4, break_on_hyphens=False)
        return "[\n" + "\n".join("    " + line for line in wrapped) + "\n]"
    return json.dumps(str(value), ensure_ascii=False)


def _bare(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _key(key)
