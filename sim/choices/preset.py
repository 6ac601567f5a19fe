"""Engine presets: what is the engine's and not the machine's.

A preset is a TOML file; its numbers carry unit, kind and source like a machine's. Built-ins are in
`sim/choices/presets/`; a path is taken too. `base = "NAME"` takes another preset and replaces what the file gives.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from expert_residency.hwmodels.profile import Gpu
from expert_residency.hwmodels.quantity import Count, Positive, Quantity, Rate, Share
from expert_residency.sim.choices.knob import Knob
from expert_residency.sim.choices.kv_type import KV_TYPE
from expert_residency.toml import Shelf, checked

ENGINES = Shelf("expert_residency.sim.choices", "presets", "engine")
"""Where presets are."""
MISS_MODES: tuple[str, ...] = ("cpu", "fetch", "hybrid", "stream")


Chosen = Literal["eviction", "admission", "placement", "scope", "host", "kv_type"]
"""Choices of a run that a preset may make."""


class EnginePreset(BaseModel):
    """Behaviour of one engine.

    Parameters
    ----------
    places
        What it gives a place: single `experts`, or whole `layers` and tensors that never move.
    compared
        Whether `residency split --engine all` has it.
    miss
        What a miss does by default: `cpu` (computed from RAM), `fetch` (copied, then computed on the card),
        `hybrid` (a share fetched, the rest on the CPU), `stream` (read over PCIe without keeping).
    fill
        Whether a miss served by the CPU is also copied into a slot for later, behind everything urgent.
    in_flight
        An expert whose copy has not landed: `wait` for it, or treat it as a `miss` (CPU and hybrid modes).
    overlap
        Whether CPU pool and card work at the same time within a layer.
    copy_unit
        `expert`: the card computes experts as they land; `layer`: when all of the layer's have.
    copy_order
        `urgent`: demands overtake what is copied ahead, and stale prefetches are dropped; `asked`: copies go in
        the order asked for and none is taken back, as in a stream of the card.
    reads
        Who reads an expert that is not in memory: the `drive`, and the copy follows; or the `link`,
        whose engine is then a thread that reads files: it does nothing else meanwhile, and no copy follows. What
        is waited for such an expert is the disk's, but for the time that its copy alone takes.
    pcie_share
        Share of a layer's misses that `hybrid` fetches, the last in routing order; `balanced` takes
        link / (link + CPU) rates.
    pcie_full_gb_per_s
        Link rate from which on the whole share is fetched; a slower link takes proportionally less.
    pcie_per_layer
        Most experts fetched for one layer of one pass.
    pcie_pinned_only
        Whether `hybrid` fetches from page-locked memory only.
    prefill_admits
        Whether misses of a prefill pass may take slots.
    syncs
        Whether the router's ids go to the host in every `layer`, or only where the `cpu` computes experts.
    cpu_layer_us
        What a layer costs beside its bytes of which the CPU computes experts.
    cpu_core_gb_per_s
        Expert weights that one core of the pool gets through, however fast memory is; no limit by default.
    streams_dense
        Whether dense weights come over the link in every pass, for want of room on the card.
    plan_us, combine_us
        Host planning and joining, a layer.
    dense_launches, expert_launches
        Kernels started for the dense part of a layer, and for each group of experts.
    kernels
        Kernels of a layer's dense part that wait for each other in a captured graph; each takes the card's
        `kernel_us` at least.
    pass_us
        Sampling, commit and bookkeeping, a pass.
    row_us
        What each row of a verify window after the first adds to a layer's mixer.
    draft_us
        One draft token of a window: a window of T rows has T - 1.
    row_at_tflops, draft_at_gb_per_s
        Arithmetic and memory of the card that `row_us` and `draft_us` hold on: on another a row takes as much
        longer as its arithmetic is slower, and half of a draft as much as its memory is; absent, they are every
        card's.
    start_us
        Host time to launch one group of experts: CPU work of the same layer begins after it.
    send_us
        Host time to send copies when the router is known (demands out of page-locked memory, prefetches), before
        residents are launched and CPU work begins.
    ahead_us
        Host time to send copies for later (prefetches, fills) when a layer is done: the next layer begins after
        it, unless the card had as much to do meanwhile.
    copy_us
        What each copy adds to `send_us` and `ahead_us`; demands reach an idle link so much later.
    fill_us, fill_copy_us
        The same for slots filled with what the CPU has just computed, instead of `ahead_us` and `copy_us`.
    beside_us
        What a layer takes longer if the card's link is copying when it begins.
    adapt_waits
        Whether the next pass waits for the exchange copies of a periodic policy.
    weights
        `mapped`: weights beside experts are a mapped file in the memory that holds the expert cache, so that what
        does not fit is read again in every pass. By default they are loaded.
    policy
        Choices of a run that this engine makes if the user does not: eviction, admission, placement, scope, host,
        kv_type.
    knobs
        What its user may set: the space that `residency advise` searches.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    summary: str
    source: str
    places: Literal["experts", "layers"] = "experts"
    compared: bool = False
    miss: Literal["cpu", "fetch", "hybrid", "stream"] = "cpu"
    fill: bool = True
    in_flight: Literal["wait", "miss"] = "wait"
    overlap: bool = True
    copy_unit: Literal["expert", "layer"] = "expert"
    copy_order: Literal["urgent", "asked"] = "urgent"
    syncs: Literal["layer", "cpu"] = "layer"
    reads: Literal["drive", "link"] = "drive"
    pcie_share: Share | Literal["balanced"] = "balanced"
    pcie_full_gb_per_s: Rate | None = None
    pcie_per_layer: Count | None = None
    pcie_pinned_only: bool = False
    prefill_admits: bool = True
    streams_dense: bool = False
    adapt_waits: bool = False
    plan_us: Quantity
    cpu_layer_us: Quantity | None = None
    cpu_core_gb_per_s: Quantity | None = None
    combine_us: Quantity
    dense_launches: Quantity
    expert_launches: Quantity
    kernels: Quantity | None = None
    pass_us: Quantity
    row_us: Quantity | None = None
    draft_us: Quantity | None = None
    row_at_tflops: Positive | None = None
    draft_at_gb_per_s: Rate | None = None
    start_us: Quantity | None = None
    send_us: Quantity | None = None
    ahead_us: Quantity | None = None
    copy_us: Quantity | None = None
    fill_us: Quantity | None = None
    fill_copy_us: Quantity | None = None
    beside_us: Quantity | None = None
    weights: Literal["mapped"] | None = None
    policy: dict[Chosen, str] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
    knobs: dict[str, Knob] = Field(default_factory=dict)

    def dense_launch_ns(self, launch_ns: int, kernel_ns: int) -> int:
        """What a layer's dense part costs on a card beside its bytes."""
        graph = self.kernels.value * kernel_ns if self.kernels else 0.0
        return round(self.dense_launches.value * launch_ns + graph)

    def on(self, gpu: Gpu) -> EnginePreset:
        """The engine on a card: times that follow the card are that card's."""
        moved: dict[str, Quantity | None] = {}
        if self.row_us is not None and self.row_at_tflops is not None:
            slower = self.row_at_tflops.value / gpu.compute_tflops.value
            moved |= {"row_us": _times(self.row_us, slower), "row_at_tflops": None}
        if self.draft_us is not None and self.draft_at_gb_per_s is not None:
            slower = (1 + self.draft_at_gb_per_s.value / gpu.mem_gb_per_s.value) / 2
            moved |= {"draft_us": _times(self.draft_us, slower), "draft_at_gb_per_s": None}
        if not moved:
            return self
        kept = {name: value for name, value in vars(self).items() if name in type(self).model_fields}
        return type(self).model_construct(**(kept | moved))

    @cached_property
    def plan_ns(self) -> int:
        """Host planning, a layer."""
        return round(self.plan_us.value * 1000)

    @property
    def kv_type(self) -> str:
        """Storage of a KV cell where memory is planned and the user says nothing."""
        return self.policy.get("kv_type", KV_TYPE)

    @cached_property
    def cpu_layer_ns(self) -> int:
        """A layer of which the CPU computes experts."""
        return round(self.cpu_layer_us.value * 1000) if self.cpu_layer_us else 0

    @cached_property
    def combine_ns(self) -> int:
        """Joining, a layer."""
        return round(self.combine_us.value * 1000)

    @cached_property
    def pass_ns(self) -> int:
        """Sampling and bookkeeping, a pass."""
        return round(self.pass_us.value * 1000)

    @cached_property
    def row_ns(self) -> int:
        """Mixer of one more row of a verify window, a layer."""
        return round(self.row_us.value * 1000) if self.row_us else 0

    @cached_property
    def draft_ns(self) -> int:
        """One draft token."""
        return round(self.draft_us.value * 1000) if self.draft_us else 0

    @cached_property
    def start_ns(self) -> int:
        """Launching a group of experts."""
        return round(self.start_us.value * 1000) if self.start_us else 0

    @cached_property
    def send_ns(self) -> int:
        """Sending copies when the router is known, a layer."""
        return round(self.send_us.value * 1000) if self.send_us else 0

    @cached_property
    def ahead_ns(self) -> int:
        """Sending copies when a layer is done."""
        return round(self.ahead_us.value * 1000) if self.ahead_us else 0

    @cached_property
    def copy_ns(self) -> int:
        """Sending one copy more."""
        return round(self.copy_us.value * 1000) if self.copy_us else 0

    @cached_property
    def fill_ns(self) -> int:
        """Sending fills when a layer is done."""
        return round(self.fill_us.value * 1000) if self.fill_us else self.ahead_ns

    @cached_property
    def fill_copy_ns(self) -> int:
        """Sending one fill more."""
        return round(self.fill_copy_us.value * 1000) if self.fill_copy_us else self.copy_ns

    @cached_property
    def beside_ns(self) -> int:
        """A layer that begins beside a copy."""
        return round(self.beside_us.value * 1000) if self.beside_us else 0

    def fetched(self, n: int, link_mb_per_s: int, cpu_mb_per_s: int) -> int:
        """How many of `n` misses of a layer `hybrid` fetches: a whole number of 256ths of them, rounded down."""
        if self.pcie_share == "balanced":
            return n * link_mb_per_s // (link_mb_per_s + cpu_mb_per_s)
        count = n * self.share_256ths(link_mb_per_s) // 256
        return count if self.pcie_per_layer is None else min(count, self.pcie_per_layer.count)

    def share_256ths(self, link_mb_per_s: int) -> int:
        """The fixed share of misses that `hybrid` fetches over a link of this rate."""
        assert self.pcie_share != "balanced"
        share = self.pcie_share.value
        if self.pcie_full_gb_per_s is not None:
            share *= min(1.0, link_mb_per_s / 1000 / self.pcie_full_gb_per_s.value)
        return int(256 * share)


def _times(quantity: Quantity, factor: float) -> Quantity:
    return quantity.model_copy(update={"value": quantity.value * factor, "spread": None})


def list_engines() -> list[str]:
    """Names of the built-in presets."""
    return ENGINES.names()


def load_engine(name: str) -> EnginePreset:
    """Preset by name or path.

    Raises
    ------
    SimError
        Unknown name (the valid ones are listed) or a file that does not validate.
    """
    return checked(EnginePreset, ENGINES.load(name), where=ENGINES.where(name))
