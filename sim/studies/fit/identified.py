"""Whether the runs that a shipped number is said to come from determine it, by the rules of `residency fit`.

`hwmodels/runs/published/constants.csv` names the report of every number of a profile or preset that was taken from
whole runs. Of such a report all rows that can be predicted are observations: their speed, and the time of the
processor's pool where a row prints it. The number itself begins as an assumption, at several values, all others as
their files have them. What these runs do not determine ships as an assumption, with a spread that holds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.runs import ConstantSource, StrataRun, load_constant_sources, load_strata_runs
from expert_residency.hwmodels.units import ns_for_bytes
from expert_residency.sim.choices.preset import EnginePreset, list_engines, load_engine
from expert_residency.sim.runs.constants import PRIOR_SD, Constant, constants_of, scaled
from expert_residency.sim.studies.fit.fit import DETERMINED, Z90, Speeds, identified
from expert_residency.sim.validation.published import engine_of, item_of, predict_ms, union
from expert_residency.sim.validation.rows import TOKENS_A_WINDOW, missing, source_of

NOISE = 0.05
"""Of a request's speed at equal flags, where experts by place are printed."""
WIDEST = math.exp(2 * Z90 * DETERMINED * PRIOR_SD["assumed"])
"""High over low of 90 % of a number of which at least half of what was not known is still not known."""
Observed = Literal["speed", "pool"]


@dataclass(frozen=True)
class Answer:
    """One number of `constants.csv`.

    Parameters
    ----------
    named
        The number and its report.
    constant
        As its file has it.
    rows
        Of the report, that can be predicted.
    ends
        90 % of what explains them; None if none of them feels the number.
    """

    named: ConstantSource
    constant: Constant
    rows: int
    ends: tuple[float, float] | None

    @property
    def determined(self) -> bool:
        """Whether the rows leave at most half of what was not known before, and the file's value is among that."""
        if self.ends is None or self.ends[1] > WIDEST * self.ends[0]:
            return False
        low, high = self.constant.spread or (self.constant.value, self.constant.value)
        return low <= self.ends[1] and high >= self.ends[0]


class _Rows(Speeds[tuple[StrataRun, Observed]]):
    """Observations of rows of one profile; the named constant begins as an assumption."""

    def __init__(
        self, profile: HardwareProfile, preset: EnginePreset, path: tuple[str, ...], start: float
    ) -> None:
        (own,) = [one for one in constants_of((profile,), preset) if one.path == path]
        (self.profile,), self.preset = scaled((profile,), preset, {own: start})
        self.files = constants_of((self.profile,), self.preset)
        self.constants = [
            replace(one, kind="assumed", spread=None, sd=PRIOR_SD["assumed"]) if one.path == path else one
            for one in self.files
        ]

    def speed(self, run: tuple[StrataRun, Observed], logs: Mapping[Constant, float]) -> float:
        """Tokens/s, or windows that the pool would do in a second.

        Parameters
        ----------
        run
            Row, and what of it.
        logs
            Logarithms by which constants are moved.

        Returns
        -------
        float
            A rate.
        """
        row, kind = run
        moved = {(one.card, one.path): math.exp(x) for one, x in logs.items() if x}
        factors = {one: moved[one.card, one.path] for one in self.files if (one.card, one.path) in moved}
        (profile,), preset = scaled((self.profile,), self.preset, factors)
        window, costs, geometry, _ = item_of(row, profile, preset)
        if kind == "speed":
            ms = predict_ms(window, costs, profile, geometry, preset)
            return 1000 * (window.tokens or TOKENS_A_WINDOW) / ms
        rate = profile.cpu.expert_mb_per_s(source_of(row), geometry.quant_family)
        nbytes = union(window.rows) / window.rows * window.cpu * geometry.expert_bytes[0]
        return 1e9 / ns_for_bytes(round(nbytes), rate)

    def measured(self, run: tuple[StrataRun, Observed]) -> float:
        """The same as printed."""
        row, kind = run
        if kind == "speed":
            assert row.tok_s is not None
            return row.tok_s
        assert row.ms_cpu_experts is not None
        tokens = item_of(row, self.profile, self.preset)[0].tokens or TOKENS_A_WINDOW
        return 1000 / (row.ms_cpu_experts * tokens)


def answer(named: ConstantSource, runs: Sequence[StrataRun] | None = None) -> Answer:
    """What its runs say of one number.

    Parameters
    ----------
    named
        Of `constants.csv`.
    runs
        Rows instead of those that ship.

    Returns
    -------
    Answer
        Determined or not.
    """
    shipped = load_strata_runs() if runs is None else runs
    rows = [run for run in shipped if named.report in run.source and missing(run) is None]
    constant, path = constant_of(named), tuple(named.constant.split("."))
    if not rows:
        return Answer(named, constant, 0, None)
    profile, preset = load_profile(rows[0].profile), engine_of(rows[0])
    seen: list[tuple[StrataRun, Observed]] = [(run, "speed") for run in rows]
    seen += [(run, "pool") for run in rows if run.ms_cpu_experts and item_of(run, profile, preset)[0].cpu]
    model = _Rows(profile, preset, path, 1.0)
    measured = np.log([model.measured(run) for run in seen])
    ends = identified(lambda start: _Rows(profile, preset, path, start), path, seen, measured, NOISE)
    return Answer(named, constant, len(rows), ends)


def constant_of(named: ConstantSource) -> Constant:
    """The number as its file has it."""
    engine = named.where in list_engines()
    cards = () if engine else (load_profile(named.where),)
    constants = constants_of(cards, load_engine(named.where if engine else "strata"))
    return next(one for one in constants if one.path == tuple(named.constant.split(".")))


def answers() -> list[Answer]:
    """All numbers of `constants.csv`."""
    return [answer(named) for named in load_constant_sources()]
