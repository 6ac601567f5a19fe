"""How good must a predictor be before prefetching pays?

A noisy oracle (`noisy-copies`) is run over a grid of recall x precision x rank quality x horizon, and each time
compared with the same run without prefetching. Recall and precision are of copies, and what a run *reached* of
them is counted as for every command (`PrefetchStats`). The *break-even precision* of a row of the grid is the
lowest precision reached from which on prefetching is not slower (linear between cells); what *a point of recall is
worth* is the slope of the time of a token over the recall reached.

Predictors are measured on the same passes: those that the trace recorded and causal built-in ones, each also with
other thresholds, and beside its own speed stands the *map's*: that of a noisy oracle tuned until it reaches the
same recall and precision, with the same rank quality and distance, mean and ends of three draws. How far the two
are apart is how far recall, precision and rank quality tell a predictor's worth.

Only some passes are simulated, the last of the trace. The cache starts as LRU leaves it after the passes before;
causal predictors start untrained.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from expert_residency.errors import SimError
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import Prepared, prepare
from expert_residency.sim.studies.bounds import baseline_spec, time_ns
from expert_residency.sim.studies.predictor.grid import (
    PRECISIONS,
    RANK_QUALITIES,
    RECALLS,
    WINDOWS,
    Cell,
    break_even,
    cell_of,
    noisy,
    recall_worth,
)
from expert_residency.sim.studies.predictor.measured import Measured, lines
from expert_residency.sim.studies.predictor.proposals import quality_of
from expert_residency.sim.studies.predictor.runs import Runs, base_with
from expert_residency.sim.studies.predictor.tuned import DRAWS, ROUNDS, Tuned, tune
from expert_residency.sim.timed.result import RunResult
from expert_residency.traces import Phase, RoutingTrace

PASSES = 16


@dataclass(frozen=True)
class Room:
    """What a prefetcher finds: of the run without prefetching.

    Parameters
    ----------
    link_gb_per_s, used_gb_per_s
        Rate of the links to the cards, and what of it is used.
    left_bytes_per_token, left_experts_per_token
        What the links could bring besides.
    layer_ms
        From one layer to the next, mean: the time that a guess of the next layer has.
    predict_ms_per_token
        Cost of predicting at every layer, as `--predict-us` says.
    """

    link_gb_per_s: float
    used_gb_per_s: float
    left_bytes_per_token: float
    left_experts_per_token: float
    layer_ms: float
    predict_ms_per_token: float


@dataclass(frozen=True)
class PredictorStudy:
    """Everything that `study` found.

    Parameters
    ----------
    grid
        Noisy oracles, by window, rank quality, recall, precision.
    measured
        Predictors with what they reach on this trace: recorded ones first, each followed by its line.
    room
        What they find.
    baseline
        The run without prefetching.
    passes, of_passes
        How many passes were simulated, of how many.
    """

    grid: list[Cell]
    measured: list[Measured]
    room: Room
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
            "room": vars(self.room),
            "grid": [vars(cell) for cell in self.grid],
            "predictors": [vars(one) for one in self.measured],
            "break_even": [
                {"window": window, "rank_quality": rank, "recall": recall, "precision": precision}
                for (window, rank, recall), precision in break_even(self.grid).items()
            ],
            "recall_point_worth": [
                {"window": window, "rank_quality": rank, "precision": precision, "ms_per_token": ms}
                for (window, rank, precision), ms in recall_worth(self.grid).items()
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
    rank_qualities: Sequence[float] = RANK_QUALITIES,
    decay: float = 1.0,
    passes: int = PASSES,
    seed: int = 1,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PredictorStudy:
    """Sweep the noisy oracle, and measure predictors on its map.

    Parameters
    ----------
    trace
        The trace.
    spec
        Machine, capacity, eviction, insertion rule and costs; its prefetcher is replaced.
    recalls, precisions, windows, rank_qualities
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
        Speeds over the grid, and of predictors.

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
        (noisy(r, p, q, window=w, decay=decay, seed=seed), r, p, q, w)
        for w in sorted(set(windows))
        for q in sorted(set(rank_qualities))
        for r in sorted(set(recalls))
        for p in sorted(set(precisions))
    ]
    points = lines(measured)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        warm = Path(folder) / "warm.csv"
        _write_ranking(warm, trace, trace.n_passes - n)
        base = replace(spec, placement=f"profile:file={warm}")
        without = replace(baseline_spec(base), eviction=spec.eviction, admission=spec.admission,
                          placement=base.placement)  # fmt: skip
        ready = prepare(measured, without)
        qualities = [quality_of(measured, without, point.prefetch) for point in points]
        tuned = [Tuned(point, found, seed) for point, found in zip(points, qualities, strict=True)
                 if point.prefetch == point.predictor]  # fmt: skip
        total = 1 + len(grid) + len(points) + (ROUNDS + DRAWS - 1) * len(tuned)
        runs = Runs(stack, measured, total, workers, progress)
        baseline, *found = runs.run([without, *(base_with(base, g[0]) for g in grid),
                                     *(base_with(base, point.prefetch) for point in points)])  # fmt: skip
        swept, own = found[: len(grid)], found[len(grid) :]
        result_of = {point.prefetch: result for point, result in zip(points, own, strict=True)}
        maps = tune(runs, base, tuned, result_of)
    quiet = time_ns(baseline)
    room = _room(measured, ready, baseline, spec.predict_us)
    grid_cells = [cell_of(choice, result, quiet) for choice, result in zip(grid, swept, strict=True)]
    shown = []
    for point, offered, result in zip(points, qualities, own, strict=True):
        stats, like = result.prefetch, [time_ns(run) for run in maps.get(point.prefetch, [])]
        ahead = offered.layers_ahead
        shown.append(
            Measured(
                point.prefetch, point.predictor, point.recorded, stats.recall, stats.precision,
                offered.rank_quality, offered.foretold, offered.right, ahead,
                None if ahead is None else ahead * room.layer_ms, quiet / time_ns(result),
                quiet * len(like) / sum(like) if like else None, quiet / max(like) if like else None,
                quiet / min(like) if like else None, stats.issued, stats.harmful_bytes, stats.wasted_bytes,
            )
        )  # fmt: skip
    baseline.manifest["spec"] = spec.to_dict()
    return PredictorStudy(grid_cells, shown, room, baseline, n, trace.n_passes, decay)


def _room(trace: RoutingTrace, ready: Prepared, baseline: RunResult, predict_us: float) -> Room:
    link = sum(card.link.h2d_mb_per_s for card in ready.machine.cards) / 1e3
    moved = sum(baseline.link_bytes[name] for name in ("h2d_demand", "h2d_adapt"))
    used, tokens = moved / baseline.total_ns, max(1, baseline.decode_tokens)
    left = max(0.0, link - used) * baseline.total_ns / tokens
    sizes = trace.geometry.expert_bytes
    decode_events = int((trace.event_phase != Phase.PREFILL).sum()) or trace.n_events
    return Room(link, used, left, left * len(sizes) / sum(sizes), time_ns(baseline) / 1e6 / decode_events,
                predict_us * decode_events / tokens / 1e3)  # fmt: skip


def _write_ranking(path: Path, trace: RoutingTrace, passes: int) -> None:
    """Experts by last use in the first `passes` passes, latest first: what LRU would hold."""
    before = np.repeat(trace.event_pass < passes, np.diff(trace.event_offsets))
    seen = trace.keys[before][::-1]
    latest = list(dict.fromkeys(seen.tolist()))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("layer", "expert"))
        writer.writerows(divmod(key, trace.geometry.experts) for key in latest)
