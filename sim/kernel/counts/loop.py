"""The replay loop in the compiled subset: `sim.residency.pool.CachePool` and `sim.runs.replay` on arrays.

Plain Python as it stands; `sim.kernel.compiler.link` compiles it together with the policies that it names, and
binds the names of `sim.kernel.counts.seam`.
"""

# ruff: noqa: TC004  (names of the seam are there at run time, but not by import)

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from expert_residency.policies.protocol import Event, Ints
from expert_residency.sim.residency.laws import (
    NO_MISS,
    SWAP_NO_KEY,
    TOO_MANY,
    TOO_MANY_SWAPS,
    miss_fault,
    swap_fault,
    swap_key,
    swap_keys_fault,
    victim_fault,
)
from expert_residency.sim.timed.rules import extra_waves

if TYPE_CHECKING:
    from expert_residency.sim.kernel.counts.seam import (
        admit_accepts,
        admit_learn,
        admit_pass_done,
        admit_select,
        admit_state,
        evict_insert,
        evict_learn,
        evict_remove,
        evict_state,
        evict_victim,
        fetch_ahead,
        job_state,
    )

DISTINCT, DISTINCT_HITS, ROUTED, ROUTED_HITS, COMPULSORY, MISS_BYTES, N_COUNTERS = range(7)
EVICTIONS, ADMITTED_BYTES, WAVES, FAULT, FAULT_KEY, N_TOTALS = range(6)
"""FAULT: what a policy broke (`sim.residency.laws`), and FAULT_KEY what it is about; the replay then stops."""
AHEAD = 16
"""Look-ups between asking for a key's cache line and using it."""
N_PHASES = 3
N_BUCKETS = 2 * N_PHASES
"""Three phases before the warm-up ends, then three after it."""


class Steps(NamedTuple):
    """What is asked: whole events, or single look-ups under the sequential contracts."""

    first: int
    """Running number of the first step and, below, of its first look-up and pass: not 0 in a later chunk."""
    first_offset: int
    first_pass: int
    offsets: Ints
    layers: Ints
    passes: Ints
    keys: Ints
    rows: Ints
    hits: Ints
    """(look-ups,) filled in."""
    phase_of: Ints
    """(passes,) of this chunk's, whose `passes` count from its first."""
    request_of: Ints
    """(passes,)"""
    warmup_passes: int


class Cache(NamedTuple):
    """The residency, as in `CachePool`."""

    resident: Ints
    seen: Ints
    guard: Ints
    """(keys,) last step of this run that wanted the key, or -1: steps are counted from the first of the chunk."""
    used: Ints
    capacity: Ints
    scope_of: Ints
    kind_of: Ints
    """(keys,) place in `sizes`: a look-up then needs no second line of memory."""
    sizes: Ints
    """Different sizes of experts, bytes."""
    misses: Ints
    let_in: Ints
    """(keys,) step in which each position of an event was let in last."""
    roomy: int
    """Experts of any size that every scope has room for: larger events may need waves."""
    members_may_leave: int
    overflow: int
    nobody: int
    """-1, which would be a type of its own if it stood in the code."""


class Between(NamedTuple):
    """What a periodic policy does between passes, as in `sim.runs.replay`."""

    periodic: int
    lag: int
    pending: Ints
    """(keys,) 1: asked for, and not there yet."""
    lands: Ints
    """[pass at whose start those that are pending are there, how many they are]."""
    newcomers: Ints
    victims: Ints


class Job(NamedTuple):
    """All that a replay works on besides the policies."""

    steps: Steps
    cache: Cache
    between: Between
    counters: Ints
    """(buckets x counters,)"""
    totals: Ints
    """(totals,)"""
    placed: Ints
    """Keys to bring in first, the hottest last."""


def replay_steps(table: Ints) -> None:
    """Run all steps of the job in `table`."""
    job = job_state(table)
    steps, cache, totals = job.steps, job.cache, job.totals
    evict, admission = evict_state(table), admit_state(table)
    counters = job.counters
    for i in range(len(job.placed)):
        _insert(cache, evict, job.placed[i])
        cache.seen[job.placed[i]] = 1
    offsets, keys, rows, hits = steps.offsets, steps.keys, steps.rows, steps.hits
    resident, guard, seen, misses = cache.resident, cache.guard, cache.seen, cache.misses
    kind_of, sizes = cache.kind_of, cache.sizes
    between, pending = job.between, job.between.pending
    late = False
    periodic, overflow, roomy = between.periodic, cache.overflow, cache.roomy
    # Sums of the current bucket stay in registers until it changes.
    at = number = phase = request = cache.nobody
    bucket = none = at + 1
    distinct = distinct_hits = routed = routed_hits = compulsory = missed_bytes = none
    n_steps = len(steps.layers)
    last = len(keys) - 1
    hi = 0
    for e in range(n_steps):
        lo, hi = hi, offsets[e + 1]
        if steps.passes[e] != at:
            at = steps.passes[e]
            number = steps.first_pass + at
            phase, request = steps.phase_of[at], steps.request_of[at]
            late = number < between.lands[0]
            into = phase if number < steps.warmup_passes else phase + N_PHASES
            if into != bucket:
                _book(counters, bucket, distinct, distinct_hits, routed, routed_hits, compulsory, missed_bytes)
                distinct = distinct_hits = routed = routed_hits = compulsory = missed_bytes = none
                bucket = into
        n = 0
        for i in range(lo, hi):
            key, row = keys[i], rows[i]
            fetch_ahead(guard, keys[min(i + AHEAD, last)])
            guard[key] = e
            hit = resident[key]
            if late and pending[key] == 1:
                hit = 0
            hits[i] = hit
            routed += row
            if hit == 0:
                misses[n] = i - lo
                n += 1
                missed_bytes += sizes[kind_of[key]]
            else:
                routed_hits += row
            if hit == 0 or periodic == 1:  # without periodic policies, what is resident was seen
                compulsory += 1 - seen[key]
                seen[key] = 1
        distinct += hi - lo
        distinct_hits += hi - lo - n
        if hi - lo > roomy:
            totals[WAVES] += _waves(cache, keys[lo:hi])
        event = Event(
            steps.first + e, number, steps.layers[e], steps.first_offset + lo, keys[lo:hi], rows[lo:hi],
            hits[lo:hi], phase, request,
        )  # fmt: skip
        evict_learn(evict, event)
        admit_learn(admission, event)
        chosen = admit_select(admission, event, misses, n)
        if chosen < 0 or chosen > n:
            totals[FAULT], totals[FAULT_KEY] = TOO_MANY, chosen
            return
        for i in range(chosen):
            if miss_fault(misses[i], event.hits, cache.let_in, e) > 0:
                totals[FAULT], totals[FAULT_KEY] = NO_MISS, misses[i]
                return
        for i in range(chosen):
            key = keys[lo + misses[i]]
            if resident[key] == 0 and _admit(cache, totals, evict, admission, key, e):
                totals[ADMITTED_BYTES] += sizes[kind_of[key]]
        if overflow == 1:
            _trim(cache, totals, evict, cache.scope_of[keys[lo]], e)
        if periodic == 1 and (e + 1 == n_steps or steps.passes[e + 1] != at):
            _pass_done(cache, between, totals, evict, admission, number)
        if totals[FAULT] > 0:
            return
    _book(counters, bucket, distinct, distinct_hits, routed, routed_hits, compulsory, missed_bytes)


def _book(
    counters: Ints, bucket: int, distinct: int, distinct_hits: int, routed: int, routed_hits: int,
    compulsory: int, missed_bytes: int,
) -> None:  # fmt: skip
    at = bucket * N_COUNTERS
    counters[at + DISTINCT] += distinct
    counters[at + DISTINCT_HITS] += distinct_hits
    counters[at + ROUTED] += routed
    counters[at + ROUTED_HITS] += routed_hits
    counters[at + COMPULSORY] += compulsory
    counters[at + MISS_BYTES] += missed_bytes


def _waves(cache: Cache, keys: Ints) -> int:
    """Extra waves of an event."""
    needed = 0
    for key in keys:
        needed += _size(cache, key)
    return extra_waves(needed, cache.capacity[cache.scope_of[keys[0]]])


def _pass_done(cache: Cache, between: Between, totals: Ints, evict: Any, admission: Any, number: int) -> None:
    """Ask for swaps, unless the last ones are on their way."""
    newcomers, victims, lands = between.newcomers, between.victims, between.lands
    if number < lands[0]:
        return
    for i in range(lands[1]):
        between.pending[newcomers[i]] = 0
    n = admit_pass_done(admission, number, cache.resident, newcomers, victims)
    if n < 0 or n > len(newcomers):
        totals[FAULT], totals[FAULT_KEY] = TOO_MANY_SWAPS, n
        return
    place = swap_keys_fault(newcomers, victims, n, len(cache.resident))
    if place != 0:
        totals[FAULT] = SWAP_NO_KEY
        totals[FAULT_KEY] = newcomers[place - 1] if place > 0 else victims[-place - 1]
        return
    for i in range(n):
        fault = _swap_fault(cache, newcomers[i], victims[i])
        if fault > 0:
            totals[FAULT], totals[FAULT_KEY] = fault, swap_key(fault, newcomers[i], victims[i])
            return
        if victims[i] >= 0:
            _remove(cache, totals, evict, victims[i])
        _insert(cache, evict, newcomers[i])
        between.pending[newcomers[i]] = 1
        totals[ADMITTED_BYTES] += _size(cache, newcomers[i])
    lands[0] = number + between.lag if n > 0 else 0
    lands[1] = n


def _admit(cache: Cache, totals: Ints, evict: Any, admission: Any, key: int, step: int) -> bool:
    """`CachePool.admit` with `forced`."""
    scope, size = cache.scope_of[key], _size(cache, key)
    capacity = cache.capacity[scope]
    if size > capacity and cache.overflow == 0:
        return False
    tick = step + cache.members_may_leave
    while cache.used[scope] + size > capacity:
        allowed = tick
        victim = evict_victim(evict, scope, key, cache.guard, tick)
        if victim < 0:
            if cache.overflow == 1:
                break
            allowed = step + 1
            victim = evict_victim(evict, scope, key, cache.guard, allowed)
        if victim < 0 or victim == key:
            return False
        if not _lawful(cache, totals, victim, scope, allowed):
            return False
        if not admit_accepts(admission, key, victim):
            return False
        _remove(cache, totals, evict, victim)
    _insert(cache, evict, key)
    return True


def _trim(cache: Cache, totals: Ints, evict: Any, scope: int, step: int) -> None:
    """`CachePool.trim`."""
    while cache.used[scope] > cache.capacity[scope]:
        victim = evict_victim(evict, scope, cache.nobody, cache.guard, step)
        if victim < 0 or not _lawful(cache, totals, victim, scope, step):
            break
        _remove(cache, totals, evict, victim)


def _lawful(cache: Cache, totals: Ints, victim: int, scope: int, tick: int) -> bool:
    """Whether the victim may leave; if not, the fault is booked."""
    fault = victim_fault(victim, scope, cache.resident, cache.scope_of, cache.guard, tick)
    if fault > 0:
        totals[FAULT], totals[FAULT_KEY] = fault, victim
        return False
    return True


def _swap_fault(cache: Cache, newcomer: int, victim: int) -> int:
    """`swap_fault`, with sizes by kind."""
    return swap_fault(
        newcomer, victim, cache.resident, cache.scope_of, _size(cache, newcomer),
        _size(cache, victim) if victim >= 0 else 0, cache.used, cache.capacity,
    )  # fmt: skip


def _size(cache: Cache, key: int) -> int:
    return cache.sizes[cache.kind_of[key]]


def _insert(cache: Cache, evict: Any, key: int) -> None:
    cache.resident[key] = 1
    cache.used[cache.scope_of[key]] += _size(cache, key)
    evict_insert(evict, key)


def _remove(cache: Cache, totals: Ints, evict: Any, key: int) -> None:
    cache.resident[key] = 0
    cache.used[cache.scope_of[key]] -= _size(cache, key)
    totals[EVICTIONS] += 1
    evict_remove(evict, key)
