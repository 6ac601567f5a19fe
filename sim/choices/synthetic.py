"""Synthetic traces by style, as a table (`style`, `tokens`, ...) or in words: `synthetic:STYLE:tokens=300,seed=2`.

Equal tables and seeds give equal traces (`traces.synthetic.generate`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from expert_residency.errors import SimError
from expert_residency.text import parse_call

if TYPE_CHECKING:
    from expert_residency.traces import ModelGeometry, RoutingTrace

PREFIX = "synthetic:"
STYLE = "qwen3.8-flash-next"
TOKENS, SEED = 448, 1
"""Where words give none."""
SIZES = ("tokens", "prompt_tokens", "requests", "seed", "draft_tokens", "acceptance", "draft_floor")
"""Arguments of the generator that a table may have, beside `style` and the style's own numbers."""
_SHARES = ("acceptance", "draft_floor")


def table_of(words: str) -> dict[str, Any]:
    """Table of a synthetic trace from `synthetic:STYLE:a=1,b=2`; numbers become numbers.

    Raises
    ------
    SimError
        A parameter without a value, or given twice.
    """
    style, given = parse_call(words.removeprefix(PREFIX), "synthetic trace")
    return {"style": style or STYLE, "tokens": TOKENS} | {key: _plain(text) for key, text in given.items()}


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def synthetic_trace(
    table: object, model: str | ModelGeometry | None = None, *, seed: int | None = None
) -> RoutingTrace:
    """A synthetic trace from its table.

    Parameters
    ----------
    table
        `style`, sizes (`SIZES`) and numbers of the style to change; `tokens` is needed.
    model
        Whose shape and byte sizes; None for the model that the style is named after.
    seed
        In place of the table's.

    Returns
    -------
    RoutingTrace
        Equal for equal arguments.

    Raises
    ------
    SimError, TraceError
        No table, an unknown style, model or key, a number of the wrong kind or out of range.
    """
    from pydantic import ValidationError  # here, as help should not wait for it

    from expert_residency.traces import ModelGeometry, load_model
    from expert_residency.traces.synthetic import generate, load_style

    if not isinstance(table, Mapping):
        raise SimError(f"synthetic is {table!r}, expected a table of style, {', '.join(SIZES)}")
    sizes = dict(table)
    name = str(sizes.pop("style", STYLE))
    style = load_style(name)
    changes = {key: sizes.pop(key) for key in list(sizes) if key in type(style).model_fields}
    _check(sizes)
    if seed is not None:
        sizes["seed"] = seed
    try:
        style = type(style).model_validate(style.model_dump() | changes)
    except ValidationError as error:
        first = error.errors()[0]
        raise SimError(f"synthetic: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None
    geometry = model if isinstance(model, ModelGeometry) else load_model(model or name)
    return generate(geometry, style, **sizes)


def _check(sizes: Mapping[str, Any]) -> None:
    faults = []
    for key, value in sizes.items():
        if key not in SIZES:
            faults.append(f"unknown key {key!r} (known: style, {', '.join(SIZES)}, or one of the style's)")
        elif not is_number(value) or (key not in _SHARES and type(value) is not int):
            wanted = "a number" if key in _SHARES else "a whole number"
            faults.append(f"{key} is {value!r}, expected {wanted}")
    if "tokens" not in sizes:
        faults.append("tokens is missing")
    if faults:
        raise SimError(f"synthetic: {'; '.join(faults)}")


def is_number(value: object) -> bool:
    """Whether a value of a table is a number; a flag is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
