"""Where one token's time comes from, constant by constant, each with its number, kind and source.

A run's time is made of times and of bytes over rates, so that all constants together scale it: were every time
twice as long and every rate half as high, the run would take twice as long. Such a function is the sum of its
constants' own shares, each the constant times the slope of the time in it (Euler's theorem on homogeneous
functions), and a share is what the constant costs *on the critical path*: a processor that works behind a card
costs nothing. Slopes are taken from runs with one constant a little higher and a little lower. Where a decision
flips between the two, shares miss the whole by a little: that stands as a line of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.preset import EnginePreset, load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.constants import Constant, constants_of, scaled
from expert_residency.sim.runs.interval import most_look_ups, shortened
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.timed.result import RunResult
from expert_residency.traces import RoutingTrace

STEP = 0.02
"""Relative change of a constant for its slope."""
LEAST = 0.002
"""Share of a token's time from which on a constant has a line of its own."""
_UNITS = {"_gb_per_s": "GB/s", "_us": "us", "_tflops": "TFLOP/s", "gflops": "GFLOP/s"}
REST = "decisions that flip, counts, rounding"
FEW = "all other constants"


@dataclass(frozen=True)
class Term:
    """One constant's part of a token's time.

    Parameters
    ----------
    constant
        Its path; `REST` for what no constant explains, `FEW` for those without a line of their own.
    ms, share
        Of a decoded token, and of its time.
    value, kind, source
        As profile or preset has them; None and empty for `REST` and `FEW`.
    """

    constant: str
    ms: float
    share: float
    value: float | None = None
    kind: str = ""
    source: str = ""

    @property
    def number(self) -> str:
        """Value with its unit; empty without one."""
        if self.value is None:
            return ""
        unit = next((unit for end, unit in _UNITS.items() if end in self.constant), "")
        return f"{self.value:g} {unit}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return asdict(self)


def explain(
    trace: RoutingTrace,
    spec: RunSpec,
    result: RunResult,
    *,
    profiles: Sequence[HardwareProfile] | None = None,
    preset: EnginePreset | None = None,
) -> list[Term]:
    """Terms that add up to `result.ms_per_token`, the largest first, then what is left.

    Parameters
    ----------
    trace, spec, profiles, preset
        As `simulate` takes them; of a long trace the first decode passes say how the whole is made up.
    result
        What `simulate` made of them.

    Returns
    -------
    list of Term
        Empty if nothing is decoded.

    Raises
    ------
    SimError, PolicyError, HardwareError
        As `simulate`.
    """
    whole = result.ms_per_token
    if whole is None:
        return []
    cards, engine = tuple(profiles or map(load_profile, spec.hardware)), preset or load_engine(spec.engine)
    short = shortened(trace, most_look_ups(spec))
    found = [one for one in constants_of(cards, engine) if not one.name.endswith("_launches")]

    def ms(moved: dict[Constant, float]) -> float:
        drawn, at = scaled(cards, engine, moved)
        return simulate(short, spec, profiles=drawn, preset=at, runs=2 * len(found)).ms_per_token or 0.0

    return terms_of(whole, found, ms)


def terms_of(whole: float, found: Sequence[Constant], ms: Callable[[dict[Constant, float]], float]) -> list[Term]:
    """Terms of a token's time by any function that prices it.

    Parameters
    ----------
    whole
        Ms of a token, as it is told.
    found
        Constants that may cost time.
    ms
        Ms with some constants multiplied; only its ratios count.

    Returns
    -------
    list of Term
        They add up to `whole`, the largest first, then what is left.
    """
    base = ms({})
    shares = []
    for one in found:
        slower, faster = ms({one: 1 + STEP}), ms({one: 1 - STEP})
        slope = (slower - faster) / (2 * STEP * base)
        shares.append(-slope if _is_rate(one) else slope)
    terms = [
        Term(one.name, whole * share, share, one.value, one.kind, one.source)
        for one, share in zip(found, shares, strict=True)
        if abs(share) >= LEAST
    ]
    terms.sort(key=lambda term: -term.ms)
    few = sum(share for share in shares if abs(share) < LEAST)
    rest = 1.0 - sum(shares)
    return [*terms, Term(FEW, whole * few, few), Term(REST, whole * rest, rest)]


def _is_rate(one: Constant) -> bool:
    return not any(part.endswith(("_us", "_us_by_bytes")) for part in one.path)
