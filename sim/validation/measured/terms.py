"""What a token, or a verify window, of a measured run has to do: bytes, layers and launches, before any rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from expert_residency.hwmodels.units import GIB
from expert_residency.sim.timed.attention import kv_bytes
from expert_residency.sim.validation.measured.hits import hit_share
from expert_residency.sim.validation.measured.questions import ON_CARD_GIB, Question, weight_bytes

SELECTED_CELLS = 2048
"""Cells that sparse attention reads in full, once its index has chosen them (DeepSeek-V3.2; assumed of others)."""
_SINGLE_BLOCKS = ("nemotron",)
"""Models whose blocks are a mixer or experts, not both."""
PRUNED = {"qwen3.8-flash-next-coder": 0.5}
"""Models that are others with a part of their experts, and which part."""
_DRAFT_GIB, _CONTEXT_GIB = 0.8, 0.4
_GB = 1e9
ARCHITECTURES = (
    ("sm_6", "pascal"), ("sm_7", "turing"), ("sm_8", "ampere"), ("sm_", "blackwell"), ("gfx9", "gcn"),
    ("gfx", "rdna"),
    ("apple", "apple"),
)  # fmt: skip
FAMILIES = {"iq1": "codebook", "iq2": "codebook", "iq3": "codebook", "q2": "low", "q3": "low", "mxfp4": "mxfp4"}
"""Quantizations whose kernels are alike; codebooks are looked up, which costs processors time."""


@dataclass(frozen=True)
class Terms:
    """One question in numbers; GB are 10^9 bytes a token of one row.

    Parameters
    ----------
    windows
        Whether tokens come in verify windows of an engine with slots.
    engine, architecture, family, simd
        Of which group its rates are.
    card_gb_per_s, tflops, cards
        Data sheet of a card, and how many.
    ram_gb_per_s, cores, pool, sockets
        Memory in theory; cores, cores that the pool keeps busy, processors.
    link_gb_per_s, link_known
        The link, and whether a row says what it reaches.
    mapped, complement, one_node, virtual, first
        Experts out of a mapped file, or of the page-locked complement of the slots; threads on one NUMA node; a
        guest of WSL2; first answers after a start.
    dense_gb, context_gb, expert_gb
        Read by every token: dense weights, KV cells, its routed experts.
    on_card, on_cpu, on_link
        Shares of routed experts, where nothing moves.
    layers, cpu_layers, blocks
        With experts, of which the CPU computes some or all; mixers and experts that are launched one by one.
    top_k
        Experts of a layer.
    rows, floor, tokens
        Most rows of a window, draft probability at which it ends, tokens of a window if measured (else NaN).
    hits, generated_hits
        Share of look-ups that the card serves by the engine's count, if given (else NaN), and as simulated.
    share
        Of misses that goes over the link if said (else NaN).
    """

    windows: bool
    engine: str
    architecture: str
    family: str
    simd: str
    card_gb_per_s: float
    tflops: float
    cards: int
    ram_gb_per_s: float
    cores: int
    pool: float
    sockets: int
    link_gb_per_s: float
    link_known: bool
    mapped: bool
    complement: bool
    one_node: bool
    virtual: bool
    first: bool
    dense_gb: float
    context_gb: float
    expert_gb: float
    on_card: float
    on_cpu: float
    on_link: float
    layers: int
    cpu_layers: int
    blocks: int
    top_k: int
    rows: int
    floor: float
    tokens: float
    hits: float
    generated_hits: float
    share: float


def architecture_of(name: str) -> str:
    """The group of a card's architecture: kernels and clocks of one are alike."""
    if name == "sm_89":
        return "ada"
    return next((group for start, group in ARCHITECTURES if name.startswith(start)), "other")


def context_bytes(asked: Question) -> int:
    """What attention reads for a token at the row's depth."""
    geometry, depth = asked.geometry, asked.knobs.depth
    kv_type = "int8" if asked.knobs.engine == "strata" else "fp16"
    shape = geometry.session_shape
    if shape is None:
        return 0
    if shape.index_cell_bytes:  # sparse: the index is read in full, cells only where it says
        cells = shape.kv_layers * shape.cell_bytes(kv_type) * min(depth, SELECTED_CELLS)
        return (shape.index_cell_bytes + shape.rope_cell_bytes) * depth + cells
    return int(kv_bytes(geometry, np.array([depth]), kv_type)[0]) * geometry.n_layers


def terms_of(asked: Question) -> Terms:
    """One question in numbers."""
    geometry, knobs, machine = asked.geometry, asked.knobs, asked.machine
    card, cpu = machine.card, machine.cpu
    dense = sum(geometry.dense_bytes) + geometry.dense_only_bytes + geometry.head_bytes
    context, layers = context_bytes(asked), geometry.n_layers
    on_cpu = _cpu_layers(asked, context)
    total = geometry.total_layers or layers
    cores = machine.cores or 8
    busy = knobs.workers or machine.workers
    hosted = knobs.where == "cpu"  # the processor stands where the card would
    return Terms(
        windows=knobs.where == "slots", engine=knobs.engine, architecture=architecture_of(card.arch),
        family=FAMILIES.get(geometry.quant_family, "wide" if geometry.quant_family in _WIDE else "q4"),
        simd=cpu.simd if cpu else "neon", card_gb_per_s=card.mem_gb_per_s, tflops=max(card.fp32_tflops, 1.0),
        cards=machine.cards, ram_gb_per_s=machine.ram_gb_per_s or card.mem_gb_per_s, cores=cores,
        pool=min(busy, cores) + _SIBLING * max(0, min(busy, 3 * cores) - cores) if busy else cores,
        sockets=machine.sockets, link_gb_per_s=machine.link_gb_per_s, link_known=machine.link_known,
        mapped=knobs.mapped, complement=knobs.complement, one_node=knobs.one_node,
        virtual="WSL" in asked.row.ram, first=knobs.first,
        dense_gb=dense / _GB, context_gb=context / _GB, expert_gb=geometry.token_cycle_bytes / _GB,
        on_card=1.0 if knobs.where == "link" else 0.0 if hosted else 1 - on_cpu / layers,
        on_cpu=1.0 if hosted else on_cpu / layers, on_link=float(knobs.where == "link"), layers=layers,
        cpu_layers=layers if hosted else on_cpu,
        blocks=0 if hosted else total if geometry.name.startswith(_SINGLE_BLOCKS) else total + layers,
        top_k=geometry.top_k, rows=knobs.window, floor=knobs.floor, tokens=knobs.tokens or math.nan,
        hits=math.nan if knobs.hit_pct is None else knobs.hit_pct / 100,
        generated_hits=_generated(asked, dense, context),
        share=0.0 if knobs.mapped else math.nan if knobs.pcie_share is None else knobs.pcie_share,
    )  # fmt: skip


_WIDE = ("q6", "q8", "bf16", "fp16")
_SIBLING = 0.25
"""Of a core: what a second thread or an efficiency core adds to a pool."""


def _cpu_layers(asked: Question, context: int) -> int:
    """Layers whose experts the CPU computes."""
    geometry, knobs, machine = asked.geometry, asked.knobs, asked.machine
    layers = geometry.n_layers
    if knobs.where == "layers":
        without = (geometry.total_layers or layers) - layers
        return min(layers, max(0, knobs.layers_on_cpu - without))
    if knobs.where != "fit" or machine.card.shared:
        return 0
    room = machine.cards * (machine.card.vram_gib - ON_CARD_GIB) * GIB
    over = weight_bytes(geometry) + context - room
    return min(layers, max(0, math.ceil(over / (geometry.all_expert_bytes / layers))))


def _generated(asked: Question, dense: int, context: int) -> float:
    if asked.knobs.where != "slots":
        return 1.0
    share, own = _slots_share(asked, dense, context), asked.knobs.own_profile
    kept = PRUNED.get(asked.geometry.name)
    if kept is None:
        return hit_share(share, own)
    return hit_share(share * kept, own) / hit_share(kept, own)  # what was cut is what is seldom wanted


def _slots_share(asked: Question, dense: int, context: int) -> float:
    """Share of experts that has a slot; where no number is printed, what the card has room for."""
    geometry, knobs, machine = asked.geometry, asked.knobs, asked.machine
    if knobs.slots:
        return min(1.0, knobs.slots / geometry.n_experts)
    room = machine.cards * (machine.card.vram_gib - ON_CARD_GIB) * GIB
    room -= dense + context + (_DRAFT_GIB + _CONTEXT_GIB) * GIB
    return min(1.0, max(0.0, room / geometry.all_expert_bytes))
