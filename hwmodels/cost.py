"""What a piece of work costs on a machine, in whole nanoseconds. Pure functions: no queue, no state.

A copy pays its set-up once, not at each end, and only when the queue was empty. Weights are read once per call
however many rows use them; a call with many rows may be bound by arithmetic instead, so each compute cost is the
larger of the two.
"""

from __future__ import annotations

from typing import Literal

from expert_residency.hwmodels.profile import Cpu, Disk, ExpertSource, Gpu, Link
from expert_residency.hwmodels.units import ns_for_bytes

DiskAccess = Literal["direct", "mmap", "read_ahead"]


def gpu_dense_ns(gpu: Gpu, nbytes: int, family: str, *, rows: int = 1, params: int = 0, launches: int = 0) -> int:
    """Time of a dense part on the card.

    Parameters
    ----------
    gpu, nbytes, family
        The card, the weights read, their quantization family.
    rows, params
        Rows of activations and weights in the part: 2 x params x rows operations.
    launches
        Kernels started one after the other.
    """
    return launches * gpu.launch_ns + max(
        ns_for_bytes(nbytes, gpu.dense_gb_per_s.mb_per_s(family)),
        _flop_ns(2 * params * rows, gpu.compute_flop_per_ns),
    )


def gpu_experts_ns(
    gpu: Gpu,
    total_bytes: int,
    family: str,
    n_experts: int,
    *,
    rows: int = 0,
    params_per_expert: int = 0,
    launches: int = 1,
) -> int:
    """Time of one grouped expert kernel (or `launches` of them) on the card; nothing for no expert.

    Parameters
    ----------
    gpu, total_bytes, family
        The card, bytes of all experts of the group together, their family.
    n_experts
        Distinct experts in the group.
    rows
        Rows over all experts: the (token, expert) pairs that the group serves.
    params_per_expert
        Weights in one expert.
    launches
        Kernels started for the group.
    """
    if n_experts == 0:
        return 0
    return launches * gpu.launch_ns + max(
        ns_for_bytes(total_bytes, gpu.expert_gb_per_s.mb_per_s(family)),
        _flop_ns(2 * params_per_expert * rows, gpu.compute_flop_per_ns),
    )


def cpu_experts_ns(
    cpu: Cpu,
    total_bytes: int,
    family: str,
    source: ExpertSource,
    n_experts: int,
    *,
    rows: int = 0,
    params_per_expert: int = 0,
    workers: int | None = None,
) -> int:
    """Time of the CPU pool over the experts of one event, dispatch included; nothing for no expert.

    The pool works on one expert after the other with its rows split over all workers, so the time of an event is
    that of its bytes at the rate of the whole pool.
    """
    if n_experts == 0:
        return 0
    compute = 0
    if cpu.gflops is not None:
        compute = _flop_ns(2 * params_per_expert * rows, max(1, round(cpu.gflops.value)))
    return cpu.dispatch_ns + max(ns_for_bytes(total_bytes, cpu.expert_mb_per_s(source, family, workers)), compute)


def copy_ns(
    link: Link, nbytes: int, *, queue_empty: bool, direction: Literal["h2d", "d2h"] = "h2d", pinned: bool = True
) -> int:
    """Time of one copy alone on its engine: set-up (only when nothing was queued before it) + bytes / rate."""
    set_up = link.copy_t0_ns if queue_empty else 0
    if direction == "d2h":
        return set_up + ns_for_bytes(nbytes, link.d2h_mb_per_s)
    return set_up + ns_for_bytes(nbytes, link.h2d_mb_per_s if pinned else link.h2d_pageable_mb_per_s)


def handoff_ns(link: Link, nbytes: int, *, p2p: bool = False) -> int:
    """Time to hand activations to the next card: through mapped host memory, or peer to peer.

    Raises
    ------
    HardwareError
        If peer to peer is asked for and the profile has no figure for it.
    """
    if p2p:
        return link.p2p_ns + ns_for_bytes(nbytes, link.p2p_mb_per_s)
    return link.handoff_ns + ns_for_bytes(nbytes, link.handoff_mb_per_s)


def disk_rate_mb_per_s(disk: Disk, lanes_busy: int = 1) -> int:
    """Rate of the whole drive with `lanes_busy` reads in flight: lanes add up until the drive saturates."""
    lanes = min(max(1, lanes_busy), disk.lanes.count)
    return min(lanes * disk.lane_mb_per_s, disk.seq_mb_per_s)


def disk_read_ns(disk: Disk, nbytes: int, *, access: DiskAccess = "direct", lanes_busy: int = 1) -> int:
    """Time of `nbytes` from the drive, one latency in it.

    Parameters
    ----------
    disk, nbytes
        The drive and the bytes, already rounded to its pages.
    access
        ``direct`` (large reads, `lanes_busy` of them at once share the drive), ``mmap`` (page faults, no
        read-ahead) or ``read_ahead`` (faults with the kernel's read-ahead).
    lanes_busy
        Reads in flight, this one included; the time is that of all of them when `nbytes` is their sum.
    """
    if nbytes == 0:
        return 0
    rate = {
        "direct": disk_rate_mb_per_s(disk, lanes_busy),
        "mmap": disk.mmap_fault_mb_per_s,
        "read_ahead": disk.read_ahead_mb_per_s,
    }[access]
    return disk.latency_ns + ns_for_bytes(nbytes, rate)


def _flop_ns(flop: int, flop_per_ns: int) -> int:
    return -(-flop // flop_per_ns)
