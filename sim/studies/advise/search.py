"""The best setting: one knob after the other, from several starts, every setting once.

From each start the knobs are taken in turn, each put to its best value with the others held, until a round changes
nothing: no single knob then gains anything. Starts are the engine's defaults and each knob's best value there; in
how many the same setting was found is said. A space of few settings is searched whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from math import prod

from expert_residency.sim.choices.knob import Value
from expert_residency.sim.studies.advise.task import Setting, Task, no_setting

WHOLE = 200
"""Settings up to which all are tried."""
ROUNDS = 8
ALIKE = 1e-6
PLAIN = 0.01
"""What a setting may lose to have more defaults: the model cannot tell so little."""


@dataclass
class Found:
    """What a search found.

    Parameters
    ----------
    best, speed
        The fastest setting.
    default
        Where the search began: the engine's defaults, or the first values that fit.
    agreed, starts
        In how many starts the best was found.
    complete
        Whether every setting was tried.
    """

    best: Setting
    speed: float
    default: Setting
    agreed: int
    starts: int
    complete: bool


@dataclass
class Searcher:
    """Speeds of a task, each setting once."""

    task: Task
    said: Callable[[str], None] = lambda _: None
    known: dict[Setting, float | None] = field(default_factory=dict)

    def speed(self, setting: Setting) -> float | None:
        """Tokens/s, None if it does not fit."""
        if setting not in self.known:
            self.known[setting] = self.task.speed(setting)
        return self.known[setting]

    def replaced(self, setting: Setting, at: int, value: Value) -> Setting:
        """A setting with another value of one knob.

        Parameters
        ----------
        setting
            The setting.
        at, value
            Which knob, from 0, and its value.

        Returns
        -------
        Setting
            A new one.
        """
        return (*setting[:at], value, *setting[at + 1 :])

    def along(self, setting: Setting, at: int) -> dict[Value, float | None]:
        """Speeds of every value of one knob."""
        values = self.task.controls[at].values
        return {value: self.speed(self.replaced(setting, at, value)) for value in values}

    def search(self) -> Found:
        """The best setting.

        Raises
        ------
        SimError
            Nothing fits; why.
        """
        controls = self.task.controls
        default = tuple(c.values[0] if c.default is None else c.default for c in controls)
        if prod(len(c.values) for c in controls) <= WHOLE:
            for setting in product(*(c.values for c in controls)):
                self.speed(setting)
            ends = [max(self.known, key=self._rank)]
        else:
            starts = [default, tuple(self._best_of(default, at) for at in range(len(controls)))]
            ends = []
            for number, start in enumerate(starts, start=1):
                self.said(f"search {number} of {len(starts)}")
                ends.append(self._climb(start))
        best = max(ends, key=self._rank)
        speed = self.known[best]
        if speed is None:
            raise no_setting(self.task.refused)
        agreed = sum(self._rank(end)[0] >= speed * (1 - ALIKE) for end in ends)
        while True:
            plain = self._plainest(best, default)
            beside = [self.replaced(plain, at, v) for at in range(len(controls)) for v in self.along(plain, at)]
            if (first := max(beside, key=self._rank)) == plain or self._rank(first) <= self._rank(best):
                break
            best = self._climb(first)
        found = self.known[plain]
        assert found is not None
        return Found(plain, found, default, agreed, len(ends), len(ends) == 1)

    def _climb(self, start: Setting) -> Setting:
        at = start
        for _ in range(ROUNDS):
            before = at
            for number in range(len(self.task.controls)):
                at = self.replaced(at, number, self._best_of(at, number))
            if at == before:
                break
        return at

    def _best_of(self, setting: Setting, at: int) -> Value:
        speeds = self.along(setting, at)
        best = max(speeds, key=lambda value: speeds[value] or 0.0)
        return best if (speeds[best] or 0.0) > (speeds[setting[at]] or 0.0) else setting[at]

    def _plainest(self, best: Setting, default: Setting) -> Setting:
        """The setting with as many defaults as lose less than `PLAIN` in all, the idlest knobs first."""
        least = self._rank(best)[0] * (1 - PLAIN)
        while True:
            others = [
                self.replaced(best, at, value)
                for at, value in enumerate(default)
                if value != best[at] and (self.speed(self.replaced(best, at, value)) or 0.0) >= least
            ]
            if not others:
                return best
            best = max(others, key=self._rank)

    def _rank(self, setting: Setting) -> tuple[float, int]:
        return self.known.get(setting) or 0.0, 0
