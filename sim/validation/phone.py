"""A phone that reads experts from flash (Helldez/BigMoeOnEdge): wall time token by token.

Three numbers of the device are fitted on the first tokens of one run, the rest of it and another model's run are
then predicted with the same numbers. The engine's own per-token table is needed (`*.metrics`).
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from expert_residency.errors import SimError
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.validation.fitting import search
from expert_residency.traces import RoutingTrace

MACHINE, ENGINE = "bigmoe-phone", "bigmoe-edge"
MIB = 1 << 20


@dataclass(frozen=True)
class PhoneFit:
    """Factors on the profile's rates: computing, flash (both of its rates), hand-over."""

    compute: float = 1.0
    flash: float = 1.0
    link: float = 1.0

    def apply(self, profile: HardwareProfile) -> HardwareProfile:
        """The device with these rates."""
        data = profile.model_dump()
        for rates in ("expert_gb_per_s", "dense_gb_per_s"):
            data["gpu"][rates]["default"]["value"] *= self.compute
        for rate in ("seq_gb_per_s", "lane_gb_per_s"):
            data["disk"][rate]["value"] *= self.flash
            data["disk"][rate]["spread"] = None
        for rate in ("h2d_gb_per_s", "h2d_pageable_gb_per_s"):
            data["link"][rate]["value"] *= self.link
        return HardwareProfile.model_validate(data)


@dataclass(frozen=True)
class TokenErrors:
    """Predicted against measured wall time of some tokens."""

    tokens: int
    median_abs_error: float
    """Of the relative error of a token."""
    measured_s: float
    predicted_s: float

    @property
    def total_error(self) -> float:
        """Predicted over measured time of all tokens, less 1."""
        return self.predicted_s / self.measured_s - 1


def read_wall_ms(path: str | Path) -> list[float]:
    """Wall time of each token from a `*.metrics` table.

    Raises
    ------
    SimError
        A file without the column, or a cell that is no number.
    """
    lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    table = csv.DictReader(lines)
    if "wall_ms" not in (table.fieldnames or ()):
        raise SimError(f"{path}: line 1: expected a column wall_ms, found {table.fieldnames}")
    try:
        return [float(row["wall_ms"]) for row in table]
    except (TypeError, ValueError):
        raise SimError(f"{path}: line {table.line_num}: wall_ms is no number") from None


def predict_wall_ms(trace: RoutingTrace, cache_mib: int, fit: PhoneFit | None = None) -> list[float]:
    """Wall time of each decoded token, in ms.

    Parameters
    ----------
    trace
        The recorded run.
    cache_mib
        Capacity of the expert cache.
    fit
        Factors on the profile; none if None.

    Returns
    -------
    list[float]
        (tokens,) ms.
    """
    profile = (fit or PhoneFit()).apply(load_profile(MACHINE))
    spec = RunSpec((MACHINE,), Capacity(total_bytes=cache_mib * MIB), engine=ENGINE, host="flash", eviction="lru")
    result = simulate(trace, spec, profiles=(profile,))
    return [ns / 1e6 for ns, phase in zip(result.pass_ns.tolist(), result.pass_phase, strict=True) if phase]


def fit_tokens(trace: RoutingTrace, cache_mib: int, wall_ms: Sequence[float], tokens: int = 40) -> PhoneFit:
    """Factors with the least sum of absolute errors over the first tokens (the phone has outliers).

    Parameters
    ----------
    trace
        The recorded run.
    cache_mib
        Capacity of the expert cache.
    wall_ms
        (tokens,) measured.
    tokens
        How many of them are used.

    Returns
    -------
    PhoneFit
        The factors.
    """
    decoded = np.cumsum(trace.pass_phase != 0)
    head = trace.select_passes(decoded <= tokens)

    def loss(factors: Sequence[float]) -> float:
        found = predict_wall_ms(head, cache_mib, PhoneFit(*factors))
        return sum(abs(a - b) for a, b in zip(found, wall_ms[:tokens], strict=True))

    return PhoneFit(*search(loss, [1.0, 1.0, 1.0], precision=0.01))


def token_errors(predicted: Sequence[float], measured: Sequence[float]) -> TokenErrors:
    """Errors over tokens of the same numbers."""
    relative = [abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)]
    return TokenErrors(len(relative), statistics.median(relative), sum(measured) / 1e3, sum(predicted) / 1e3)
