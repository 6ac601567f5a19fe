"""Fitting constants to runs: the most likely values under priors, their spreads, and the run that would tell more.

Logarithms of constants have normal priors (`constants.PRIOR_SD`), logarithms of measured speeds normal noise. The
most likely values are found by Gauss-Newton steps with derivatives from runs of the simulator itself, and the
spreads from the curvature there (Laplace's approximation; MacKay 2003, chapter 27). A constant is *determined* if
the runs leave at most half of its prior spread; two that keep their spread while their posteriors are tied
(|correlation| at least 0.7) cannot be told apart by these runs; one that had to move by more than 2.5 of its prior
spreads stands in for something that the model lacks. The next run is the candidate whose prediction is
spread most over what fits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from expert_residency.errors import MisfitError, SimError, UserError
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.preset import EnginePreset, load_engine
from expert_residency.sim.choices.spec import make_spec
from expert_residency.sim.runs.constants import Constant, constants_of, scaled
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.studies.fit.runs import MeasuredRun
from expert_residency.traces import RoutingTrace

RunT = TypeVar("RunT")
Array = npt.NDArray[np.float64]
STEP = 0.08
"""Of a logarithm, for derivatives."""
FELT = 0.005
"""Least change of a speed, by a constant's whole prior spread, that counts as felt."""
DETERMINED, TIED, AGAINST = 0.5, 0.7, 2.5
Z90 = 1.645
ROUNDS, HALVINGS = 10, 5
STARTS = (0.3, 1.0, 3.3)
"""Factors on a constant that its fits begin at."""
WORSE = 2.7
"""Misfit by which an answer may be worse than the best and still be one: 90 % of chi squared, one degree."""
SETTLED = 0.01
"""Fall of the misfit below which the fit is done."""
BIRGE = 2.0
"""Misfit from which the fit itself is doubted."""
DEPTHS = (0, 16_384)
SHARES = ("5%", "25%", "50%", "75%")


@dataclass(frozen=True)
class Fitted:
    """One constant after the fit; `low` and `high` hold 90 % of it, `tied` are those it cannot be told from."""

    constant: Constant
    value: float
    low: float
    high: float
    verdict: str
    tied: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checked:
    """One run: measured, predicted before and after, and as the other runs predict it."""

    run: MeasuredRun
    before: float
    after: float
    left_out: float


@dataclass(frozen=True)
class NextRun:
    """A run that was not made: its choices, its prediction with 90 % of what fits, and what it would tell."""

    words: Mapping[str, Any]
    tokens_per_s: float
    low: float
    high: float
    tells: tuple[str, ...]


@dataclass(frozen=True)
class FitResult:
    """What runs say.

    Parameters
    ----------
    fitted
        Constants that at least one run feels.
    unfelt
        How many no run feels: they stay what they are.
    checked
        The runs.
    following
        Best next runs, best first.
    profiles, preset
        Machine and engine at the most likely values of all constants that are felt: together they predict the
        runs, also where no single one is determined.
    noise
        Standard deviation of measured speeds that was assumed, as a share.
    misfit
        By how much residuals and moved priors are larger than noise and priors allow, at least 1; all spreads are
        widened by it (Birge's ratio). Far above 1, the model lacks something that these runs have.
    """

    fitted: tuple[Fitted, ...]
    unfelt: int
    checked: tuple[Checked, ...]
    following: tuple[NextRun, ...]
    profiles: tuple[HardwareProfile, ...]
    preset: EnginePreset
    noise: float
    misfit: float

    @property
    def error(self) -> tuple[float, float, float]:
        """Median absolute error of the speeds in percent: before, after, each run by the others."""

        def median(of: Callable[[Checked], float]) -> float:
            return float(np.median([abs(of(one) / one.run.tokens_per_s - 1) * 100 for one in self.checked]))

        return median(lambda c: c.before), median(lambda c: c.after), median(lambda c: c.left_out)


class Speeds(ABC, Generic[RunT]):
    """Logarithms of speeds of runs, as constants change; a subclass says the speed of one run."""

    constants: Sequence[Constant]

    @abstractmethod
    def speed(self, run: RunT, logs: Mapping[Constant, float]) -> float:
        """Tokens/s of a run with constants moved by logarithms."""

    def logs(self, runs: Sequence[RunT], at: Mapping[Constant, float]) -> Array:
        """(runs,) logarithms of speeds."""
        return np.log([self.speed(run, at) for run in runs])

    def slopes(
        self, runs: Sequence[RunT], at: Mapping[Constant, float], among: Sequence[Constant], base: Array
    ) -> Array:
        """Derivatives of logarithms of speeds by logarithms of constants.

        Parameters
        ----------
        runs, at
            As for `logs`.
        among
            By which constants.
        base : (runs,)
            Logarithms at `at`.

        Returns
        -------
        (runs, constants) array
            Forward differences.
        """
        columns = [(self.logs(runs, {**at, one: at.get(one, 0.0) + STEP}) - base) / STEP for one in among]
        return np.array(columns).T.reshape(len(runs), len(among))


@dataclass(frozen=True)
class Likely:
    """Where constants are most likely.

    Parameters
    ----------
    chosen
        Constants that at least one run feels.
    at : (chosen,)
        Logarithms that they moved by.
    before, after : (runs,)
        Logarithms of speeds.
    slopes : (runs, chosen)
        Derivatives there.
    cost
        Squares of residuals in noises and of moves in prior spreads.
    """

    chosen: tuple[Constant, ...]
    at: Array
    before: Array
    after: Array
    slopes: Array
    cost: float

    @property
    def factors(self) -> dict[Constant, float]:
        """What each constant is multiplied by."""
        return {one: math.exp(x) for one, x in zip(self.chosen, self.at, strict=True)}


def most_likely(
    model: Speeds[RunT], runs: Sequence[RunT], measured: Array, before: Array, noise: float,
    say: Callable[[str], None] = lambda _: None,
) -> Likely:  # fmt: skip
    """Gauss-Newton steps from where the constants stand.

    Parameters
    ----------
    model
        Speeds of the runs.
    runs, measured, before : (runs,)
        What was run, and logarithms of speeds: measured, and as the constants stand.
    noise
        Standard deviation of a measured logarithm.
    say
        Told what is done.

    Returns
    -------
    Likely
        Where no step makes the misfit less.
    """
    say("what each constant changes")
    slopes = model.slopes(runs, {}, model.constants, before)
    felt = [i for i, one in enumerate(model.constants) if np.abs(slopes[:, i]).max(initial=0.0) * one.sd >= FELT]
    chosen = [model.constants[i] for i in felt]
    prior = np.array([one.sd for one in chosen])
    at, base, slopes = np.zeros(len(chosen)), before, slopes[:, felt]
    cost = _cost(measured - base, at, prior, noise)
    for number in range(ROUNDS if chosen else 0):
        step = _solve(slopes, prior, noise, measured - base + slopes @ at) - at
        shorter = _descend(model, runs, chosen, at, step, lambda r, x: _cost(measured - r, x, prior, noise), cost)
        if shorter is None:
            break
        at, base, gained = shorter
        slopes = model.slopes(runs, dict(zip(chosen, at, strict=True)), chosen, base)
        say(f"step {number + 1}: misfit {cost - gained:.3g}")
        cost -= gained
        if gained < SETTLED:
            break
    return Likely(tuple(chosen), at, before, base, slopes, cost)


def identified(
    model_from: Callable[[float], Speeds[RunT]], path: tuple[str, ...], runs: Sequence[RunT], measured: Array,
    noise: float,
) -> tuple[float, float] | None:  # fmt: skip
    """Between which values of one constant runs are explained equally well, wherever the fit begins.

    The curvature where a fit ends is that of one answer. Where the longer of two times counts there may be others:
    a slow processor, or a fast one behind a slow link.

    Parameters
    ----------
    model_from
        Speeds of the runs with the constant begun at a factor on its value.
    path
        Of the constant.
    runs, measured : (runs,)
        What was run, and logarithms of its speeds.
    noise
        Standard deviation of a measured logarithm.

    Returns
    -------
    (float, float) or None
        Ends of 90 % of what explains the runs; None if no answer feels the constant.
    """
    answers = []
    for start in STARTS:
        model = model_from(start)
        likely = most_likely(model, runs, measured, model.logs(runs, {}), noise)
        here = next((i for i, one in enumerate(likely.chosen) if one.path == path), None)
        if here is None:
            continue
        prior = np.array([one.sd for one in likely.chosen])
        sd = math.sqrt(_covariance(likely.slopes, prior, noise)[here, here])
        value = likely.chosen[here].value * math.exp(likely.at[here])
        answers.append((likely.cost, value * math.exp(-Z90 * sd), value * math.exp(Z90 * sd)))
    if not answers:
        return None
    good = [one for one in answers if one[0] <= min(answers)[0] + WORSE]
    return min(low for _, low, _ in good), max(high for _, _, high in good)


class _Model(Speeds[MeasuredRun]):
    """Runs of one machine and engine by name."""

    def __init__(
        self, hardware: str, engine: str, trace_of: Callable[[MeasuredRun], RoutingTrace], given: frozenset[str],
        jobs: int,
    ) -> None:  # fmt: skip
        spec = make_spec({"hardware": hardware, "engine": engine, "capacity": "0B"})
        self.hardware, self.engine, self.jobs = hardware, engine, jobs
        self.profiles = tuple(map(load_profile, spec.hardware))
        self.preset = load_engine(engine)
        self.constants = constants_of(self.profiles, self.preset, given)
        self.trace_of = trace_of

    def speed(self, run: MeasuredRun, logs: Mapping[Constant, float]) -> float:
        """Tokens/s of a run."""
        trace = self.trace_of(run)
        factors = {one: math.exp(x) for one, x in logs.items() if x}
        profiles, preset = scaled(self.profiles, self.preset, factors)
        words = {"hardware": self.hardware, "engine": self.engine, **run.words}
        if run.n_cpu_moe is not None:
            geometry = trace.geometry
            on_card = geometry.expert_bytes[min(run.n_cpu_moe, geometry.n_layers) :]
            words["capacity"] = f"{geometry.experts * sum(on_card)}B"
        if run.knobs:
            preset = preset.model_copy(update={key: _as_given(value) for key, value in run.knobs.items()})
        result = simulate(trace, make_spec(words), profiles=profiles, preset=preset, runs=self.jobs)
        if not result.tokens_per_s:
            raise SimError(f"{run.name}: the trace decodes nothing, so that there is no speed to compare")
        return result.tokens_per_s


def _as_given(value: float) -> Quantity:
    return Quantity(value=value, kind="measured", source="as the run was started")


def fit_runs(
    runs: Sequence[MeasuredRun],
    hardware: str,
    engine: str,
    trace_of: Callable[[MeasuredRun], RoutingTrace],
    *,
    noise: float = 0.03,
    progress: Callable[[str], None] | None = None,
) -> FitResult:
    """Fit the constants of one machine and engine to runs.

    Parameters
    ----------
    runs
        At least one.
    hardware, engine
        Profile (several joined by +) and preset that the runs were made with: the priors.
    trace_of
        Routing of a run: its model's, with its windows.
    noise
        Standard deviation of a measured speed, as a share of it.
    progress
        Called with what is done.

    Returns
    -------
    FitResult
        Values, spreads, verdicts, errors, next runs.

    Raises
    ------
    SimError, HardwareError, PolicyError
        A run that cannot be simulated, all of them named.
    """
    if not 0 < noise < 1:
        raise SimError(f"noise of {noise:.0%} of a speed: expected more than 0 and less than 100 %")
    say = progress or (lambda _: None)
    given = frozenset(key for run in runs for key in run.knobs)
    model = _Model(hardware, engine, trace_of, given, jobs=40 * len(runs))
    say("runs as the files predict them")
    before = _first(model, runs)
    measured = np.log([run.tokens_per_s for run in runs])
    likely = most_likely(model, runs, measured, before, noise, say)
    chosen, at, base, slopes = likely.chosen, likely.at, likely.after, likely.slopes
    prior = np.array([one.sd for one in chosen])
    misfit = max(1.0, math.sqrt(likely.cost / len(runs)))
    spread = _covariance(slopes, prior, noise) * misfit**2
    fitted = _verdicts(chosen, at, spread, prior)
    checked = _check(runs, before, base, measured, slopes, spread / misfit**2, noise)
    say("candidates for the next run")
    following = _next_runs(model, runs, dict(zip(chosen, at, strict=True)), chosen, spread, fitted)
    profiles, preset = scaled(model.profiles, model.preset, likely.factors)
    return FitResult(
        tuple(fitted), len(model.constants) - len(chosen), checked, following, profiles, preset, noise, misfit
    )


def _first(model: _Model, runs: Sequence[MeasuredRun]) -> Array:
    """Logarithms before the fit; everything that cannot be simulated is named."""
    found, problems = [], []
    for run in runs:
        try:
            found.append(math.log(model.speed(run, {})))
        except UserError as error:
            problems.append(f"{run.name}: {error}")
    if problems:
        raise SimError("; ".join(problems))
    return np.array(found)


def _cost(residual: Array, at: Array, prior: Array, noise: float) -> float:
    return float((residual**2).sum() / noise**2 + (at**2 / prior**2).sum())


def _descend(
    model: Speeds[RunT], runs: Sequence[RunT], chosen: Sequence[Constant], at: Array, step: Array,
    cost_of: Callable[[Array, Array], float], cost: float,
) -> tuple[Array, Array, float] | None:  # fmt: skip
    """(place, logarithms, what the misfit fell by) after a step, halved until it falls; None if it does not."""
    for _ in range(HALVINGS):
        place = at + step
        base = model.logs(runs, dict(zip(chosen, place, strict=True)))
        gained = cost - cost_of(base, place)
        if gained > 0:
            return place, base, gained
        step = step / 2
    return None


def _solve(slopes: Array, prior: Array, noise: float, target: Array) -> Array:
    return np.asarray(_covariance(slopes, prior, noise) @ slopes.T @ target / noise**2)


def _covariance(slopes: Array, prior: Array, noise: float) -> Array:
    return np.asarray(np.linalg.inv(slopes.T @ slopes / noise**2 + np.diag(prior**-2)))


def _verdicts(chosen: Sequence[Constant], at: Array, spread: Array, prior: Array) -> list[Fitted]:
    sd = np.sqrt(np.diag(spread))
    ties = np.abs(spread / np.outer(sd, sd)) if len(sd) else spread
    found = []
    for i, one in enumerate(chosen):
        value = one.value * math.exp(at[i])
        tied: tuple[str, ...] = ()
        if sd[i] <= DETERMINED * prior[i]:
            verdict = "determined" if abs(at[i]) <= AGAINST * prior[i] else "against its prior"
        else:
            tied = tuple(chosen[j].name for j in range(len(chosen)) if j != i and ties[i, j] >= TIED)
            verdict = "not told apart" if tied else "prior"
        low, high = (value * math.exp(sign * Z90 * sd[i]) for sign in (-1, 1))
        found.append(Fitted(one, value, low, high, verdict, tied))
    return found


def _check(
    runs: Sequence[MeasuredRun], before: Array, after: Array, measured: Array, slopes: Array, spread: Array,
    noise: float,
) -> tuple[Checked, ...]:  # fmt: skip
    """Each run beside its predictions; by the others: the residual over one less its leverage."""
    found = []
    for i, run in enumerate(runs):
        leverage = min(0.999, float(slopes[i] @ spread @ slopes[i]) / noise**2)
        alone = measured[i] - (measured[i] - after[i]) / (1 - leverage)
        found.append(Checked(run, math.exp(before[i]), math.exp(after[i]), math.exp(alone)))
    return tuple(found)


def _next_runs(
    model: _Model, runs: Sequence[MeasuredRun], at: Mapping[Constant, float], chosen: Sequence[Constant],
    spread: Array, fitted: Sequence[Fitted],
) -> tuple[NextRun, ...]:  # fmt: skip
    found = []
    for run in _candidates(runs):
        try:
            base = model.logs([run], at)
            slope = model.slopes([run], at, chosen, base)[0]
        except (MisfitError, SimError):
            continue
        sd = math.sqrt(max(0.0, float(slope @ spread @ slope)))
        share = (slope * np.sqrt(np.diag(spread))) ** 2
        order = [
            i for i in np.argsort(-share, kind="stable") if fitted[i].verdict != "determined" and share[i] > 0
        ]
        speed = math.exp(base[0])
        words = dict(run.words) | ({"n_cpu_moe": run.n_cpu_moe} if run.n_cpu_moe is not None else {})
        found.append(
            (sd, NextRun(words | dict(run.knobs), speed, speed * math.exp(-Z90 * sd), speed * math.exp(Z90 * sd),
                         tuple(fitted[i].constant.name for i in order[:2])))
        )  # fmt: skip
    return tuple(one for _, one in sorted(found, key=lambda item: -item[0])[:3])


def _candidates(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Runs like the first that differ in one choice, and that were not made."""
    base = runs[0]
    made = {_key(run) for run in runs}
    found: list[MeasuredRun] = []
    if base.n_cpu_moe is not None:
        found += [replace(base, n_cpu_moe=n) for n in (0, 4, 8, 16, 24, 32, 48)]
    else:
        ways = [key for key in ("capacity", "slots_per_layer", "card_capacity") if key in base.words]
        rest = {key: value for key, value in base.words.items() if key not in ways}
        found += [replace(base, words=rest | {"capacity": share}) for share in SHARES]
    found += [replace(base, words={**base.words, "depth": n}) for n in DEPTHS if n != base.words.get("depth", 0)]
    for knob in sorted({key for run in runs for key in run.knobs}):
        seen = [run.knobs[knob] for run in runs if knob in run.knobs]
        found += [
            replace(base, knobs={**base.knobs, knob: value}) for value in (min(seen) / 2, sum(seen) / len(seen))
        ]
    return [run for run in found if _key(run) not in made]


def _key(run: MeasuredRun) -> str:
    return repr((sorted(run.words.items()), run.n_cpu_moe, sorted(run.knobs.items()), run.model))
