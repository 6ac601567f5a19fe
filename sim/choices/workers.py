"""What a pool of so many workers reads: by measured points, by the engine's own limit of a core, or by a rule."""

from __future__ import annotations

from typing import Any

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.sim.choices.preset import EnginePreset

CORE_GB_PER_S = 12.0
"""What one core reads at most where neither profile nor preset says; `_rate` says how it meets memory."""
PAYS = 0.25
"""Of its share that a worker more must add: with 1/10 more workers, 2.5 % more."""


def as_set(value: float, why: str = "as the knob sets it") -> Quantity:
    """A number of a knob."""
    return Quantity(value=float(value), kind="measured", source=why)


def with_workers(profile: HardwareProfile, preset: EnginePreset, workers: int) -> HardwareProfile:
    """The profile with another number of workers in the pool.

    Parameters
    ----------
    profile
        With rates for its own number.
    preset
        An engine that limits a core itself has its limit scale.
    workers
        How many.

    Returns
    -------
    HardwareProfile
        Rates by the measured points of the profile, or with what a core reads at most.
    """
    cpu = profile.cpu
    if workers == cpu.workers.count:
        return profile
    sources = {}
    for name, rates in (
        (n, r) for n in type(cpu.expert_gb_per_s).model_fields if (r := getattr(cpu.expert_gb_per_s, n))
    ):
        data: dict[str, Any] = {}
        for family in type(rates).model_fields:
            rate = getattr(rates, family)
            if rate is not None:
                data[family] = rate.model_copy(
                    update={"value": _rate(profile, preset, rate.value, workers), "spread": None}
                )
        sources[name] = rates.model_copy(update=data)
    cores = min(workers, cpu.cores.count) if preset.cpu_core_gb_per_s else cpu.cores.count
    return profile.model_copy(
        update={
            "cpu": cpu.model_copy(
                update={
                    "expert_gb_per_s": cpu.expert_gb_per_s.model_copy(update=sources),
                    "workers": as_set(workers), "cores": as_set(cores),
                }
            )
        }
    )  # fmt: skip


def _rate(profile: HardwareProfile, preset: EnginePreset, rate: float, workers: int) -> float:
    """By measured points; by the preset's own limit of a core; else a core's time and memory's time add up.

    An i9-13900HX with 6, 7, 12, 15 and 23 workers reads as 50 GB/s of memory and 11 of each worker would.
    """
    if profile.cpu.expert_gb_per_s_by_workers:
        return rate * profile.cpu.scale(workers) / profile.cpu.scale(profile.cpu.workers.count)
    if preset.cpu_core_gb_per_s:
        return rate
    own = profile.cpu.workers.count * CORE_GB_PER_S
    if rate >= own:  # cores limit already
        return rate * workers / profile.cpu.workers.count
    return 1 / (1 / rate - 1 / own + 1 / (workers * CORE_GB_PER_S))


def workers_set(profile: HardwareProfile, preset: EnginePreset) -> int:
    """Workers of the pool as the profile has them: its cores where the engine limits a core."""
    return profile.cpu.cores.count if preset.cpu_core_gb_per_s else profile.cpu.workers.count


def pool_gb_per_s(profile: HardwareProfile, preset: EnginePreset, family: str, workers: int) -> float:
    """Rate at which so many workers read experts of a quantization family, no more than memory gives.

    Parameters
    ----------
    profile
        Processor and memory.
    preset
        The engine.
    family
        Quantization family of the experts.
    workers
        How many.

    Returns
    -------
    float
        GB/s.
    """
    rate = _rate(profile, preset, profile.cpu.expert_mb_per_s("pinned", family) / 1000, workers)
    if preset.cpu_core_gb_per_s:
        most = profile.cpu.most_gb_per_s(preset.cpu_core_gb_per_s.value)
        rate = min(rate, most * workers / profile.cpu.cores.count)
    return min(rate, profile.dram.shared_mb_per_s / 1000)


def enough_workers(profile: HardwareProfile, preset: EnginePreset, family: str) -> tuple[int, int]:
    """The number beyond which no worker more pays, and the most that anything is known of.

    Parameters
    ----------
    profile
        Processor and memory. Beyond the last of its measured points nothing is known.
    preset
        The engine.
    family
        Quantization family of the experts.

    Returns
    -------
    (workers, most)
        Equal where all that are known pay.
    """
    points = profile.cpu.expert_gb_per_s_by_workers
    most = max(profile.cpu.workers.count, profile.cpu.cores.count)
    most = min(most, max(points)) if points else most
    rates = [pool_gb_per_s(profile, preset, family, n) for n in range(1, most + 1)]
    for n in range(most - 1, 0, -1):
        if rates[n] / rates[n - 1] - 1 >= PAYS / n:
            return n + 1, most
    return 1, most
