"""Calibrate a machine with a card and run the arms of the shipped live runs.

    python benchmarks/live_runs.py --out DIR --name h200 [--rounds 3] [--seconds 480] [--groups x1 x4 cardless]

For every group four files: `NAME-GROUP.toml` (profile), `.engine.toml`, `.readings.json`, `live-NAME-GROUP.csv`.
Group x4 runs the same routing with experts and dense parts of four times the bytes, group `cardless` the engine
without a card. An arm's run is the first 160 decode passes of a bundled trace, of which 32 warm the cache.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import platform
import time
import traceback
from dataclasses import replace
from pathlib import Path

from hwmodels.calibrate import calibrate
from hwmodels.calibrate.run import cpu_name, default_workers
from hwmodels.live.card import has_card, require_card
from hwmodels.live.cardless import CardlessEngine
from hwmodels.live.engine import CardEngine, HostExperts
from hwmodels.live.steps import Measured
from sim.live.arms import Arm, decode_window, run_arms, scaled, to_rows, write_rows
from sim.live.schedule import Schedule, make_schedule, sizes_of
from traces.bundled import load

PASSES, WARMUP = 160, 32


def card_arms(trace: str, full: bool) -> list[Arm]:
    """All arms on one trace; a few of each kind unless `full`."""
    capacities = (12, 20, 32, 48) if full else (20, 40)
    middle = (20, 32, 48) if full else (32,)
    arms = [Arm(trace, n, eviction=e) for e in ("lru", "lfu", "static") for n in capacities]
    ahead = ["oracle:window=1", "oracle:window=12", "noisy-oracle:recall=0.5,precision=0.5"]
    arms += [Arm(trace, n, prefetch=p) for p in ahead for n in middle]
    arms += [Arm(trace, n, prefetch="gate-lookahead") for n in middle[:2]]
    arms += [Arm(trace, n, eviction="static", miss="cpu") for n in capacities]
    arms += [Arm(trace, n, miss="cpu", fill=True) for n in middle[:2]]
    arms += [Arm(trace, n, miss="hybrid", pcie_share=0.5) for n in middle]
    arms += [Arm(trace, middle[0], miss="stream", eviction="static")]
    arms += [Arm(trace, n, host="mmap") for n in capacities[1:3]]
    arms += [Arm(trace, n, host="mmap", eviction="static", miss="cpu") for n in capacities[1:3]]
    arms += [Arm(trace, middle[0], host="mmap", start="cold")]
    arms += [Arm(trace, middle[0], host="mmap", start="cold", eviction="static", miss="cpu")]
    return arms


def cardless_arms(trace: str) -> list[Arm]:
    """Caches of four sizes over a file, warm and cold, and an oracle."""
    sizes = (8, 16, 32, 48)
    arms = [Arm(trace, n, host="mmap", start=state) for n in sizes for state in ("warm", "cold")]
    return arms + [Arm(trace, n, host="mmap", prefetch="oracle:window=1") for n in sizes[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", default="this-machine")
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calibration-rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=480.0, help="no new run is begun later than this")
    parser.add_argument("--groups", nargs="+", default=["x1", "x4", "cardless"])
    parser.add_argument("--smoke", action="store_true", help="one short run of each kind")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    for number, group in enumerate(args.groups):
        try:
            run_group(args, group, start + args.seconds * (number + 1) / len(args.groups), full=number == 0)
        except Exception:  # the other groups are still worth having
            traceback.print_exc()


def run_group(args: argparse.Namespace, group: str, end: float, *, full: bool) -> None:
    """Calibrate, run all arms of a group, write the files."""
    start = time.monotonic()
    cardless = group == "cardless" or not has_card()
    passes, warmup = (24, 8) if args.smoke else (PASSES, WARMUP)
    names = ["tinymoe-prose", "tinymoe-code"] if full and not args.smoke else ["tinymoe-prose"]
    windows = {name: decode_window(load(name), passes) for name in names}
    factor = int(group[1:]) if group.startswith("x") else 1
    traces = {name: replace(window, geometry=scaled(window.geometry, factor)) for name, window in windows.items()}
    sizes = sizes_of(traces[names[0]].geometry)
    label = f"{args.name}-{group}"
    made = calibrate(sizes, args.folder, name=label, rounds=args.calibration_rounds, cardless=cardless)
    (args.out / f"{label}.toml").write_text(made.profile_toml)
    (args.out / f"{label}.engine.toml").write_text(made.engine_toml)
    (args.out / f"{label}.readings.json").write_text(json.dumps(made.readings.table(), indent=0))
    print(f"{label}: calibrated in {time.monotonic() - start:.0f} s; noisy: {', '.join(made.noisy) or 'none'}")

    every = full and not args.smoke
    arms = [arm for name in names for arm in (cardless_arms(name) if cardless else card_arms(name, every))]
    workers = default_workers(card=not cardless)
    hosts = (
        {} if cardless else {"arena": HostExperts(sizes, "arena"), "mmap": HostExperts(sizes, "mmap", args.folder)}
    )
    engines: dict[str, CardEngine | CardlessEngine] = {
        kind: CardEngine(sizes, host, workers) for kind, host in hosts.items()
    }
    if cardless:
        engines["mmap"] = CardlessEngine(sizes, args.folder, workers)

    @functools.cache
    def prepare(arm: Arm) -> Schedule:
        return make_schedule(traces[arm.trace], arm.choices)

    def run(arm: Arm, schedule: Schedule) -> Measured:
        engine = engines[arm.host]
        engine.load(schedule)
        return engine.run(arm.start)

    for engine in engines.values():
        if isinstance(engine, CardEngine):
            engine.reserve(max(prepare(arm).slots for arm in arms))
    outcomes = run_arms(arms, prepare, run, args.rounds, deadline=lambda: time.monotonic() > end)
    rows = []
    for name, trace in traces.items():
        own = [outcome for outcome in outcomes if outcome.arm.trace == name]
        rows += to_rows(own, describe(label, cardless), trace, warmup)
    write_rows(rows, args.out / f"live-{label}.csv")
    for row in rows:
        flags = row["flags"].replace("--eviction ", "").replace("--miss ", "").replace("--prefetch ", "")
        shown = [row[name] for name in ("tok_s", "tok_s_low", "tok_s_high", "ms_token", "ms_cpu_experts")]
        print(row["trace"][8:], row["slots_per_layer"], flags, row["mode"][0], row["start"][0], *shown)
    batched = [
        kind for kind, engine in engines.items() if isinstance(engine, CardEngine) and engine.copier.batched
    ]
    print(f"{label}: {len(rows)} arms, {time.monotonic() - start:.0f} s; copies in batches: {batched}", flush=True)
    for host in hosts.values():
        host.close()


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
