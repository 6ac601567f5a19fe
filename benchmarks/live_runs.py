"""Calibrate a machine with a card and run the arms of the shipped live runs.

    python benchmarks/live_runs.py --out DIR --name h200 [--rounds 4] [--seconds 480] [--groups x1 x4 cardless]
    python benchmarks/live_runs.py --out DIR --name here --trace mine.parquet [--groups x1]

For every group four files: `NAME-GROUP.toml` (profile), `.engine.toml`, `.readings.json`, `live-NAME-GROUP.csv`.
Group x4 runs the same routing with experts and dense parts of four times the bytes, group `cardless` the engine
without a card. An arm's run is the first 160 decode passes of a trace, of which 32 warm the cache (without a card
as `CARDLESS` says, and a figure is that of the machine left to itself, `Outcome.usual_tok_s`). With `--trace`
the runs are of that trace, whose part that was run is written beside the tables.
With a card a round takes each measurement of the calibration and then runs each arm, so that both meet the same
states of the machine. Without one, where these change within seconds, measurements and single arms take turns,
until each arm was run `--rounds` times; first with a warm page cache, then with a cold one.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import json
import os
import platform
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from expert_residency.hwmodels.calibrate import calibrate
from expert_residency.hwmodels.calibrate.cardless import USUAL
from expert_residency.hwmodels.calibrate.run import cpu_name, default_workers
from expert_residency.hwmodels.executor.card import LiveSizes, has_card, require_card
from expert_residency.hwmodels.executor.cardless import CardlessEngine, State
from expert_residency.hwmodels.executor.engine import CardEngine, HostExperts
from expert_residency.hwmodels.executor.steps import Measured
from expert_residency.sim.live.schedule import Schedule, make_schedule, sizes_of
from expert_residency.sim.live.variants import (
    Arm,
    Outcome,
    decode_window,
    run_in_turn,
    scaled,
    to_rows,
    write_rows,
)
from expert_residency.traces import ModelGeometry, RoutingTrace, read_trace, write_parquet
from expert_residency.traces.bundled import load

PASSES, WARMUP = 160, 32
CARDLESS = {"warm": (64, 16), "cold": (32, 0)}
"""Passes and warm-up without a card; a cold start is looked at from its first read."""
BUNDLED = ("tinymoe-prose", "tinymoe-code")


def card_arms(trace: str, geometry: ModelGeometry, full: bool, looks_ahead: bool) -> list[Arm]:
    """All arms on one trace; a few of each kind unless `full`. Slots are given for layers of 64 experts."""

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


def cardless_arms(trace: str, geometry: ModelGeometry) -> list[Arm]:
    """Caches of four sizes over a file, warm and cold, and an oracle."""
    sizes = [max(geometry.top_k, n * geometry.experts // 64) for n in (8, 16, 32, 48)]
    arms = [Arm(trace, n, host="mmap", start=state) for n in sizes for state in ("warm", "cold")]
    return arms + [Arm(trace, n, host="mmap", prefetch="oracle:window=1") for n in sizes[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", default="this-machine")
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=480.0, help="no new run is begun later than this")
    parser.add_argument("--groups", nargs="+", default=["x1", "x4", "cardless"])
    parser.add_argument("--trace", type=Path, help="a trace of yours in the place of the bundled ones")
    parser.add_argument("--smoke", action="store_true", help="one short run of each kind")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    for number, group in enumerate(args.groups):
        try:
            run_group(
                args,
                group,
                start + args.seconds * (number + 1) / len(args.groups),
                full=not (args.smoke or args.trace),
            )
        except Exception:  # the other groups are still worth having
            traceback.print_exc()


def run_group(args: argparse.Namespace, group: str, end: float, *, full: bool) -> None:
    """Calibrate, with arms between the rounds of measurements; write the files of a group."""
    start = time.monotonic()
    cardless = group == "cardless" or not has_card()
    whole = {args.trace.stem: read_trace(args.trace)} if args.trace else {name: load(name) for name in BUNDLED}
    if args.smoke:
        whole = dict([next(iter(whole.items()))])
    if args.trace:
        write_parquet(decode_window(whole[args.trace.stem], PASSES), args.out / f"{args.trace.stem}.parquet")
    factor = int(group[1:]) if group.startswith("x") else 1
    geometry = scaled(next(iter(whole.values())).geometry, factor)

    def span(arm: Arm) -> tuple[int, int]:
        """Passes, and how many of them are not counted."""
        if args.smoke:
            return 24, 8
        return CARDLESS[arm.start] if cardless else (PASSES, WARMUP)

    @functools.cache
    def window(name: str, passes: int) -> RoutingTrace:
        return replace(decode_window(whole[name], passes), geometry=geometry)

    sizes = sizes_of(geometry)
    label = f"{args.name}-{group}"
    arms = [
        arm
        for name, trace in whole.items()
        for arm in (
            cardless_arms(name, geometry) if cardless else card_arms(name, geometry, full, 1 in trace.predictions)
        )
    ]
    outcomes = [Outcome(arm, make_schedule(window(arm.trace, span(arm)[0]), arm.choices), []) for arm in arms]
    workers = default_workers(card=not cardless)
    with contextlib.ExitStack() as hosts:
        if cardless:
            run = cardless_runner(sizes, args.folder, workers)
        else:
            run = card_runner(sizes, args.folder, workers, max(one.schedule.slots for one in outcomes), hosts)

        states: list[State] = ["warm", "cold"]
        groups = (
            {s: [one for one in outcomes if one.arm.start == s] for s in states}
            if cardless
            else {"warm": outcomes}
        )
        turns = {state: run_in_turn(group, run) for state, group in groups.items()}

        def between(state: State) -> None:
            for _ in range(1 if cardless else len(outcomes)):
                if time.monotonic() <= end:
                    next(turns[state])
            print(f"{label}, {state}: {time.monotonic() - start:.0f} s", flush=True)

        rounds = args.rounds * (max(map(len, groups.values())) if cardless else 1)
        made = calibrate(sizes, args.folder, name=label, rounds=rounds, cardless=cardless, between=between)
    (args.out / f"{label}.toml").write_text(made.profile_toml)
    (args.out / f"{label}.engine.toml").write_text(made.engine_toml)
    (args.out / f"{label}.readings.json").write_text(json.dumps(made.readings.table(), indent=0))
    rows = []
    for one in outcomes:
        passes, warmup = span(one.arm)
        where, usual = window(one.arm.trace, passes), USUAL if cardless else 0.5
        rows += to_rows([one], describe(label, cardless), where, warmup, usual)
    write_rows(rows, args.out / f"live-{label}.csv")
    noisy = ", ".join(made.noisy) or "none"
    print(
        f"{label}: {len(rows)} of {len(arms)} arms, {time.monotonic() - start:.0f} s; noisy: {noisy}", flush=True
    )
    if len(rows) < len(arms):
        print(f"{label}: the other arms had no time left; give more --seconds, which count from the start")


Runner = Callable[[Arm, Schedule], Measured]


def card_runner(sizes: LiveSizes, folder: Path, workers: int, slots: int, hosts: contextlib.ExitStack) -> Runner:
    """One engine with room for the largest arm, and both kinds of host memory."""
    kinds = {"arena": HostExperts(sizes, "arena"), "mmap": HostExperts(sizes, "mmap", folder)}
    for host in kinds.values():
        hosts.callback(host.close)
    engine = CardEngine(sizes, kinds["arena"], workers)
    engine.reserve(slots)

    def run(arm: Arm, schedule: Schedule) -> Measured:
        engine.use(kinds[arm.host])
        engine.load(schedule)
        return engine.run(arm.start)

    return run


def cardless_runner(sizes: LiveSizes, folder: Path, workers: int) -> Runner:
    """The engine without a card."""
    engine = CardlessEngine(sizes, folder, workers)

    def run(arm: Arm, schedule: Schedule) -> Measured:
        engine.load(schedule)
        return engine.run(arm.start)

    return run


def describe(label: str, cardless: bool) -> dict[str, object]:
    """Columns of the table that say where and when."""
    card: dict[str, object] = {"gpu": "none", "n_gpus": 0, "engine_version": "numba"}
    if not cardless:
        torch = require_card()
        found = torch.cuda.get_device_properties(0)
        memory = round(found.total_memory / 1e9)
        card = {"gpu": found.name, "n_gpus": 1, "vram_gb": memory, "engine_version": f"torch {torch.__version__}"}
    return card | {
        "source": "live executor of this project (benchmarks/live_runs.py)",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": f"{cpu_name()} ({os.cpu_count()} cores)",
        "ram_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "os": f"Linux {platform.release()}",
        "group": label,
        "profile": label,
        "engine": f"live-{label}",
    }


if __name__ == "__main__":
    main()
