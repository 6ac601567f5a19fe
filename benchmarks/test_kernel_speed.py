"""Ratios of the compiled replay, interleaved in one run, medians of CPU time of the thread.

    pytest benchmarks/test_kernel_speed.py -m benchmark_run -s

Ratios against libCacheSim need its wheel (`pip install libcachesim`); both replay the same single-expert events,
24,576 experts of one pool of a quarter of them, popularity 1 / rank, and must count the same misses.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import fields
from statistics import median

import numpy as np
import pytest

from expert_residency.policies import create
from expert_residency.policies.protocol import NEVER, Pool
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.kernel.counts.future import future_arrays
from expert_residency.sim.kernel.counts.replay import ReplayKernel, StepArrays
from expert_residency.sim.residency.pool import make_pool
from expert_residency.sim.runs.curve import hit_curve
from expert_residency.sim.runs.steps import Steps
from expert_residency.traces import ModelGeometry, Phase
from expert_residency.traces.trace import assemble

pytestmark = pytest.mark.benchmark_run
EXPERTS, LOOK_UPS, ROUNDS = 24_576, 3_000_000, 7


def cpu_s(work):
    began = time.thread_time()
    work()
    return time.thread_time() - began


def interleaved(*works):
    """Median CPU seconds of each, after one round that warms up."""
    taken = [[cpu_s(work) for work in works] for _ in range(ROUNDS + 1)][1:]
    return [median(times) for times in zip(*taken, strict=True)]


def single_events(look_ups=LOOK_UPS):
    rng = np.random.default_rng(1)
    weights = 1 / np.arange(1, EXPERTS + 1)
    edges = np.cumsum(weights / weights.sum())[:-1]
    keys = rng.permutation(EXPERTS)[np.searchsorted(edges, rng.random(look_ups), side="right")]
    ones = np.ones(look_ups)
    return StepArrays.of(
        np.arange(look_ups + 1), ones * 0, np.arange(look_ups), keys.astype(np.int32), ones, ones, ones * 0
    )  # fmt: skip


def one_pool(slots, experts=EXPERTS):
    return Pool(experts, 1, experts, 1, 1, [0] * experts, [1] * experts, [slots], [slots])


@pytest.fixture(scope="module")
def steps():
    return single_events()


@pytest.fixture(scope="module")
def oracle_file(steps, tmp_path_factory):
    path = tmp_path_factory.mktemp("oracle") / "trace.bin"
    records = np.zeros(LOOK_UPS, dtype=[("t", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
    next_use = np.asarray(future_arrays(steps, [0] * EXPERTS).next_use)
    records["t"], records["object"], records["size"] = np.arange(LOOK_UPS), steps.keys + 1, 1
    records["next"] = np.where(next_use == NEVER, -1, next_use)
    records.tofile(path)
    return str(path)


@pytest.mark.parametrize(
    ("name", "theirs", "least"),
    [("lru", "LRU", 2.0), ("s3fifo", "S3FIFO", 1.0), ("sieve", "Sieve", 1.0), ("belady", "Belady", 1.0)],
)
def test_against_libcachesim(name, theirs, least, steps, oracle_file):
    lib = pytest.importorskip("libcachesim")
    policy, admission = create("eviction", name), create("admission", "always")
    future = future_arrays(steps, [0] * EXPERTS) if policy.needs_future else None
    missed = {}

    def ours():
        kernel = ReplayKernel(one_pool(EXPERTS // 4), policy, admission, future)
        kernel.feed(steps)
        missed["ours"] = LOOK_UPS - int(kernel.counters.sum(axis=0)[1])

    def other():
        cache = getattr(lib, theirs)(EXPERTS // 4, hashpower=16)
        reader = lib.TraceReader(oracle_file, lib.TraceType.ORACLE_GENERAL_TRACE)
        missed["theirs"] = round(cache.process_trace(reader)[0] * LOOK_UPS)

    mine, its = interleaved(ours, other)
    print(f"\n{name}: {LOOK_UPS / mine / 1e6:.1f} M/s, libcachesim {LOOK_UPS / its / 1e6:.1f}, x {its / mine:.2f}")
    assert missed["ours"] == missed["theirs"]
    assert its / mine >= least


def layered(passes, repeat=1, layers=48, experts=512, k=10):
    """One-token passes with uneven routing, over and over."""
    rng = np.random.default_rng(2)
    popularity = np.log(1 / np.arange(1, experts + 1) ** 0.8)
    order = np.stack([rng.permutation(experts) for _ in range(layers)])
    chosen = [
        order[layer, np.argpartition(-(rng.gumbel(size=experts) + popularity), k)[:k]]
        for _ in range(passes) for layer in range(layers)
    ]  # fmt: skip
    total = passes * repeat
    return assemble(
        ModelGeometry("uneven", tuple(range(layers)), experts, k, (1,) * layers, (1,) * layers),
        pass_request=np.zeros(total), pass_phase=np.full(total, int(Phase.DECODE)), pass_emits=np.ones(total),
        row_pass=np.repeat(np.arange(total), layers), row_layer=np.tile(np.arange(layers), total),
        row_position=np.repeat(np.arange(total), layers), row_counts=np.full(total * layers, k),
        row_experts=np.tile(np.concatenate(chosen), repeat),
    )  # fmt: skip


def test_all_capacities_of_lru_cost_less_than_ten_replays():
    trace = layered(400, repeat=5)
    steps = Steps.of(trace)
    rooms = [Capacity(slots_per_layer=n, scope="layer") for n in range(10, 513)]
    pool = make_pool(trace.geometry, Capacity(slots_per_layer=128, scope="layer"))
    curve, one = interleaved(
        lambda: hit_curve(trace, "lru", rooms, simulator="kernel", steps=steps),
        lambda: kernel(pool).feed(steps.arrays),
    )
    print(f"\n503 capacities {curve * 1e3:.0f} ms, one replay {one * 1e3:.1f} ms: {curve / one:.1f} replays")
    assert curve / one < 10


def test_cost_a_token_is_flat():
    """A hundred times as many tokens cost a hundred times as much."""
    trace = layered(400)
    steps = Steps.of(trace).arrays
    long = Steps.of(layered(400, repeat=100)).arrays
    pool = make_pool(trace.geometry, Capacity(slots_per_layer=128, scope="layer"))
    few, many = interleaved(*(lambda s=s: kernel(pool).feed(s) for s in (steps, long)))
    print(f"\n400 tokens {few / 400 * 1e6:.2f} us a token, 40,000 tokens {many / 40_000 * 1e6:.2f} us")
    assert many / 40_000 < 1.5 * few / 400


GROWING = (1_000, 6_000, 24_576)
"""Slots."""
LOGARITHM = np.log(GROWING[-1]) / np.log(GROWING[0])
"""1.46."""


@pytest.mark.parametrize(
    ("name", "most"),
    [
        *((name, LOGARITHM) for name in ("lru", "sieve", "s3fifo", "lfu", "lecar", "belady")),
        *((name, 4.0) for name in ("lru-k", "moe-infinity", "lfu:counts=decayed", "belady-window")),
    ],
)
def test_cost_grows_no_faster_than_the_logarithm_of_the_capacity(name, most):
    """Global pools, misses forced by twice as many keys; set-up left out, sizes interleaved.

    The last ones keep heaps in which each use sinks to the bottom: they exceed it, see docs/kernel.md.
    """
    policy, works = create("eviction", name), []
    for slots in GROWING:
        rng = np.random.default_rng(3)
        n = 1_000_000
        keys = np.minimum(rng.integers(0, 2 * slots, n), rng.integers(0, 2 * slots, n)).astype(np.int32)
        ones = np.ones(n)
        steps = StepArrays.of(np.arange(n + 1), ones * 0, np.arange(n), keys, ones, ones, ones * 0)
        future = future_arrays(steps, [0] * (2 * slots)) if policy.needs_future else None
        pool = one_pool(slots, 2 * slots)
        fresh = [ReplayKernel(pool, policy, create("admission", "always"), future) for _ in range(ROUNDS + 1)]
        works.append(lambda fresh=fresh, steps=steps: fresh.pop().feed(steps))
    taken = interleaved(*works)
    costs = ", ".join(f"{slots:,} slots {1e3 * s:.0f}" for slots, s in zip(GROWING, taken, strict=True))
    print(f"\n{name}: ns a look-up with {costs}: x {taken[-1] / taken[0]:.2f}")
    assert taken[-1] / taken[0] < most


COMPILE = """
import sys, time
import numpy as np
import expert_residency.sim.kernel.compiler.views
from expert_residency.policies import create
from expert_residency.policies.protocol import Pool
from expert_residency.sim.kernel.counts.future import future_arrays
from expert_residency.sim.kernel.counts.replay import ReplayKernel, StepArrays

ones = np.ones(100)
steps = StepArrays.of(np.arange(101), ones * 0, np.arange(100), np.arange(100), ones, ones, ones * 0)
policy = create("eviction", sys.argv[1])
began = time.process_time()
future = future_arrays(steps, [0] * 100) if policy.needs_future else None
pool = Pool(100, 1, 100, 1, 1, [0] * 100, [1] * 100, [50], [50])
ReplayKernel(pool, policy, create("admission", "always"), future).feed(steps)
print(time.process_time() - began)
"""


@pytest.mark.parametrize("name", ["static", "lru", "s3fifo", "belady", "lfu", "lecar"])
def test_compile_time(name, tmp_path):
    """CPU seconds of a fresh install's first kernel, numba's import left out; printed, since they are no ratio."""
    taken = []
    for number in range(3):
        environment = os.environ | {"EXPERT_RESIDENCY_CACHE": str(tmp_path / str(number))}
        command = [sys.executable, "-c", COMPILE, name]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        taken.append(float(done.stdout))
    print(f"\n{name}: {min(taken):.1f} to {max(taken):.1f} s of CPU to compile")


def kernel(pool):
    return ReplayKernel(pool, create("eviction", "lru"), create("admission", "always"))


MEMORY = """
import json, re, sys
import numpy as np
from expert_residency.sim.runs.curve import hit_curve
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.traces import ModelGeometry, RoutingTrace

geometry = ModelGeometry("uneven", tuple(range(48)), 512, 10, (1,) * 48, (1,) * 48)
trace = RoutingTrace(geometry, **np.load(sys.argv[1]))
rooms = [Capacity(slots_per_layer=64 * i, scope="layer") for i in range(1, 9)]
points = hit_curve(trace, "lfu", rooms, simulator="kernel")
peak = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])  # not that of whoever started it
print(json.dumps([peak * 1024, points[0].phases["all"].distinct]))
"""


def test_eight_capacities_of_five_million_look_ups_fit_in_a_gigabyte(tmp_path):
    """Peak of a process that reads the trace's arrays and counts."""
    trace = layered(400, repeat=27)
    np.savez(
        tmp_path / "trace.npz",
        **{f.name: v for f in fields(trace) if isinstance(v := getattr(trace, f.name), np.ndarray)},
    )
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "trace.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, look_ups = json.loads(done.stdout)
    print(f"\n{look_ups / 1e6:.1f} M look-ups x 8 capacities: peak {peak / 2**20:.0f} MiB")
    assert look_ups >= 5_000_000
    assert peak < 1e9
