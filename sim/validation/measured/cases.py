"""The machine group of `residency validate`: cases, machines, and what is said of them."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from expert_residency.sim.runs.interval import Interval
from expert_residency.sim.validation.measured.group import Answer, shipped_answers
from expert_residency.sim.validation.measured.machines import held_out
from expert_residency.sim.validation.measured.questions import questions

NEAR = 0.25
"""Error under which nine of ten rows are wanted."""
CAUSES = (
    (r"RTX 3080 12 GB", "the row does not say how it ran: slower than the same on an RTX 3060"),
    (r"krasis", "an engine measured on this machine only: its times are llama.cpp's, no other row says more"),
    (r"threads on one node", "all threads on one of four nodes: remote reads cost more than the lost channels"),
    (r"Pro Vega II", "llama.cpp on macOS and an AMD card, which no other row has"),
    (r"RX 7900 XTX \+ Ryzen", "HIP through WSL2, which no other machine has"),
    (r"Tesla T4", "a 70 W card whose clock no data sheet gives under load"),
    (r"short \d|first answer|long .* cold", "first answers after a start: the cache is not yet that of the text"),
    (r"no draft accepted", "drafts that are never accepted still cost their time"),
    (r"18 generated|61 generated", "a few tokens after a start"),
)  # fmt: skip
"""Rows that are far off and why, by what their names say; the rest is the spread of data sheets."""


def cause_of(name: str) -> str:
    """Why a row of this name is far off, as far as is known."""
    return next((cause for pattern, cause in CAUSES if re.search(pattern, name)), "not explained")


@dataclass(frozen=True)
class MachineGroup:
    """The answers of all rows.

    Parameters
    ----------
    answers
        One a row.
    intervals
        Of each: where nine of ten rows of its kind on other machines lie about their predictions.
    """

    answers: tuple[Answer, ...]
    intervals: tuple[Interval | None, ...]

    @property
    def machines(self) -> list[str]:
        """Names."""
        return list(dict.fromkeys(one.question.machine.name for one in self.answers))

    @property
    def near(self) -> float:
        """Share of rows under `NEAR`."""
        return statistics.fmean(abs(one.error) < NEAR for one in self.answers)

    def headline(self) -> list[str]:
        """What it comes to, in sentences."""
        worst = max(self.answers, key=lambda one: abs(one.error))
        errors = [abs(one.error) for one in self.answers]
        said = [
            (
                f"machine: {len(errors)} rows of {len(self.machines)} machines, each by constants of the others: "
                f"median {100 * statistics.median(errors):.1f} %, {100 * self.near:.0f} % under {100 * NEAR:.0f} %"
            ),
            f"worst: {worst.question.name} ({100 * worst.error:+.0f} %): {cause_of(worst.question.name)}",
        ]
        forward = [one for one in self.answers if one.kind == "hits not given"]
        counted = [
            abs(one.hits - one.simulated_hits)
            for one in self.answers
            if one.hits is not None and one.simulated_hits is not None and one.hits < 1
        ]
        if forward and counted:
            said.append(
                f"forward: {len(forward)} rows without given hits, median "
                f"{100 * statistics.median(abs(one.error) for one in forward):.1f} %; where an engine counted "
                f"({len(counted)} rows) hits are {100 * statistics.median(counted):.1f} points off in the median"
            )
        return said


def machine_group(found: Sequence[Answer] | None = None) -> MachineGroup:
    """All rows with their intervals.

    Parameters
    ----------
    found
        Answers; by default those of the shipped rows.
    """
    found = shipped_answers() if found is None else tuple(found)
    return MachineGroup(tuple(found), tuple(_interval(one, found) for one in found))


_FEWEST = 10


def _interval(one: Answer, found: Sequence[Answer]) -> Interval | None:
    """Where nine of ten rows alike lie, those of its own machine left out; each machine counts as its root."""
    name = one.question.machine.name
    others = [
        other for other in found if other.kind == one.kind and not held_out(name, other.question.machine.name)
    ]
    if len(others) < _FEWEST:
        return None
    counts = Counter(other.question.machine.name for other in others)
    off = np.array([-np.log1p(other.error) for other in others])
    weight = np.array([counts[other.question.machine.name] ** -0.5 for other in others])
    order = np.argsort(off)
    below = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    low, high = (float(np.interp(level, below, off[order])) for level in (0.05, 0.95))
    spread = float(np.sqrt(np.average(np.clip(off, low, high) ** 2, weights=weight)))
    return Interval(one.tok_s * float(np.exp(low)), one.tok_s * float(np.exp(high)), 0.0, 0.0, spread)


def not_asked() -> list[tuple[str, int, int]]:
    """What is missing, rows that lack it, and on how many machines; the commonest first."""
    rows: Counter[str] = Counter()
    machines: dict[str, set[tuple[str, str]]] = {}
    for one in questions()[1]:
        reason = one.missing.partition(":")[0]
        rows[reason] += 1
        machines.setdefault(reason, set()).add((one.row.gpu, one.row.cpu))
    return [(reason, count, len(machines[reason])) for reason, count in rows.most_common()]


def machines_table() -> str:
    """Every machine for the documentation."""
    from expert_residency.sim.validation.cases import Case, order_of
    from expert_residency.text import markdown

    group = machine_group()
    rows = []
    for name in group.machines:
        mine = [one for one in group.answers if one.question.machine.name == name]
        errors = [one.error for one in mine]
        pairs, wrong = order_of(
            Case("", "unseen", "", "", name, one.tok_s, one.question.row.tok_s) for one in mine
        )
        engines = ", ".join(dict.fromkeys(one.question.row.engine.split()[0] for one in mine))
        rows.append(
            (name, engines, str(len(mine)), f"{100 * statistics.median(map(abs, errors)):.1f}",
             f"{100 * max(errors, key=abs):+.0f}", f"{wrong} of {pairs}")
        )  # fmt: skip
    heads = ("machine", "engines", "rows", "median error %", "worst %", "wrong order")
    return f"{markdown(heads, rows)}\n\n" + "\n".join(f"- {line}" for line in group.headline())
