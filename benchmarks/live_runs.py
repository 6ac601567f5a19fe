"""Calibrate a machine with a card and run the arms of the shipped live runs.

    python benchmarks/live_runs.py --out DIR --name h200 [--rounds 3] [--seconds 480] [--scale 1 4]

For every scale: `NAME-xS.toml` (profile), `NAME-xS.engine.toml`, `NAME-xS.readings.json`, `live-NAME-xS.csv`.
Scale 4 runs the same routing with experts and dense parts of four times the bytes. An arm's run is the first 160
decode passes of a bundled trace, of which 32 warm the cache.
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
from hwmodels.calibrate.run import cpu_name
from hwmodels.live.card import require_card
from hwmodels.live.experts import max_workers
from sim.live.arms import Arm, decode_window, run_arms, to_rows, write_rows
from sim.live.card import CardEngine, HostExperts, sizes_of
from sim.live.measured import Measured
from sim.live.schedule import Schedule, make_schedule
from traces import ModelGeometry
from traces.bundled import load

PASSES, WARMUP = 160, 32


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
        source=f"{factor} times the bytes of {geometry.label}",
    )


def arms_of(trace: str, full: bool) -> list[Arm]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", default="this-machine")
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calibration-rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=480.0, help="no new run is begun later than this")
    parser.add_argument("--scale", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--smoke", action="store_true", help="one short run of each kind")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + args.seconds
    for number, scale in enumerate(args.scale):
        share = end if number == len(args.scale) - 1 else end - 0.3 * args.seconds
        try:
            one_scale(args, scale, share, full=number == 0 and not args.smoke)
        except Exception:  # the other scale is still worth having
            traceback.print_exc()


def one_scale(args: argparse.Namespace, scale: int, end: float, *, full: bool) -> None:
    torch = require_card()
    start = time.monotonic()
    passes, warmup = (24, 8) if args.smoke else (PASSES, WARMUP)
    traces = {}
    for name in ("tinymoe-prose", "tinymoe-code"):
        window = decode_window(load(name), passes)
        traces[name] = replace(window, geometry=scaled(window.geometry, scale))
    geometry = traces["tinymoe-prose"].geometry
    label = f"{args.name}-x{scale}"
    made = calibrate(sizes_of(geometry), args.folder, name=label, rounds=args.calibration_rounds)
    (args.out / f"{label}.toml").write_text(made.profile_toml)
    (args.out / f"{label}.engine.toml").write_text(made.engine_toml)
    (args.out / f"{label}.readings.json").write_text(json.dumps(made.readings.table(), indent=0))
    print(
        f"{label}: calibrated in {time.monotonic() - start:.0f} s; noisy: {', '.join(made.noisy) or 'none'}",
        flush=True,
    )

    hosts = {"arena": HostExperts(geometry, "arena"), "mmap": HostExperts(geometry, "mmap", args.folder)}
    engines = {kind: CardEngine(geometry, host, max_workers()) for kind, host in hosts.items()}

    @functools.cache
    def prepare(arm: Arm) -> Schedule:
        return make_schedule(traces[arm.trace], arm.choices)

    def run(arm: Arm, schedule: Schedule) -> Measured:
        engine = engines[arm.host]
        engine.load(schedule)
        return engine.run(cold=arm.start == "cold")

    arms = [arm for name in (traces if full else ["tinymoe-prose"]) for arm in arms_of(name, full)]
    for engine in engines.values():
        engine.reserve(max(prepare(arm).slots for arm in arms))
    outcomes = run_arms(arms, prepare, run, args.rounds, deadline=lambda: time.monotonic() > end)
    properties = torch.cuda.get_device_properties(0)
    machine = {
        "source": "live executor of this project (benchmarks/live_runs.py)",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "engine_version": f"torch {torch.__version__}",
        "gpu": properties.name,
        "n_gpus": 1,
        "vram_gb": round(properties.total_memory / 1e9),
        "cpu": f"{cpu_name()} ({os.cpu_count()} cores)",
        "ram_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "os": f"Linux {platform.release()}",
        "group": label,
        "profile": label,
        "engine": f"live-{label}",
    }
    rows = [row for name, trace in traces.items()
            for row in to_rows([o for o in outcomes if o.arm.trace == name], machine, trace, warmup)]  # fmt: skip
    write_rows(rows, args.out / f"live-{label}.csv")
    for row in rows:
        flags = row["flags"].replace("--eviction ", "").replace("--miss ", "").replace("--prefetch ", "")
        shown = [
            row[name] for name in ("tok_s", "tok_s_low", "tok_s_high", "ms_token", "ms_gpu", "ms_cpu_experts")
        ]
        print(row["trace"][8:], row["slots_per_layer"], flags, row["mode"][0], row["start"][0], *shown)
    print(f"{label}: {len(rows)} arms, {time.monotonic() - start:.0f} s", flush=True)
    for host in hosts.values():
        host.close()


if __name__ == "__main__":
    main()
