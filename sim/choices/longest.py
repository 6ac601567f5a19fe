"""The largest context that a setting leaves room for, and what it costs when it is full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from expert_residency.sim.choices.session import session_lines
from expert_residency.traces import ModelGeometry

STEP, MOST = 1024, 1 << 20
"""Tokens between two contexts that are tried, and the largest of them."""


@dataclass(frozen=True)
class Longest:
    """A context.

    Parameters
    ----------
    tokens, asked
        The largest, and what was planned or run.
    tokens_per_s, how
        Speed of the same setting when it is full, `simulated` or `estimated`.
    """

    tokens: int
    asked: int
    tokens_per_s: float
    how: str = "simulated"

    @property
    def text(self) -> str:
        """A sentence."""
        more = " or more" if self.tokens >= MOST else ""
        what = f"{self.tokens:,} tokens{more}" + ("" if self.tokens != self.asked else ", the one that is counted")
        return (
            f"The largest context that fits with this setting: {what}; when it is full {self.tokens_per_s:.1f} "
            f"tok/s {self.how} (whether the model takes so long a one is not known here)."
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return vars(self) | {"text": self.text}


def largest_context(fits: Callable[[int], bool], asked: int) -> int:
    """The largest context that fits, in steps; `asked` if the next step does not.

    Parameters
    ----------
    fits
        Whether so many tokens do; the fewer the rather.
    asked
        A number that fits.

    Returns
    -------
    int
        Tokens.
    """
    low, high = asked // STEP, MOST // STEP + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(STEP * middle) else (low, middle)
    return max(asked, STEP * low)


def session_bytes(geometry: ModelGeometry, tokens: int, kv_type: str, kv_resident: int = 0) -> int:
    """Bytes of a context, drafts aside; 0 where nobody knows.

    Parameters
    ----------
    geometry
        The model.
    tokens, kv_type, kv_resident
        As `session_lines` takes them.

    Returns
    -------
    int
        Of all layers.
    """
    shape = geometry.session_shape
    if shape is None:
        return 0
    return sum(line.nbytes for line in session_lines(shape, tokens, kv_type=kv_type, kv_resident=kv_resident))
