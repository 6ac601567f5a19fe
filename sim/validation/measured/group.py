"""Every machine predicted with constants that no row of it has touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from expert_residency.sim.validation.measured.constants import SHIPPED
from expert_residency.sim.validation.measured.fit import (
    RowSlopes,
    Slopes,
    most_likely,
    named,
    row_slopes,
    slopes,
    weights,
)
from expert_residency.sim.validation.measured.machines import held_out
from expert_residency.sim.validation.measured.price import Priced
from expert_residency.sim.validation.measured.questions import Question, questions


@dataclass(frozen=True)
class Answer:
    """One row and what the others say of it.

    Parameters
    ----------
    question
        The row.
    tok_s
        Predicted, its machine held out.
    hits, simulated_hits
        Share of look-ups that the card serves: as the row gives it (None: it does not), and as simulated.
    """

    question: Question
    tok_s: float
    hits: float | None
    simulated_hits: float | None

    @property
    def error(self) -> float:
        """Predicted over measured speed, less 1."""
        return self.tok_s / self.question.row.tok_s - 1

    @property
    def kind(self) -> str:
        """Whether experts move, and whether the row gives the hits."""
        if self.question.knobs.where != "slots":
            return "nothing moves"
        return "hits given" if self.hits is not None else "hits not given"


_SLOPES: dict[int, tuple[Question, Priced, RowSlopes]] = {}
"""Of shipped rows, by identity: what a user's rows are compared with is priced once."""


def _priced(asked: Question) -> tuple[Priced, RowSlopes]:
    known = _SLOPES.get(id(asked))
    if known is None:
        row = Priced(asked)
        known = _SLOPES[id(asked)] = (asked, row, row_slopes(row))
    return known[1], known[2]


def answers(asked: Sequence[Question]) -> list[Answer]:
    """Each row by constants of the rows of machines that cannot be its own.

    Parameters
    ----------
    asked
        Rows of at least two machines.

    Returns
    -------
    list of Answer
        In the same order.
    """
    rows = [_priced(one) for one in asked]
    names = [one.machine.name for one in asked]
    found, weight = _slopes(asked), weights(names)
    made: dict[int, Answer] = {}
    for name in dict.fromkeys(names):
        use = np.array([not held_out(name, other) for other in names])
        values = named(SHIPPED * np.exp(most_likely(found, np.where(use, weight, 0.0))))
        for number in [i for i, other in enumerate(names) if other == name]:
            price, one = rows[number][0](values), asked[number]
            given = price.windows is not None and one.knobs.hit_pct is not None
            made[number] = Answer(
                one, 1000 / price.ms, price.windows.hits if given and price.windows else None,
                price.windows.simulated if price.windows else None,
            )  # fmt: skip
    return [made[number] for number in range(len(asked))]


def _slopes(asked: Sequence[Question]) -> Slopes:
    return slopes([_priced(one)[1] for one in asked], np.array([1000 / one.row.tok_s for one in asked]))


@cache
def shipped_answers() -> tuple[Answer, ...]:
    """All shipped rows that can be predicted."""
    return tuple(answers(questions()[0]))


def constants_of(asked: Sequence[Question]) -> dict[str, float]:
    """The constants that all rows give together, by name."""
    at = most_likely(_slopes(asked), weights([one.machine.name for one in asked]))
    return named(SHIPPED * np.exp(at))
