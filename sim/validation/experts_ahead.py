"""Experts in VRAM ahead of time (Niko1221/Strata PR #3265): normal, control and oracle variants.

The routing traces of that run are not public. Routing is generated at the geometry of the model: verify windows of
two rows whose second, a corrupted draft, is always rejected. Start profiles are matched to the published hit rates
(`policies.placement.matched`). One number is fitted, the rate at which the processor reads mapped experts, on the
three normal variants; oracle and control variants are then predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.registry import load_profile
from expert_residency.policies.placement.matched import Matched
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.residency.future import make_future
from expert_residency.sim.residency.pool import make_pool
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.timed.result import RunResult
from expert_residency.traces import ModelGeometry, RoutingTrace, load_model
from expert_residency.traces.synthetic import generate, load_style

SLOTS = 4866
MODEL, STYLE, MACHINE, ENGINE = "qwen3.8-flash-next/IQ2_XS", "qwen3.8-flash-next", "rtx-5070", "strata-reference"


@dataclass(frozen=True)
class Workload:
    """One prompt of the PR; hit rates are shares of routed (row, expert) pairs, the oracle's None if not run."""

    name: str
    tokens: int
    hits: float
    tok_s: float
    oracle_hits: float | None = None
    oracle_tok_s: float | None = None


WORKLOADS = (
    Workload("prose", 32, 0.584, 12.68, 0.885, 38.05),
    Workload("code", 24, 0.468, 10.41, 0.884, 42.34),
    Workload("64 tokens", 64, 0.697, 16.67),
)


def make_trace(workload: Workload, seed: int, geometry: ModelGeometry | None = None) -> RoutingTrace:
    """Windows of the accepted token and one rejected draft.

    Parameters
    ----------
    workload
        The published row.
    seed
        Of the generator.
    geometry
        The model; the published one if None.

    Returns
    -------
    RoutingTrace
        The trace.
    """
    geometry = geometry or load_model(MODEL)
    return generate(
        geometry,
        load_style(STYLE),
        tokens=workload.tokens,
        seed=seed,
        draft_tokens=1,
        acceptance=0.0,
        weights=False,
    )


def capacity(geometry: ModelGeometry, slots: int = SLOTS) -> Capacity:
    """Room for so many experts of the largest size."""
    return Capacity(total_bytes=slots * max(geometry.expert_bytes))


def quality_for(trace: RoutingTrace, room: Capacity, hits: float) -> float:
    """`hits` of placement `matched` with which a fixed set serves this share of the *routed* pairs.

    Parameters
    ----------
    trace
        The trace.
    room
        Cache capacity.
    hits
        Share of routed pairs, 0 to 1.

    Returns
    -------
    float
        `hits` of the placement, 0 to 1.
    """
    pool, future = make_pool(trace.geometry, room), make_future(trace)
    rows = np.bincount(trace.keys, weights=trace.rows_wanting, minlength=pool.keys)
    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        chosen = Matched(hits=middle).rank(pool, future)[: pool.slots[0]]
        low, high = (middle, high) if rows[chosen].sum() / rows.sum() < hits else (low, middle)
    return (low + high) / 2


def routed_hits(result: RunResult) -> float:
    """Share of routed pairs found in VRAM."""
    share = result.shares("verify", routed=True)["vram"]
    assert share is not None
    return share


def run_variant(
    trace: RoutingTrace, hits: float, profile: HardwareProfile, *, adapts: bool, slots: int = SLOTS
) -> RunResult:
    """One variant whose start profile serves `hits` of the routed pairs.

    Parameters
    ----------
    trace
        The trace.
    hits
        Share of routed pairs that the residents at the start serve, 0 to 1.
    profile
        The machine.
    adapts
        Whether residents change between passes.
    slots
        Cache capacity in experts.

    Returns
    -------
    RunResult
        The run.
    """
    room = capacity(trace.geometry, slots)
    spec = RunSpec(
        (MACHINE,),
        room,
        engine=ENGINE,
        host="mmap",
        admission="strata-adaptive" if adapts else "never",
        placement=f"matched:hits={quality_for(trace, room, hits):.6f}",
    )
    return simulate(trace, spec, profiles=(profile,))


def start_hits(trace: RoutingTrace, wanted: float, profile: HardwareProfile) -> float:
    """Hit rate of the start profile with which the run, its adaptive tier included, has `wanted`.

    Parameters
    ----------
    trace
        The trace.
    wanted
        Hit rate of the published row, 0 to 1.
    profile
        The machine.

    Returns
    -------
    float
        Hit rate at the start, 0 to 1.
    """
    gained = routed_hits(run_variant(trace, wanted, profile, adapts=True)) - wanted
    return wanted - gained


def with_page_cache_rate(profile: HardwareProfile, gb_per_s: float) -> HardwareProfile:
    """The machine with another rate of reading mapped experts."""
    sources = profile.cpu.expert_gb_per_s
    rate = sources.page_cache.default.model_copy(update={"value": gb_per_s, "spread": None})
    rates = sources.model_copy(update={"page_cache": sources.page_cache.model_copy(update={"default": rate})})
    return profile.model_copy(update={"cpu": profile.cpu.model_copy(update={"expert_gb_per_s": rates})})


@dataclass(frozen=True)
class VariantFigures:
    """Prediction of one variant beside its measurement."""

    workload: str
    variant: str
    hits: float
    tok_s: float
    ms_cpu: float
    measured_tok_s: float
    fitted: bool

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.tok_s / self.measured_tok_s - 1


@dataclass(frozen=True)
class ExpertsAhead:
    """All variants for one seed of the generator."""

    seed: int
    cpu_gb_per_s: float
    variants: tuple[VariantFigures, ...]
    ms_per_10_percent: float
    """What 10 % of the routed pairs more as misses cost, in ms a token."""


def fit_rate(traces: Sequence[RoutingTrace], starts: Sequence[float], profile: HardwareProfile) -> float:
    """Rate of the page cache that fits the normal variants best, in the logarithm of time.

    A token takes a + b / rate very nearly; two runs give a and b of each variant, and the rate follows.

    Parameters
    ----------
    traces
        One of each workload.
    starts
        Hit rate of each at the start, 0 to 1.
    profile
        The machine.

    Returns
    -------
    float
        GB/s.
    """
    first = profile.cpu.expert_gb_per_s.page_cache.default.value
    rates = np.array([first, 1.25 * first])
    times = np.array(
        [
            [_ms(run_variant(trace, start, with_page_cache_rate(profile, rate), adapts=True)) for rate in rates]
            for trace, start in zip(traces, starts, strict=True)
        ]
    )
    slope = (times[:, 0] - times[:, 1]) / (1 / rates[0] - 1 / rates[1])
    fixed = times[:, 0] - slope / rates[0]
    tried = np.linspace(first / 3, 3 * first, 4000)
    measured = np.array([1000 / w.tok_s for w in WORKLOADS])
    errors = np.log((fixed[:, None] + slope[:, None] / tried) / measured[:, None])
    return float(tried[np.argmin((errors**2).sum(axis=0))])


def study(seed: int, profile: HardwareProfile | None = None) -> ExpertsAhead:
    """Fit on the normal variants, predict the rest; about ten seconds."""
    profile = profile or load_profile(MACHINE)
    traces = [make_trace(workload, seed) for workload in WORKLOADS]
    starts = [start_hits(trace, w.hits, profile) for trace, w in zip(traces, WORKLOADS, strict=True)]
    rate = fit_rate(traces, starts, profile)
    fitted = with_page_cache_rate(profile, rate)
    variants, slopes = [], []
    for workload, trace, start in zip(WORKLOADS, traces, starts, strict=True):
        normal = run_variant(trace, start, fitted, adapts=True)
        variants.append(_figures(workload, "normal", normal, workload.tok_s, fitted=True))
        if workload.oracle_hits is None or workload.oracle_tok_s is None:
            continue
        control = run_variant(trace, start, fitted, adapts=False)
        variants.append(_figures(workload, "control", control, workload.tok_s))
        oracle = run_variant(trace, workload.oracle_hits, fitted, adapts=False)
        variants.append(_figures(workload, "oracle", oracle, workload.oracle_tok_s))
        worse = run_variant(trace, workload.oracle_hits - 0.1, fitted, adapts=False)
        slopes.append((_ms(worse) - _ms(oracle)) / (10 * (routed_hits(oracle) - routed_hits(worse))))
    return ExpertsAhead(seed, rate, tuple(variants), float(np.mean(slopes)))


def kept_rows(trace: RoutingTrace) -> npt.NDArray[np.int64]:
    """(keys,) uses by the first row of every event alone: what the continuation routes to, without its drafts."""
    first = trace.event_row_offsets[:-1]
    per_row = np.diff(trace.row_offsets)[first]
    entries = np.repeat(trace.row_offsets[:-1][first], per_row) + _counting(per_row)
    keys = np.repeat(trace.event_layer.astype(np.int64), per_row) * trace.geometry.experts
    return np.bincount(keys + trace.row_experts[entries], minlength=trace.geometry.n_experts)


def oracle_hits(trace: RoutingTrace, slots: int = SLOTS) -> float:
    """Routed hit rate of the `slots` experts that the kept rows use most: the oracle profile, nothing matched."""
    uses = kept_rows(trace)
    chosen = np.argsort(-uses, kind="stable")[:slots]
    rows = np.bincount(trace.keys, weights=trace.rows_wanting, minlength=len(uses))
    return float(rows[chosen].sum() / rows.sum())


def _counting(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0, 1, ..., c - 1 for each count c, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _ms(result: RunResult) -> float:
    ms = result.ms_per_token
    assert ms is not None
    return ms


def _figures(
    workload: Workload, variant: str, result: RunResult, measured: float, *, fitted: bool = False
) -> VariantFigures:
    cpu = result.causes_ms_per_token()["cpu_wait"]
    assert cpu is not None
    return VariantFigures(workload.name, variant, routed_hits(result), 1000 / _ms(result), cpu, measured, fitted)


__all__ = [
    "WORKLOADS",
    "ExpertsAhead",
    "VariantFigures",
    "Workload",
    "fit_rate",
    "kept_rows",
    "make_trace",
    "oracle_hits",
    "run_variant",
    "study",
]
