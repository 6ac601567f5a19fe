"""Arms of a live experiment: what to run, in which order, and the table of results.

Every round runs every arm once, in an order of its own, so that a drift of the machine meets all alike; an arm's
figure is made of a quantile of each pass over the rounds. The table has the columns of published runs (so that
one reader serves both), and beside them what is needed to simulate the same run.
"""

from __future__ import annotations

import csv
import itertools
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from expert_residency.errors import SimError
from expert_residency.files import atomic
from expert_residency.hwmodels.calibrate.readings import is_noisy, usual_ns
from expert_residency.hwmodels.executor.steps import Measured
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.live.context import to_cell, wider
from expert_residency.sim.live.schedule import LiveChoices, Schedule
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace
from expert_residency.traces.trace import csr_offsets, ragged_take

PUBLISHED = (
    "source", "date", "engine_version", "gpu", "n_gpus", "vram_gb", "pcie", "cpu", "ram_gb", "os", "model",
    "quant", "expert_blob_bytes", "slots", "mode", "flags", "workload", "hit_rate_pct", "tok_s", "ms_token",
    "ms_gpu", "ms_cpu_experts", "h2d_gbps", "cpu_expert_gbps", "notes",
)  # fmt: skip
ADDED = (
    "group", "profile", "engine", "trace", "passes", "warmup", "slots_per_layer", "scope", "eviction",
    "placement", "prefetch", "miss", "pcie_share", "fill", "host", "start", "rounds", "tok_s_low",
    "tok_s_high", "noisy", "rows", "depth", "kv",
)  # fmt: skip
COLUMNS = PUBLISHED + ADDED


@dataclass(frozen=True)
class Arm:
    """One configuration.

    Parameters
    ----------
    trace
        Name of the trace it is run on.
    slots_per_layer, scope
        Capacity.
    host, start
        Where the experts lie (`arena`, `mmap`) and the state of the page cache at the start.
    """

    trace: str
    slots_per_layer: int
    eviction: str = "lru"
    prefetch: str = "none"
    placement: str | None = None
    miss: str = "fetch"
    pcie_share: float = 0.5
    fill: bool = False
    scope: Literal["global", "layer"] = "global"
    host: Literal["arena", "mmap"] = "arena"
    start: Literal["warm", "cold"] = "warm"

    @property
    def choices(self) -> LiveChoices:
        """What decides the schedule."""
        return LiveChoices(
            Capacity(slots_per_layer=self.slots_per_layer, scope=self.scope),
            eviction=self.eviction,
            prefetch=self.prefetch,
            placement=self.placement,
            miss=self.miss,
            pcie_share=self.pcie_share,
            fill=self.fill,
        )

    @property
    def label(self) -> str:
        """The choices in one line."""
        parts = [f"{self.slots_per_layer} slots a layer", self.eviction, self.miss]
        if self.prefetch != "none":
            parts.append(self.prefetch)
        if self.host == "mmap":
            parts.append(f"mmap {self.start}")
        return ", ".join(parts)


def decode_window(trace: RoutingTrace, passes: int) -> RoutingTrace:
    """The first `passes` decode passes of a trace, as a trace of its own.

    Raises
    ------
    SimError
        If it has fewer.
    """
    decode = np.flatnonzero(trace.pass_phase == Phase.DECODE)[:passes]
    if len(decode) < passes:
        raise SimError(f"the trace has {len(decode)} decode passes, {passes} are asked for")
    wanted = np.zeros(trace.n_passes, dtype=bool)
    wanted[decode] = True
    return trace.select_passes(wanted)


def in_windows(trace: RoutingTrace, rows: int) -> RoutingTrace:
    """Passes of `rows` rows out of as many with one: windows to verify, or pieces of a prompt.

    What is left over at the end is dropped.

    Raises
    ------
    SimError
        If there are not enough for one window.
    """
    if rows == 1:
        return trace
    count = trace.n_passes // rows
    if count < 1:
        raise SimError(f"the trace has {trace.n_passes} decode passes: there is no window of {rows} in it")
    kept = np.flatnonzero(trace.event_pass < count * rows)
    order = kept[np.lexsort((trace.event_pass[kept], trace.event_layer[kept], trace.event_pass[kept] // rows))]
    row_order = ragged_take(trace.event_row_offsets, order)
    entries = ragged_take(trace.row_offsets, row_order)
    layers = trace.event_layer[order]
    starts = np.flatnonzero(np.concatenate([[True], np.diff(layers) != 0]))  # a new layer, so a new event
    return replace(
        trace,
        pass_request=trace.pass_request[: count * rows : rows],
        pass_phase=np.full(count, Phase.VERIFY, dtype=trace.pass_phase.dtype),
        pass_emits=np.full(count, rows, dtype=trace.pass_emits.dtype),
        event_pass=(trace.event_pass[order][starts] // rows).astype(trace.event_pass.dtype),
        event_layer=layers[starts],
        event_row_offsets=csr_offsets(np.add.reduceat(trace.event_rows[order], starts)),
        row_position=trace.row_position[row_order],
        row_offsets=csr_offsets(np.diff(trace.row_offsets)[row_order]),
        row_experts=trace.row_experts[entries],
        row_weights=None if trace.row_weights is None else trace.row_weights[entries],
        row_residency=None,
        predictions={},
        prediction_scores={},
    )


def scaled(geometry: ModelGeometry, factor: int) -> ModelGeometry:
    """The same layers and counts with `factor` times the bytes: twice as wide for 4."""
    if factor == 1:
        return geometry
    side = round(factor**0.5)
    return replace(
        geometry,
        name=f"{geometry.name}-x{factor}",
        expert_bytes=tuple(factor * n for n in geometry.expert_bytes),
        dense_bytes=tuple(factor * n for n in geometry.dense_bytes),
        head_bytes=side * geometry.head_bytes,
        expert_params=factor * geometry.expert_params,
        hidden_size=side * geometry.hidden_size,
        session=wider(geometry.session, side),
        source=f"{factor} times the bytes of {geometry.label}",
    )


@dataclass
class Outcome:
    """All rounds of one arm."""

    arm: Arm
    schedule: Schedule
    rounds: list[Measured]
    rows: int = 1

    def tok_s(self, warmup: int) -> list[float]:
        """Rows a second of each round, the first `warmup` passes left out."""
        return [1e9 * self.rows / float(one.pass_ns[warmup:].mean()) for one in self.rounds]

    def usual_tok_s(self, warmup: int, usual: float) -> float:
        """Tokens a second of the machine left to itself.

        A pass does the same work in every round, and what disturbs it can only lengthen it, so its time is the
        quantile `usual` over the rounds; what hit one part of one round counts for that part alone.
        """
        return 1e9 * self.rows / usual_ns([one.pass_ns[warmup:] for one in self.rounds], usual)


def run_in_turn(
    outcomes: Sequence[Outcome],
    run: Callable[[Arm, Schedule], Measured],
    progress: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Run one arm at each `next`, round after round without end, in an order of each round's own.

    Parameters
    ----------
    outcomes
        Arms with their schedules; results are added to them.
    run
        Loads and runs a schedule once.
    progress
        Told what runs next.

    Returns
    -------
    Iterator[None]
        Nothing; each `next` has run one more.
    """
    for number in itertools.count():
        order = list(outcomes)
        random.Random(number).shuffle(order)
        for outcome in order:
            if progress is not None:
                progress(f"round {number + 1}: {outcome.arm.label}")
            outcome.rounds.append(run(outcome.arm, outcome.schedule))
            yield


def to_rows(
    outcomes: Iterable[Outcome], machine: dict[str, Any], trace: RoutingTrace, warmup: int, usual: float = 0.5,
    depth: int | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of the table.

    Parameters
    ----------
    outcomes
        Arms with their rounds.
    machine
        Columns that say where and when it was run.
    trace
        What they ran.
    warmup
        Passes that are not counted.
    usual
        Quantile of each pass over the rounds: the median, or lower where much else runs on the machine.
    depth
        Positions behind each request that passes attend over; None: attention was left out.

    Returns
    -------
    list[dict[str, Any]]
        Rows by column; speeds in tokens/s.
    """
    geometry = trace.geometry
    rows = []
    for outcome in outcomes:
        if not outcome.rounds:
            continue
        arm, schedule = outcome.arm, outcome.schedule
        speeds = outcome.tok_s(warmup)
        tok_s = outcome.usual_tok_s(warmup, usual)
        passes = len(schedule.pass_steps) - 1
        cpu_ns = statistics.median(float(one.cpu_ns[warmup:].mean()) for one in outcome.rounds)
        card_ns = statistics.median(float(one.card_ns[warmup:].mean()) for one in outcome.rounds)
        prefetch = f" --prefetch {arm.prefetch}" if arm.prefetch != "none" else ""
        rows.append(
            dict.fromkeys(COLUMNS, "")
            | machine
            | {
                "model": geometry.name,
                "quant": geometry.quant,
                "expert_blob_bytes": geometry.expert_bytes[0],
                "slots": arm.slots_per_layer * geometry.n_layers,
                "mode": arm.host,
                "flags": f"--eviction {arm.eviction} --miss {arm.miss}{prefetch}",
                "workload": f"{arm.trace}, {passes} decode passes, the first {warmup} not counted",
                "hit_rate_pct": round(100 * schedule.hits / schedule.lookups, 3),
                "tok_s": round(tok_s, 3),
                "ms_token": round(1e3 / tok_s, 4),
                "ms_gpu": round(card_ns / 1e6, 4) if card_ns else "",
                "ms_cpu_experts": round(cpu_ns / 1e6, 4) if cpu_ns else "",
                "notes": f"bytes: demand {schedule.copied_bytes}, ahead {schedule.ahead_bytes}, "
                f"cpu {schedule.cpu_bytes}",
                "trace": arm.trace,
                "passes": passes,
                "warmup": warmup,
                "slots_per_layer": arm.slots_per_layer,
                "scope": arm.scope,
                "eviction": arm.eviction,
                "placement": arm.placement or "",
                "prefetch": arm.prefetch,
                "miss": arm.miss,
                "pcie_share": arm.pcie_share if arm.miss == "hybrid" else "",
                "fill": int(arm.fill),
                "host": arm.host,
                "start": arm.start,
                "rounds": len(speeds),
                "tok_s_low": round(min(speeds), 3),
                "tok_s_high": round(max(speeds), 3),
                "noisy": int(is_noisy(speeds)),
                "rows": outcome.rows,
                "depth": "" if depth is None else depth,
                "kv": "" if depth is None else to_cell(geometry),
            }
        )
    return rows


def write_rows(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the table."""
    with atomic(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
