"""A user's measured rows beside the shipped ones: what the others predict of them, and what they would change."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from expert_residency.hwmodels.runs import Line, MeasuredRun
from expert_residency.hwmodels.runs.machine_files import file_of
from expert_residency.sim.runs.interval import Interval
from expert_residency.sim.validation.measured.cases import machine_group
from expert_residency.sim.validation.measured.group import Answer, answers, constants_of, shipped_answers
from expert_residency.sim.validation.measured.questions import Question, Unasked, question_of, questions, run_key

MOVED = 0.01
"""Relative change of a constant from which on it is shown."""
WORSE = 0.02
"""Growth of a shipped row's absolute error from which on it counts as worse."""
_TOLD_APART = frozenset(("source", "date", "kind", "read_in"))
"""Columns that may differ between two tellings of one run."""
Asked = Question | Unasked


@dataclass(frozen=True)
class Added:
    """One row.

    Parameters
    ----------
    line
        As read.
    asked
        The question to the model, or what a prediction lacks.
    twin
        The run that it tells once more; empty if it is new.
    answer, interval
        What rows of other machines say of it; None where something is missing.
    """

    line: Line[MeasuredRun]
    asked: Asked
    twin: str
    answer: Answer | None
    interval: Interval | None

    @property
    def name(self) -> str:
        """The row in one line."""
        return name_of(self.asked)

    @property
    def file(self) -> str:
        """Of its machine, under `hwmodels/runs/measured/`."""
        return file_of(self.line.row)


@dataclass(frozen=True)
class Effect:
    """What new rows change; errors are absolute and of speeds.

    Parameters
    ----------
    constants
        Those that move by more than `MOVED`, the most moved first: before and after.
    rows, before, after
        Shipped rows that are predicted, and their median error without and with the new rows.
    all_rows, together
        The same of shipped and new rows.
    worse
        Shipped rows whose error grows by more than `WORSE`: name, error before and after.
    """

    constants: Mapping[str, tuple[float, float]]
    rows: int
    before: float
    after: float
    all_rows: int
    together: float
    worse: Sequence[tuple[str, float, float]]


def name_of(asked: Asked) -> str:
    """A row in one line."""
    if isinstance(asked, Question):
        return asked.name
    row = asked.row
    return " ".join(f"{row.n_gpus}x {row.gpu}, {row.model} {row.quant} {row.engine} {row.mode}".split())


def add(
    lines: Sequence[Line[MeasuredRun]], shipped: Sequence[Answer] | None = None
) -> tuple[list[Added], Effect | None]:
    """Rows of a user, each predicted by rows of other machines only.

    Parameters
    ----------
    lines
        The rows.
    shipped
        Instead of the answers of all shipped rows.

    Returns
    -------
    added, effect
        One for each line, and what those change that are new and can be predicted; None if there is none.
    """
    shipped = shipped_answers() if shipped is None else shipped
    asked = [question_of(line.row) for line in lines]
    twins = _twins(lines, asked, shipped)
    new = [one for one, twin in zip(asked, twins, strict=True) if twin is None and isinstance(one, Question)]
    before = [one.question for one in shipped]
    found = answers([*before, *new]) if new else list(shipped)
    said = [*shipped, *found[len(before) :]]
    intervals = machine_group(said).intervals
    by_row = {id(one.question.row): (one, interval) for one, interval in zip(said, intervals, strict=True)}
    added = []
    for line, one, twin in zip(lines, asked, twins, strict=True):
        answer, interval = by_row.get(id(twin.row if twin else one.row), (None, None))
        added.append(Added(line, one, name_of(twin) if twin else "", answer, interval))
    return added, _effect(shipped, found, new) if new else None


def _effect(shipped: Sequence[Answer], found: Sequence[Answer], new: Sequence[Question]) -> Effect:
    before = [one.question for one in shipped]
    old, now = constants_of(before), constants_of([*before, *new])
    moved = {name: (old[name], now[name]) for name in old if abs(now[name] / old[name] - 1) > MOVED}
    worse = [
        (one.question.name, one.error, after.error)
        for one, after in zip(shipped, found, strict=False)
        if abs(after.error) - abs(one.error) > WORSE
    ]
    return Effect(
        dict(sorted(moved.items(), key=lambda item: -abs(item[1][1] / item[1][0] - 1))), len(shipped),
        _median(shipped), _median(found[: len(shipped)]), len(found), _median(found),
        sorted(worse, key=lambda row: abs(row[1]) - abs(row[2])),
    )  # fmt: skip


def _median(found: Sequence[Answer]) -> float:
    return statistics.median(abs(one.error) for one in found)


def _twins(
    lines: Sequence[Line[MeasuredRun]], asked: Sequence[Asked], shipped: Sequence[Answer]
) -> list[Asked | None]:
    """For each row the one before it, shipped or the user's own, that tells the same run."""
    known: list[Asked] = [*(one.question for one in shipped), *questions()[1]]
    found: list[Asked | None] = []
    for line, one in zip(lines, asked, strict=True):
        same = _same(line, one)
        found.append(next((other for other in known if same(other)), None))
        if found[-1] is None:
            known.append(one)
    return found


def _same(line: Line[MeasuredRun], asked: Asked) -> Callable[[Asked], bool]:
    """Whether another row says all that this one says, or is the same run under another name of its file."""
    row = line.row
    said = {name: getattr(row, name) for name in row.model_fields_set - _TOLD_APART}
    key = run_key(asked) if isinstance(asked, Question) else None

    def same(other: Asked) -> bool:
        if row.tok_s != other.row.tok_s:
            return False
        if all(getattr(other.row, name) == value for name, value in said.items()):
            return True
        return key is not None and isinstance(other, Question) and key == run_key(other)

    return same
