"""A machine of which only data sheets are known: shares of theory for what was not measured, as assumptions."""

from __future__ import annotations

from typing import Any

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.parts.compose import MEMORY_SHARE, core_share_of, launch_of, share_of
from expert_residency.hwmodels.parts.rows import CpuRow, find_cpu, find_gpu
from expert_residency.hwmodels.profile import HardwareProfile, parse_profile
from expert_residency.hwmodels.registry import PROFILES

GPU_SHARE = 0.78
"""Of a card's memory rate that kernels of llama.cpp reach in decoding, where its architecture is not known."""


def from_data_sheet(
    name: str,
    *,
    gpu: str,
    gpu_gb_per_s: float,
    cpu: str,
    cores: int,
    ram_gb_per_s: float,
    memory_gib: float = 1024.0,
) -> HardwareProfile:
    """Profile of a machine by its data sheets, over the figures that all machines share.

    Parameters
    ----------
    name, gpu, cpu
        Names; without a card the processor stands in its place.
    gpu_gb_per_s, ram_gb_per_s
        Memory rates of the data sheet, GB/s; 0: no card.
    cores
        Of the processor.
    memory_gib
        Of card and host, GiB; large where a run is known to have fitted.

    Returns
    -------
    HardwareProfile
        Checked like a file.
    """

    def value(number: float, kind: str = "assumed") -> dict[str, Any]:
        return {
            "value": number,
            "kind": kind,
            "source": "data sheet" if kind == "datasheet" else "a share of theory",
        }

    card = gpu_gb_per_s or ram_gb_per_s
    row = find_gpu(gpu) if gpu else None
    processor = _processor(cpu)
    share = share_of(row)[0] if row else GPU_SHARE
    rate = {"default": value(card * (share if gpu_gb_per_s else MEMORY_SHARE))}
    pool = {"default": value(ram_gb_per_s * MEMORY_SHARE)}
    own = {
        "name": "data-sheet",
        "summary": f"{name}, from data sheets only",
        "gpu": {
            "name": gpu or cpu,
            "compute_capability": "unknown",
            "vram_total_gib": value(memory_gib),
            "vram_usable_gib": value(memory_gib),
            "mem_gb_per_s": value(card, "datasheet"),
            "compute_tflops": value(10.0),
            "expert_gb_per_s": rate,
            "dense_gb_per_s": rate,
            **({"launch_us": launch_of(row)} if row else {}),
        },
        "link": {
            "pcie": "unknown",
            "h2d_gb_per_s": value(12.0),
            "d2h_gb_per_s": value(12.0),
            "h2d_pageable_gb_per_s": value(10.0),
        },
        "cpu": {
            "name": cpu,
            "cores": value(cores, "datasheet"),
            "workers": value(cores),
            **(core_share_of(processor) if processor else {}),
            "expert_gb_per_s": {"pinned": pool, "pageable": pool, "page_cache": pool},
        },
        "dram": {"stream_gb_per_s": value(ram_gb_per_s), "theory_gb_per_s": value(ram_gb_per_s, "datasheet")},
        "ram": {"total_gib": value(memory_gib), "pin_limit_gib": value(memory_gib)},
    }
    return parse_profile(PROFILES.over(PROFILES.read("_generic", as_base=True), own), f"machine {name}")


def _processor(name: str) -> CpuRow | None:
    try:
        return find_cpu(name)[0]
    except HardwareError:
        return None
