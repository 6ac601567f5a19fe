"""One machine with one card: what its parts can do, every number with its kind and source.

The simulator composes several profiles, or one several times, into a machine of 1 to N cards. Fields and their
meanings are tabled in ``docs/hardware.md``.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.quantity import (
    Count,
    FamilyRates,
    Positive,
    PositiveShare,
    Quantity,
    Rate,
    Section,
    Whole,
)
from expert_residency.hwmodels.units import mb_per_s
from expert_residency.toml import checked

ExpertSource = Literal["pinned", "pageable", "page_cache", "budget", "assembled"]


class Gpu(Section):
    """The card. Rates are what kernels reach, not the data sheet's bandwidth (kept in `mem_gb_per_s`).

    `group_us_by_bytes` are measured times of one group of experts by its bytes, launch included: straight lines
    between them, the first one's time below it, `expert_gb_per_s` beyond the last. `attention_us_by_bytes` are
    those of one layer's attention by the bytes of keys and values it reads; beyond the last the last line goes on.
    `kernel_us` is what a kernel of a captured graph takes at least; 0 where rates were measured on whole passes,
    which contain it.
    """

    name: str
    compute_capability: str
    vram_total_gib: Positive
    vram_usable_gib: Positive
    vram_reserve_mib: Quantity
    mem_gb_per_s: Rate
    expert_gb_per_s: FamilyRates
    dense_gb_per_s: FamilyRates
    compute_tflops: Positive
    launch_us: Quantity
    kernel_us: Quantity
    sync_us: Quantity
    sm_x_ghz: Positive | None = None
    group_us_by_bytes: dict[int, Quantity] = Field(default_factory=dict)
    attention_us_by_bytes: dict[int, Quantity] = Field(default_factory=dict)

    vram_total_bytes: ClassVar[Whole] = Whole()
    vram_usable_bytes: ClassVar[Whole] = Whole()
    vram_reserve_bytes: ClassVar[Whole] = Whole()
    mem_mb_per_s: ClassVar[Whole] = Whole()
    compute_flop_per_ns: ClassVar[Whole] = Whole()
    launch_ns: ClassVar[Whole] = Whole()
    kernel_ns: ClassVar[Whole] = Whole()
    sync_ns: ClassVar[Whole] = Whole()

    @property
    def limited_by_memory(self) -> tuple[str, ...]:
        """Rates that cannot be above `mem_gb_per_s`: with times of groups that of experts is only their slope,
        which caches may steepen.
        """
        return ("dense_gb_per_s",) if self.group_us_by_bytes else ("dense_gb_per_s", "expert_gb_per_s")

    @property
    def group_points(self) -> list[tuple[int, int]]:
        """(bytes, ns) of `group_us_by_bytes`, bytes ascending."""
        return [(nbytes, round(q.value * 1000)) for nbytes, q in sorted(self.group_us_by_bytes.items())]

    @property
    def attention_points(self) -> list[tuple[int, int]]:
        """(bytes, ns) of `attention_us_by_bytes`, bytes ascending."""
        return [(nbytes, round(q.value * 1000)) for nbytes, q in sorted(self.attention_us_by_bytes.items())]

    @field_validator("group_us_by_bytes", "attention_us_by_bytes")
    @classmethod
    def _more_takes_longer(cls, points: dict[int, Quantity]) -> dict[int, Quantity]:
        values = [q.value for _, q in sorted(points.items())]
        if values != sorted(values) or min(points, default=1) < 1:
            raise ValueError("bytes must be above 0, and more of them may not take less time")
        return points


class Link(Section):
    """Host link of the card, at the rate it negotiated."""

    pcie: str
    h2d_gb_per_s: Rate
    d2h_gb_per_s: Rate
    h2d_pageable_gb_per_s: Rate
    copy_t0_us: Quantity
    submit_us: Quantity
    handoff_us: Quantity
    handoff_gb_per_s: Rate
    p2p_us: Quantity | None = None
    p2p_gb_per_s: Rate | None = None
    root_port: str | None = None
    root_port_gb_per_s: Rate | None = None

    h2d_mb_per_s: ClassVar[Whole] = Whole()
    d2h_mb_per_s: ClassVar[Whole] = Whole()
    h2d_pageable_mb_per_s: ClassVar[Whole] = Whole()
    copy_t0_ns: ClassVar[Whole] = Whole()
    submit_ns: ClassVar[Whole] = Whole()
    handoff_ns: ClassVar[Whole] = Whole()
    handoff_mb_per_s: ClassVar[Whole] = Whole()
    p2p_ns: ClassVar[Whole] = Whole()
    p2p_mb_per_s: ClassVar[Whole] = Whole()
    root_port_mb_per_s: ClassVar[Whole] = Whole()


PRIOR_CLOCK_GHZ, PRIOR_FLOP_PER_CYCLE = 4.0, 64
"""Of a core whose arithmetic is not known."""


class CpuSources(Section):
    """Rate at which the whole pool reads experts, by the memory they lie in.

    `budget` is the page-locked complement of a resident budget; absent, it equals `pinned`. `assembled` are
    experts put together from three slices of a model file in the page cache, copying included; absent, it equals
    `page_cache`.
    """

    pinned: FamilyRates
    pageable: FamilyRates
    page_cache: FamilyRates
    budget: FamilyRates | None = None
    assembled: FamilyRates | None = None

    def rates(self, source: ExpertSource) -> FamilyRates:
        """Rates of one source."""
        if source == "budget":
            return self.budget or self.pinned
        if source == "assembled":
            return self.assembled or self.page_cache
        if source not in CpuSources.model_fields:
            raise HardwareError(
                f"unknown expert source {source!r}; valid ones are {', '.join(CpuSources.model_fields)}"
            )
        found: FamilyRates = getattr(self, source)
        return found


class Cpu(Section):
    """The pool that computes experts from RAM; rates hold for `workers` workers.

    `core_share` is what one core gets through beside a core of Zen 2 or Golden Cove; absent: as much.
    """

    name: str
    cores: Count
    workers: Count
    core_share: PositiveShare | None = None
    expert_gb_per_s: CpuSources
    expert_gb_per_s_by_workers: dict[int, Rate] = Field(default_factory=dict)
    dispatch_us: Quantity
    gflops: Positive | None = None

    dispatch_ns: ClassVar[Whole] = Whole()

    def most_gb_per_s(self, core_gb_per_s: float) -> float:
        """GB/s that all cores get through in an engine whose newer cores reach `core_gb_per_s`."""
        return core_gb_per_s * self.cores.count * (self.core_share.value if self.core_share else 1.0)

    @property
    def arithmetic(self) -> Quantity:
        """Arithmetic of the pool on many rows (GFLOP/s): as given, or a prior from its data sheet with its spread.

        The prior is workers x clock x operations a cycle, as two units of 256-bit multiply-adds reach on quantized
        weights. Old or slow cores have a quarter of it, those with 512 bits and dot products twice.
        """
        if self.gflops is not None:
            return self.gflops
        gflops = self.workers.count * PRIOR_CLOCK_GHZ * PRIOR_FLOP_PER_CYCLE
        rule = f"rule: {self.workers.count} workers x {PRIOR_CLOCK_GHZ:g} GHz x {PRIOR_FLOP_PER_CYCLE} a cycle"
        return Quantity(value=gflops, kind="derived", source=rule, spread=(gflops / 4, gflops * 2))

    def expert_mb_per_s(self, source: ExpertSource, family: str, workers: int | None = None) -> int:
        """Whole MB/s of the pool.

        Parameters
        ----------
        source, family
            Where the experts lie, and their quantization family.
        workers
            Another worker count than the profile's: the rate is scaled by the measured points (straight lines
            between them, through the origin below the first, flat above the last).

        Returns
        -------
        int
            MB/s, at least 1.

        Raises
        ------
        HardwareError
            If `workers` is asked for and the profile has no scaling points.
        """
        base = self.expert_gb_per_s.rates(source).mb_per_s(family)
        if workers is None or workers == self.workers.count:
            return base
        if not self.expert_gb_per_s_by_workers:
            raise HardwareError(
                f"the profile of {self.name} has no rates by worker count, so {workers} cannot be priced"
            )
        return max(1, round(base * self.scale(workers) / self.scale(self.workers.count)))

    def scale(self, workers: int) -> float:
        """Rate of the measured points at a number of workers; only ratios of it mean anything."""
        points = sorted((n, q.value) for n, q in self.expert_gb_per_s_by_workers.items())
        before = (0, 0.0)
        for point in points:
            if workers <= point[0]:
                share = (workers - before[0]) / (point[0] - before[0])
                return before[1] + share * (point[1] - before[1])
            before = point
        return before[1]


class Dram(Section):
    """Host memory bandwidth, shared by the CPU pool and every copy engine."""

    stream_gb_per_s: Rate
    shared_fraction: PositiveShare
    theory_gb_per_s: Rate

    stream_mb_per_s: ClassVar[Whole] = Whole()
    theory_mb_per_s: ClassVar[Whole] = Whole()

    @property
    def shared_mb_per_s(self) -> int:
        """Capacity of the one server that CPU reads and DMA share."""
        return mb_per_s(self.stream_gb_per_s.value * self.shared_fraction.value)


class Ram(Section):
    """Host memory; what may be page-locked is limited apart from what there is."""

    total_gib: Positive
    os_reserve_gib: Quantity
    pin_limit_gib: Quantity

    total_bytes: ClassVar[Whole] = Whole()
    os_reserve_bytes: ClassVar[Whole] = Whole()
    pin_limit_bytes: ClassVar[Whole] = Whole()

    @model_validator(mode="after")
    def _something_left(self) -> Self:
        if self.os_reserve_gib.value > self.total_gib.value:
            reserve, total = self.os_reserve_gib.value, self.total_gib.value
            raise ValueError(f"os_reserve_gib {reserve:g} is more than total_gib {total:g}")
        return self


class Disk(Section):
    """The drive that holds the expert file."""

    name: str
    seq_gb_per_s: Rate
    latency_us: Quantity
    lanes: Count
    lane_gb_per_s: Rate
    mmap_fault_gb_per_s: Rate
    read_ahead_gb_per_s: Rate
    page_bytes: Count

    seq_mb_per_s: ClassVar[Whole] = Whole()
    latency_ns: ClassVar[Whole] = Whole()
    lane_mb_per_s: ClassVar[Whole] = Whole()
    mmap_fault_mb_per_s: ClassVar[Whole] = Whole()
    read_ahead_mb_per_s: ClassVar[Whole] = Whole()


class HardwareProfile(Section):
    """A machine with one card.

    Parameters
    ----------
    name, aliases
        What users type.
    summary
        One line on whose machine it is.
    gpu, link, cpu, dram, ram, disk
        Its parts.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")
    aliases: tuple[str, ...] = ()
    summary: str
    gpu: Gpu
    link: Link
    cpu: Cpu
    dram: Dram
    ram: Ram
    disk: Disk

    @property
    def one_memory(self) -> bool:
        """Whether card and processor have the same memory: `ram` is then what the card leaves of it."""
        return self.link.pcie in ("unified", "none")

    @property
    def has_card(self) -> bool:
        """Whether there is a card at all; else `gpu` is the processor, and its memory that of the machine."""
        return self.link.pcie != "none"


SPARE = 1.1
"""A measured rate of reading against the rate of the memory, which a data sheet or a copy of its own gives."""


def impossible(profile: HardwareProfile) -> list[str]:
    """Figures of the card that contradict each other: each one's place, and by what it cannot be."""
    gpu, found = profile.gpu, []
    total, usable = gpu.vram_total_gib.value, gpu.vram_usable_gib.value
    if usable > total:
        found.append(f"gpu.vram_usable_gib {usable:g} is more than vram_total_gib {total:g}")
    memory = gpu.mem_gb_per_s.value
    for name in gpu.limited_by_memory:
        rates: FamilyRates = getattr(gpu, name)
        found += [
            f"gpu.{name}.{family} {rate.value:g} is above mem_gb_per_s {memory:g}: nothing is read faster than "
            "the memory gives it"
            for family in FamilyRates.model_fields
            if (rate := getattr(rates, family)) is not None and rate.value > memory * SPARE
        ]
    return found


def parse_profile(data: dict[str, Any], where: object) -> HardwareProfile:
    """Check a profile read from TOML.

    Parameters
    ----------
    data
        The tables, any `base` already merged in.
    where
        The file, for messages.

    Raises
    ------
    HardwareError
        File and field of everything that is wrong: bare numbers, unknown keys (with the closest valid name),
        missing fields, values out of range, figures that contradict each other.
    """
    try:
        profile = checked(HardwareProfile, data, HardwareError, where)
    except HardwareError as error:
        if not str(error).endswith(("are missing", "is missing")):
            raise
        raise HardwareError(f"{error} (residency list hardware --template says what each is)") from None
    if wrong := impossible(profile):
        raise HardwareError("; ".join(wrong), path=where)
    return profile
