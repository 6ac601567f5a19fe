"""`sim.residency.pool.CachePool` and `sim.timed.engine.slots.Slots` on arrays."""

# ruff: noqa: TC004  (names of the seam are there at run time, but not by import)

from __future__ import annotations

from typing import TYPE_CHECKING

from expert_residency.policies.protocol import NEVER
from expert_residency.sim.kernel.timed.tables import (
    ACCEPTS,
    ADMITTED_BYTES,
    CANCELLED_BYTES,
    CANCELLED_COPIES,
    DRIVE_CANCELLED,
    DRIVE_CANCELLED_BYTES,
    DRIVE_LATE,
    DRIVE_LATE_BYTES,
    DRIVE_USEFUL,
    DRIVE_USEFUL_BYTES,
    DRIVE_WASTED,
    DRIVE_WASTED_BYTES,
    EVICTIONS,
    FAULT,
    FAULT_KEY,
    INSERT,
    LATE,
    LATE_BYTES,
    NUMBER,
    OK,
    POLICY_BROKE,
    POLLUTED,
    POLLUTED_BYTES,
    REMOVE,
    STATUS,
    STUCK,
    UNUSED_BYTES,
    USEFUL,
    USEFUL_BYTES,
    VICTIM,
    WANTED,
    WASTED,
    RunTables,
)
from expert_residency.sim.residency.laws import swap_fault, swap_key, victim_fault

if TYPE_CHECKING:
    from expert_residency.sim.kernel.timed.seam import call


def admit(run: RunTables, key: int, number: int, forced: int, ahead: int) -> int:
    """`Slots.admit` or, with `ahead`, `Slots.admit_ahead`.

    Returns 0 if `key` is turned away and 1 if it is admitted, and 2 more if a member of the event had to leave.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        An expert that is not resident.
    number
        Running number of the event.
    forced
        1: members of the event may leave when nothing else is left.
    ahead
        1: it is prefetched.

    Returns
    -------
    int
        0, 1, 2 or 3.
    """
    slots, v, calls = run.slots, run.v, run.calls
    v[STUCK] = 0
    if v[STATUS] != OK:
        return 0
    scope, size = slots.scope_of[key], slots.size_of[key]
    capacity = slots.capacity[scope]
    if size > capacity:
        return 0
    tick = number + run.rules.members_may_leave
    deferred = 0
    while slots.used[scope] + size > capacity:
        allowed = tick
        victim = call(calls.evict_code, calls.evict_table, VICTIM, scope, key, tick)
        if victim < 0:
            if forced == 0:
                v[STUCK] = 1
                return deferred
            allowed = number + 1
            victim = call(calls.evict_code, calls.evict_table, VICTIM, scope, key, allowed)
        if victim < 0 or victim == key:
            return deferred
        fault = victim_fault(victim, scope, slots.resident, slots.scope_of, slots.guard, allowed)
        if fault != 0:
            broke(run, fault, victim)
            return deferred
        if calls.admit_asks == 1 and call(calls.admit_code, calls.admit_table, ACCEPTS, key, victim, 0) == 0:
            return deferred
        remove(run, victim)
        if slots.guard[victim] >= number:
            deferred = 2
        left(run, victim)
        if ahead == 1:
            slots.displaced[victim] = 1
    insert(run, key)
    slots.ready[key] = 1
    slots.displaced[key] = 0
    v[ADMITTED_BYTES] += size
    return 1 + deferred


def broke(run: RunTables, fault: int, key: int) -> None:
    """A policy broke its protocol: the run stops after this event.

    Parameters
    ----------
    run
        The run, changed in place.
    fault
        Of `sim.residency.laws`.
    key
        What it is about.
    """
    v = run.v
    if v[STATUS] == OK:
        v[STATUS], v[FAULT], v[FAULT_KEY] = POLICY_BROKE, fault, key


def insert(run: RunTables, key: int) -> None:
    """`key` becomes resident."""
    slots = run.slots
    slots.resident[key] = 1
    slots.used[slots.scope_of[key]] += slots.size_of[key]
    call(run.calls.evict_code, run.calls.evict_table, INSERT, key, 0, 0)


def remove(run: RunTables, key: int) -> None:
    """`key` is resident no more."""
    slots = run.slots
    slots.resident[key] = 0
    slots.used[slots.scope_of[key]] -= slots.size_of[key]
    run.v[EVICTIONS] += 1
    call(run.calls.evict_code, run.calls.evict_table, REMOVE, key, 0, 0)


def left(run: RunTables, victim: int) -> None:
    """Settle the account of one that has left."""
    run.slots.ready[victim] = 0
    if run.slots.unused[victim] == 1:
        waste(run, victim)


def waste(run: RunTables, key: int) -> None:
    """A prefetched expert that nobody wanted."""
    run.slots.unused[key] = 0
    wasted_copy(run, key)


# ---- accounts of prefetching: `PrefetchStats` ------------------------------------------------------


def settled(run: RunTables, key: int) -> int:
    """Bytes that the drive was asked for ahead for `key`; their account is closed."""
    nbytes = run.ahead.read_bytes[key]
    run.ahead.read_bytes[key] = 0
    return nbytes


def useful_copy(run: RunTables, key: int) -> None:
    """It had landed when it was wanted."""
    stats, read_bytes = run.found.stats, settled(run, key)
    stats[USEFUL] += 1
    stats[USEFUL_BYTES] += run.slots.size_of[key]
    if read_bytes > 0:
        stats[DRIVE_USEFUL] += 1
        stats[DRIVE_USEFUL_BYTES] += read_bytes


def late_copy(run: RunTables, key: int) -> None:
    """It was wanted before it had landed."""
    run.found.stats[LATE] += 1
    run.found.stats[LATE_BYTES] += run.slots.size_of[key]
    late_read(run, key)


def late_read(run: RunTables, key: int) -> None:
    """Somebody wanted what the drive is reading for it."""
    read_bytes = settled(run, key)
    if read_bytes > 0:
        run.found.stats[DRIVE_LATE] += 1
        run.found.stats[DRIVE_LATE_BYTES] += read_bytes


def wasted_copy(run: RunTables, key: int) -> None:
    """It was moved for nothing."""
    run.found.stats[WASTED] += 1
    run.found.stats[UNUSED_BYTES] += run.slots.size_of[key]
    wasted_read(run, key, run.ahead.read_bytes[key])


def cancelled_copy(run: RunTables, key: int, begun: int) -> None:
    """It was dropped before it had begun on the link.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The expert.
    begun
        Bytes that the drive had begun to read for it.
    """
    run.found.stats[CANCELLED_COPIES] += 1
    run.found.stats[CANCELLED_BYTES] += run.slots.size_of[key]
    wasted_read(run, key, begun)


def wasted_read(run: RunTables, key: int, begun: int) -> None:
    """What the drive read for a copy that nobody had; the rest of the read was stopped.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The expert.
    begun
        Bytes that had been begun.
    """
    stats, read_bytes = run.found.stats, settled(run, key)
    if read_bytes == 0:
        return
    if begun > 0:
        stats[DRIVE_WASTED] += 1
        stats[DRIVE_WASTED_BYTES] += begun
    else:
        stats[DRIVE_CANCELLED] += 1
    stats[DRIVE_CANCELLED_BYTES] += read_bytes - begun


def swap(run: RunTables, newcomer: int, victim: int) -> None:
    """A periodic policy's exchange.

    Parameters
    ----------
    run
        The run, changed in place.
    newcomer
        The key that comes.
    victim
        The key that leaves, or -1.
    """
    slots = run.slots
    fault = swap_fault(
        newcomer, victim, slots.resident, slots.scope_of, slots.size_of[newcomer],
        slots.size_of[victim] if victim >= 0 else 0, slots.used, slots.capacity,
    )  # fmt: skip
    if fault != 0:
        broke(run, fault, swap_key(fault, newcomer, victim))
        return
    if victim >= 0:
        remove(run, victim)
    insert(run, newcomer)
    if victim >= 0:
        left(run, victim)
    run.v[ADMITTED_BYTES] += run.slots.size_of[newcomer]


def under_way(run: RunTables, key: int, batch: int) -> None:
    """A copy into `key`'s slot was asked for that the current event does not wait for.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The expert.
    batch
        Number of its batch.
    """
    run.slots.ready[key] = 0
    run.slots.copy_of[key] = batch
    run.slots.guard[key] = NEVER


def slot_landed(run: RunTables, key: int, deadline: int) -> None:
    """The copy into `key`'s slot landed.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The expert.
    deadline
        Of its copy.
    """
    slots, number = run.slots, run.v[NUMBER]
    slots.copy_of[key] = -1
    slots.ready[key] = 1
    slots.guard[key] = max(number, deadline) if slots.unused[key] == 1 else number


def slot_cancelled(run: RunTables, key: int, begun: int) -> None:
    """A prefetch into `key`'s slot was dropped before it began.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The expert.
    begun
        Bytes that the drive had begun to read for it.
    """
    slots = run.slots
    if slots.unused[key] == 1:  # else an event had wanted it: it was late
        cancelled_copy(run, key, begun)
    slots.copy_of[key] = -1
    slots.unused[key] = 0
    slots.guard[key] = -1
    remove(run, key)
    run.v[EVICTIONS] -= 1


def missed(run: RunTables, key: int) -> None:
    """An event wants an expert that left for a prefetched one."""
    run.slots.displaced[key] = 0
    run.found.stats[POLLUTED] += 1
    run.found.stats[POLLUTED_BYTES] += run.slots.size_of[key]


def wanted(run: RunTables, key: int) -> None:
    """An event wants a resident expert that was prefetched: settle the account."""
    run.slots.unused[key] = 0
    run.found.stats[WANTED] += 1
    if run.slots.ready[key] == 1:
        useful_copy(run, key)
    else:
        late_copy(run, key)
