"""What a look-up costs as traces and pools grow; `build.py kernel-scaling.png` draws it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from expert_residency.policies import create
from expert_residency.policies.protocol import Pool
from expert_residency.sim.kernel.counts.future import future_arrays
from expert_residency.sim.kernel.counts.replay import ReplayKernel, StepArrays

LAYERS, EXPERTS, TOP_K = 48, 512, 10


def tokens(count: int) -> StepArrays:
    """One-token passes over all layers, popularity 1 / rank^0.8."""
    rng = np.random.default_rng(1)
    popularity = np.log(1 / np.arange(1, EXPERTS + 1) ** 0.8)
    chosen = [
        layer * EXPERTS + np.argpartition(-(rng.gumbel(size=EXPERTS) + popularity), TOP_K)[:TOP_K]
        for _ in range(count)
        for layer in range(LAYERS)
    ]
    events = count * LAYERS
    return StepArrays.of(
        np.arange(events + 1) * TOP_K, np.tile(np.arange(LAYERS), count), np.repeat(np.arange(count), LAYERS),
        np.concatenate(chosen), np.ones(events * TOP_K), np.ones(count), np.zeros(count),
    )  # fmt: skip


def cost_a_token(policy: str, counts: list[int]) -> list[float]:
    """Microseconds a token after so many, fed 1,000 at a time."""
    keys = LAYERS * EXPERTS
    pool = Pool(
        keys, LAYERS, EXPERTS, TOP_K, LAYERS, [key // EXPERTS for key in range(keys)], [1] * keys,
        [128] * LAYERS, [128] * LAYERS,
    )  # fmt: skip
    chunk = tokens(1000)
    kernel = ReplayKernel(pool, create("eviction", policy), create("admission", "always"))
    kernel.feed(chunk)
    found, done, taken = [], 0, 0.0
    for count in counts:
        while done < count:
            began = time.thread_time()
            kernel.feed(chunk)
            taken += time.thread_time() - began
            done += 1000
        found.append(1e6 * taken / done)
    return found


def cost_a_look_up(policy: str, slots: int, n: int = 1_000_000) -> float:
    """Nanoseconds a single-expert event in a global pool, of twice as many experts as slots."""
    rng = np.random.default_rng(3)
    keys = np.minimum(rng.integers(0, 2 * slots, n), rng.integers(0, 2 * slots, n))
    ones = np.ones(n)
    steps = StepArrays.of(np.arange(n + 1), ones * 0, np.arange(n), keys, ones, ones, ones * 0)
    pool = Pool(2 * slots, 1, 2 * slots, 1, 1, [0] * 2 * slots, [1] * 2 * slots, [slots], [slots])
    eviction = create("eviction", policy)
    future = future_arrays(steps, [0] * 2 * slots) if eviction.needs_future else None
    best = float("inf")
    for _ in range(4):
        kernel = ReplayKernel(pool, eviction, create("admission", "always"), future)
        began = time.thread_time()
        kernel.feed(steps)
        best = min(best, time.thread_time() - began)
    return 1e9 * best / n


def draw(path: Path) -> None:
    """Measure and draw."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    counts = [1_000, 10_000, 100_000, 1_000_000]
    for policy in ("lru", "s3fifo", "lfu"):
        costs = cost_a_token(policy, counts)
        sys.stdout.write(f"{policy} us a token: {dict(zip(counts, [round(c, 1) for c in costs], strict=True))}\n")
        left.plot(counts, costs, marker="o", label=policy)
    slots = [1_000, 2_000, 4_000, 8_000, 16_000, 24_576]
    for policy in ("lru", "sieve", "s3fifo", "lfu", "belady"):
        costs = [cost_a_look_up(policy, n) for n in slots]
        sys.stdout.write(f"{policy} ns a look-up: {dict(zip(slots, [round(c) for c in costs], strict=True))}\n")
        right.plot(slots, costs, marker="o", label=policy)
    left.set(xscale="log", xlabel="tokens", ylabel="µs a token (480 look-ups)", ylim=(0, None))
    left.set_title("48 x 512 experts, top 10, 128 slots a layer", fontsize=10)
    right.set(xscale="log", xlabel="slots of a global pool", ylabel="ns a look-up", ylim=(0, None))
    right.set_title("single-expert events, twice as many experts as slots", fontsize=10)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)
