"""What values a policy's parameters may have, written beside them: `in_share: Share = 0.25`.

They are checked when a policy is made, before any engine sees it: compiled code has no bounds of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any

from expert_residency.errors import PolicyError


@dataclass(frozen=True)
class Within:
    """A parameter is from `low` to `high`, both included."""

    low: float
    high: float


MANY = (1 << 31) - 1
"""Of anything that is counted: sums of it stay integers of 64 bits."""
Share = Annotated[float, Within(0, 1)]
Ghosts = Annotated[float, Within(0, 100)]
"""Remembered for each slot."""
HalfLife = Annotated[float, Within(0.1, 1e9)]
"""In tokens; shorter ones would grow a use beyond what a number holds from pass to pass."""
Weight = Annotated[float, Within(0, 1e9)]
Level = Annotated[float, Within(-1e9, 1e9)]
AtLeastOne = Annotated[int, Within(1, MANY)]
Count = Annotated[int, Within(0, MANY)]
Ahead = Annotated[int, Within(1, 4096)]
"""Events or layers."""


def check_parameters(policy: Any) -> None:
    """See that every parameter of a policy is a number of its kind, finite, and in its range.

    Raises
    ------
    PolicyError
        The first that is not, with what would be.
    """
    for name, kind, within in _rules(policy.__class__):
        value = getattr(policy, name)
        where = f"policy {policy.name}: {name} is {value!r}, expected"
        if kind is int:
            if not isinstance(value, Integral) or isinstance(value, bool):
                raise PolicyError(f"{where} a whole number")
        elif not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
            raise PolicyError(f"{where} a number")
        if not within.low <= value <= within.high:
            raise PolicyError(f"{where} {_plain(within.low)} to {_plain(within.high)}")


def _plain(bound: float) -> str:
    return f"{bound:,}" if bound == int(bound) and abs(bound) < 1e9 else f"{bound:g}"


@functools.cache
def _rules(cls: type) -> list[tuple[str, type, Within]]:
    """Name, kind and range of every number among the parameters."""
    if not dataclasses.is_dataclass(cls):
        return []
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError:  # a plug-in that imports its types for a checker only
        return []
    limit = float(1 << 62)
    found = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        kind = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
        if kind in (int, float):
            ranges = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Within)]
            found.append((field.name, kind, ranges[0] if ranges else Within(-limit, limit)))
    return found
