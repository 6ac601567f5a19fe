"""`sim.timed.channels.disk` on arrays: reads in three classes in front of some lanes."""

from __future__ import annotations

from expert_residency.policies.structures import front, push_back, unlink
from expert_residency.sim.kernel.timed.net import start
from expert_residency.sim.kernel.timed.tables import (
    ACTIVE_READS,
    AHEAD_READS,
    DISK_BYTES,
    DRIVE_BLOCKED_NS,
    DRIVE_BLOCKED_SINCE,
    DRIVE_BLOCKING_BYTES,
    NOW,
    READ,
    RunTables,
)
from expert_residency.sim.timed.channels.copy_engine import DEMAND, PREFETCH
from expert_residency.sim.timed.rules import bytes_ns, page_bytes_of

CLASSES = 3


def slice_bytes(run: RunTables, key: int) -> int:
    """Bytes of one slice: whole pages."""
    return page_bytes_of(run.slots.size_of[key], run.host.slices, run.host.page_bytes)


def submit_read(run: RunTables, key: int) -> None:
    """Queue the read of `key`; slices start at once while lanes are free."""
    push_back(run.host.queues, run.host.priority[key], key)
    fill_lanes(run)
    note_blocked(run)


def promote_read(run: RunTables, key: int, priority: int) -> None:
    """Move what has not begun of a read to the end of a more urgent class.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The expert.
    priority
        The class that it is to have.
    """
    host = run.host
    if priority >= host.priority[key]:
        return
    if host.queued[key] > 0:
        unlink(host.queues, key)
        push_back(host.queues, priority, key)
    if host.priority[key] == PREFETCH:
        run.v[AHEAD_READS] -= host.flying[key]
    host.priority[key] = priority
    note_blocked(run)


def withdraw(run: RunTables, key: int) -> int:
    """Take the slices that have not begun out of the queue; returns how many."""
    slices = run.host.queued[key]
    if slices > 0:
        unlink(run.host.queues, key)
        run.host.queued[key] = 0
    return slices


def note_blocked(run: RunTables) -> None:
    """Demands may stand behind slices of prefetches from now on."""
    v = run.v
    if v[DRIVE_BLOCKED_SINCE] < 0 and v[AHEAD_READS] > 0 and run.host.queues.size[DEMAND] > 0:
        v[DRIVE_BLOCKED_SINCE] = v[NOW]


def fill_lanes(run: RunTables) -> None:
    """Begin slices, the most urgent first, while lanes are free."""
    host, v = run.host, run.v
    for which in range(CLASSES):
        while host.queues.size[which] > 0 and v[ACTIVE_READS] < host.lanes:
            key = front(host.queues, which)
            host.queued[key] -= 1
            if host.queued[key] == 0:
                unlink(host.queues, key)
            begin_slice(run, key)


def begin_slice(run: RunTables, key: int) -> None:
    """One more lane is busy."""
    host, v = run.host, run.v
    v[ACTIVE_READS] += 1
    host.flying[key] += 1
    if host.priority[key] == PREFETCH:
        v[AHEAD_READS] += 1
    start(run, host.latency, bytes_ns(slice_bytes(run, key), host.lane_rate), host.lane_rate, READ, key, -1)


def slice_ended(run: RunTables, key: int) -> None:
    """A lane is free again; the next slice takes it."""
    host, v = run.host, run.v
    nbytes = slice_bytes(run, key)
    v[ACTIVE_READS] -= 1
    host.flying[key] -= 1
    v[DISK_BYTES] += nbytes
    if v[DRIVE_BLOCKED_SINCE] >= 0:
        if host.priority[key] == PREFETCH:
            v[DRIVE_BLOCKED_NS] += v[NOW] - v[DRIVE_BLOCKED_SINCE]
            v[DRIVE_BLOCKING_BYTES] += nbytes
        v[DRIVE_BLOCKED_SINCE] = -1
    if host.priority[key] == PREFETCH:
        v[AHEAD_READS] -= 1
    fill_lanes(run)
    note_blocked(run)
