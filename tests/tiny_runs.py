"""Tiny timed runs with many ties, drawn at random: whatever the model can be asked, in a few events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from expert_residency.hwmodels.profile import CpuSources, HardwareProfile
from expert_residency.hwmodels.quantity import FamilyRates, Quantity
from expert_residency.hwmodels.registry import load_profile
from expert_residency.policies import available, create
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import EnginePreset, load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace, TraceBuilder

EXPERT_BYTES = 1_000_000
ENGINES = ("generic", "strata", "strata-reference", "bigmoe-edge", "freetoken-hybrid", "ncmoe", "fetch-lru")
PREFETCH = (
    "none", "oracle", "oracle:window=3", "noisy-copies:recall=0.8,precision=0.4,auc=0.8,window=2",
    "noisy-oracle:recall=0.6,precision=0.5,window=2", "previous-token",
    "markov", "static-topk", "co-activation", "activation-match:depth=2", "gate-lookahead-parametric",
)  # fmt: skip
INSERTION = ("free", "guarded", "guarded:events=1", "never-evict", "staging:slots=1", "staging:slots=3", "pages")
HOSTS = (
    "arena", "arena:pin=none", "mmap", "mmap:access=fault", "mmap:access=direct", "gguf-in-place", "flash",
    "budget:gib=0.004", "budget:gib=0.004", "resident", "resident:swap=streams", "resident:swap=streams",
)  # fmt: skip
SWAPS = "strata-adaptive:every=1,min_usage=1,min_gain=0"
"""An admission that exchanges residents after every pass."""


@dataclass(frozen=True)
class Tiny:
    """One run, ready for `simulate`."""

    trace: RoutingTrace
    spec: RunSpec
    profiles: tuple[HardwareProfile, ...]
    preset: EnginePreset


def compiled(kind: str) -> list[str]:
    """Policies of a kind that the kernel can run."""
    return [name for name in available(kind) if create(kind, name).compiled]


def whole(value: float) -> Quantity:
    return Quantity(value=value, kind="assumed", source="a test")


def draw_trace(seed: int) -> RoutingTrace:
    """A few passes of all phases; few experts, so that sets repeat."""
    rng = np.random.default_rng(seed)
    layers, experts = int(rng.integers(1, 5)), int(rng.integers(2, 8))
    top_k = int(rng.integers(1, min(experts, 4) + 1))
    sizes = [EXPERT_BYTES] * layers if rng.random() < 0.6 else rng.choice([4096, 500_000, EXPERT_BYTES], layers)
    shape = ModelGeometry(
        "tiny", tuple(range(layers)), experts, top_k, tuple(map(int, sizes)),
        tuple(int(n) for n in rng.choice([500_000, 1_000_000], layers)), hidden_size=64, quant_family="q4",
        head_bytes=int(rng.choice([0, 200_000])), dense_only_bytes=int(rng.choice([0, 100_000])),
        expert_params=int(rng.choice([0, 1_000_000])),
    )  # fmt: skip
    builder = TraceBuilder(shape)
    request = 0
    for _ in range(int(rng.integers(1, 12))):
        phase = Phase(int(rng.choice([0, 1, 1, 1, 2])))
        request += int(rng.random() < 0.2)
        builder.begin_pass(phase, request=request)
        rows = 1 if phase == Phase.DECODE else int(rng.integers(1, 5))
        for layer in range(layers):
            for _ in range(rows):
                builder.row(layer, rng.permutation(experts)[:top_k].tolist())
    return builder.build()


@st.composite
def profiles(draw, base: str) -> HardwareProfile:
    """A machine whose rates are few round numbers, so that transfers end together."""
    rate, us = st.sampled_from([1.0, 2.0, 3.0]), st.sampled_from([0.0, 1.0, 500.0])
    card = load_profile(base)
    slow = FamilyRates(default=whole(draw(rate) * 10))
    points = {}
    if draw(st.booleans()):
        points = {500_000: whole(50.0), 1_000_000: whole(50.0), 3_000_000: whole(140.0)}
    port = draw(st.sampled_from([None, "a"]))
    link = card.link.model_copy(
        update={
            "h2d_gb_per_s": whole(draw(rate)), "d2h_gb_per_s": whole(draw(rate)),
            "h2d_pageable_gb_per_s": whole(draw(rate)), "copy_t0_us": whole(draw(us)),
            "submit_us": whole(draw(us)), "root_port": port, "root_port_gb_per_s": whole(draw(rate)),
        }
    )  # fmt: skip
    gpu = card.gpu.model_copy(
        update={
            "expert_gb_per_s": slow, "dense_gb_per_s": slow, "launch_us": whole(draw(us)),
            "sync_us": whole(draw(us)), "group_us_by_bytes": points,
        }
    )  # fmt: skip
    cpu = card.cpu.model_copy(
        update={
            "expert_gb_per_s": CpuSources(
                pinned=FamilyRates(default=whole(draw(rate))), pageable=FamilyRates(default=whole(draw(rate))),
                page_cache=FamilyRates(default=whole(draw(rate))),
            ),
            "dispatch_us": whole(draw(us)),
        }
    )  # fmt: skip
    slow_rate = st.sampled_from([0.1, 1.0, 2.0])  # so slow that reads queue up and are given up before they begin
    disk = card.disk.model_copy(
        update={
            "seq_gb_per_s": whole(draw(slow_rate)), "latency_us": whole(draw(us)),
            "lanes": whole(draw(st.integers(1, 3))), "lane_gb_per_s": whole(draw(slow_rate)),
            "mmap_fault_gb_per_s": whole(draw(slow_rate)), "read_ahead_gb_per_s": whole(draw(slow_rate)),
        }
    )  # fmt: skip
    dram = card.dram.model_copy(update={"stream_gb_per_s": whole(draw(st.sampled_from([2.0, 4.0, 100.0])))})
    ram = card.ram
    if draw(st.integers(0, 3)) == 0:  # a page cache of a few experts
        free = draw(st.sampled_from([0.002, 0.005]))
        ram = ram.model_copy(update={"total_gib": whole(ram.os_reserve_gib.value + free)})
    parts = {"link": link, "gpu": gpu, "cpu": cpu, "disk": disk, "dram": dram, "ram": ram}
    return card.model_copy(update=parts)


MICROSECONDS = st.sampled_from([0.0, 1.0, 100.0]).map(whole)
CHANGED = {
    "fill": st.booleans(),
    "in_flight": st.sampled_from(["wait", "miss"]),
    "overlap": st.booleans(),
    "copy_unit": st.sampled_from(["expert", "layer"]),
    "copy_order": st.sampled_from(["urgent", "asked"]),
    "pcie_share": st.sampled_from(["balanced", whole(0.5), whole(1.0)]),
    "pcie_full_gb_per_s": st.sampled_from([None, whole(2.0)]),
    "pcie_per_layer": st.sampled_from([None, whole(1)]),
    "pcie_pinned_only": st.booleans(),
    "prefill_admits": st.booleans(),
    "adapt_waits": st.booleans(),
    "reads": st.sampled_from(["drive", "link"]),
    "syncs": st.sampled_from(["layer", "cpu"]),
    "streams_dense": st.booleans(),
    "weights": st.sampled_from([None, "mapped"]),
    "cpu_core_gb_per_s": st.sampled_from([None, whole(0.5)]),
    **dict.fromkeys(
        ("plan_us", "combine_us", "pass_us", "row_us", "draft_us", "start_us", "send_us", "ahead_us", "copy_us",
         "fill_us", "fill_copy_us", "beside_us", "cpu_layer_us"),
        MICROSECONDS,
    ),
}  # fmt: skip
"""Fields of a preset, and what they may be."""


@st.composite
def presets(draw) -> EnginePreset:
    """An engine with some of its rules and times changed."""
    preset = load_engine(draw(st.sampled_from(ENGINES)))
    names = draw(st.lists(st.sampled_from(sorted(CHANGED)), max_size=6, unique=True))
    return preset.model_copy(update={name: draw(CHANGED[name]) for name in names})


@st.composite
def tiny_runs(draw, evictions: list[str], admissions: list[str], prefetchers=PREFETCH) -> Tiny:
    """Any run; those that cannot be started are for the caller to leave out."""
    trace = draw_trace(draw(st.integers(0, 2**32 - 1)))
    layers = trace.geometry.n_layers
    cards = draw(st.integers(1, min(3, layers)))
    machine = tuple(draw(profiles("tesla-p40")) for _ in range(cards))
    cuts = sorted(draw(st.permutations(range(1, layers)))[: cards - 1])
    each = tuple(b - a for a, b in zip([0, *cuts], [*cuts, layers], strict=True))
    host = draw(st.sampled_from(HOSTS))
    if host.startswith(("resident", "budget")):  # any other admission stops there
        admissions = [SWAPS, SWAPS, SWAPS, "never", "always"]
    spec = RunSpec(
        hardware=("tesla-p40",) * cards,
        capacity=Capacity(
            slots_per_layer=draw(st.integers(0, 5)), scope=draw(st.sampled_from(["global", "layer"]))
        ),
        layers_each=each,
        eviction=draw(st.sampled_from(evictions)),
        admission=draw(st.sampled_from(admissions)),
        prefetch=draw(st.sampled_from(prefetchers)),
        placement=draw(st.sampled_from([None, "none", "hindsight"])),
        miss=draw(st.sampled_from(["cpu", "fetch", "hybrid", "stream"])),
        host=host,
        start=draw(st.sampled_from(["cold", "warm"])),
        insertion=draw(st.sampled_from(INSERTION)),
        prefetch_bytes=draw(st.sampled_from([None, EXPERT_BYTES, 3 * EXPERT_BYTES])),
        predict_us=draw(st.sampled_from([0.0, 0.0, 50.0])),
    )
    return Tiny(trace, spec, machine, draw(presets()))
