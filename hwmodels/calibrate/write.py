"""Figures to TOML: a profile of the machine, and the preset of the live engine that ran on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from expert_residency.hwmodels.calibrate.fit import Figure

Tables = dict[str, Any]


def quantity(figure: Figure) -> dict[str, Any]:
    """A profile's number with its range; noise is said in the source."""
    noisy = "; NOISY: the rounds differ by more than a quarter" if figure.noisy else ""
    return {
        "value": _short(figure.value),
        "kind": "measured",
        "source": f"residency calibrate: {figure.how}{noisy}",
        "spread": [_below(figure.low), _above(figure.high)],
    }


def given(value: float, kind: str, source: str) -> dict[str, Any]:
    """A number that was not fitted.

    Parameters
    ----------
    value
        In the unit of its field.
    kind
        Measured, datasheet, derived or assumed.
    source
        Where it comes from.

    Returns
    -------
    dict[str, Any]
        The number as a profile has it.
    """
    return {"value": value, "kind": kind, "source": source}


def put(tables: Tables, path: str, value: Any) -> None:
    """Set `a.b.c`.

    Parameters
    ----------
    tables
        Changed in place.
    path
        Names of tables and of the value, with dots.
    value
        What to set.
    """
    *parents, last = path.split(".")
    for part in parents:
        tables = tables.setdefault(part, {})
    tables[last] = value


def to_toml(tables: Mapping[str, Any]) -> str:
    """TOML text: plain values, then tables; numbers with provenance stay on one line."""
    lines: list[str] = []
    _write(tables, (), lines)
    return "\n".join(lines).strip() + "\n"


def _write(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    inner = {k: v for k, v in table.items() if isinstance(v, dict) and "kind" not in v}
    plain = {k: v for k, v in table.items() if k not in inner}
    if path and plain:
        lines += ["", f"[{'.'.join(path)}]"]
    lines += [f"{key} = {_inline(value)}" for key, value in plain.items()]
    for key, value in inner.items():
        _write(value, (*path, key), lines)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_inline(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _below(value: float) -> float:
    """Rounded, but never above what a value rounded alike can be."""
    return _short(value * (1 - 1e-4))


def _above(value: float) -> float:
    return _short(value * (1 + 1e-4))
