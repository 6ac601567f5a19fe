"""`sim.timed.channels.copy_engine` on arrays: batches of copies, and queues in front of an engine."""

from __future__ import annotations

from expert_residency.policies.structures import front, push_back, unlink
from expert_residency.sim.kernel.timed.net import start
from expert_residency.sim.kernel.timed.residency import dropped_copy, slot_cancelled
from expert_residency.sim.kernel.timed.tables import (
    COPY,
    FINISHED,
    FREE_BATCHES,
    FREE_COPIES,
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
from expert_residency.sim.timed.host.plan import PINNED
from expert_residency.sim.timed.rules import copy_ns

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
    push_back(engines.queues, 3 * engine + (DEMAND if engines.in_order[engine] == 1 else priority), batch)
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
    run.engines.current[engine] = batch
    run.batches.state[batch] = COPYING
    start(run, solo(run, batch) + set_up_ns, run.batches.rate[batch], COPY, engine, run.engines.port[engine])


def solo(run: RunTables, batch: int) -> int:
    """Time of a batch's next transfer alone on the link."""
    batches = run.batches
    copying = alone(run, batch, batches.current[batch])
    return copying + batches.read_ns[batch] if batches.landed[batch] == 0 else copying


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
    for which in range(3 * engine, 3 * engine + 3):
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
    return size[3 * engine + DEMAND] > 0 or (priority > ADAPT and size[3 * engine + ADAPT] > 0)


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
    if engines.in_order[engine] == 1 or priority >= batches.priority[batch] or batches.state[batch] > QUEUED:
        return
    if batches.state[batch] == QUEUED:
        unlink(engines.queues, batch)
        batches.priority[batch] = priority
        enqueue(run, batch)
    batches.priority[batch] = priority


def cancel(run: RunTables, batch: int) -> bool:
    """Drop a batch of which nothing has begun; False if something has."""
    batches, engines = run.batches, run.engines
    in_order = engines.in_order[batches.engine[batch]] == 1
    if in_order or batches.state[batch] > QUEUED or batches.landed[batch] > 0:
        return False
    if batches.state[batch] == QUEUED:
        unlink(engines.queues, batch)
    dropped(run, batch)
    return True


def drop_stale(run: RunTables, engine: int) -> None:
    """Cancel the queued prefetches whose deadline has passed."""
    queues = run.engines.queues
    end = len(queues.home) + 3 * engine + PREFETCH
    batch = queues.next[end]
    while batch != end:
        following = queues.next[batch]
        if run.batches.deadline[batch] <= run.v[NUMBER]:
            cancel(run, batch)
        batch = following


def dropped(run: RunTables, batch: int) -> None:
    """A prefetch is cancelled: it leaves its slot, or the staging ring."""
    run.batches.state[batch] = CANCELLED
    key = run.copies.key[run.batches.first[batch]]
    if run.batches.kind[batch] == INTO_RING:
        leave_ring(run, key)
        dropped_copy(run, key)
    else:
        slot_cancelled(run, key)
    finish(run, batch)


def leave_ring(run: RunTables, key: int) -> None:
    """Take `key` out of the staging ring, if it is there."""
    if run.ahead.ring.home[key] >= 0:
        unlink(run.ahead.ring, key)
        let_go(run, run.ahead.batch_of[key])
