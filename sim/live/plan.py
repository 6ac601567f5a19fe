"""What a set of live runs will do and take: variants, passes, disk, memory and time, before it starts.

A group runs one trace on this machine with a card or without. Group x1 has the model's own bytes, x4 the same
routing with experts and dense parts of four times the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from expert_residency.errors import SimError
from expert_residency.hwmodels.executor.card import LiveSizes
from expert_residency.hwmodels.units import format_bytes
from expert_residency.sim.live.context import cells_of, measured_cells, with_context
from expert_residency.sim.live.schedule import make_schedule, sizes_of
from expert_residency.sim.live.variants import Arm, Outcome, decode_window, in_windows, scaled
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace

State = Literal["cold", "warm"]
PASSES: dict[bool, dict[State, int]] = {False: {"warm": 160, "cold": 160}, True: {"warm": 64, "cold": 32}}
"""Decode passes of a run by default, with a card and without (True), where every pass takes longer."""
CARD_ROUND_S, CARDLESS_BYTES_PER_S, COLD_BYTES_PER_S = 30.0, 2.5e9, 0.4e9
"""For the forecast of the time only: a round of measurements with a card, rates of a CPU and a drive."""
CARD_EVENT_S, CARD_COPY_BYTES_PER_S = 60e-6, 15e9
COMPILE_S, FILE_ROUNDS = 30.0, 4
"""Kernels of the CPU pool, compiled at the first call; rounds in which a calibration reads its own file."""


@dataclass(frozen=True)
class Plan:
    """One group of runs, decided down to every copy.

    Parameters
    ----------
    label
        Name of the group's files.
    cardless
        The CPU computes all experts, and slots are memory over a file.
    geometry
        Of the runs: the trace's, scaled by the group's factor.
    windows
        The trace of each length that is run, with that geometry.
    outcomes
        Every variant with its schedule, and no run yet.
    spans
        Passes, and how many of them are not counted, by the state of the page cache at the start.
    rounds
        How often every variant is run.
    calibrate
        Whether the machine is measured in the same session.
    rows
        Of a pass.
    depth
        Positions behind each request that passes attend over, beside the trace's own; None: none do.
    """

    label: str
    cardless: bool
    geometry: ModelGeometry
    windows: Mapping[int, RoutingTrace]
    outcomes: list[Outcome]
    spans: Mapping[State, tuple[int, int]]
    rounds: int
    calibrate: bool
    rows: int = 1
    depth: int | None = None

    @property
    def sizes(self) -> LiveSizes:
        """What an engine with a card must hold, and the calibration measure."""
        sizes = sizes_of(self.geometry, self.longest)
        if self.depth is None:
            return sizes
        cell, cells = cells_of(self.longest, self.depth)
        return replace(sizes, cell_bytes=cell, cells=measured_cells(max(cells), cell, self.geometry.n_layers))

    @property
    def longest(self) -> RoutingTrace:
        """The longest trace that is run."""
        return self.windows[max(self.windows)]

    @property
    def by_state(self) -> dict[State, list[Outcome]]:
        """Variants that take turns: without a card warm ones first, then cold ones; with a card all together."""
        if not self.cardless:
            return {"warm": self.outcomes}
        states: tuple[State, ...] = ("warm", "cold")
        return {state: [one for one in self.outcomes if one.arm.start == state] for state in states}

    @property
    def calibration_rounds(self) -> int:
        """Rounds of measurements: without a card one after every single run, so that both meet the same states."""
        return self.rounds * (max(map(len, self.by_state.values())) if self.cardless else 1)

    @property
    def stride_bytes(self) -> int:
        """Bytes of a slot."""
        return max(self.geometry.expert_bytes)

    @property
    def disk_bytes(self) -> int:
        """Files while it runs, all taken away again: experts, and the calibrator's."""
        from expert_residency.hwmodels.calibrate.run import LEAST_BYTES, MOST_BYTES

        experts = self.stride_bytes * self.geometry.n_experts
        own = min(MOST_BYTES, max(LEAST_BYTES, self.geometry.all_expert_bytes))
        return (experts if self.cardless else min(MOST_BYTES, experts)) + self.calibrate * own

    @property
    def whole_file(self) -> bool:
        """Whether each expert has a place of its own in the file; experts that share one are never cold twice."""
        from expert_residency.hwmodels.calibrate.run import MOST_BYTES

        return self.cardless or self.stride_bytes * self.geometry.n_experts <= MOST_BYTES

    @property
    def ram_bytes(self) -> int:
        """Memory of the process, without pages of the files."""
        from expert_residency.hwmodels.calibrate.run import ARENA_BYTES, MOST_BYTES

        slots = max(one.schedule.slots for one in self.outcomes)
        dense = sum(self.geometry.dense_bytes) + self.geometry.head_bytes
        arena = min(ARENA_BYTES, self.stride_bytes * self.geometry.n_experts)
        held = slots * self.stride_bytes + dense if self.cardless else arena
        return held + self.calibrate * min(MOST_BYTES, self.geometry.all_expert_bytes)

    @property
    def seconds(self) -> float:
        """Rough forecast: bytes at rates of a usual machine that does nothing else."""
        runs = sum(self._run_s(one) for one in self.outcomes) * self.rounds
        if not self.calibrate:
            return runs
        if not self.cardless:
            return runs + CARD_ROUND_S * (self.rounds + 1)
        layers, expert = len(self.geometry.expert_bytes), self.geometry.expert_bytes[0]
        events = layers * (16 + 16 + 8 + 5 + 5)  # of 0, 1, 2, 4, 8 experts: programs of the calibrator
        once = 2 * events * (self.geometry.dense_bytes[0] + 3 * expert) / CARDLESS_BYTES_PER_S
        cold = 3 * self.geometry.all_expert_bytes / 2 / COLD_BYTES_PER_S
        own = (self.disk_bytes - self.stride_bytes * self.geometry.n_experts) / COLD_BYTES_PER_S
        return COMPILE_S + FILE_ROUNDS * own + runs + (self.calibration_rounds + 1) * (once + cold)

    def _run_s(self, outcome: Outcome) -> float:
        schedule, geometry = outcome.schedule, self.geometry
        passes = len(schedule.pass_steps) - 1
        moved = schedule.copied_bytes + schedule.ahead_bytes
        if not self.cardless:
            work = (moved + schedule.cpu_bytes) / CARD_COPY_BYTES_PER_S
            return passes * geometry.n_layers * CARD_EVENT_S + work
        dense = passes * (sum(geometry.dense_bytes) + geometry.head_bytes)
        computed = schedule.lookups * self.stride_bytes
        rate = COLD_BYTES_PER_S if outcome.arm.start == "cold" else CARDLESS_BYTES_PER_S
        return (dense + computed) / CARDLESS_BYTES_PER_S + moved / rate

    def __str__(self) -> str:
        spans = "; ".join(
            f"{state} {passes} passes, {warmup} of them not counted"
            for state, (passes, warmup) in self.spans.items()
        )
        how = "CPU and RAM as the card" if self.cardless else "CUDA card"
        first = "calibration and runs in turn" if self.calibrate else "runs with the profile given"
        return (
            f"{self.label}: {self.geometry.label} on {how}, {len(self.outcomes)} variants x {self.rounds} rounds "
            f"({spans}), {first}; about {_duration(self.seconds)}, {format_bytes(self.disk_bytes)} of disk "
            f"while it runs, {format_bytes(self.ram_bytes)} of memory"
        )


def make_plan(
    trace: RoutingTrace,
    name: str,
    label: str,
    *,
    cardless: bool,
    factor: int = 1,
    passes: int | None = None,
    warmup: int | None = None,
    rounds: int = 2,
    full: bool = False,
    calibrate: bool = True,
    rows: int = 1,
    depth: int | None = None,
    arms: Sequence[Arm] | None = None,
) -> Plan:
    """Take all decisions of a group of runs.

    Parameters
    ----------
    trace, name
        What is run, of which only decode passes count, and the name it has in the table.
    label
        Of the group.
    cardless
        Without a CUDA card.
    factor
        Bytes of experts and dense parts in those of the trace's model: 1, 4, 16, ...
    passes, warmup
        Decode passes of a run, and how many of them are not counted; by default as many as there are up to
        `PASSES`, and a fifth of them (none of a run that starts cold without a card).
    rounds
        How often every variant is run.
    full
        All variants, not a few of each kind.
    calibrate
        Whether the machine is measured as well.
    rows
        Of a pass: so many decode passes of the trace are one.
    depth
        Positions behind each request that passes attend over, beside the trace's own; None: attention is left out.
    arms
        Variants in the place of the usual ones.

    Returns
    -------
    Plan
        Nothing has been allocated or run.

    Raises
    ------
    SimError
        A trace without two decode passes, fewer than asked for, or nothing left to count.
    """
    there = int((trace.pass_phase == Phase.DECODE).sum()) // rows
    if there < 2:
        of = f" of {rows} rows" if rows > 1 else ""
        raise SimError(f"a live run decodes, and {name} has {there} decode passes{of}: record more tokens")
    if cardless and rows > 1:
        raise SimError("without a card a pass has one row: --rows needs a card")
    spans: dict[State, tuple[int, int]] = {}
    for state, usual in PASSES[cardless].items():
        count = min(usual, there) if passes is None else passes
        skipped = (0 if cardless and state == "cold" else count // 5) if warmup is None else warmup
        if not 0 <= skipped < count:
            raise SimError(f"--warmup {skipped} leaves nothing of {count} passes: give fewer")
        spans[state] = (count, skipped)
    counts = {count for count, _ in spans.values()}
    windows = {count: in_windows(decode_window(trace, count * rows), rows) for count in counts}
    if cardless and depth is not None:
        raise SimError("without a card attention is left out: --depth needs one")
    geometry = scaled(trace.geometry if depth is None else with_context(trace.geometry), factor)
    windows = {count: replace(window, geometry=geometry) for count, window in windows.items()}
    if arms is not None:
        arms = list(arms)
    elif cardless:
        arms = cardless_arms(name, geometry, full)
    else:
        arms = card_arms(name, geometry, full, 1 in trace.predictions)
    if rows > 1:
        arms = [arm for arm in arms if arm.miss in ("fetch", "stream") and arm.prefetch != "gate-lookahead"]
    attended = {} if depth is None else {count: cells_of(window, depth)[1] for count, window in windows.items()}
    plan = Plan(label, cardless, geometry, windows, [], spans, rounds, calibrate, rows, depth)
    arms = [arm for arm in dict.fromkeys(arms) if plan.whole_file or arm.start == "warm"]
    refused = None
    for arm in arms:
        try:
            count = spans[arm.start][0]
            schedule = replace(make_schedule(windows[count], arm.choices), cells=attended.get(count, ()))
        except SimError as error:  # an event of several rows may want more than a small cache holds
            if rows == 1:
                raise
            refused = error
            continue
        plan.outcomes.append(Outcome(arm, schedule, [], rows))
    if refused is not None and not plan.outcomes:
        raise refused
    return plan


def card_arms(trace: str, geometry: ModelGeometry, full: bool, looks_ahead: bool) -> list[Arm]:
    """Variants with a card on one trace; a few of each kind unless `full`. Slots are given for 64 experts a layer.

    Parameters
    ----------
    trace
        Its name in the table.
    geometry
        Experts a layer, and how many of them a token uses.
    full
        All of them.
    looks_ahead
        Whether the trace has predictions of the next layer's router.

    Returns
    -------
    list of Arm
        A small model may reach one number of slots by several shares.
    """

    def slots(*counts: int) -> tuple[int, ...]:
        return tuple(max(geometry.top_k, n * geometry.experts // 64) for n in counts)

    capacities = slots(12, 20, 32, 48) if full else slots(20, 40)
    middle = slots(20, 32, 48) if full else slots(32)
    few = capacities[1:3] if full else capacities
    arms = [Arm(trace, n, eviction=e) for e in ("lru", "lfu", "static") for n in capacities]
    ahead = ["oracle:window=1", f"oracle:window={geometry.n_layers}", "noisy-oracle:recall=0.5,precision=0.5"]
    arms += [Arm(trace, n, prefetch=p) for p in ahead for n in middle]
    arms += [Arm(trace, n, prefetch="gate-lookahead") for n in middle[:2] if looks_ahead]
    arms += [Arm(trace, n, eviction="static", miss="cpu") for n in capacities]
    arms += [Arm(trace, n, miss="cpu", fill=True) for n in middle[:2]]
    arms += [Arm(trace, n, miss="hybrid", pcie_share=0.5) for n in middle]
    arms += [Arm(trace, middle[0], miss="stream", eviction="static")]
    arms += [Arm(trace, n, host="mmap") for n in few]
    arms += [Arm(trace, n, host="mmap", eviction="static", miss="cpu") for n in few]
    arms += [Arm(trace, middle[0], host="mmap", start="cold")]
    arms += [Arm(trace, middle[0], host="mmap", start="cold", eviction="static", miss="cpu")]
    return arms


def cardless_arms(trace: str, geometry: ModelGeometry, full: bool) -> list[Arm]:
    """Caches over a file, warm and cold, and an oracle.

    Parameters
    ----------
    trace
        Its name in the table.
    geometry
        Experts a layer, and how many of them a token uses.
    full
        Four sizes of the cache, otherwise two.

    Returns
    -------
    list of Arm
        As `card_arms`.
    """
    shares = (8, 16, 32, 48) if full else (16, 40)
    sizes = [max(geometry.top_k, n * geometry.experts // 64) for n in shares]
    states: tuple[State, ...] = ("warm", "cold")
    arms = [Arm(trace, n, host="mmap", start=state) for n in sizes for state in states]
    return arms + [Arm(trace, n, host="mmap", prefetch="oracle:window=1") for n in sizes[1:]]


def _duration(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 120 else f"{round(seconds / 60)} minutes"
