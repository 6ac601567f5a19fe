"""What happens when a flow ends, and how time goes on until one does."""

from __future__ import annotations

from expert_residency.policies.protocol import NEVER
from expert_residency.policies.structures import push_back, push_before
from expert_residency.sim.kernel.timed.copies import (
    LISTS,
    READING,
    add_copy,
    before,
    begin,
    finish,
    flow_rate,
    more_urgent,
    new_batch,
    next_batch,
    solo,
    submit,
)
from expert_residency.sim.kernel.timed.host import (
    link_read_bytes,
    read_by_link,
    read_ended,
    read_joined,
    segment_done,
    source,
)
from expert_residency.sim.kernel.timed.net import DRAM_SERVER, ask_servers, leave, plan_wake, replan, settle, start
from expert_residency.sim.kernel.timed.residency import broke, slot_landed, swap, under_way
from expert_residency.sim.kernel.timed.tables import (
    CHANGED,
    COMPUTE,
    COPIED_BACK,
    COPY,
    COPYING,
    DRIVE_ISSUED,
    DRIVE_ISSUED_BYTES,
    ENDING,
    FLOWS,
    INTO_RING,
    INTO_SLOT,
    MOVE,
    MOVED_BYTES,
    MOVING,
    NEVER_WOKEN,
    NOW,
    OK,
    READ,
    SETTLED,
    STATUS,
    SWAP_COPY,
    SWAP_EXCHANGE,
    SWAP_STREAMS,
    SWAPPED,
    WAKE,
    RunTables,
)
from expert_residency.sim.residency.laws import SWAP_NO_KEY, TOO_MANY_SWAPS, swap_keys_fault
from expert_residency.sim.timed.channels.copy_engine import ADAPT, DONE, PREFETCH, QUEUED
from expert_residency.sim.timed.channels.copy_engine import COPYING as IN_SERVICE
from expert_residency.sim.timed.host.plan import DISK
from expert_residency.sim.timed.rules import move_ns, slowed_ns

# ---- time ----------------------------------------------------------------------------------------


def wake(run: RunTables) -> None:
    """Go to the time at which the next flows end, and end them."""
    net, v = run.net, run.v
    if v[WAKE] < 0:
        v[STATUS] = NEVER_WOKEN
        return
    now = v[WAKE]
    v[NOW] = now
    v[ENDING] = 1
    v[CHANGED] = 0
    n = 0
    if v[FLOWS] == 1 and net.moving[net.order[0]] == 1:
        v[SETTLED] = now
        net.ended[0] = net.order[0]
        n = 1
    else:
        settle(run)
        for i in range(v[FLOWS]):
            if net.finish[net.order[i]] <= now:
                net.ended[n] = net.order[i]
                n += 1
    for i in range(n):
        flow = net.ended[i]
        if net.moving[flow] == 0:
            net.moving[flow] = 1
            ask_servers(run, flow)
            v[CHANGED] = 1
            continue
        following = flow_ended(run, net.kind[flow], net.ref[flow])
        if following > 0:
            net.remaining[flow] = following
            net.finish[flow] = now + slowed_ns(following, net.num[flow], net.den[flow])
        else:
            leave(run, flow)
    v[ENDING] = 0
    if v[CHANGED] == 1:
        replan(run)
    else:
        plan_wake(run)


def flow_ended(run: RunTables, kind: int, ref: int) -> int:
    """Act on the end of a flow; returns the time of one that goes on in its place, or 0.

    Parameters
    ----------
    run
        The run, changed in place.
    kind
        Of the flow.
    ref
        Number of what it belongs to.

    Returns
    -------
    int
        Ns of the next flow, or 0.
    """
    if kind == COPY:
        return copy_ended(run, ref)
    if kind == COMPUTE:
        segment_done(run)
    elif kind == READ:
        read_ended(run, ref)
    else:
        run.v[MOVING] = 0
    return 0


# ---- copies --------------------------------------------------------------------------------------


def copy_ended(run: RunTables, engine: int) -> int:
    """The copy in service landed: the next of its batch, or of the queues."""
    batches, engines, v = run.batches, run.engines, run.v
    batch = engines.current[engine]
    copy = batches.current[batch]
    size = run.slots.size_of[run.copies.key[copy]]
    batches.landed[batch] += 1
    batches.current[batch] = run.copies.next[copy]
    priority = batches.priority[batch]
    engines.nbytes[3 * engine + priority] += size
    if engines.blocked_since[engine] >= 0:
        if engines.awaited[engine] == 0:
            engines.blocked_ns[engine] += v[NOW] - engines.blocked_since[engine]
            engines.blocking_bytes[engine] += size
        engines.blocked_since[engine] = -1
    engines.awaited[engine] = 0
    more = batches.landed[batch] < batches.size[batch]
    if not more:
        batches.state[batch] = DONE
    landed(run, batch, copy)
    following = batch
    if not more or more_urgent(run, engine, priority):
        if more:
            batches.state[batch] = QUEUED
            which = LISTS * engine + priority
            push_before(engines.queues, which, batch, engines.queues.next[len(engines.queues.home) + which])
        following = next_batch(run, engine)
    engines.current[engine] = -1
    if not more:
        finish(run, batch)
    if following < 0:
        return 0
    if flow_rate(run, following) == engines.flow_rate[engine] and before(run, following) == 0:
        engines.current[engine] = following
        batches.state[following] = IN_SERVICE
        return solo(run, following)
    begin(run, engine, following, 0)
    return 0


def landed(run: RunTables, batch: int, copy: int) -> None:
    """A copy landed: tell who asked for it.

    Parameters
    ----------
    run
        The run, changed in place.
    batch
        Number of the batch.
    copy
        Number of the copy.
    """
    kind, key = run.batches.kind[batch], run.copies.key[copy]
    if kind == INTO_SLOT:
        slot_landed(run, key, run.batches.deadline[batch])
    elif kind == INTO_RING:
        if run.slots.copy_of[key] == batch:
            slot_landed(run, key, run.batches.deadline[batch])
    elif kind == SWAPPED:
        swap_landed(run, key, run.batches.deadline[batch])
    elif kind == COPIED_BACK and run.rules.swap == SWAP_EXCHANGE:
        send(run, run.copies.pair[copy])


def send(run: RunTables, batch: int) -> None:
    """Queue a batch; one whose bytes are on the drive is read first."""
    batches = run.batches
    if batches.source[batch] != DISK:
        submit(run, batch)
        return
    key = run.copies.key[batches.first[batch]]
    if run.rules.link_reads == 1:
        batches.read_ns[batch] = read_by_link(run, key)
        asked_ahead(run, batch, link_read_bytes(run, key))
        submit(run, batch)
    else:
        batches.reading[batch] = 1
        batches.asked[batch] = read_joined(run, key, batch, batches.priority[batch])
        asked_ahead(run, batch, batches.asked[batch])
        if batches.priority[batch] == PREFETCH:
            push_back(run.engines.queues, LISTS * batches.engine[batch] + READING, batch)


def asked_ahead(run: RunTables, batch: int, nbytes: int) -> None:
    """Open the account of a prefetch's read.

    Parameters
    ----------
    run
        The run, changed in place.
    batch
        Number of the batch.
    nbytes
        That it asks of the drive.
    """
    if run.batches.priority[batch] == PREFETCH and nbytes > 0:
        run.found.stats[DRIVE_ISSUED] += 1
        run.found.stats[DRIVE_ISSUED_BYTES] += nbytes
        run.ahead.read_bytes[run.copies.key[run.batches.first[batch]]] = nbytes


def ask(run: RunTables, key: int, tier: int, priority: int, deadline: int, kind: int, rows: int) -> int:
    """A batch of one copy to the card of `key`, asked for at once.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The expert.
    tier
        Where it lies on the host.
    priority
        DEMAND, ADAPT or PREFETCH.
    deadline
        Event after which a prefetch is of no use.
    kind
        What to do at the landing.
    rows
        Rows that want it.

    Returns
    -------
    int
        Number of the batch.
    """
    batch = new_batch(run, run.slots.card_of[key], tier, priority, deadline, kind)
    add_copy(run, batch, key, rows)
    send(run, batch)
    return batch


# ---- swaps of a periodic policy ------------------------------------------------------------------


def start_swaps(run: RunTables, n: int) -> None:
    """`Exchange.start`: begin `n` swaps; a victim of -1 is a free slot, one whose own copy is under way stays."""
    swaps, v, mode = run.swaps, run.v, run.rules.swap
    if n < 0 or n > len(swaps.newcomers):
        broke(run, TOO_MANY_SWAPS, n)
        return
    place = swap_keys_fault(swaps.newcomers, swaps.victims, n, len(run.slots.size_of))
    if place != 0:
        broke(run, SWAP_NO_KEY, swaps.newcomers[place - 1] if place > 0 else swaps.victims[-place - 1])
        return
    v[MOVED_BYTES] = 0
    cards = 0
    for i in range(n):
        newcomer, victim = swaps.newcomers[i], swaps.victims[i]
        if victim >= 0 and run.slots.copy_of[victim] >= 0:
            continue
        swap(run, newcomer, victim)
        if v[STATUS] != OK:
            return
        tier = source(run, newcomer)
        batch = new_batch(run, run.slots.card_of[newcomer], tier, ADAPT, NEVER, SWAPPED)
        add_copy(run, batch, newcomer, 0)
        under_way(run, newcomer, batch)
        v[COPYING] += 1
        if mode == SWAP_COPY or victim < 0:
            send(run, batch)
            continue
        run.slots.source_of[victim] = run.slots.source_of[newcomer]
        v[MOVED_BYTES] += run.slots.size_of[victim]
        card = run.slots.card_of[victim]
        if swaps.back[card] < 0:
            swaps.back[card] = new_batch(run, len(swaps.back) + card, 0, ADAPT, NEVER, COPIED_BACK)
            swaps.cards[cards] = card
            cards += 1
        run.copies.pair[add_copy(run, swaps.back[card], victim, 0)] = batch
    for i in range(cards):
        back = swaps.back[swaps.cards[i]]
        swaps.back[swaps.cards[i]] = -1
        if mode == SWAP_STREAMS:
            copy = run.batches.first[back]
            while copy >= 0:
                send(run, run.copies.pair[copy])
                copy = run.copies.next[copy]
        submit(run, back)


def swap_landed(run: RunTables, key: int, deadline: int) -> None:
    """A newcomer is there; when all are, the host moves the victims to their places in RAM.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The newcomer.
    deadline
        Of its copy.
    """
    v = run.v
    v[COPYING] -= 1
    slot_landed(run, key, deadline)
    if v[COPYING] == 0 and v[MOVED_BYTES] > 0:
        v[MOVING] = 1
        rate = run.net.capacity[DRAM_SERVER]
        start(run, 0, move_ns(v[MOVED_BYTES], rate), rate, MOVE, 0, -1)
