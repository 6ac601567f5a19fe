"""`sim.timed.channels.copy_engine` on arrays: batches of copies, and queues in front of an engine."""

from __future__ import annotations

from expert_residency.policies.structures import front, push_back, unlink
from expert_residency.sim.kernel.timed.drive import promote_read, slice_bytes, withdraw
from expert_residency.sim.kernel.timed.net import start
from expert_residency.sim.kernel.timed.residency import cancelled_copy, slot_cancelled
from expert_residency.sim.kernel.timed.tables import (
    ACTIVE_PAGES,
    COPY,
    DISK_BYTES,
    FINISHED,
    FREE_BATCHES,
    FREE_COPIES,
    INACTIVE_PAGES,
    INTO_RING,
    NOW,
    NUMBER,
    OUT_OF_RECORDS,
    STATUS,
    USED_BATCHES,
    USED_COPIES,
    RunTables,
)
from expert_residency.sim.timed.channels.copy_engine import (
    ADAPT,
    CANCELLED,
    COPYING,
    DEMAND,
    DONE,
    PREFETCH,
    QUEUED,
    WAITING,
)
from expert_residency.sim.timed.host.plan import DISK, PINNED
from expert_residency.sim.timed.rules import bytes_ns, copy_ns, own_rate, page_bytes_of

LISTS, READING = 4, 3
"""Lists of an engine: its three classes, and prefetches whose bytes the drive reads first."""

# ---- records -------------------------------------------------------------------------------------


def new_batch(run: RunTables, engine: int, source: int, priority: int, deadline: int, kind: int) -> int:
    """An empty batch whose bytes lie at `source`.

    Parameters
    ----------
    run
        The run, changed in place.
    engine
        Number of the copy engine.
    source
        Where the bytes lie on the host.
    priority
        DEMAND, ADAPT or PREFETCH.
    deadline
        Event after which a prefetch is of no use.
    kind
        What to do at a landing.

    Returns
    -------
    int
        Number of the batch.
    """
    batches, engines, v = run.batches, run.engines, run.v
    if v[FREE_BATCHES] > 0:
        v[FREE_BATCHES] -= 1
        batch = engines.free_batches[v[FREE_BATCHES]]
    else:
        batch = v[USED_BATCHES]
        if batch + 1 < len(batches.state):
            v[USED_BATCHES] += 1
        else:
            v[STATUS] = OUT_OF_RECORDS
    batches.state[batch] = WAITING
    batches.priority[batch] = priority
    batches.deadline[batch] = deadline
    batches.kind[batch] = kind
    batches.engine[batch] = engine
    batches.rate[batch] = engines.rate[2 * engine + (0 if source == PINNED else 1)]
    batches.size[batch] = 0
    batches.landed[batch] = 0
    batches.first[batch] = -1
    batches.current[batch] = -1
    batches.last[batch] = -1
    batches.submitted[batch] = -1
    batches.refs[batch] = 0
    batches.source[batch] = source
    batches.host_ns[batch] = 0
    batches.read_ns[batch] = 0
    batches.reading[batch] = 0
    batches.asked[batch] = 0
    batches.begun[batch] = 0
    return batch


def add_copy(run: RunTables, batch: int, key: int, rows: int) -> int:
    """Append a copy of `key` to a batch.

    Parameters
    ----------
    run
        The run, changed in place.
    batch
        Number of the batch.
    key
        The expert.
    rows
        Rows that want it.

    Returns
    -------
    int
        Number of the copy.
    """
    batches, copies, engines, v = run.batches, run.copies, run.engines, run.v
    if v[FREE_COPIES] > 0:
        v[FREE_COPIES] -= 1
        made = engines.free_copies[v[FREE_COPIES]]
    else:
        made = v[USED_COPIES]
        if made + 1 < len(copies.key):
            v[USED_COPIES] += 1
        else:
            v[STATUS] = OUT_OF_RECORDS
    copies.key[made] = key
    copies.next[made] = -1
    copies.rows[made] = rows
    copies.pair[made] = -1
    if batches.first[batch] < 0:
        batches.first[batch] = made
        batches.current[batch] = made
    else:
        copies.next[batches.last[batch]] = made
    batches.last[batch] = made
    batches.size[batch] += 1
    if batches.priority[batch] == DEMAND and batches.source[batch] == PINNED:
        batches.host_ns[batch] += run.costs.copy
    return made


def hold(run: RunTables, batch: int) -> None:
    """Somebody besides the engine keeps `batch`."""
    run.batches.refs[batch] += 1


def let_go(run: RunTables, batch: int) -> None:
    """Undo `hold`."""
    run.batches.refs[batch] -= 1
    finish(run, batch)


def finish(run: RunTables, batch: int) -> None:
    """Note a batch that may be over."""
    batches, v = run.batches, run.v
    if batches.refs[batch] == 0 and batches.state[batch] >= DONE:
        batches.refs[batch] = -1  # noted once
        run.engines.finished[v[FINISHED]] = batch
        v[FINISHED] += 1


def release(run: RunTables) -> None:
    """Take back the records of batches that are over; nobody may look at them any more."""
    batches, copies, engines, v = run.batches, run.copies, run.engines, run.v
    for i in range(v[FINISHED]):
        batch = engines.finished[i]
        copy = batches.first[batch]
        while copy >= 0:
            engines.free_copies[v[FREE_COPIES]] = copy
            v[FREE_COPIES] += 1
            copy = copies.next[copy]
        engines.free_batches[v[FREE_BATCHES]] = batch
        v[FREE_BATCHES] += 1
    v[FINISHED] = 0


# ---- the engine ----------------------------------------------------------------------------------


def submit(run: RunTables, batch: int) -> None:
    """Queue a batch; it starts at once if the engine is idle."""
    batches, engines = run.batches, run.engines
    batches.submitted[batch] = run.v[NOW]
    if batches.state[batch] == CANCELLED:
        return
    if engines.queues.home[batch] >= 0:  # among those that the drive reads first
        unlink(engines.queues, batch)
    batches.state[batch] = QUEUED
    enqueue(run, batch)
    engine = batches.engine[batch]
    if engines.current[engine] < 0:
        following = next_batch(run, engine)
        if following >= 0:
            begin(run, engine, following, engines.set_up[engine] + batches.host_ns[following])


def enqueue(run: RunTables, batch: int) -> None:
    """To the end of its class."""
    batches, engines = run.batches, run.engines
    engine, priority = batches.engine[batch], batches.priority[batch]
    push_back(engines.queues, LISTS * engine + (DEMAND if engines.in_order[engine] == 1 else priority), batch)
    if priority == DEMAND and engines.blocked_since[engine] < 0:
        current = engines.current[engine]
        if current >= 0 and batches.priority[current] == PREFETCH:
            engines.blocked_since[engine] = run.v[NOW]


def begin(run: RunTables, engine: int, batch: int, set_up_ns: int) -> None:
    """Start the next copy of a batch on an engine that does nothing.

    Parameters
    ----------
    run
        The run, changed in place.
    engine
        Number of the copy engine.
    batch
        Number of the batch.
    set_up_ns
        What an idle engine takes before.
    """
    engines = run.engines
    engines.current[engine] = batch
    run.batches.state[batch] = COPYING
    rate = flow_rate(run, batch)
    engines.flow_rate[engine] = rate
    start(run, set_up_ns + before(run, batch), solo(run, batch), rate, COPY, engine, engines.port[engine])


def solo(run: RunTables, batch: int) -> int:
    """Time of a batch's next copy alone on the link."""
    return alone(run, batch, run.batches.current[batch])


def before(run: RunTables, batch: int) -> int:
    """What comes before a batch's next copy on the link."""
    return run.batches.read_ns[batch] if run.batches.landed[batch] == 0 else 0


def flow_rate(run: RunTables, batch: int) -> int:
    """What a batch's next copy asks of the servers."""
    size, rate = run.slots.size_of[run.copies.key[run.batches.current[batch]]], run.batches.rate[batch]
    return own_rate(size, solo(run, batch), bytes_ns(size, rate), rate)


def alone(run: RunTables, batch: int, copy: int) -> int:
    """Time of one copy alone on the link, without a read before it.

    Parameters
    ----------
    run
        The run.
    batch
        Number of the batch.
    copy
        Number of the copy.

    Returns
    -------
    int
        Ns.
    """
    size = run.slots.size_of[run.copies.key[copy]]
    return copy_ns(size, run.batches.rate[batch], run.engines.floor[run.batches.engine[batch]])


def next_batch(run: RunTables, engine: int) -> int:
    """Take the most urgent batch out of the queues, or -1; stale prefetches are dropped on the way."""
    batches, queues = run.batches, run.engines.queues
    for which in range(LISTS * engine, LISTS * engine + READING):
        while queues.size[which] > 0:
            batch = front(queues, which)
            unlink(queues, batch)
            droppable = batches.priority[batch] == PREFETCH and batches.landed[batch] == 0
            if droppable and run.engines.in_order[engine] == 0 and batches.deadline[batch] <= run.v[NUMBER]:
                dropped(run, batch)
                continue
            return batch
    return -1


def more_urgent(run: RunTables, engine: int, priority: int) -> bool:
    """Whether a batch of a class before `priority` is queued.

    Parameters
    ----------
    run
        The run.
    engine
        Number of the copy engine.
    priority
        DEMAND, ADAPT or PREFETCH.

    Returns
    -------
    bool
        Whether there is one.
    """
    size = run.engines.queues.size
    if run.engines.in_order[engine] == 1 or priority == DEMAND:
        return False
    return size[LISTS * engine + DEMAND] > 0 or (priority > ADAPT and size[LISTS * engine + ADAPT] > 0)


def promote(run: RunTables, batch: int, priority: int) -> None:
    """Move a batch that is not in service to the end of a more urgent class.

    Parameters
    ----------
    run
        The run, changed in place.
    batch
        Number of the batch.
    priority
        The class that it is to have.
    """
    batches, engines = run.batches, run.engines
    engine = batches.engine[batch]
    if batch == engines.current[engine]:
        engines.awaited[engine] = 1
    if batches.state[batch] == WAITING and batches.reading[batch] == 1:
        promote_read(run, run.copies.key[batches.first[batch]], priority)
    if engines.in_order[engine] == 1 or priority >= batches.priority[batch] or batches.state[batch] > QUEUED:
        return
    if batches.state[batch] == QUEUED:
        unlink(engines.queues, batch)
        batches.priority[batch] = priority
        enqueue(run, batch)
    elif engines.queues.home[batch] >= 0:
        unlink(engines.queues, batch)
    batches.priority[batch] = priority


def cancel(run: RunTables, batch: int) -> bool:
    """Drop a batch of which nothing has begun; False if something has."""
    batches, engines = run.batches, run.engines
    in_order = engines.in_order[batches.engine[batch]] == 1
    if in_order or batches.state[batch] > QUEUED or batches.landed[batch] > 0:
        return False
    if engines.queues.home[batch] >= 0:
        unlink(engines.queues, batch)
    dropped(run, batch)
    return True


def drop_stale(run: RunTables, engine: int) -> None:
    """Cancel the prefetches, queued or being read, whose deadline has passed."""
    queues = run.engines.queues
    for which in range(LISTS * engine + PREFETCH, LISTS * engine + LISTS):
        end = len(queues.home) + which
        batch = queues.next[end]
        while batch != end:
            following = queues.next[batch]
            if run.batches.deadline[batch] <= run.v[NUMBER]:
                cancel(run, batch)
            batch = following


def so_far(run: RunTables, batch: int) -> int:
    """Bytes that the drive has begun to read for a batch that is given up."""
    batches, key = run.batches, run.copies.key[run.batches.first[batch]]
    if batches.reading[batch] == 1:
        return leave_read(run, key, batch)
    if batches.source[batch] == DISK and run.rules.link_reads == 1:
        unread_by_link(run, key)
        return 0
    return batches.begun[batch]


def leave_read(run: RunTables, key: int, batch: int) -> int:
    """Wait for `key` no more; what has not begun of a read that nobody waits for is taken back.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The expert.
    batch
        Number of the batch that waited.

    Returns
    -------
    int
        Of the bytes that it asked of the drive, those that have begun.
    """
    host, asked = run.host, run.batches.asked[batch]
    before, waiter = -1, host.wait_first[key]
    while waiter != batch:
        before = waiter
        waiter = host.wait_next[waiter]
    following = host.wait_next[batch]
    if before < 0:
        host.wait_first[key] = following
    else:
        host.wait_next[before] = following
    if following < 0:
        host.wait_last[key] = before
    run.batches.reading[batch] = 0
    let_go(run, batch)
    if host.wait_first[key] >= 0:
        return asked
    host.missing[key] = withdraw(run, key)
    if host.missing[key] > 0 and host.flying[key] == 0:
        host.reading[key] = 0
    return max(0, asked - host.missing[key] * slice_bytes(run, key))


def unread_by_link(run: RunTables, key: int) -> None:
    """A copy was dropped before the link had read it."""
    host, page_key = run.host, run.host.page_base + key
    if host.lists.home[page_key] >= 0:
        run.v[ACTIVE_PAGES if host.lists.home[page_key] == 1 else INACTIVE_PAGES] -= host.pages[page_key]
        unlink(host.lists, page_key)
    run.v[DISK_BYTES] -= page_bytes_of(run.slots.size_of[key], 1, host.page_bytes)


def dropped(run: RunTables, batch: int) -> None:
    """A prefetch is cancelled: it leaves its slot, or the staging ring."""
    begun = so_far(run, batch)
    run.batches.state[batch] = CANCELLED
    run.batches.begun[batch] = begun
    key = run.copies.key[run.batches.first[batch]]
    if run.batches.kind[batch] != INTO_RING:
        slot_cancelled(run, key, begun)
    elif run.ahead.ring.home[key] >= 0 and run.ahead.batch_of[key] == batch:
        leave_ring(run, key)
        cancelled_copy(run, key, begun)
    finish(run, batch)


def leave_ring(run: RunTables, key: int) -> None:
    """Take `key` out of the staging ring, if it is there."""
    if run.ahead.ring.home[key] >= 0:
        unlink(run.ahead.ring, key)
        let_go(run, run.ahead.batch_of[key])
