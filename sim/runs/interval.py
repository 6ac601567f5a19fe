"""The 90 % interval beside a speed: what constants that are not known exactly, other texts and the model do to it.

Every constant of machine and engine that costs time is drawn between the ends of its own spread, or of its kind's
where its file gives none, and the run is simulated again: `DRAWS` short runs, each constant's draws at equal steps
of its distribution in an order of its own (a Latin hypercube; McKay et al. 1979). Numbers that rest on one source
are one draw: cards of a kind, what all profiles take from `_generic`, the share of bandwidth that a rule takes.
Nothing is random: equal choices give equal intervals.

Two terms have nothing to do with the machine. The *workload*: other requests of the kind, drawn again from those
of the trace; with few of them, what texts of one kind have differed by on real machines. The *model*: what it was
off by on measured runs that no constant saw, beyond what their constants allow.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from expert_residency.hwmodels.quantity import Kind
from expert_residency.hwmodels.registry import load_profile
from expert_residency.policies import create
from expert_residency.sim.choices.preset import EnginePreset, load_engine
from expert_residency.sim.kernel.choice import refusal
from expert_residency.sim.runs.constants import Constant, constants_of, scaled
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.timed.result import compared
from expert_residency.traces import Phase, RoutingTrace

if TYPE_CHECKING:
    from expert_residency.hwmodels.profile import HardwareProfile
    from expert_residency.sim.choices.spec import RunSpec
    from expert_residency.sim.timed.result import RunResult

Floats = npt.NDArray[np.float64]
Machine = tuple["tuple[HardwareProfile, ...]", EnginePreset]
"""Profiles, one a card, and the engine."""

DRAWS = 16
MOST_LOOK_UPS, MOST_INTERPRETED = 100_000, 10_000
"""Of a drawn run: of policies that are compiled, and of others."""
LEVEL = 0.90
_REACH = NormalDist().inv_cdf((1 + LEVEL) / 2)
KIND_SD: dict[Kind, float] = {"measured": 0.08, "datasheet": 0.08, "derived": 0.12, "assumed": 0.25}
"""Standard deviation of the logarithm of a number whose file gives no spread. Measured and derived ones: less than
half of what the shipped numbers that do give a spread have in the median (0.13, 0.10; assumed ones 0.24 of rates),
since a spread is written down where reports disagree."""
MODEL_SD = 0.07
"""Of the logarithm of a speed, given all constants: see `residency validate`."""
TEXT_SD = 0.10
"""Of the logarithm of a request's speed between texts, flags and machine being equal: the median over 13 series of
four to seven requests in `hwmodels/runs/published/strata.csv` is 0.09 (0.03 to 0.37)."""
FEWEST_REQUESTS = 5
"""From so many on the requests of the trace say themselves how far texts are apart."""


@dataclass(frozen=True)
class Interval:
    """Where a measured speed lies in nine of ten cases.

    Parameters
    ----------
    low, high
        Tokens a second.
    constants, workload, model
        Standard deviations of the logarithm of the speed that the three add, in quadrature.
    """

    low: float
    high: float
    constants: float
    workload: float
    model: float

    @property
    def text(self) -> str:
        """`52-71`, of slow ones `4.2-7.1`."""
        return text_of(self.low, self.high)

    def holds(self, tok_s: float) -> bool:
        """Whether a speed lies inside."""
        return self.low <= tok_s <= self.high

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        parts = {"constants": self.constants, "workload": self.workload, "model": self.model}
        return {"low": self.low, "high": self.high, "level": LEVEL, "log_sd": parts}


def text_of(low: float, high: float) -> str:
    """The ends in few digits."""
    places = 0 if low >= 10 else 1 if low >= 1 else 2
    return f"{low:.{places}f}-{high:.{places}f}"


def interval_90(
    trace: RoutingTrace,
    spec: RunSpec,
    result: RunResult | None = None,
    *,
    profiles: Sequence[HardwareProfile] | None = None,
    preset: EnginePreset | None = None,
) -> Interval | None:
    """Interval of the speed of one run.

    Parameters
    ----------
    trace, spec, profiles, preset
        As `simulate` takes them.
    result
        What `simulate` made of them, if that is known.

    Returns
    -------
    Interval or None
        None where nothing is decoded.

    Raises
    ------
    SimError, PolicyError, HardwareError
        As `simulate`.
    """
    cards = tuple(profiles or map(load_profile, spec.hardware))
    engine = preset or load_engine(spec.engine)
    if result is None:
        result = simulate(trace, spec, profiles=cards, preset=engine)
    if result.tokens_per_s is None:
        return None
    short = shortened(trace, most_look_ups(spec))

    def speed(machine: Machine) -> float:
        return simulate(short, spec, profiles=machine[0], preset=machine[1], runs=DRAWS).tokens_per_s or 0.0

    return around(result.tokens_per_s, speed, (cards, engine), workload=workload_sd(result))


def around(
    tok_s: float, speed: Callable[[Machine], float], machine: Machine, *, workload: float = 0.0
) -> Interval:
    """Interval around a speed, by a function that prices it on drawn machines.

    Parameters
    ----------
    tok_s
        As the constants stand.
    speed
        Tokens a second on a machine; only its ratios count.
    machine
        Profiles (one a card) and preset as they stand.
    workload
        Standard deviation of the logarithm that the workload adds.

    Returns
    -------
    Interval
        Its ends in tokens a second.
    """
    base = speed(machine)
    moved = np.log([speed(drawn) / base for drawn in draws(*machine)])
    return spread_about(tok_s, moved, workload)


def spread_about(tok_s: float, moved: Floats, workload: float = 0.0, model: float = MODEL_SD) -> Interval:
    """Interval of a speed from the logarithms of what drawn constants make of it.

    Parameters
    ----------
    tok_s
        As the constants stand.
    moved
        (draws,) logarithm of the speed of each draw over that one.
    workload, model
        Standard deviations of the logarithm that are added.

    Returns
    -------
    Interval
        Its ends in tokens a second.
    """
    rest = math.hypot(workload, model) * np.array([NormalDist().inv_cdf((i + 0.5) / 61) for i in range(61)])
    tail = 50 * (1 - LEVEL)
    low, high = np.exp(np.percentile(np.add.outer(moved, rest), [tail, 100 - tail]))
    return Interval(tok_s * float(low), tok_s * float(high), float(np.std(moved)), workload, model)


def draws(profiles: tuple[HardwareProfile, ...], preset: EnginePreset, n: int = DRAWS) -> list[Machine]:
    """The machine drawn `n` times.

    Parameters
    ----------
    profiles, preset
        As they stand.
    n
        How many.

    Returns
    -------
    list
        Profiles and preset of each draw.
    """
    factors = {one: _factors(one, n) for one in constants_of(profiles, preset)}
    return [scaled(profiles, preset, {one: float(found[i]) for one, found in factors.items()}) for i in range(n)]


def _factors(constant: Constant, n: int) -> Floats:
    """(n,) factors of one constant: a normal logarithm with either side's own width."""
    order = np.random.default_rng(_seed(constant)).permutation(n)
    steps = np.array([NormalDist().inv_cdf((i + 0.5) / n) for i in order])
    down, up = sides(constant)
    return np.asarray(np.exp(np.where(steps < 0, down, up) * steps))


def sides(constant: Constant) -> tuple[float, float]:
    """Standard deviation of the logarithm below and above the value; a spread's ends are a 90 % interval."""
    sd = KIND_SD[constant.kind]
    if constant.spread is None or _of_points(constant.path):
        return sd, sd  # measured groups move together, so that more bytes still take longer
    low, high = constant.spread
    least = constant.value / 10
    return (
        math.log(constant.value / max(low, least)) / _REACH,
        math.log(max(high, constant.value) / constant.value) / _REACH,
    )


def _of_points(path: Sequence[str]) -> bool:
    """Whether a number is a measured time by bytes, one of several."""
    return len(path) > 1 and path[-2].endswith("_us_by_bytes")


def _seed(constant: Constant) -> int:
    """Of the order of its draws: one for all numbers that rest on the same source."""
    path = constant.path
    what = "time" if any(part.endswith(("_us", "_launches")) for part in path) else "rate"
    if _of_points(path):
        name = ".".join(path[:-1])
    elif constant.kind == "measured" or constant.card is None:
        name = ".".join(path) + constant.source
    else:
        name = re.sub(r"[\d.,]+", "#", constant.source)  # a rule's figures are each card's own, its share is not
    return int.from_bytes(hashlib.sha256(f"{what} {name}".encode()).digest()[:8], "big")


def workload_sd(result: RunResult) -> float:
    """What other texts of the kind add to the logarithm of the speed."""
    rows = compared(result.requests())
    ns = np.array([row["ns"] for row in rows], dtype=float)
    tokens = np.array([row["tokens"] for row in rows], dtype=float)
    n = len(rows)
    if n < FEWEST_REQUESTS:
        return TEXT_SD / math.sqrt(max(n, 1))
    drawn = np.random.default_rng(1).integers(0, n, (1_000, n))
    return float(np.std(np.log(tokens[drawn].sum(axis=1) / ns[drawn].sum(axis=1))))


def shortened(trace: RoutingTrace, most: int) -> RoutingTrace:
    """The trace, or of a long one the first decode passes."""
    if trace.n_lookups <= most:
        return trace
    decode = np.flatnonzero(trace.pass_phase != Phase.PREFILL)
    per_pass = np.bincount(trace.event_pass, weights=np.diff(trace.event_offsets), minlength=trace.n_passes)
    kept = max(1, int(np.searchsorted(np.cumsum(per_pass[decode]), most, side="right")))
    wanted = np.zeros(trace.n_passes, dtype=bool)
    wanted[decode[:kept]] = True
    return trace.select_passes(wanted)


def most_look_ups(spec: RunSpec) -> int:
    """Look-ups of a drawn run: few where policies are interpreted."""
    policies = [create("eviction", spec.eviction), create("admission", spec.admission),
                create("prefetch", spec.prefetch)]  # fmt: skip
    return MOST_INTERPRETED if refusal(*policies) else MOST_LOOK_UPS
