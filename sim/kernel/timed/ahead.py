"""`sim.timed.engine.prefetcher` on arrays: proposals, which become copies, and the staging ring."""

# ruff: noqa: TC004  (names of the seam are there at run time, but not by import)

from __future__ import annotations

from typing import TYPE_CHECKING

from expert_residency.policies.structures import push_back, unlink
from expert_residency.sim.kernel.timed.copies import (
    add_copy,
    cancel,
    hold,
    leave_ring,
    let_go,
    new_batch,
    promote,
    so_far,
)
from expert_residency.sim.kernel.timed.host import NOBODY, read, source
from expert_residency.sim.kernel.timed.landings import send
from expert_residency.sim.kernel.timed.residency import (
    admit,
    broke,
    cancelled_copy,
    late_copy,
    under_way,
    useful_copy,
    waste,
    wasted_copy,
)
from expert_residency.sim.kernel.timed.tables import (
    ACTIVE_READS,
    DRIVE_ISSUED,
    DRIVE_ISSUED_BYTES,
    INTO_RING,
    INTO_SLOT,
    ISSUED,
    ISSUED_BYTES,
    NEVER_EVICT,
    OVER_BUDGET,
    PAGES,
    PROPOSE,
    PROPOSED,
    REFUSED,
    SERIAL,
    SPENT_BYTES,
    STUCK,
    RunTables,
)
from expert_residency.sim.residency.laws import AHEAD_NO_KEY, TOO_MANY_AHEAD
from expert_residency.sim.timed.channels.copy_engine import ADAPT, COPYING, DONE, PREFETCH, QUEUED
from expert_residency.sim.timed.host.plan import PAGE_CACHE

if TYPE_CHECKING:
    from expert_residency.sim.kernel.timed.seam import call


def propose(run: RunTables, tick: int) -> None:
    """Ask the policy, and send the copies that find room; residents that it wants are protected."""
    ahead, slots, stats, v, rules = run.ahead, run.slots, run.found.stats, run.v, run.rules
    v[SERIAL] += 1
    n = call(run.calls.ahead_code, run.calls.ahead_table, PROPOSE, 0, 0, 0)
    if n < 0 or n > len(ahead.keys):
        broke(run, TOO_MANY_AHEAD, n)
        return
    stats[PROPOSED] += n
    for i in range(n):
        key, deadline = ahead.keys[i], ahead.deadlines[i]
        if key < 0 or key >= len(slots.size_of):
            broke(run, AHEAD_NO_KEY, key)
            return
        if slots.resident[key] == 1:
            if slots.guard[key] < deadline:
                slots.guard[key] = deadline
        elif rules.frames > 0 and ahead.ring.home[key] >= 0:
            batch = ahead.batch_of[key]
            run.batches.deadline[batch] = max(run.batches.deadline[batch], deadline)
        elif rules.insertion == PAGES:
            warm(run, key)
        elif rules.budget >= 0 and v[SPENT_BYTES] + slots.size_of[key] > rules.budget:
            stats[OVER_BUDGET] += 1
        elif room(run, key, tick):
            copy_ahead(run, key, deadline)
        else:
            stats[REFUSED] += 1


def warm(run: RunTables, key: int) -> None:
    """Read pages of `key` ahead, unless the drive has other things to do or there is nothing to read."""
    host = run.host
    if run.v[ACTIVE_READS] > 0 or run.slots.source_of[key] != PAGE_CACHE or host.reading[key] == 1:
        return
    if host.lists.home[host.page_base + key] < 0:
        if run.ahead.read_bytes[key] > 0:  # they were read before, and have left the page cache
            wasted_copy(run, key)
        nbytes = read(run, key, NOBODY, PREFETCH)
        stats = run.found.stats
        stats[ISSUED] += 1
        stats[ISSUED_BYTES] += run.slots.size_of[key]
        stats[DRIVE_ISSUED] += 1
        stats[DRIVE_ISSUED_BYTES] += nbytes
        run.ahead.read_bytes[key] = nbytes


def looked_up(run: RunTables, key: int, tier: int) -> None:
    """An event misses `key`, which lies there now: pages that were asked for ahead have come, or not.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The expert.
    tier
        Where it lies on the host.
    """
    if run.ahead.read_bytes[key] == 0:
        return
    if tier == PAGE_CACHE:
        useful_copy(run, key)
    elif run.host.reading[key] == 1:
        late_copy(run, key)
    else:
        wasted_copy(run, key)


def room(run: RunTables, key: int, tick: int) -> bool:
    """Make room for `key` as the insertion rule has it; `tick`: whose members at least are protected.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The proposed expert.
    tick
        Event whose members at least are protected.

    Returns
    -------
    bool
        Whether there is space.
    """
    ahead, slots, v, rules = run.ahead, run.slots, run.v, run.rules
    if rules.frames > 0:
        card = slots.card_of[key]
        return ahead.ring.size[card] < rules.frames or reclaim(run, card, tick)
    scope, size = slots.scope_of[key], slots.size_of[key]
    if ahead.stuck_at[scope] == v[SERIAL] and size >= ahead.stuck_size[scope]:
        return False
    if rules.insertion == NEVER_EVICT and slots.used[scope] + size > slots.capacity[scope]:
        return False
    admitted = admit(run, key, tick - rules.reach, 0, 1) % 2 == 1
    if v[STUCK] == 1:
        ahead.stuck_at[scope] = v[SERIAL]
        ahead.stuck_size[scope] = size
    return admitted


def reclaim(run: RunTables, card: int, tick: int) -> bool:
    """Free the oldest buffer whose expert's time has passed, or whose copy can still be dropped then.

    Parameters
    ----------
    run
        The run, changed in place.
    card
        Whose ring it is.
    tick
        Event whose members at least are protected.

    Returns
    -------
    bool
        Whether a buffer was freed.
    """
    ring = run.ahead.ring
    end = len(ring.home) + card
    key = ring.next[end]
    while key != end:
        batch = run.ahead.batch_of[key]
        if run.batches.deadline[batch] < tick and run.batches.state[batch] != COPYING:
            if not cancel(run, batch):
                discard(run, key)
            return True
        key = ring.next[key]
    return False


def copy_ahead(run: RunTables, key: int, deadline: int) -> None:
    """Ask for a copy of a proposed expert that has been given room.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The expert.
    deadline
        Event after which it is of no use.
    """
    ahead, slots = run.ahead, run.slots
    size = slots.size_of[key]
    run.v[SPENT_BYTES] += size
    run.found.stats[ISSUED] += 1
    run.found.stats[ISSUED_BYTES] += size
    staged = run.rules.frames > 0
    kind = INTO_RING if staged else INTO_SLOT
    batch = new_batch(run, slots.card_of[key], source(run, key), PREFETCH, deadline, kind)
    add_copy(run, batch, key, 0)
    if staged:
        push_back(ahead.ring, slots.card_of[key], key)
        ahead.batch_of[key] = batch
        hold(run, batch)
    else:
        slots.unused[key] = 1
        under_way(run, key, batch)
    send(run, batch)


def take(run: RunTables, key: int, waits: bool, kept: bool) -> int:
    """An event wants the staged `key`: its batch, out of the ring; one not begun that is of no use is dropped.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The expert.
    waits
        Whether it is waited for.
    kept
        Whether it has a slot.

    Returns
    -------
    int
        Number of the batch.
    """
    batch = run.ahead.batch_of[key]
    leave_ring(run, key)
    if run.batches.state[batch] == DONE:
        useful_copy(run, key)
    elif waits or kept or not cancel(run, batch):
        late_copy(run, key)
        if kept and not waits:  # it is a fill now, and never stale
            promote(run, batch, ADAPT)
    else:
        cancelled_copy(run, key, run.batches.begun[batch])
    return batch


def discard(run: RunTables, key: int) -> None:
    """A staged expert that nobody wanted in time."""
    unlink(run.ahead.ring, key)
    let_go(run, run.ahead.batch_of[key])
    wasted_copy(run, key)


def close(run: RunTables) -> None:
    """End of the run: what was copied ahead and not wanted was wasted, or not begun."""
    slots, ring, state = run.slots, run.ahead.ring, run.batches.state
    for key in range(len(slots.size_of)):
        if slots.unused[key] == 1:
            batch = slots.copy_of[key]
            if batch >= 0 and state[batch] <= QUEUED:
                cancelled_copy(run, key, so_far(run, batch))
            else:
                waste(run, key)
    for card in range(len(ring.size)):
        end = len(ring.home) + card
        key = ring.next[end]
        while key != end:
            following = ring.next[key]
            batch = run.ahead.batch_of[key]
            if state[batch] <= QUEUED:
                cancelled_copy(run, key, so_far(run, batch))
            else:
                discard(run, key)
            key = following
    if run.rules.insertion == PAGES:
        for key in range(len(slots.size_of)):
            if run.ahead.read_bytes[key] > 0:
                wasted_copy(run, key)
