"""How good must a predictor be before prefetching pays?

A noisy oracle (`noisy-copies`) is run over a grid of recall x precision x rank quality x horizon, and each time
compared with the same run without prefetching. Recall and precision are of copies, and what a run *reached* of
them is counted as for every command (`PrefetchStats`). The *break-even precision* of a row of the grid is the
lowest precision reached from which on prefetching is not slower (linear between cells); what *a point of recall is
worth* is the slope of the time of a token over the recall reached.

Predictors are measured on the same passes: those that the trace recorded and causal built-in ones, each also with
other thresholds, and beside its own speed stands the *map's*: that of a noisy oracle tuned until it reaches the
same recall and precision, with the same rank quality and distance. How far the two are apart is how far recall,
precision and rank quality tell a predictor's worth.

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
from typing import Any, NamedTuple

import numpy as np

from expert_residency.errors import SimError
from expert_residency.policies import Event, PrefetchPolicy, create
from expert_residency.policies.protocol import Lists
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.residency.future import make_future, recorded_predictions
from expert_residency.sim.residency.pool import CachePool, make_pool
from expert_residency.sim.runs.simulate import Prepared, prepare, simulate
from expert_residency.sim.studies.bounds import baseline_spec, time_ns
from expert_residency.sim.timed.result import RunResult
from expert_residency.traces import Phase, RoutingTrace

RECALLS = (0.2, 0.4, 0.6, 0.8, 1.0)
PRECISIONS = (0.1, 0.25, 0.5, 0.75, 1.0)
WINDOWS = (1, 4)
RANK_QUALITIES = (0.5, 0.8)
"""Guesses in no order, and in one as good as that of routers asked early, which lie between 0.74 and 0.81."""
PASSES = 16
KNOWN = ("previous-token", "static-topk", "markov", "co-activation", "activation-match")
"""Causal predictors that are measured beside the grid."""
ROUNDS = 4
"""Runs in which a noisy oracle is tuned to a predictor."""


@dataclass(frozen=True)
class Cell:
    """One run of the noisy oracle: speed-up over no prefetching, and what became of the copies.

    Parameters
    ----------
    recall, precision, rank_quality, window
        That the oracle drew with.
    reached_recall, reached_precision
        Of its copies, as `PrefetchStats` defines them for every command; None where nothing was missed or copied.
    """

    prefetch: str
    recall: float
    precision: float
    rank_quality: float
    window: int
    speedup: float
    ms_per_token: float
    reached_recall: float | None
    reached_precision: float | None
    copies: int
    h2d_bytes: int
    harmful_bytes: int
    wasted_bytes: int


@dataclass(frozen=True)
class Measured:
    """A predictor with the quality that it reaches; None where undefined.

    Parameters
    ----------
    prefetch, predictor
        Its words, and those of the predictor of whose line it is a point: the same, with another threshold.
    recorded
        Whether its predictions are the trace's.
    recall, precision
        Of its copies, as `PrefetchStats` defines them for every command.
    rank_quality
        Area under the curve of its guesses' order: of two copies that would be made for one event, one of them
        wanted and one not, how often the wanted one is asked for first.
    foretold, right
        Of its proposals, resident experts included: share of wanted experts that had been proposed for their
        event, and share of proposals that were wanted then.
    layers_ahead, ahead_ms
        How far before its event a guess is made, and how long that is without prefetching.
    speedup, map_speedup
        Its own, and that of a noisy oracle which reaches the same recall and precision; None where that was not
        looked for, or is out of the oracle's reach.
    """

    prefetch: str
    predictor: str
    recorded: bool
    recall: float | None
    precision: float | None
    rank_quality: float | None
    foretold: float | None
    right: float | None
    layers_ahead: float | None
    ahead_ms: float | None
    speedup: float
    map_speedup: float | None
    copies: int
    harmful_bytes: int
    wasted_bytes: int


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
        qualities = [_quality_of(measured, without, point.prefetch) for point in points]
        tuned = [_Tuned(point, found, seed) for point, found in zip(points, qualities, strict=True)
                 if point.prefetch == point.predictor]  # fmt: skip
        total = 1 + len(grid) + len(points) + ROUNDS * len(tuned)
        runs = _Runs(stack, measured, total, workers, progress)
        baseline, *found = runs.run([without, *(base_with(base, g[0]) for g in grid),
                                     *(base_with(base, point.prefetch) for point in points)])  # fmt: skip
        swept, own = found[: len(grid)], found[len(grid) :]
        result_of = {point.prefetch: result for point, result in zip(points, own, strict=True)}
        maps = _tune(runs, base, tuned, result_of)
    quiet = time_ns(baseline)
    room = _room(measured, ready, baseline, spec.predict_us)
    grid_cells = [_cell(choice, result, quiet) for choice, result in zip(grid, swept, strict=True)]
    shown = []
    for point, quality_of, result in zip(points, qualities, own, strict=True):
        stats, like = result.prefetch, maps.get(point.prefetch)
        ahead = quality_of.layers_ahead
        shown.append(
            Measured(
                point.prefetch, point.predictor, point.recorded, stats.recall, stats.precision,
                quality_of.rank_quality, quality_of.foretold, quality_of.right, ahead,
                None if ahead is None else ahead * room.layer_ms, quiet / time_ns(result),
                None if like is None else quiet / time_ns(like), stats.issued, stats.harmful_bytes,
                stats.wasted_bytes,
            )
        )  # fmt: skip
    baseline.manifest["spec"] = spec.to_dict()
    return PredictorStudy(grid_cells, shown, room, baseline, n, trace.n_passes, decay)


def noisy(
    recall: float, precision: float, rank_quality: float, *, window: int = 1, nearest: int = 1, decay: float = 1.0,
    within_pass: bool = False, seed: int = 1,
) -> str:  # fmt: skip
    """Words for the noisy oracle of copies.

    Parameters
    ----------
    recall, precision, rank_quality
        0 to 1 each.
    window, nearest
        Furthest and nearest event that is predicted, from 1.
    decay
        Factor of the recall for each event further ahead.
    within_pass
        Whether events of the next pass are left out.
    seed
        Of the draws.

    Returns
    -------
    str
        A prefetch policy's.
    """
    words = f"noisy-copies:recall={recall:.6g},precision={precision:.6g},auc={rank_quality:.6g},decay={decay:g}"
    near = f",nearest={nearest}" * (nearest != 1) + ",within_pass=true" * within_pass
    return f"{words},window={window}{near},seed={seed}"


class Point(NamedTuple):
    """A predictor to be measured."""

    prefetch: str
    predictor: str
    recorded: bool


def lines(trace: RoutingTrace) -> list[Point]:
    """Every predictor that the trace recorded and every built-in one, each followed by its line.

    A line sweeps the threshold over the quartiles of the scores; without scores, or for a built-in predictor, the
    number of guesses for an event.
    """
    found = []
    k = trace.geometry.top_k
    for depth, (offsets, experts) in sorted(trace.predictions.items()):
        if not len(experts):
            continue
        name = f"gate-lookahead:depth={depth}"
        scores = trace.prediction_scores.get(depth)
        if scores is not None:
            cuts = sorted({float(f"{cut:.4g}") for cut in np.quantile(scores, (0.25, 0.5, 0.75))})
            more = [f"{name},threshold={cut:.4g}" for cut in cuts]
        else:
            most = int(np.diff(offsets).max())
            more = [f"{name},top={top}" for top in sorted({max(1, most // 4), max(1, most // 2)}) if top < most]
        found += [Point(words, name, True) for words in (name, *more)]
    for name in KNOWN:
        widths = sorted({max(1, k // 2), min(2 * k, trace.geometry.experts)} - {k})
        more = [f"{name}:width={width}" for width in widths] if name != "previous-token" else []
        found += [Point(words, name, False) for words in (name, *more)]
    return found


def base_with(base: RunSpec, prefetch: str) -> RunSpec:
    """The same with another prefetcher."""
    return replace(base, prefetch=prefetch)


def _cell(choice: tuple[str, float, float, float, int], result: RunResult, quiet: int) -> Cell:
    moved = sum(result.link_bytes[name] for name in ("h2d_demand", "h2d_adapt", "h2d_prefetch"))
    stats = result.prefetch
    return Cell(*choice, quiet / time_ns(result), _ms_per_token(result), stats.recall, stats.precision,
                stats.issued, moved, stats.harmful_bytes, stats.wasted_bytes)  # fmt: skip


def _ms_per_token(result: RunResult) -> float:
    return time_ns(result) / 1e6 / max(1, result.decode_tokens)


def _room(trace: RoutingTrace, ready: Prepared, baseline: RunResult, predict_us: float) -> Room:
    link = sum(card.link.h2d_mb_per_s for card in ready.machine.cards) / 1e3
    moved = sum(baseline.link_bytes[name] for name in ("h2d_demand", "h2d_adapt"))
    used, tokens = moved / baseline.total_ns, max(1, baseline.decode_tokens)
    left = max(0.0, link - used) * baseline.total_ns / tokens
    sizes = trace.geometry.expert_bytes
    decode_events = int((trace.event_phase != Phase.PREFILL).sum()) or trace.n_events
    return Room(link, used, left, left * len(sizes) / sum(sizes), time_ns(baseline) / 1e6 / decode_events,
                predict_us * decode_events / tokens / 1e3)  # fmt: skip


# ---- the map at a predictor's own recall, precision and rank quality -----------------------------------


class _Tuned:
    """A noisy oracle that is to reach a predictor's recall and precision."""

    def __init__(self, point: Point, quality_of: Quality, seed: int) -> None:
        self.prefetch = point.prefetch
        self.quality = quality_of
        self.seed = seed
        self.recall = self.precision = 0.0
        self.found: RunResult | None = None

    def words(self) -> str:
        """The oracle as it is tuned now."""
        ahead = round(self.quality.layers_ahead or 1)
        rank = 0.5 if self.quality.rank_quality is None else self.quality.rank_quality
        return noisy(self.recall, self.precision, rank, window=ahead, nearest=ahead,
                     within_pass=self.quality.within_pass, seed=self.seed)  # fmt: skip

    def tune(self, result: RunResult, recall: float, precision: float) -> None:
        """Take what it reached, and set it for the next run."""
        self.found = result
        reached = result.prefetch
        self.recall = min(1.0, max(0.001, self.recall + recall - (reached.recall or 0.0)))
        if reached.precision:
            self.precision = min(1.0, max(0.01, self.precision * precision / reached.precision))


def _tune(
    runs: _Runs, base: RunSpec, tuned: Sequence[_Tuned], result_of: dict[str, RunResult]
) -> dict[str, RunResult]:
    """Runs of noisy oracles that reach what predictors reach, by the predictor's words, where they can.

    Parameters
    ----------
    runs
        Runs them.
    base
        Everything but the prefetcher.
    tuned
        One for each predictor.
    result_of
        The predictors' own runs, by their words.

    Returns
    -------
    dict
        The last run of each whose recall and precision are within 0.02 of the predictor's.
    """
    going: list[tuple[_Tuned, float, float]] = []
    for one in tuned:
        stats = result_of[one.prefetch].prefetch
        if stats.issued and stats.recall and stats.precision:
            one.recall, one.precision = stats.recall, max(0.01, stats.precision)
            going.append((one, stats.recall, stats.precision))
    for _ in range(ROUNDS):
        for (one, *target), result in zip(
            going, runs.run([base_with(base, one.words()) for one, *_ in going]), strict=True
        ):
            one.tune(result, *target)
    found = {}
    for one, recall, precision in going:
        assert one.found is not None
        reached = one.found.prefetch
        if abs((reached.recall or 0.0) - recall) < 0.02 and abs((reached.precision or 0.0) - precision) < 0.02:
            found[one.prefetch] = one.found
    return found


# ---- lines through the grid -----------------------------------------------------------------------------


def break_even(grid: Iterable[Cell]) -> dict[tuple[int, float, float], float | None]:
    """Lowest precision reached from which on prefetching is not slower, by (window, rank quality, recall).

    None if it never pays. A cell in which nothing was copied stands where it was drawn.
    """
    rows: dict[tuple[int, float, float], list[Cell]] = {}
    for cell in grid:
        rows.setdefault((cell.window, cell.rank_quality, cell.recall), []).append(cell)
    found: dict[tuple[int, float, float], float | None] = {}
    for place, cells in rows.items():
        line = None
        above: tuple[float, float] | None = None
        for cell in sorted(cells, key=lambda c: -c.precision):
            at = cell.precision if cell.reached_precision is None else cell.reached_precision
            if cell.speedup < 1.0:
                if above is not None:
                    share = (1.0 - cell.speedup) / (above[1] - cell.speedup)
                    line = at + share * (above[0] - at)
                break
            line, above = at, (at, cell.speedup)
        found[place] = line
    return found


def recall_worth(grid: Iterable[Cell]) -> dict[tuple[int, float, float], float | None]:
    """What one point (0.01) of recall saves in ms a token, by (window, rank quality, precision drawn).

    Least squares over the recall that the cells reached; None for a single recall. Negative: more recall, at
    this precision, is slower.
    """
    columns: dict[tuple[int, float, float], list[Cell]] = {}
    for cell in grid:
        columns.setdefault((cell.window, cell.rank_quality, cell.precision), []).append(cell)
    found: dict[tuple[int, float, float], float | None] = {}
    for place, cells in columns.items():
        x = np.array([100 * (cell.reached_recall or 0.0) for cell in cells])
        y = np.array([cell.ms_per_token for cell in cells])
        spread = float(((x - x.mean()) ** 2).sum())
        found[place] = -float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread > 1e-9 else None
    return found


# ---- what a predictor's proposals are worth, before any time is looked at ---------------------------------


class Quality(NamedTuple):
    """A predictor's proposals on a trace; None where undefined. Words as of `Measured`."""

    foretold: float | None
    right: float | None
    rank_quality: float | None
    layers_ahead: float | None
    within_pass: bool
    """Whether it never predicts an event of the next pass."""


def _quality_of(trace: RoutingTrace, spec: RunSpec, prefetch: str) -> Quality:
    return quality(trace, create("prefetch", prefetch), prepare(trace, spec).cache)


def quality(trace: RoutingTrace, policy: PrefetchPolicy, cache: CachePool | None = None) -> Quality:
    """What a predictor's proposals foretold, how many were right, and how well they are ordered.

    Counted over distinct experts of events, prefill passes apart: the share of wanted experts that had been
    proposed for their event, and the share of proposals that were wanted at their deadline. The order is judged
    among those that would be copied: not resident when they were proposed.

    Parameters
    ----------
    trace
        What it is shown.
    policy
        The predictor.
    cache
        Decides who is resident, without prefetching; is changed. None: nobody is.

    Returns
    -------
    Quality
        Its proposals' quality.
    """
    pool = cache.pool if cache is not None else make_pool(
        trace.geometry, Capacity(slots_per_layer=trace.geometry.experts)
    )  # fmt: skip
    resident = cache.resident if cache is not None else [0] * pool.keys
    future = make_future(trace) if policy.needs_future else None
    state = policy.start(pool._replace(resident=resident), Lists, future, recorded_predictions(trace))
    keys, deadlines = Lists.ints(pool.keys), Lists.ints(pool.keys)
    offsets, all_keys, rows = trace.event_offsets.tolist(), trace.keys.tolist(), trace.rows_wanting.tolist()
    layers, of_pass = trace.event_layer.tolist(), trace.event_pass.tolist()
    tally = _Tally(of_pass)
    for e in range(trace.n_events):
        members = all_keys[offsets[e] : offsets[e + 1]]
        if trace.event_phase[e] != Phase.PREFILL:
            tally.count(e, members)
        hits = cache.lookup(e, members) if cache is not None else [0] * len(members)
        event = Event(
            e, of_pass[e], layers[e], offsets[e], members, rows[offsets[e] : offsets[e + 1]], hits,
            int(trace.event_phase[e]), int(trace.pass_request[of_pass[e]]),
        )  # fmt: skip
        if cache is not None:
            for position in cache.learn(event):
                cache.admit(members[position], e)
        policy.learn(state, event)
        for i in range(policy.propose(state, event, keys, deadlines)):
            tally.propose(e, deadlines[i], keys[i], copied=not resident[keys[i]])
    return tally.quality()


class _Tally:
    """Proposals held against what came."""

    def __init__(self, of_pass: list[int]) -> None:
        self.of_pass = of_pass
        self.guessed: dict[int, dict[int, bool]] = {}
        """By event its proposed keys, in order, and whether a copy would be made."""
        self.right = self.wanted = self.asked = self.proposed = self.ahead = self.across = 0
        self.pairs = self.won = 0

    def propose(self, now: int, event: int, key: int, *, copied: bool) -> None:
        """A key is proposed for an event that is to come."""
        self.guessed.setdefault(event, {}).setdefault(key, copied)
        self.proposed += 1
        self.ahead += event - now
        self.across += event < len(self.of_pass) and self.of_pass[event] != self.of_pass[now]

    def count(self, event: int, members: list[int]) -> None:
        """The event has come."""
        guess, wanted = self.guessed.pop(event, {}), set(members)
        self.right += len(wanted & guess.keys())
        self.wanted += len(members)
        self.asked += len(guess)
        before = wrong = 0
        for key, copied in guess.items():
            if copied and key in wanted:
                before += 1
            elif copied:
                wrong += 1
                self.won += before
        self.pairs += before * wrong

    def quality(self) -> Quality:
        """The sums as shares."""

        def share(part: int, whole: int) -> float | None:
            return part / whole if whole else None

        return Quality(share(self.right, self.wanted), share(self.right, self.asked), share(self.won, self.pairs),
                       share(self.ahead, self.proposed), self.proposed > 0 and not self.across)  # fmt: skip


def _write_ranking(path: Path, trace: RoutingTrace, passes: int) -> None:
    """Experts by last use in the first `passes` passes, latest first: what LRU would hold."""
    before = np.repeat(trace.event_pass < passes, np.diff(trace.event_offsets))
    seen = trace.keys[before][::-1]
    latest = list(dict.fromkeys(seen.tolist()))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("layer", "expert"))
        writer.writerows(divmod(key, trace.geometry.experts) for key in latest)


class _Runs:
    """Runs of one trace, perhaps in several processes, which stay for all of them."""

    def __init__(
        self, stack: ExitStack, trace: RoutingTrace, total: int, workers: int,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        self.trace, self.total, self.progress = trace, total, progress
        self.done = 0
        self.pool = (
            stack.enter_context(
                ProcessPoolExecutor(workers, get_context("spawn"), initializer=_take, initargs=(trace, total))
            )
            if workers > 1
            else None
        )

    def run(self, specs: Sequence[RunSpec]) -> list[RunResult]:
        """Results in order."""
        if self.pool is not None:
            results: Iterable[RunResult] = self.pool.map(_run, specs)
        else:
            _take(self.trace, self.total)
            results = map(_run, specs)
        found = []
        for result in results:
            found.append(result)
            self.done += 1
            self.progress(self.done, max(self.done, self.total))
        return found


_taken: list[tuple[RoutingTrace, int]] = []


def _take(trace: RoutingTrace, runs: int) -> None:
    """A worker's copy of the trace, and how many runs of it there will be."""
    _taken[:] = [(trace, runs)]


def _run(spec: RunSpec) -> RunResult:
    trace, runs = _taken[0]
    return simulate(trace, spec, runs=runs)
