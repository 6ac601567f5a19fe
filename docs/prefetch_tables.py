"""Tables of prefetch.md; `build.py` puts them there.

Of recorded traces (`bigmoe-edge/`): some hundred timed runs and a predictor study on three machines, about ten
minutes on two cores.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.studies.bounds import baseline_spec, time_ns
from expert_residency.sim.studies.predictor import PASSES, break_even, recall_worth, study
from expert_residency.sim.studies.score import ScoredRun
from expert_residency.sim.timed.result import CAUSES, RunResult
from expert_residency.text import markdown
from expert_residency.traces import RoutingTrace, read_trace
from expert_residency.traces.bundled import load

MIB = 1 << 20
MACHINES = ("rtx-5070-7900x", "rtx-5060ti-5700x3d", "tesla-p40")
TRACES = {"Qwen3-30B-A3B": "qwen", "gpt-oss-120b": "gptoss"}
ROOMS = (1000, 2000, 3000, 4000)
GATE, NOISY = "gate-lookahead-parametric", "noisy-oracle:recall=0.8,precision=0.8"
PREDICTORS = (
    "static-topk",
    "previous-token",
    "co-activation",
    "markov",
    "activation-match",
    NOISY,
    GATE,
    "oracle",
)
RULES = ("free", "guarded", "never-evict", "staging:slots=16")
BEST_WINDOWS = (1, 4)
RANK = 0.8
"""Rank quality of the router of tinymoe, asked one layer early."""


@dataclass(frozen=True)
class Cell:
    """One timed run."""

    trace: str
    machine: str
    mib: int
    prefetch: str = "none"
    insertion: str = "free"
    miss: str = "fetch"
    eviction: str = "lru"

    @property
    def spec(self) -> RunSpec:
        """Choices for the simulator."""
        return RunSpec(
            (self.machine,), Capacity(total_bytes=self.mib * MIB), miss=self.miss, prefetch=self.prefetch,
            insertion=self.insertion, eviction=self.eviction,
        )  # fmt: skip


def cells() -> list[Cell]:
    """Every run that the tables need."""
    wanted: dict[Cell, None] = {}
    for trace in TRACES:
        for machine in MACHINES:
            for mib in ROOMS:
                base = Cell(trace, machine, mib)
                wanted[base] = None
                wanted.update({replace(base, prefetch=name): None for name in PREDICTORS})
                windows = (*BEST_WINDOWS, layers(trace))
                wanted.update(
                    {replace(base, prefetch=f"oracle:window={w}", eviction="belady"): None for w in windows}
                )
    for machine in MACHINES:
        for miss in ("fetch", "cpu"):
            base = Cell("Qwen3-30B-A3B", machine, 3000, miss=miss)
            wanted[base] = None
            for name in ("markov", NOISY, GATE):
                wanted.update({replace(base, prefetch=name, insertion=rule): None for rule in RULES})
    return list(wanted)


@cache
def read(trace: str) -> RoutingTrace:
    """A recorded trace."""
    return read_trace(Path(os.environ["EXPERT_RESIDENCY_SHARED"], f"traces/bigmoe-edge/{TRACES[trace]}.route.csv"))


def layers(trace: str) -> int:
    """MoE layers: an oracle's window of one token."""
    return {"Qwen3-30B-A3B": 48, "gpt-oss-120b": 36}[trace]


def run(cell: Cell) -> RunResult:
    """One run in a worker."""
    return simulate(read(cell.trace), cell.spec)


@cache
def ran() -> dict[Cell, RunResult]:
    """Results of all cells, by as many processes as there are processors."""
    wanted = cells()
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        return dict(zip(wanted, pool.map(run, wanted, chunksize=4), strict=True))


def label(name: str) -> str:
    """As the tables name a predictor; those that see the future are marked."""
    return f"`{name}`" + (" *" if name.startswith(("oracle", "noisy", GATE)) else "")


def speeds() -> str:
    """Tokens a second, hits and headroom of every predictor, by trace and machine."""
    found = ran()
    parts = []
    for trace in TRACES:
        for machine in MACHINES:
            rows = []
            for name in ("none", *PREDICTORS, "best"):
                row = ["perfect prefetch, `belady` *" if name == "best" else label(name)]
                for mib in ROOMS:
                    base = Cell(trace, machine, mib)
                    best = min(
                        (found[replace(base, prefetch=f"oracle:window={w}", eviction="belady")]
                         for w in (*BEST_WINDOWS, layers(trace))),
                        key=time_ns,
                    )  # fmt: skip
                    plain = found[base]
                    result = best if name == "best" else found[replace(base, prefetch=name)]
                    gain = time_ns(plain) - time_ns(best)
                    share = 100 * (time_ns(plain) - time_ns(result)) / gain
                    row.append(
                        f"{result.tokens_per_s:.1f} ({100 * (result.decode_hit_rate() or 0):.1f}; {share:+.0f})"
                    )
                rows.append(row)
            parts.append(f"### {trace} on {machine}\n")
            parts.append(markdown(["prefetch", *(f"{mib} MiB" for mib in ROOMS)], rows) + "\n")
    return "\n".join(parts).rstrip()


def rules() -> str:
    """Insertion rules, with what became of the copies."""
    found = ran()
    rows = []
    for miss in ("fetch", "cpu"):
        for machine in MACHINES:
            base = Cell("Qwen3-30B-A3B", machine, 3000, miss=miss)
            plain = found[base]
            for name in ("markov", NOISY, GATE):
                for rule in RULES:
                    result = found[replace(base, prefetch=name, insertion=rule)]
                    s = result.prefetch
                    rows.append([
                        miss, machine, label(name), f"`{rule}`", f"{time_ns(plain) / time_ns(result):.3f}",
                        f"{100 * ((result.decode_hit_rate() or 0) - (plain.decode_hit_rate() or 0)):+.1f}",
                        *(
                            f"{n / 1e9:.2f}"
                            for n in (s.useful_bytes, s.late_bytes, s.wasted_bytes, s.harmful_bytes)
                        ),
                    ])  # fmt: skip
    head = [
        "miss",
        "machine",
        "prefetch",
        "insertion",
        "speed",
        "hits, points",
        "useful GB",
        "late",
        "wasted",
        "harmful",
    ]
    return markdown(head, rows)


def inversion() -> str:
    """The prefetching that gains most hits while losing time, by causes; how often that happens."""
    found = ran()
    count = total = 0
    worst: tuple[float, Cell, Cell] | None = None
    for cell, result in found.items():
        base = replace(cell, prefetch="none", insertion="free")
        if cell.prefetch == "none" or cell.eviction != "lru" or base not in found:
            continue
        plain = found[base]
        points = 100 * ((result.decode_hit_rate() or 0) - (plain.decode_hit_rate() or 0))
        if points <= 0:
            continue
        total += 1
        if time_ns(result) > time_ns(plain):
            count += 1
            if worst is None or points > worst[0]:
                worst = (points, base, cell)
    text = f"Prefetching raised the hit rate in {total} of the runs above, and in {count} of those it was slower."
    if worst is None:
        return text
    _, base, cell = worst
    spent = [found[one].causes_ms_per_token() for one in (base, cell)]
    shown = [cause for cause in CAUSES if any(ms[cause] for ms in spent)]
    rows = []
    for one in (base, cell):
        result = found[one]
        h2d = sum(n for name, n in result.link_bytes.items() if name.startswith("h2d"))
        causes = result.causes_ms_per_token()
        rows.append([
            label(one.prefetch), f"{100 * (result.decode_hit_rate() or 0):.1f}", f"{result.tokens_per_s:.1f}",
            *(f"{causes[cause] or 0:.2f}" for cause in shown),
            f"{h2d / 1e9:.1f}", f"{result.prefetch.harmful_bytes / 1e9:.1f}",
        ])  # fmt: skip
    head = ["prefetch", "hit %", "tokens/s", *(f"{cause} ms" for cause in shown), "to the card GB", "harmful GB"]
    where = (
        f"The most points gained so: {cell.trace}, {cell.mib} MiB, {cell.machine}, miss `{cell.miss}`, "
        f"insertion `{cell.insertion}`."
    )
    return f"{text} {where}\n\n{markdown(head, rows)}\n\n{ScoredRun.of(found[cell]).binds}"


def line() -> str:
    """Break-even precision on three machines, and what a point of recall is worth at half of it and more."""
    rows = []
    for machine in MACHINES:
        for miss in ("fetch", "cpu"):
            spec = baseline_spec(Cell("Qwen3-30B-A3B", machine, 3000, miss=miss).spec)
            found = study(
                read("Qwen3-30B-A3B"),
                spec,
                recalls=(0.25, 0.5, 0.75, 1.0),
                windows=(1, 4),
                rank_qualities=(RANK,),
                workers=os.cpu_count() or 1,
            )
            even, worth = break_even(found.grid), recall_worth(found.grid)
            best = max(found.grid, key=lambda cell: cell.speedup)
            rows.append([
                machine, miss,
                *(
                    "never" if (at := even[w, RANK, r]) is None else f"{at:.2f}"
                    for w in (1, 4) for r in (0.5, 1.0)
                ),
                *(f"{worth[w, RANK, 0.75]:+.3f}" for w in (1, 4)), f"{best.speedup:.2f}x",
            ])  # fmt: skip
    head = ["machine", "miss", "1 layer, recall 0.5", "1 layer, recall 1", "4 layers, recall 0.5",
            "4 layers, recall 1", "a point of recall, 1 layer, ms a token", "4 layers",
            "best of the grid"]  # fmt: skip
    where = (
        f"Last {PASSES} passes, Qwen3-30B-A3B, 3000 MiB, rank quality {RANK:g}; a point at a precision of 0.75."
    )
    return f"{where}\n\n{markdown(head, rows)}"


def map_table() -> str:
    """A recorded predictor's own speed, in its order and shuffled, beside the map's and that of uniform errors."""
    rows = []
    for name in ("tinymoe-prose", "tinymoe-code"):
        for mib in (120, 200, 300, 400):
            spec = RunSpec(("rtx-5060ti-5700x3d",), Capacity(total_bytes=mib * MIB), miss="fetch")
            for order, trace in (("by score", load(name)), ("shuffled", shuffled(load(name)))):
                found = study(
                    trace, spec, recalls=(1.0,), precisions=(1.0,), windows=(1,), rank_qualities=(0.5,),
                    passes=512, workers=os.cpu_count() or 1,
                )  # fmt: skip
                own = found.measured[0]
                plain = f"noisy-oracle:recall={own.foretold:.3f},precision={own.right:.3f}"
                last = trace.select_passes(np.arange(trace.n_passes) >= trace.n_passes - 512)
                quiet, noisy = (simulate(last, replace(spec, prefetch=words)) for words in ("none", plain))
                rows.append([
                    name, f"{mib} MiB", order, f"{own.recall:.2f}", f"{own.precision:.2f}",
                    f"{own.rank_quality:.2f}", _percent(own.speedup), _percent(own.map_speedup),
                    _percent(time_ns(quiet) / time_ns(noisy)),
                ])  # fmt: skip
    head = ["trace", "room", "order", "recall", "precision", "rank quality", "own speed", "map",
            "uniform errors at the same rates over all guesses"]  # fmt: skip
    return markdown(head, rows)


def _percent(speedup: float | None) -> str:
    return "-" if speedup is None else f"{100 * (speedup - 1):+.1f} %"


def shuffled(trace: RoutingTrace) -> RoutingTrace:
    """The same predictions one layer ahead, each event's in random order."""
    offsets, experts = trace.predictions[1]
    event = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.lexsort((np.random.default_rng(0).random(len(experts)), event))
    return replace(trace, predictions={1: (offsets, experts[order])})
