"""How many tokens a window drafts, and how many hold: a fixed number, or as long as the drafter is sure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from expert_residency.errors import TraceError

SURE = 0.5
"""Second parameter of a draft's confidence, a Beta distribution whose mean is the acceptance: a floor of 0.5 keeps
2.1 of three drafts, of which 0.74 are accepted, as the engine Strata reports (2.1; 0.64 to 0.85)."""


@dataclass(frozen=True)
class Drafting:
    """Drafts of verify windows.

    Parameters
    ----------
    most
        Drafts of a window at most.
    acceptance
        Chance of a draft, of all there could be, that it holds if those before it do.
    floor
        Drafting stops before the first draft that is held for less likely; 0 drafts `most` always.

    Raises
    ------
    TraceError
        A number below 0, or a chance that is none.
    """

    most: int = 0
    acceptance: float = 0.7
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.most < 0:
            raise TraceError(f"draft tokens must not be negative (found {self.most})")
        for name, value in (("acceptance", self.acceptance), ("draft floor", self.floor)):
            if not 0.0 <= value <= 1.0:
                raise TraceError(f"{name} must be between 0 and 1 (found {value})")

    def window(self, random: np.random.Generator) -> tuple[int, int]:
        """(drafted, accepted) of the next window; a draft's confidence is the chance that it is accepted."""
        if not self.floor:
            refused = random.random(self.most) >= self.acceptance
            return self.most, _before_first(refused)
        chance = np.full(self.most, self.acceptance)
        if 0 < self.acceptance < 1:
            chance = random.beta(SURE * self.acceptance / (1 - self.acceptance), SURE, self.most)
        drafted = _before_first(chance < self.floor)
        return drafted, min(drafted, _before_first(random.random(self.most) >= chance))


def _before_first(stops: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """How many come before the first that stops."""
    found = np.flatnonzero(stops)
    return int(found[0]) if len(found) else len(stops)
