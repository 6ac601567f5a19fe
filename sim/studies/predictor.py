"""How good must a predictor be before prefetching pays?

The noisy oracle is run over a grid of recall x precision x horizon, and each time compared with the same run
without prefetching. The *break-even precision* of a recall and horizon is the lowest precision from which on
prefetching is not slower (linear between grid points); the *break-even line* joins them. Simple causal
predictors are measured on the same passes, so that one sees on which side of the line they lie.

Only some passes are simulated, the last of the trace. The cache starts as LRU leaves it after the passes before;
causal predictors start untrained.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from expert_residency.errors import SimError
from expert_residency.policies import Event, PrefetchPolicy, create
from expert_residency.policies.protocol import Lists
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.residency.future import make_future
from expert_residency.sim.residency.pool import make_pool
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.studies.bounds import baseline_spec, time_ns
from expert_residency.sim.timed.result import RunResult
from expert_residency.traces import Phase, RoutingTrace

RECALLS = (0.2, 0.4, 0.6, 0.8, 1.0)
PRECISIONS = (0.1, 0.25, 0.5, 0.75, 1.0)
WINDOWS = (1, 2, 4)
PASSES = 16
KNOWN = ("previous-token", "static-topk", "markov", "co-activation", "activation-match")
"""Causal predictors that are measured beside the grid."""


@dataclass(frozen=True)
class Cell:
    """One run: speed-up over no prefetching, and what became of the copies.

    `recall` and `precision` are those that the oracle's proposals were drawn with.
    """

    prefetch: str
    recall: float
    precision: float
    window: int
    speedup: float
    copies: int
    h2d_bytes: int
    harmful_bytes: int
    wasted_bytes: int


@dataclass(frozen=True)
class Known:
    """A causal predictor with the quality that it reaches; None where it proposes nothing.

    Parameters
    ----------
    foretold, right
        Of its proposals, resident experts included: the axes of the grid. Share of wanted experts that had been
        proposed for their event, and share of proposals that were wanted then.
    recall, precision, wasted_bytes
        Of its copies, as `PrefetchStats` defines them for every command.
    """

    prefetch: str
    foretold: float | None
    right: float | None
    recall: float | None
    precision: float | None
    speedup: float
    copies: int
    harmful_bytes: int
    wasted_bytes: int


@dataclass(frozen=True)
class PredictorStudy:
    """Everything that `study` found.

    Parameters
    ----------
    grid
        Noisy oracles, by window, recall, precision.
    known
        Causal predictors with the recall and precision that they reach on this trace.
    baseline
        The run without prefetching.
    passes, of_passes
        How many passes were simulated, of how many.
    """

    grid: list[Cell]
    known: list[Known]
    baseline: RunResult
    passes: int
    of_passes: int
    decay: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able form."""
        return {
            "passes": self.passes,
            "of_passes": self.of_passes,
            "decay": self.decay,
            "baseline": {"tokens_per_s": self.baseline.tokens_per_s, "time_ns": time_ns(self.baseline)},
            "grid": [vars(cell) for cell in self.grid],
            "known_predictors": [vars(cell) for cell in self.known],
            "break_even": [
                {"window": window, "recall": recall, "precision": precision}
                for (window, recall), precision in break_even(self.grid).items()
            ],
            "caveats": self.baseline.caveats,
            "manifest": self.baseline.manifest,
        }


def study(
    trace: RoutingTrace,
    spec: RunSpec,
    *,
    recalls: Sequence[float] = RECALLS,
    precisions: Sequence[float] = PRECISIONS,
    windows: Sequence[int] = WINDOWS,
    decay: float = 1.0,
    passes: int = PASSES,
    seed: int = 1,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PredictorStudy:
    """Sweep the noisy oracle.

    Parameters
    ----------
    trace
        The trace.
    spec
        Machine, capacity, eviction, insertion rule and costs; its prefetcher is replaced.
    recalls, precisions, windows
        The grid; windows in events, i.e. layers.
    decay
        Recall h events ahead is recall x decay^(h-1).
    passes
        How many passes to simulate, the last of the trace; at most half of them.
    seed
        Of the draws.
    workers
        Processes.
    progress
        Called with the number of runs done and their total.

    Returns
    -------
    PredictorStudy
        Speeds over the grid, and of known predictors.

    Raises
    ------
    SimError
        If the trace has fewer than two passes.
    """
    n = min(passes, trace.n_passes // 2)
    if n < 1:
        raise SimError("the trace has a single pass; a predictor needs at least two")
    spec = spec.settled(trace.geometry)
    index = np.arange(trace.n_passes)
    measured = trace.select_passes(index >= trace.n_passes - n)
    grid = [
        (f"noisy-oracle:recall={r:g},precision={p:g},decay={decay:g},window={w},seed={seed}", r, p, w)
        for w in sorted(set(windows))
        for r in sorted(set(recalls))
        for p in sorted(set(precisions))
    ]
    with tempfile.TemporaryDirectory() as folder:
        warm = Path(folder) / "warm.csv"
        _write_ranking(warm, trace, trace.n_passes - n)
        base = replace(spec, placement=f"profile:file={warm}")
        without = replace(baseline_spec(base), eviction=spec.eviction, admission=spec.admission,
                          placement=base.placement)  # fmt: skip
        specs = [without, *(replace(base, prefetch=name) for name in (*(g[0] for g in grid), *KNOWN))]
        found = []
        for result in _simulate_all(measured, specs, workers):
            found.append(result)
            progress(len(found), len(specs))
    rates = [(name, *quality(measured, create("prefetch", name))) for name in KNOWN]
    baseline = found[0]
    quiet = time_ns(baseline)

    grid_cells = []
    for choice, result in zip(grid, found[1:], strict=False):
        moved = sum(result.link_bytes[name] for name in ("h2d_demand", "h2d_adapt", "h2d_prefetch"))
        stats = result.prefetch
        grid_cells.append(Cell(*choice, quiet / time_ns(result), stats.issued, moved, stats.harmful_bytes,
                               stats.wasted_bytes))  # fmt: skip
    known = []
    for rate, result in zip(rates, found[1 + len(grid) :], strict=True):
        stats = result.prefetch
        known.append(
            Known(
                *rate, stats.recall, stats.precision, quiet / time_ns(result), stats.issued, stats.harmful_bytes,
                stats.wasted_bytes,
            )
        )  # fmt: skip
    baseline.manifest["spec"] = spec.to_dict()
    return PredictorStudy(grid_cells, known, baseline, n, trace.n_passes, decay)


def break_even(grid: Iterable[Cell]) -> dict[tuple[int, float], float | None]:
    """Lowest precision from which on prefetching is not slower, by (window, recall); None if it never pays."""
    rows: dict[tuple[int, float], list[Cell]] = {}
    for cell in grid:
        rows.setdefault((cell.window, cell.recall), []).append(cell)
    found: dict[tuple[int, float], float | None] = {}
    for place, cells in rows.items():
        line = None
        above: Cell | None = None
        for cell in sorted(cells, key=lambda c: -c.precision):
            if cell.speedup < 1.0:
                if above is not None:
                    share = (1.0 - cell.speedup) / (above.speedup - cell.speedup)
                    line = cell.precision + share * (above.precision - cell.precision)
                break
            line, above = cell.precision, cell
        found[place] = line
    return found


def quality(trace: RoutingTrace, policy: PrefetchPolicy) -> tuple[float | None, float | None]:
    """What a predictor's proposals foretold, and how many of them were right; None where undefined.

    Counted over distinct experts of events, prefill passes apart: the share of wanted experts that had been
    proposed for their event, and the share of proposals that were wanted at their deadline.
    """
    pool = make_pool(trace.geometry, Capacity(slots_per_layer=trace.geometry.experts))
    future = make_future(trace) if policy.needs_future else None
    state = policy.start(pool, Lists, future, trace.predictions or None)
    keys, deadlines = Lists.ints(pool.keys), Lists.ints(pool.keys)
    offsets, all_keys, rows = trace.event_offsets.tolist(), trace.keys.tolist(), trace.rows_wanting.tolist()
    layers, of_pass = trace.event_layer.tolist(), trace.event_pass.tolist()
    decode = (trace.event_phase != Phase.PREFILL).tolist()
    proposed: dict[int, set[int]] = {}
    right = wanted = asked = 0
    for e in range(trace.n_events):
        members = all_keys[offsets[e] : offsets[e + 1]]
        guess = proposed.pop(e, set())
        if decode[e]:
            right += len(guess.intersection(members))
            wanted += len(members)
            asked += len(guess)
        event = Event(
            e, of_pass[e], layers[e], offsets[e], members, rows[offsets[e] : offsets[e + 1]], [0] * len(members)
        )
        policy.learn(state, event)
        for i in range(policy.propose(state, event, keys, deadlines)):
            proposed.setdefault(deadlines[i], set()).add(keys[i])
    return right / wanted if wanted else None, right / asked if asked else None


def _write_ranking(path: Path, trace: RoutingTrace, passes: int) -> None:
    """Experts by last use in the first `passes` passes, latest first: what LRU would hold."""
    before = np.repeat(trace.event_pass < passes, np.diff(trace.event_offsets))
    seen = trace.keys[before][::-1]
    latest = list(dict.fromkeys(seen.tolist()))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("layer", "expert"))
        writer.writerows(divmod(key, trace.geometry.experts) for key in latest)


def _simulate_all(trace: RoutingTrace, specs: list[RunSpec], workers: int) -> Iterable[RunResult]:
    """Results in order, perhaps from several processes."""
    if workers <= 1:
        yield from (simulate(trace, spec) for spec in specs)
        return
    with ExitStack() as stack:
        pool = stack.enter_context(
            ProcessPoolExecutor(workers, get_context("spawn"), initializer=_take, initargs=(trace,))
        )
        yield from pool.map(_run, specs)


_trace: list[RoutingTrace] = []


def _take(trace: RoutingTrace) -> None:
    """A worker's copy of the trace."""
    _trace[:] = [trace]


def _run(spec: RunSpec) -> RunResult:
    return simulate(_trace[0], spec)
