"""Results that may not change: what they are asked with, and how they are written down.

`tests/golden/` holds what `tests/test_golden.py` compares with: `runs.json` (integers of timed runs and replays),
`json/` (what commands answer with `--json`) and `help/` (what `--help` prints). After a change that is meant to
change a result:

    python -m tests.golden_runs --update

Golden files change only together with a commit that says why: a number that moved is a bug until it is explained.

Runs are asked for in the words of a scenario file, with these besides: `trace = "written"` is a tiny trace of
three requests and all phases that is made here, `"small"` the first passes of a bundled one; `machine` and
`preset` replace numbers of the profiles and of the engine's preset. The project's own modules are imported in
`Entrance` and nowhere else.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

GOLDEN = Path(__file__).parent / "golden"
RUNS = GOLDEN / "runs.json"
SIGNIFICANT = 9
"""Digits of a fraction that are kept: the last ones may be numpy's."""
LONG = 12
"""Lists of more items are kept as their length, their first items and a digest."""
VOLATILE = ("version", "hardware_sha256", "engine_sha256", "seconds", "host_name", "written_at")
"""Keys of an answer that another version or machine may have otherwise."""


class Entrance:
    """Where this project is entered."""

    def __init__(self) -> None:
        import numpy as np

        from expert_residency.hwmodels.profile import HardwareProfile
        from expert_residency.hwmodels.registry import load_profile
        from expert_residency.sim.choices.capacity import Capacity
        from expert_residency.sim.choices.preset import EnginePreset, load_engine
        from expert_residency.sim.choices.scenario import build_scenario, open_scenario_trace
        from expert_residency.sim.cli import main
        from expert_residency.sim.runs.replay import replay
        from expert_residency.sim.runs.simulate import simulate
        from expert_residency.traces import ModelGeometry, Phase, TraceBuilder, write_parquet
        from expert_residency.traces.bundled import load

        self.first = lambda trace, n: trace.select_passes(np.arange(trace.n_passes) < n)
        self.profile_of, self.load_profile, self.main = HardwareProfile.model_validate, load_profile, main
        self.capacity, self.replay, self.simulate = Capacity, replay, simulate
        self.preset_of, self.load_engine = EnginePreset.model_validate, load_engine
        self.build_scenario, self.open_scenario_trace = build_scenario, open_scenario_trace
        self.geometry, self.phase, self.builder = ModelGeometry, Phase, TraceBuilder
        self.write_parquet, self.bundled = write_parquet, load


entrance = cache(Entrance)


MIB = 1 << 20
CODE = {"trace": "bundled:tinymoe-code", "passes": 9, "hardware": "rtx-5070", "slots_per_layer": 20}
PROSE = {"trace": "bundled:tinymoe-prose", "passes": 7, "hardware": "rtx-5090", "slots_per_layer": 16}
TINY = {"trace": "written", "hardware": "tesla-p40", "slots_per_layer": 3}
"""Six layers of eight experts of 1 MB, two sizes in turn, in passes of all phases."""
SWAPS = "strata-adaptive:every=1,min_usage=1,min_gain=0"
SLOW_DISK = {"disk": {"seq_gb_per_s": 1.0, "latency_us": 100.0, "lanes": 2, "lane_gb_per_s": 0.75}}
LITTLE_RAM = {"ram": {"total_gib": 2.012, "os_reserve_gib": 2.0, "pin_limit_gib": 0.008}}
"""A page cache of a dozen experts."""
TWO = {"hardware": ["tesla-p40", "rtx-3090"], "layers_each": [2, 4]}
THREE = {"hardware": ["tesla-p40", "rtx-3090", "tesla-p100"], "layers_each": [1, 2, 3]}
EVICTIONS = (
    "2q", "arc", "belady", "belady-window:window_tokens=2", "clock", "fifo", "hobbit", "hyperbolic", "least-stale",
    "lecar", "lfru", "lfu", "lru-k", "min", "moe-infinity", "random:seed=5", "s3fifo", "sieve", "slru", "static",
    "wtinylfu",
)  # fmt: skip
PREFETCHERS = (
    "activation-match:depth=2", "co-activation", "gate-lookahead:depth=2", "gate-lookahead-parametric", "markov",
    "noisy-oracle:recall=0.6,precision=0.5,window=2", "oracle:window=3", "previous-token", "static-topk:depth=2",
    "noisy-copies:recall=0.8,precision=0.5,auc=0.9,window=2",
)  # fmt: skip

RUN_CASES: dict[str, dict[str, Any]] = {
    # who serves a miss
    "miss-cpu": CODE | {"miss": "cpu"},
    "miss-cpu-without-fill": CODE | {"miss": "cpu", "preset": {"fill": False}},
    "miss-fetch": CODE | {"miss": "fetch"},
    "miss-fetch-layer-units": PROSE | {"miss": "fetch", "preset": {"copy_unit": "layer"}},
    "miss-fetch-one-after-the-other": PROSE | {"miss": "fetch", "preset": {"overlap": False}},
    "miss-hybrid": CODE | {"miss": "hybrid"},
    "miss-hybrid-without-fill": PROSE | {"miss": "hybrid", "preset": {"fill": False, "pcie_share": 0.5}},
    "miss-hybrid-few-a-layer": PROSE | {"miss": "hybrid", "preset": {"pcie_share": 0.75, "pcie_per_layer": 1}},
    "miss-hybrid-slow-link": TINY
    | {"miss": "hybrid", "preset": {"pcie_share": 1.0, "pcie_full_gb_per_s": 24.0, "pcie_pinned_only": True}},
    "miss-stream": CODE | {"miss": "stream"},
    "miss-stream-without-fill": PROSE | {"miss": "stream", "preset": {"fill": False}},
    "no-room": TINY | {"slots_per_layer": 0, "miss": "cpu"},
    "waves": TINY | {"slots_per_layer": 1, "miss": "fetch", "scope": "layer"},
    # engines
    "engine-strata": TINY | {"engine": "strata"},
    "engine-strata-0.1.31": TINY | {"engine": "strata-0.1.31"},
    "engine-strata-reference": TINY | {"engine": "strata-reference"},
    "engine-bigmoe-edge": TINY | {"engine": "bigmoe-edge", "hardware": "bigmoe-phone"},
    "engine-fetch-lru": TINY | {"engine": "fetch-lru"},
    "engine-freetoken-hybrid": TINY | {"engine": "freetoken-hybrid"},
    "engine-llama.cpp-expert-cache": TINY | {"engine": "llama.cpp-expert-cache"},
    "engine-ncmoe": TINY | {"engine": "ncmoe"},
    "engine-every-time": TINY
    | {
        "miss": "hybrid", "prefetch": "oracle:window=2",
        "preset": {
            "row_us": 3.0, "draft_us": 40.0, "start_us": 2.0, "send_us": 5.0, "ahead_us": 4.0, "copy_us": 1.5,
            "fill_us": 6.0, "fill_copy_us": 2.5, "beside_us": 7.0, "in_flight": "miss", "copy_order": "asked",
        },
    },
    # how the host holds the experts
    "host-arena-not-pinned": TINY | {"host": "arena:pin=none", "miss": "fetch"},
    "host-arena-partly-pinned": TINY
    | {"host": "arena", "miss": "cpu", "machine": {"ram": {"pin_limit_gib": 0.02}}},
    "host-arena-whole": TINY
    | {"host": "arena:pin=whole", "miss": "cpu", "machine": {"ram": {"pin_limit_gib": 0.02}}},
    "host-mmap-cold": TINY | {"host": "mmap", "start": "cold", "miss": "cpu"},
    "host-mmap-warm": TINY | {"host": "mmap", "start": "warm", "miss": "cpu", "machine": LITTLE_RAM},
    "host-mmap-fault-cold": TINY | {"host": "mmap:access=fault", "start": "cold", "miss": "fetch"},
    "host-mmap-direct-cold": TINY
    | {"host": "mmap:access=direct", "start": "cold", "miss": "fetch", "machine": SLOW_DISK},
    "host-mmap-prefetched-pages": TINY
    | {"host": "mmap", "start": "cold", "miss": "cpu", "prefetch": "oracle", "insertion": "pages"},
    "host-gguf-cold": TINY | {"host": "gguf-in-place", "start": "cold", "miss": "cpu", "machine": LITTLE_RAM},
    "host-gguf-warm": TINY | {"host": "gguf-in-place", "miss": "fetch", "machine": LITTLE_RAM | SLOW_DISK},
    "host-resident-never": TINY
    | {"host": "resident", "admission": "never", "placement": "hindsight", "miss": "cpu"},
    "host-resident-exchange": TINY
    | {"host": "resident", "admission": SWAPS, "placement": "hindsight", "miss": "cpu"},
    "host-resident-streams": TINY
    | {"host": "resident:swap=streams", "admission": SWAPS, "placement": "prompt", "miss": "stream"},
    "host-budget-blobs": TINY
    | {"host": "budget:gib=0.006", "admission": SWAPS, "placement": "hindsight", "miss": "cpu", "start": "cold"},
    "host-budget-gguf": TINY
    | {
        "host": "budget:gib=0.006,file=gguf,swap=streams", "admission": SWAPS, "placement": "prompt",
        "miss": "hybrid", "machine": LITTLE_RAM,
    },
    "host-flash": TINY | {"host": "flash", "miss": "fetch", "machine": SLOW_DISK},
    "host-flash-read-by-the-link": TINY | {"host": "flash", "miss": "fetch", "preset": {"reads": "link"}},
    # who is let in, who is there at the start
    "admission-strata-adaptive": CODE
    | {"miss": "cpu", "admission": "strata-adaptive:every=2", "placement": "prompt"},
    "admission-strata-waits": TINY
    | {"miss": "hybrid", "admission": SWAPS, "placement": "hindsight", "preset": {"adapt_waits": True}},
    "admission-strata-prefetch": TINY | {"miss": "fetch", "admission": SWAPS, "prefetch": "previous-token"},
    "admission-balanced": TINY | {"miss": "hybrid", "admission": "balanced"},
    "admission-cap": TINY | {"miss": "cpu", "admission": "cap:per_event=1"},
    "admission-fraction": TINY | {"miss": "hybrid", "admission": "fraction:share=0.4"},
    "admission-frequency-gate": TINY | {"miss": "cpu", "admission": "frequency-gate"},
    "admission-hysteresis": TINY | {"miss": "cpu", "admission": "hysteresis:margin=1"},
    "admission-two-hit": TINY | {"miss": "cpu", "admission": "two-hit"},
    "admission-decode-only": TINY | {"miss": "cpu", "preset": {"prefill_admits": False}},
    "placement-layers": TINY | {"miss": "cpu", "admission": "never", "placement": "layers", "slots_per_layer": 4},
    "placement-matched": TINY | {"miss": "cpu", "admission": "never", "placement": "matched:hits=0.4"},
    "placement-full": TINY | {"miss": "fetch", "placement": "full", "slots_per_layer": 8},
    "placement-profile": TINY | {"miss": "cpu", "placement": "profile:file=<folder>/profile.csv"},
    "placement-strp": {
        "trace": "small", "hardware": "rtx-5070", "slots_per_layer": 12, "passes": 6, "miss": "cpu",
        "placement": "strp:file=<folder>/profile.strp", "admission": "cap:per_event=2",
    },
    # room
    "scope-layer": PROSE | {"miss": "fetch", "scope": "layer"},
    "scope-layer-quotas": {k: v for k, v in PROSE.items() if k != "slots_per_layer"}
    | {"miss": "cpu", "scope": "layer:hindsight", "capacity": "150MiB"},
    "scope-global-below-one-token": {k: v for k, v in CODE.items() if k != "slots_per_layer"}
    | {"miss": "fetch", "capacity": "40MiB", "passes": 5},
    # where prefetched experts go
    "insertion-guarded": TINY | {"miss": "fetch", "prefetch": "previous-token", "insertion": "guarded:events=1"},
    "insertion-never-evict": TINY | {"miss": "cpu", "prefetch": "oracle:window=3", "insertion": "never-evict"},
    "insertion-staging": TINY | {"miss": "fetch", "prefetch": "oracle:window=2", "insertion": "staging:slots=2"},
    "prefetch-with-a-budget": TINY
    | {"miss": "fetch", "prefetch": "oracle:window=3", "prefetch_bytes": 3_000_000, "predict_us": 12.5},
    "prefetch-staging-recorded": CODE
    | {"miss": "hybrid", "prefetch": "gate-lookahead", "insertion": "staging:slots=4", "predict_us": 30},
    # several cards
    "cards-two": TINY | TWO | {"miss": "fetch"},
    "cards-two-p2p": TINY
    | TWO
    | {"miss": "cpu", "p2p": True, "eviction": "lfru", "machine": {"link": {"p2p_us": 9.0, "p2p_gb_per_s": 12.0}}},
    "cards-two-own-room": {k: v for k, v in (TINY | TWO).items() if k != "slots_per_layer"}
    | {"miss": "hybrid", "card_capacity": ["8MB", "12MB"], "prefetch": "oracle:window=2"},
    "cards-two-one-port": TINY
    | TWO
    | {"miss": "fetch", "machine": {"link": {"root_port": "a", "root_port_gb_per_s": 9.0}}, "prefetch": "markov"},
    "cards-two-swaps": TINY | TWO | {"miss": "stream", "admission": SWAPS, "scope": "layer"},
    "cards-three": TINY | THREE | {"miss": "fetch", "prefetch": "previous-token"},
    "cards-three-mmap": TINY | THREE | {"miss": "cpu", "host": "mmap", "start": "cold", "scope": "layer"},
    # windows, prompts, drawn traces
    "windows": CODE | {"miss": "cpu", "windows": {"rows": 3.5, "emitted": 2.6}, "engine": "strata"},
    "windows-prefetch": PROSE
    | {"miss": "fetch", "windows": {"rows": 2.0, "emitted": 1.5}, "prefetch": "oracle", "eviction": "belady"},
    "chunks": CODE | {"miss": "fetch", "chunk": 32, "passes": 6},
    "synthetic": {
        "trace": "synthetic", "model": "granite-3.0-1b-a400m/Q8_0", "hardware": "rtx-3070", "slots_per_layer": 8,
        "synthetic": {"style": "qwen3-30b-a3b", "tokens": 6, "prompt_tokens": 4, "seed": 3}, "miss": "cpu",
    },
    "synthetic-drafts": {
        "trace": "synthetic", "model": "granite-3.0-1b-a400m/FP16", "hardware": "rtx-4060ti", "slots_per_layer": 6,
        "synthetic": {
            "style": "qwen3-30b-a3b", "tokens": 8, "prompt_tokens": 3, "seed": 4, "draft_tokens": 2,
            "acceptance": 0.6,
        },
        "miss": "hybrid", "engine": "strata",
    },
    **{
        f"eviction-{name.split(':')[0]}": TINY | {"eviction": name, "miss": ("fetch", "cpu", "hybrid")[i % 3]}
        for i, name in enumerate(EVICTIONS)
    },
    **{
        f"prefetch-{name.split(':')[0]}": (CODE | {"passes": 6} if name.startswith("gate-lookahead:") else TINY)
        | {"prefetch": name, "miss": ("fetch", "cpu", "stream")[i % 3]}
        for i, name in enumerate(PREFETCHERS)
    },
}  # fmt: skip
"""Timed runs, by name."""

QUICK = ("miss-fetch", "miss-cpu", "host-mmap-cold", "host-resident-exchange", "cards-two", "windows-prefetch",
         "prefetch-oracle", "eviction-belady")  # fmt: skip
"""Runs whose compiled side is tried in the quick part: their policies are compiled by other tests anyway."""

REPLAY_CASES: dict[str, dict[str, Any]] = {
    "lru": {"eviction": "lru", "slots_per_layer": 20},
    "lru-layer": {"eviction": "lru", "slots_per_layer": 20, "scope": "layer"},
    "lru-sequential": {"eviction": "lru", "slots_per_layer": 12, "scope": "layer", "contract": "sequential"},
    "lru-descending": {"eviction": "lru", "slots_per_layer": 12, "contract": "sequential-descending"},
    "lru-overflow": {"eviction": "lru", "slots_per_layer": 4, "scope": "layer", "oversize": "overflow"},
    "lru-waves": {"eviction": "lru", "slots_per_layer": 4, "scope": "layer"},
    "lru-quotas": {"eviction": "lru", "total_bytes": 150 * MIB, "scope": "layer", "quotas": "hindsight"},
    "lru-warmup": {"eviction": "lru", "total_bytes": 150 * MIB, "warmup_passes": 5, "placement": "hindsight"},
    "lru-swaps": {"eviction": "lru", "slots_per_layer": 16, "admission": SWAPS, "placement": "prompt"},
    "lru-swaps-late": {
        "eviction": "lru", "slots_per_layer": 16, "admission": SWAPS, "placement": "prompt", "lag_passes": 2
    },
    "lru-two-hit": {"eviction": "lru", "slots_per_layer": 16, "admission": "two-hit"},
    "lfu-hysteresis": {"eviction": "lfu", "slots_per_layer": 16, "admission": "hysteresis:margin=1"},
    **{name: {"eviction": name, "slots_per_layer": 14, "scope": "layer"} for name in EVICTIONS},
}  # fmt: skip
"""Replays of the small trace, by name: the arguments of `replay`, those of `Capacity` among them."""
QUICK_REPLAYS = ("lru", "lru-layer", "lru-overflow", "lru-sequential")
CAPACITY = ("total_bytes", "slots_per_layer", "scope", "quotas")


def written_trace() -> Any:
    """Three requests of a prompt, decode passes and verify windows, on six layers of eight experts."""
    at = entrance()
    layers, experts, top_k = 6, 8, 2
    shape = at.geometry(
        "tiny", tuple(range(layers)), experts, top_k, (1_000_000, 1_000_000, 600_000) * 2, (500_000,) * layers,
        hidden_size=64, quant_family="q4", head_bytes=200_000, dense_only_bytes=100_000, expert_params=1_000_000,
    )  # fmt: skip
    builder, draw = at.builder(shape), random.Random(20)
    passes = [(0, 4), (1, 1), (1, 1), (2, 3), (1, 1), (2, 2), (1, 1), (1, 1)]
    for request in range(3):
        for phase, rows in passes:
            builder.begin_pass(at.phase(phase), request=request, emits=max(1, rows - 1) if phase == 2 else None)
            for layer in range(layers):
                for _ in range(rows):  # low numbers are hot; of `random` only `random()` is the same everywhere
                    heat = [draw.random() ** (1 + expert) for expert in range(experts)]
                    builder.row(layer, sorted(range(experts), key=lambda e: -heat[e])[:top_k])
    return builder.build()


def small_trace() -> Any:
    """The first passes of a bundled trace."""
    return entrance().first(entrance().bundled("tinymoe-code"), 12)


WRITTEN: dict[str, Callable[[], Any]] = {"written": cache(written_trace), "small": cache(small_trace)}


def timed(case: dict[str, Any], simulator: str, folder: Path) -> dict[str, Any]:
    """Integers of one run."""
    at, choices = entrance(), dict(case)
    machine, preset = choices.pop("machine", {}), choices.pop("preset", {})
    if "placement" in choices:
        choices["placement"] = choices["placement"].replace("<folder>", str(folder))
    scenario = at.build_scenario(choices)
    own = WRITTEN.get(scenario.trace)
    trace = own() if own else at.open_scenario_trace(scenario)
    trace = at.first(trace, scenario.passes or trace.n_passes)
    result = at.simulate(
        trace, scenario.spec, simulator=simulator,
        profiles=[_changed(at.load_profile(name), machine, at.profile_of) for name in scenario.spec.hardware],
        preset=_changed(at.load_engine(scenario.spec.engine), preset, at.preset_of),
    )  # fmt: skip
    assert result.simulator == simulator
    found = integers(result.to_dict(passes=True))
    return found | {"resident_end": [int(result.resident_end.sum()), digest(result.resident_end.tolist())]}


def counted(case: dict[str, Any], simulator: str) -> dict[str, Any]:
    """Integers of one replay."""
    at, choices = entrance(), dict(case)
    room = at.capacity(**{key: choices.pop(key) for key in CAPACITY if key in choices})
    result = at.replay(WRITTEN["small"](), choices.pop("eviction"), room, simulator=simulator, **choices)
    assert result.simulator == simulator
    return integers(result.to_dict()) | {"hits_digest": digest(result.hits.tolist())}


def _changed(thing: Any, changes: dict[str, Any], build: Callable[[Any], Any]) -> Any:
    """A profile or preset with other values; a number where a quantity stands replaces its value."""
    if not changes:
        return thing
    data = thing.model_dump()

    def merge(into: dict[str, Any], new: dict[str, Any]) -> None:
        for key, value in new.items():
            if isinstance(value, dict):
                merge(into[key], value)
            elif isinstance(into[key], dict):
                into[key]["value"] = value
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                into[key] = {"value": value, "kind": "assumed", "source": "a test"}
            else:
                into[key] = value

    merge(data, changes)
    return build(data)


def digest(data: Any) -> str:
    """Ten hex digits of plain data."""
    return hashlib.sha256(json.dumps(data, separators=(",", ":")).encode()).hexdigest()[:10]


def integers(found: dict[str, Any]) -> dict[str, Any]:
    """Whole numbers of a result, zeros left out; long lists as their digest."""
    kept: dict[str, Any] = {}
    for key, value in found.items():
        if isinstance(value, dict) and key != "manifest":
            if inside := integers(value):
                kept[key] = inside
        elif isinstance(value, list) and key.startswith("pass_"):
            kept[key] = digest(value)
        elif type(value) is int and value:
            kept[key] = value
    return kept


# What commands answer.


JSON_CASES = {
    "list-policies": "list policies",
    "list-hardware": "list hardware",
    "list-models": "list models",
    "list-formats": "list formats",
    "list-engines": "list engines",
    "list-traces": "list traces",
    "inspect": "inspect <folder>/small.parquet",
    "inspect-csv": "inspect <folder>/small.csv --model <folder>/model.toml",
    "replay": "replay <folder>/small.parquet --slots-per-layer 16 --simulator reference",
    "replay-layer": (
        "replay <folder>/small.parquet --capacity 150MiB --scope layer:prompt --eviction lfru --eviction 2q "
        "--admission two-hit --warmup 3 --simulator reference"
    ),
    "curve": "curve <folder>/small.parquet --points 2 --simulator reference",
    "curve-global": (
        "curve <folder>/small.parquet --points 3 --scope global --eviction lru --eviction lfu --simulator "
        "reference"
    ),
    "run": (
        "run --trace <folder>/small.parquet --hardware rtx-5070 --slots-per-layer 16 --passes 6 --miss hybrid "
        "--eviction lfru --simulator reference"
    ),
    "run-ceiling": (
        "run --trace <folder>/small.parquet --hardware rtx-5070 --capacity 150MiB --passes 5 --engine strata "
        "--prefetch gate-lookahead --insertion staging:slots=4 --ceiling --simulator reference"
    ),
    "run-scenario": "run <folder>/scenario.toml --simulator reference",
    "run-variants": "run <folder>/variants.toml --simulator reference",
    "sweep": "sweep <folder>/sweep.toml --out <folder>/sweep --workers 1",
    "score": (
        "sweep <folder>/sweep.toml --out <folder>/scored --workers 1 && score <folder>/scored --trace "
        "<folder>/small.parquet --passes 4"
    ),
    "tune": "tune <folder>/tune.toml --out <folder>/tuned --trials 4 && score <folder>/tuned",
    "split": (
        "split --model granite-3.0-1b-a400m --quant FP16 --gpu tesla-p40 --count 1..2 --ram 32GB --session "
        "1GiB --host arena --host mmap --simulate 0 --engine generic"
    ),
    "split-rules": (
        "split --model granite-3.0-1b-a400m --quant Q8_0 --gpu tesla-p40 --count 2 --session 1GiB --n-cpu-moe "
        "6 -ts 10,15"
    ),
    "split-simulated": (
        "split --model qwen3.8-flash-next --quant UD-Q4_K_XL --gpu tesla-p40 --gpu rtx-3090 --count 2 --ram "
        "64GB --simulate 1 --engine generic"
    ),
    "split-layers": "split --model gpt-oss-20b --gpu rtx-3070 --count 1..2 --ram 64GB",
    "vram": "vram --model qwen3.8-flash-next --hardware rtx-5070",
    "predictor": (
        "predictor <folder>/small.parquet --hardware rtx-5070 --slots-per-layer 16 --passes 3 --recalls 0.5,1 "
        "--precisions 0.5,1 --windows 1,2 --rank-qualities 0.8 --workers 1"
    ),
    "window": "window <folder>/small.parquet --slots 200 --horizon 1 --horizon 4 --link rtx-5070",
    "window-strp": "window <folder>/small.parquet --slots 150 --horizon 2 --profile <folder>/profile.strp",
    "validate-published": "validate --group published",
    "validate-live": "validate --group live",
}
"""Commands in order, by name; the last one's `--json` is kept."""
SLOW_JSON = ("split-simulated", "validate-live")
AS_JSON: dict[str, list[str]] = {"sweep": ["--json"], "tune": []}

FILES = {
    "scenario.toml": """
trace = "small.parquet"
hardware = ["rtx-5070", "tesla-p40"]
layers_each = [5, 7]
slots_per_layer = 12
eviction = "slru"
prefetch = "previous-token"
miss = "fetch"
chunk = 64
passes = 6
""",
    "variants.toml": """
trace = "small.parquet"
hardware = "rtx-5070"
slots_per_layer = 12
host = "mmap"
miss = "cpu"
passes = 4

[[variants]]
name = "cold"
start = "cold"

[[variants]]
name = "again"
start = "carry"
""",
    "sweep.toml": """
[traces]
code = "small.parquet"

[constants]
miss = "fetch"
passes = 4
hardware = "rtx-5070"

[axes]
capacity = ["20%", "40%"]
eviction = ["lru", "lfu"]
prefetch = ["none", "oracle"]
""",
    "tune.toml": """
name = "search"
seed = 3

[traces]
code = "small.parquet"

[choices]
hardware = "rtx-5070"
miss = "fetch"
passes = 3
capacity = "{share}%"
eviction = "{policy}"

[parameters]
share = { low = 10, high = 60, step = 10 }
policy = { values = ["lru", "lfu"] }
""",
    "model.toml": """
name = "hand-made"
total_layers = 2
experts = 4
top_k = 2
source = "a test"
default_quant = "Q4"

[quants.Q4]
family = "q4"
expert_bytes = 1000
dense_layer_bytes = 500
kind = "assumed"
source = "a test"
""",
    "small.csv": "layer,expert\n0,0\n0,1\n1,2\n1,3\n0,1\n0,2\n1,2\n1,0\n",
    "profile.csv": "layer,expert,count\n5,1,9\n5,2,3\n0,7,8\n1,0,7\n2,3,6\n3,3,5\n4,6,4\n",
}
"""Files beside the small trace in the folder that the commands name."""


def fill(folder: Path) -> None:
    """Put there what the commands read."""
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    entrance().write_parquet(WRITTEN["small"](), folder / "small.parquet")
    profile = str(folder / "profile.strp")
    said(["placement", str(folder / "small.parquet"), "--slots", "150", "--first", "2", "--out", profile])


def said(words: list[str], columns: int = 100) -> str:
    """What a command prints."""
    with (
        mock.patch.object(sys, "argv", ["residency"]),
        mock.patch.dict(vars(sys.modules["__main__"]), {"__package__": ""}),  # else help names this program
        mock.patch.dict("os.environ", {"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"}),
        redirect_stdout(io.StringIO()) as out,
    ):
        try:
            entrance().main(words)
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"{words} ended with {end.code}") from None
    return out.getvalue()


def answer(name: str, folder: Path) -> Any:
    """JSON of a case, without what may differ and with long lists cut."""
    text = ""
    for command in JSON_CASES[name].split(" && "):
        words = [word.replace("<folder>", str(folder)) for word in command.split()]
        text = said(words + AS_JSON.get(words[0], ["--json", "-"]))
    return normal(json.loads(text), str(folder))


def normal(data: Any, folder: str) -> Any:
    """Plain data that is the same on every machine: the only place that says what does not count."""
    if isinstance(data, dict):
        return {
            key.replace(folder, "<folder>"): "..." if key in VOLATILE else normal(value, folder)
            for key, value in data.items()
        }
    if isinstance(data, list):
        items = [normal(value, folder) for value in data]
        if len(items) <= LONG:
            return items
        return {"length": len(items), "first": items[:2], "last": items[-1], "digest": digest(items)}
    if isinstance(data, float):
        return float(f"{data:.{SIGNIFICANT}g}")
    if isinstance(data, str):
        return data.replace(folder, "<folder>")
    return data


def help_cases() -> Iterator[tuple[str, list[str]]]:
    """Name of the file and words of every command: the first `--help` lists them."""
    yield "residency", ["--help"]
    listed = said(["--help"]).partition("\nCommands:\n")[2]
    for name in re.findall(r"^  ([a-z][\w-]*)", listed, re.MULTILINE):
        yield name, [name, "--help"]


def text_of(data: Any) -> str:
    """A JSON file with a line for each run."""
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def runs_text(folder: Path, simulator: str = "reference") -> str:
    """`runs.json` as it should be."""
    parts = []
    for kind, cases, ask in (
        ("timed", RUN_CASES, lambda case: timed(case, simulator, folder)),
        ("replay", REPLAY_CASES, lambda case: counted(case, simulator)),
    ):
        lines = [
            f" {json.dumps(name)}: {json.dumps(ask(case), separators=(',', ':'))}" for name, case in cases.items()
        ]
        parts.append(f"{json.dumps(kind)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


PARTS = ("runs", "json", "help")


def update(parts: Sequence[str] = PARTS) -> None:
    """Write golden files anew."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder)
        if "runs" in parts:
            RUNS.write_text(runs_text(folder), encoding="utf-8")
        if "json" in parts:
            emptied("json")
            for case in JSON_CASES:
                (GOLDEN / "json" / f"{case}.json").write_text(text_of(answer(case, folder)), encoding="utf-8")
    if "help" in parts:
        emptied("help")
        for case, words in help_cases():
            (GOLDEN / "help" / f"{case}.txt").write_text(said(words), encoding="utf-8")


def emptied(part: str) -> None:
    """Make a folder of golden files that holds none."""
    (GOLDEN / part).mkdir(parents=True, exist_ok=True)
    for old in (GOLDEN / part).iterdir():
        old.unlink()


if __name__ == "__main__":
    if sys.argv[1:2] != ["--update"] or set(sys.argv[2:]) - set(PARTS):
        sys.exit(f"python -m tests.golden_runs --update [{'] ['.join(PARTS)}]")
    update(sys.argv[2:] or PARTS)
