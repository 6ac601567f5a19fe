"""Small machines on which the split planner is tried."""

from __future__ import annotations

from dataclasses import replace

from expert_residency.hwmodels.vram import Line
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.split.cards import Card, HostSide
from expert_residency.sim.split.curve import HitCurve
from expert_residency.sim.split.memory import Needs
from expert_residency.sim.split.placement import Problem
from expert_residency.traces import ModelGeometry
from expert_residency.traces.synthetic import generate, load_style

GENERIC = load_engine("generic")
STYLE = load_style("gpt-oss-20b")
EXPERTS, TOP_K = 12, 2


def small_model(
    layers: int, expert_bytes: int | tuple[int, ...] = 1_000_000, dense: int = 400_000
) -> ModelGeometry:
    sizes = expert_bytes if isinstance(expert_bytes, tuple) else (expert_bytes,) * layers
    return ModelGeometry(
        "small", tuple(range(layers)), EXPERTS, TOP_K, sizes, (dense,) * layers, quant_family="q4",
        head_bytes=300_000, hidden_size=2_000,
    )  # fmt: skip


def curve_of(layers: int, seed: int = 0, draft: int = 0) -> HitCurve:
    shape = small_model(layers)
    return HitCurve.measure(generate(shape, STYLE, tokens=24, seed=seed, draft_tokens=draft, weights=False))


CURVES = {layers: curve_of(layers, seed=layers) for layers in range(1, 9)}
HOST = HostSide("host", 10**9, 10**9, 20_000, 18_000, 15_000, 12_000, 0, 6_000, 30_000, 2_000, 90_000)
CARD = Card(
    "card", usable_bytes=20_000_000, reserve_bytes=500_000, dense_mb_per_s=200_000, expert_mb_per_s=180_000,
    flop_per_ns=5_000, launch_ns=5_000, sync_ns=15_000, h2d_mb_per_s=12_000, h2d_pageable_mb_per_s=10_000,
    d2h_mb_per_s=12_500, copy_t0_ns=10_000, submit_ns=6_000, handoff_ns=5_000, handoff_mb_per_s=3_480,
)  # fmt: skip


def problem(cards, layers=6, *, mode="arena", miss="cpu", ram=10**9, carve=False, headroom=0, **more) -> Problem:
    needs = Needs(small_model(layers), (Line("session", 200_000, ""),), carve=carve, stage_reserve_bytes=100_000)
    return Problem(
        needs, tuple(cards), replace(HOST, ram_bytes=ram), CURVES[layers], GENERIC, miss=miss, mode=mode,
        headroom_bytes=headroom, **more,
    )  # fmt: skip
