"""`sim.timed.host.live`, `sim.timed.channels.disk`, `sim.timed.channels.cpu`, `sim.timed.page_cache` on arrays."""

from __future__ import annotations

from expert_residency.policies.structures import front, move_to_back, push_back, unlink
from expert_residency.sim.kernel.timed.copies import hold, let_go, submit
from expert_residency.sim.kernel.timed.drive import promote_read, slice_bytes, slice_ended, submit_read
from expert_residency.sim.kernel.timed.net import start
from expert_residency.sim.kernel.timed.residency import late_read
from expert_residency.sim.kernel.timed.tables import (
    ACTIVE_PAGES,
    COMPUTE,
    CPU_BUSY,
    CPU_BYTES,
    CPU_WAITS,
    DISK_BYTES,
    INACTIVE_PAGES,
    NOW,
    PAGES,
    SEGMENT,
    SEGMENTS,
    WAITING_SINCE,
    RunTables,
)
from expert_residency.sim.timed.channels.copy_engine import DEMAND, PREFETCH
from expert_residency.sim.timed.host.plan import DISK, PAGE_CACHE
from expert_residency.sim.timed.rules import page_bytes_of, read_ns

INACTIVE, ACTIVE = 0, 1
NOBODY = -1


def source(run: RunTables, key: int) -> int:
    """Tier of `key` now; a use as far as the page cache is concerned."""
    tier = run.slots.source_of[key]
    if tier != PAGE_CACHE:
        return tier
    if run.host.reading[key] == 1:
        return DISK
    return PAGE_CACHE if touch(run, run.host.page_base + key) else DISK


# ---- the page cache ------------------------------------------------------------------------------


def touch(run: RunTables, page_key: int) -> bool:
    """Use of an expert of the file: True if its pages are in memory."""
    lists, v = run.host.lists, run.v
    home = lists.home[page_key]
    if home == ACTIVE:
        move_to_back(lists, page_key)
        return True
    if home < 0:
        return False
    pages = run.host.pages[page_key]
    unlink(lists, page_key)
    push_back(lists, ACTIVE, page_key)
    v[INACTIVE_PAGES] -= pages
    v[ACTIVE_PAGES] += pages
    while v[ACTIVE_PAGES] * run.host.whole > run.host.page_capacity * run.host.share and lists.size[ACTIVE] > 1:
        oldest = front(lists, ACTIVE)
        unlink(lists, oldest)
        push_back(lists, INACTIVE, oldest)
        v[ACTIVE_PAGES] -= run.host.pages[oldest]
        v[INACTIVE_PAGES] += run.host.pages[oldest]
    return True


def keep_pages(run: RunTables, page_key: int, nbytes: int) -> None:
    """An expert was read from the drive; the oldest make room.

    Parameters
    ----------
    run
        The run, changed in place.
    page_key
        Key of the expert in its file.
    nbytes
        Its bytes.
    """
    lists, v, capacity = run.host.lists, run.v, run.host.page_capacity
    pages = -(-nbytes // run.host.page_bytes)
    if lists.home[page_key] >= 0 or pages > capacity:
        return
    while v[ACTIVE_PAGES] + v[INACTIVE_PAGES] + pages > capacity:
        if lists.size[INACTIVE] > 0:
            oldest = front(lists, INACTIVE)
            v[INACTIVE_PAGES] -= run.host.pages[oldest]
        else:
            oldest = front(lists, ACTIVE)
            v[ACTIVE_PAGES] -= run.host.pages[oldest]
        unlink(lists, oldest)
    push_back(lists, INACTIVE, page_key)
    run.host.pages[page_key] = pages
    v[INACTIVE_PAGES] += pages


# ---- the drive -----------------------------------------------------------------------------------


def read(run: RunTables, key: int, waiter: int, priority: int) -> int:
    """Bring `key` into memory for a batch, a segment or NOBODY; a read already under way is joined.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The expert.
    waiter
        Number of who waits, or NOBODY.
    priority
        DEMAND, ADAPT or PREFETCH.

    Returns
    -------
    int
        Bytes that this asks of the drive: 0 if a read is joined.
    """
    host = run.host
    joined = host.reading[key] == 1
    if not joined:
        host.wait_first[key] = -1
    if waiter >= 0:
        host.wait_next[waiter] = -1
        if host.wait_first[key] < 0:
            host.wait_first[key] = waiter
        else:
            host.wait_next[host.wait_last[key]] = waiter
        host.wait_last[key] = waiter
        if waiter < host.batches:
            hold(run, waiter)
    if joined:
        promote_read(run, key, priority)
        slices = host.missing[key]
        if slices > 0:  # it was given up: the rest of it is asked for again
            host.missing[key] = 0
            host.queued[key] = slices
            submit_read(run, key)
        return slices * slice_bytes(run, key)
    host.reading[key] = 1
    host.left[key] = host.slices
    host.missing[key] = 0
    host.flying[key] = 0
    host.queued[key] = host.slices
    host.priority[key] = priority
    submit_read(run, key)
    return host.slices * slice_bytes(run, key)


def read_joined(run: RunTables, key: int, waiter: int, priority: int) -> int:
    """`read`; a demand or swap that joins the read of a prefetch has found it late.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The expert.
    waiter
        Number of who waits.
    priority
        DEMAND, ADAPT or PREFETCH.

    Returns
    -------
    int
        Bytes that this asks of the drive.
    """
    if priority != PREFETCH and run.rules.insertion != PAGES and run.host.reading[key] == 1:
        late_read(run, key)
    return read(run, key, waiter, priority)


def link_read_bytes(run: RunTables, key: int) -> int:
    """Bytes of a read by the copy engine."""
    return page_bytes_of(run.slots.size_of[key], 1, run.host.page_bytes)


def read_by_link(run: RunTables, key: int) -> int:
    """The copy engine reads `key` itself: ns that this adds to the copy."""
    nbytes = link_read_bytes(run, key)
    keep_pages(run, run.host.page_base + key, run.slots.size_of[key])
    run.v[DISK_BYTES] += nbytes
    return read_ns(nbytes, run.host.latency, run.host.lane_rate)


def read_ended(run: RunTables, key: int) -> None:
    """A lane is free; with the last slice the expert is in memory, and those who wait go on."""
    host, batches = run.host, run.batches
    slice_ended(run, key)
    host.left[key] -= 1
    if host.missing[key] > 0:
        if host.flying[key] == 0:
            host.reading[key] = 0  # given up: a part of an expert is of no use
        return
    if host.left[key] > 0:
        return
    if host.cached == 1:
        keep_pages(run, host.page_base + key, run.slots.size_of[key])
    host.reading[key] = 0
    waiter = host.wait_first[key]
    while waiter >= 0:
        following = host.wait_next[waiter]
        if waiter < host.batches:
            batches.reading[waiter] = 0
            batches.begun[waiter] = batches.asked[waiter]
            submit(run, waiter)
            let_go(run, waiter)
        else:
            arrived(run, waiter - host.batches)
        waiter = following


# ---- the CPU pool --------------------------------------------------------------------------------


def run_segments(run: RunTables) -> None:
    """Work through the segments in order; the pool must be idle."""
    v = run.v
    v[SEGMENT] = 0
    v[CPU_BUSY] = 1
    v[CPU_WAITS] = 0
    v[WAITING_SINCE] = -1
    advance_pool(run)


def advance_pool(run: RunTables) -> None:
    """Begin the next segment, or wait for its bytes."""
    cpu, v = run.cpu, run.v
    at = v[SEGMENT]
    if at == v[SEGMENTS]:
        v[CPU_BUSY] = 0
    elif cpu.ready[at] == 1:
        start(run, cpu.fixed[at], cpu.solo[at], cpu.rate[at], COMPUTE, 0, -1)
    else:
        v[WAITING_SINCE] = v[NOW]
        if cpu.fault[at] >= 0:
            read_joined(run, cpu.fault[at], run.host.batches + at, DEMAND)


def arrived(run: RunTables, segment: int) -> None:
    """The bytes of a segment are in memory now."""
    cpu, v = run.cpu, run.v
    cpu.ready[segment] = 1
    if v[WAITING_SINCE] >= 0 and v[SEGMENT] == segment:
        cpu.wait_from[v[CPU_WAITS]] = v[WAITING_SINCE]
        cpu.wait_to[v[CPU_WAITS]] = v[NOW]
        v[CPU_WAITS] += 1
        v[WAITING_SINCE] = -1
        advance_pool(run)


def segment_done(run: RunTables) -> None:
    """On to the next one."""
    v = run.v
    v[CPU_BYTES] += run.cpu.nbytes[v[SEGMENT]]
    v[SEGMENT] += 1
    advance_pool(run)
