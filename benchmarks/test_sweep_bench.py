"""What a sweep costs: cells a second, its overhead over bare runs, memory of a worker.

Run with `pytest benchmarks/test_sweep_bench.py -m benchmark_run`. Ratios are asserted, seconds are recorded.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.sweep import sweep
from expert_residency.sim.sweep.cells import plan_cells
from expert_residency.sim.sweep.spec import load_sweep
from expert_residency.sim.sweep.stored import open_stored, open_view, store
from expert_residency.traces.bundled import load

pytestmark = pytest.mark.benchmark_run

SOURCE: dict[str, Any] = {
    "traces": {"code": "bundled:tinymoe-code"},
    "constants": {"miss": "fetch", "passes": 100},
    "axes": {
        "hardware": ["rtx-5070", "tesla-p40"],
        "capacity": ["20%", "40%", "60%"],
        "eviction": ["lru", "lfu"],
        "prefetch": ["none", "previous-token"],
    },
}
LOOKUPS = 5_000_000


@pytest.mark.parametrize("workers", [1, 2])
def test_cells_a_second(benchmark: Any, tmp_path: Path, workers: int) -> None:
    folders = iter(tmp_path / str(number) for number in range(10))
    result = benchmark.pedantic(lambda: sweep(SOURCE, next(folders), workers=workers), rounds=3, warmup_rounds=1)
    assert result.ran == 24
    benchmark.extra_info["cells_per_s"] = 24 / benchmark.stats.stats.median


def test_overhead_over_bare_runs(benchmark: Any, tmp_path: Path) -> None:
    """Processor time of a sweep on one worker against the same runs in a loop."""
    file, where, base = load_sweep(SOURCE)
    cells = plan_cells(file, where, base, tmp_path / "cache")

    def bare() -> float:
        began = time.process_time()
        trace = open_view(cells[0].view)
        for cell in cells:
            simulate(trace, cell.spec)
        return time.process_time() - began

    def swept(number: int) -> float:
        began = time.process_time()
        sweep(SOURCE, tmp_path / str(number), workers=1)
        return time.process_time() - began

    bare(), swept(0)
    ratios = [swept(number) / bare() for number in range(1, 6)]
    benchmark.extra_info["overhead"] = min(ratios) - 1
    benchmark.pedantic(lambda: None)
    assert min(ratios) < 1.05


def test_a_report_is_written_and_opened(benchmark: Any, tmp_path: Path) -> None:
    from expert_residency.sim.report import write_report

    sweep(SOURCE, tmp_path / "sweep", workers=1)
    path = benchmark(lambda: write_report(tmp_path / "sweep", tmp_path / "report.html"))
    benchmark.extra_info["bytes"] = path.stat().st_size


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored trace of five million look-ups."""
    from expert_residency.traces import load_model
    from expert_residency.traces.synthetic import generate, load_style

    geometry = load_model("qwen3-30b-a3b")
    tokens = -(-LOOKUPS // (geometry.n_layers * geometry.top_k)) + 1
    trace = generate(geometry, load_style("qwen3-30b-a3b"), tokens=tokens, seed=1, weights=False)
    assert trace.n_lookups >= LOOKUPS
    return store(trace, tmp_path_factory.mktemp("large"))


REPLAYS = """
import json, sys
from pathlib import Path
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.sweep.stored import open_stored
from expert_residency.sim.sweep.worker import peak_rss_bytes
trace = open_stored(Path(sys.argv[1]))
total = trace.geometry.all_expert_bytes
hits = [replay(trace, "lru", Capacity(total * n // 16)).phases["all"].hit_rate for n in range(1, 9)]
print(json.dumps([hits, peak_rss_bytes()]))
"""
TIMED = """
import json, sys
from pathlib import Path
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.sweep.stored import open_stored
from expert_residency.sim.sweep.worker import peak_rss_bytes
class Enough(Exception): pass
def stop(passes):
    if passes == 50: raise Enough
trace = open_stored(Path(sys.argv[1]))
for n in range(1, 9):
    room = Capacity(trace.geometry.all_expert_bytes * n // 64)
    try: simulate(trace, RunSpec(("rtx-5090",), room, miss="fetch", host="mmap"), progress=stop)
    except Enough: pass
print(json.dumps([[], peak_rss_bytes()]))
"""


@pytest.mark.parametrize("what", ["replay", "timed"])
def test_memory_of_a_worker_on_five_million_lookups(benchmark: Any, large: Path, what: str) -> None:
    code = {"replay": REPLAYS, "timed": TIMED}[what]

    def run() -> Any:
        done = subprocess.run([sys.executable, "-c", code, str(large)], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    hits, peak = benchmark.pedantic(run, rounds=1)
    assert hits == sorted(hits)
    benchmark.extra_info["peak_rss_bytes"] = peak
    assert peak < 1e9


def test_a_worker_opens_a_trace_in_no_time(benchmark: Any, large: Path) -> None:
    trace = benchmark(lambda: open_stored(large))
    assert trace.n_rows * trace.geometry.top_k >= LOOKUPS


def test_a_small_trace_is_stored_quickly(benchmark: Any, tmp_path: Path) -> None:
    trace = load("tinymoe-code")
    folders = iter(tmp_path / str(number) for number in range(10_000))
    benchmark(lambda: store(trace, next(folders)))
