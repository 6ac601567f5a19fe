"""Every machine predicted with constants that no row of it has touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from expert_residency.sim.validation.measured.arrays import FloatArray
from expert_residency.sim.validation.measured.constants import NAMES, PRIORS
from expert_residency.sim.validation.measured.fit import Fit
from expert_residency.sim.validation.measured.formula import Formula
from expert_residency.sim.validation.measured.machines import held_out
from expert_residency.sim.validation.measured.questions import Question, questions
from expert_residency.sim.validation.measured.terms import terms_of

_STEPS = 5
"""From the fit of all rows: what one machine changes is little."""


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
    formula = Formula([terms_of(one) for one in asked])
    names = [one.machine.name for one in asked]
    fit = Fit(formula, np.array([1000 / one.row.tok_s for one in asked]), names)
    made: dict[int, Answer] = {}
    for name in dict.fromkeys(names):
        use = np.array([not held_out(name, other) for other in names])
        values = PRIORS * np.exp(fit(use, most_steps=_STEPS))
        ms, windows = formula.ms(values)
        for number in [i for i, other in enumerate(names) if other == name]:
            moves = bool(formula.windows[number])
            given = moves and not np.isnan(formula.hits[number])
            made[number] = Answer(
                asked[number], float(1000 / ms[number]), float(windows.hits[number]) if given else None,
                float(windows.simulated[number]) if moves else None,
            )  # fmt: skip
    return [made[number] for number in range(len(asked))]


@cache
def shipped_answers() -> tuple[Answer, ...]:
    """All shipped rows that can be predicted."""
    return tuple(answers(questions()[0]))


def constants_of(asked: Sequence[Question]) -> dict[str, float]:
    """The constants that all rows give together, by name."""
    formula = Formula([terms_of(one) for one in asked])
    fit = Fit(formula, np.array([1000 / one.row.tok_s for one in asked]), [one.machine.name for one in asked])
    values: FloatArray = PRIORS * np.exp(fit(np.ones(len(asked), dtype=np.bool_)))
    return dict(zip(NAMES, values.tolist(), strict=True))
