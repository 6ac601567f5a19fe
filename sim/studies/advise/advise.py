"""`advise`: search, what each knob is worth, an interval, and what would change the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from expert_residency.sim.choices.knob import Value
from expert_residency.sim.runs.constants import Constant, scaled
from expert_residency.sim.runs.interval import (
    DRAWS,
    FEWEST_REQUESTS,
    TEXT_SD,
    Interval,
    Machine,
    draws,
    sides,
    spread_about,
)
from expert_residency.sim.studies.advise.search import Found, Searcher
from expert_residency.sim.studies.advise.task import Setting, Task

Z90 = 1.645
FELT = 0.01
"""Change of the best setting's speed, by the plausible range of a constant, from which rivals are asked too."""
RIVALS, SAME = 2, 1e-6
MOST_FELT = 8
FLIPS = 0.005
"""How much faster a rival has to be."""


@dataclass(frozen=True)
class Worth:
    """One knob.

    Parameters
    ----------
    name, best, default
        The knob, its value in the best setting, and the engine's own.
    text, labels
        The best value as the user gives it, and every value in a word.
    without
        Speed with the default and all others at their best; None if that does not fit.
    values
        Speeds of all values with the others at their best; None does not fit.
    below, above
        The values beside the best.
    """

    name: str
    best: Value
    default: Value | None
    text: str
    labels: Mapping[Value, str]
    without: float | None
    values: tuple[tuple[Value, float | None], ...]
    below: Value | None
    above: Value | None
    speed: float

    @property
    def gain(self) -> float | None:
        """Best over default less 1; None where the default does not fit or is not known."""
        return None if self.without is None else self.speed / self.without - 1

    def regret(self, value: Value | None) -> float | None:
        """What another value loses; None where it does not fit."""
        found = None if value is None else dict(self.values)[value]
        return None if found is None else 1 - found / self.speed


@dataclass(frozen=True)
class Flip:
    """A constant whose plausible range changes the best setting.

    Parameters
    ----------
    constant, at, low, high
        The number, where it changes the answer, and 90 % of what it may be.
    knob, value
        What is better there.
    loss
        What the advised setting then loses.
    """

    constant: Constant
    at: float
    low: float
    high: float
    knob: str
    value: Value
    label: str
    loss: float


@dataclass(frozen=True)
class Advice:
    """An answer.

    Parameters
    ----------
    found
        The best setting and how it was found.
    worths
        Of each knob.
    speed
        Tokens/s of what is advised.
    interval
        90 % of it: constants drawn within their spreads, workloads from those given.
    runs, workloads
        What the interval stands on.
    flips
        What would change the answer, the dearest first.
    felt
        How many constants the best setting feels.
    """

    found: Found
    worths: tuple[Worth, ...]
    speed: float
    interval: Interval
    runs: int
    workloads: int
    flips: tuple[Flip, ...]
    felt: int


def range_of(one: Constant) -> tuple[float, float]:
    """Factors on a constant at the ends of what it may be in nine of ten cases."""
    down, up = sides(one)
    return math.exp(-Z90 * down), math.exp(Z90 * up)


def advise(task: Task, *, runs: int = DRAWS, progress: Callable[[str], None] | None = None) -> Advice:
    """The best setting of a task.

    Parameters
    ----------
    task
        Knobs and their speeds.
    runs
        Of the interval.
    progress
        Told what is done next.

    Returns
    -------
    Advice
        Search, worths, interval, flips.

    Raises
    ------
    SimError
        Nothing fits.
    """
    say = progress or (lambda _: None)
    searcher = Searcher(task, say)
    found = searcher.search()
    worths = tuple(_worth(searcher, found, at) for at in range(len(task.controls)))
    say("what constants change")
    flips, felt = _flips(task, found, worths)
    say("the interval")
    speed = task.headline(found.best)
    assert speed is not None
    return Advice(
        found, worths, speed, _interval(task, found.best, speed, runs), runs, task.workloads, flips, felt
    )


def _worth(searcher: Searcher, found: Found, at: int) -> Worth:
    control, best = searcher.task.controls[at], found.best[at]
    speeds = searcher.along(found.best, at)
    below, above = control.beside(best)
    default = control.default
    return Worth(
        control.name,
        best,
        default,
        control.text(best),
        {value: control.label(value) for value in control.values},
        None if default is None else speeds[default],
        tuple(speeds.items()),
        below,
        above,
        found.speed,
    )


def _interval(task: Task, best: Setting, speed: float, n: int) -> Interval:
    """Where a measured speed lies in nine of ten cases: constants, workloads and what the model is off by."""
    moved = [
        math.log(found / speed)
        for number, machine in enumerate(draws(task.ask.profiles, task.ask.preset, n))
        if (found := task.headline(best, machine, number % task.workloads))
    ]
    own = task.workloads < FEWEST_REQUESTS  # few workloads say little of how far texts are apart
    return spread_about(speed, np.array(moved or [0.0]), TEXT_SD if own else 0.0)


def _flips(task: Task, found: Found, worths: Sequence[Worth]) -> tuple[tuple[Flip, ...], int]:
    """Constants whose range makes a rival faster; and how many the best setting feels."""
    rivals = [(at, value) for at, worth in enumerate(worths) for value in _rivals(worth)]
    ends: list[tuple[float, Constant, list[tuple[float, float]]]] = []
    for one in task.constants:
        speeds = [
            (factor, speed)
            for factor in range_of(one)
            if factor != 1 and (speed := task.speed(found.best, _scaled(task, one, factor)))
        ]
        change = max((abs(speed / found.speed - 1) for _, speed in speeds), default=0.0)
        if change >= FELT:
            ends.append((change, one, speeds))
    flips = [
        flip
        for _, one, speeds in sorted(ends, key=lambda end: -end[0])[:MOST_FELT]
        if (flip := _flip(task, found, worths, rivals, one, speeds)) is not None
    ]
    return tuple(sorted(flips, key=lambda flip: -flip.loss)), len(ends)


def _scaled(task: Task, one: Constant, factor: float) -> Machine:
    return scaled(task.ask.profiles, task.ask.preset, {one: factor})


def _rivals(worth: Worth) -> list[Value]:
    """The fastest other values of a knob that are not the same speed for nothing."""
    most = worth.speed * (1 - SAME)
    near = [(speed, value) for value, speed in worth.values if speed is not None and speed < most]
    return [value for _, value in sorted(near, key=lambda item: -item[0])[:RIVALS]]


def _flip(
    task: Task, found: Found, worths: Sequence[Worth], rivals: Sequence[tuple[int, Value]], one: Constant,
    ends: Sequence[tuple[float, float]],
) -> Flip | None:  # fmt: skip
    best: tuple[float, float, int, Value] | None = None
    for factor, own in ends:
        machine = _scaled(task, one, factor)
        for at, value in rivals:
            other = task.speed((*found.best[:at], value, *found.best[at + 1 :]), machine)
            if other and other > own * (1 + FLIPS) and (best is None or 1 - own / other > best[0]):
                best = 1 - own / other, factor, at, value
    if best is None:
        return None
    loss, factor, at, value = best
    speed = dict(worths[at].values)[value]
    assert speed is not None
    before, after = math.log(speed / found.speed), -math.log(1 - loss)
    part = -before / (after - before) if after > before else 0.0  # where both are equal, by a straight line
    low, high = (one.value * end for end in range_of(one))
    return Flip(
        one, one.value * factor**part, low, high, worths[at].name, value, task.controls[at].label(value), loss
    )  # fmt: skip
