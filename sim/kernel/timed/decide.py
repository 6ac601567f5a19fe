"""`sim.timed.engine.decisions` on arrays."""

# ruff: noqa: TC004  (names of the seam are there at run time, but not by import)

from __future__ import annotations

from typing import TYPE_CHECKING

from expert_residency.policies.protocol import NEVER, Ints
from expert_residency.sim.kernel.compiler.state import LINE
from expert_residency.sim.kernel.timed.ahead import looked_up, take
from expert_residency.sim.kernel.timed.copies import add_copy, drop_stale, new_batch, promote
from expert_residency.sim.kernel.timed.host import read_joined, source
from expert_residency.sim.kernel.timed.landings import ask, send
from expert_residency.sim.kernel.timed.residency import admit, broke, missed, under_way, wanted
from expert_residency.sim.kernel.timed.tables import (
    ADMITTED,
    CPU_WORK,
    DEFERRED,
    E_END,
    E_FIRST,
    FETCHED,
    FILLS,
    HIT_BYTES,
    HIT_ROWS,
    INTO_SLOT,
    ISSUED,
    LATERS,
    LEARN,
    M_CPU,
    M_FETCH,
    M_HYBRID,
    M_STREAM,
    MISSING,
    NOTHING,
    NOWS,
    NUMBER,
    PAGES,
    PREFILL,
    SEGMENTS,
    SELECT,
    SENDS,
    STAGED,
    STATUS,
    SWAP_COPY,
    SWAPS_ONLY,
    WAITS,
    WANTED,
    WELCOME,
    RunTables,
)
from expert_residency.sim.residency.laws import NO_MISS, TOO_MANY, miss_fault
from expert_residency.sim.timed.channels.copy_engine import ADAPT, DEMAND, DONE
from expert_residency.sim.timed.host.plan import DISK, PAGE_CACHE, PINNED
from expert_residency.sim.timed.result import T_CPU_PINNED, T_DISK, T_IN_FLIGHT, T_PCIE, T_VRAM, TIERS
from expert_residency.sim.timed.rules import own_rate, pool_ns

if TYPE_CHECKING:
    from expert_residency.sim.kernel.timed.seam import call, fetch_line

N_TIERS = len(TIERS)
N_SOURCES = 3
"""Sources in memory: PINNED, PAGEABLE, PAGE_CACHE."""


def decide(run: RunTables, card: int, phase: int) -> None:
    """Classify the event, admit misses, send demand copies and the CPU's work on their way.

    Parameters
    ----------
    run
        The run, changed in place.
    card
        The card that has the layer.
    phase
        0 prefill, 1 decode, 2 verify window.
    """
    v, plan, slots, trace, calls = run.v, run.plan, run.slots, run.trace, run.calls
    number = v[NUMBER]
    lo, hi = calls.event[E_FIRST], calls.event[E_END]
    look_ahead(run, hi, 2 * hi - lo)
    v[WAITS] = v[CPU_WORK] = v[FILLS] = v[NOWS] = v[LATERS] = v[SENDS] = 0
    for i in range(lo, hi):
        key = trace.keys[i]
        if slots.guard[key] < number:
            slots.guard[key] = number
        plan.hits[i - lo] = slots.resident[key]
    missing = hit_bytes = hit_rows = hit_count = 0
    for i in range(lo, hi):
        at = i - lo
        plan.mark[at] = 0
        if plan.hits[at] == 0:
            calls.misses[missing] = at
            plan.missing[missing] = at
            missing += 1
            continue
        key, rows = trace.keys[i], trace.rows[i]
        if slots.unused[key] == 1:
            wanted(run, key)
        if slots.ready[key] == 1:
            hit_bytes += slots.size_of[key]
            hit_rows += rows
            hit_count += 1
        else:
            in_flight(run, key, rows, card, phase)
    v[HIT_BYTES], v[HIT_ROWS], v[MISSING] = hit_bytes, hit_rows, missing
    run.found.distinct[phase * N_TIERS + T_VRAM] += hit_count
    run.found.routed[phase * N_TIERS + T_VRAM] += hit_rows

    call(calls.evict_code, calls.evict_table, LEARN, 0, 0, 0)
    if calls.admit_learns == 1:
        call(calls.admit_code, calls.admit_table, LEARN, 0, 0, 0)
    admitted = call(calls.admit_code, calls.admit_table, SELECT, missing, 0, 0)
    if admitted < 0 or admitted > missing:
        broke(run, TOO_MANY, admitted)
        admitted = 0
    for i in range(admitted):
        if miss_fault(calls.misses[i], plan.hits[0 : hi - lo], calls.let_in, number) != 0:
            broke(run, NO_MISS, calls.misses[i])
            admitted = 0
    if phase == PREFILL and run.rules.prefill_admits == 0:
        admitted = 0
    for i in range(admitted):
        plan.admitted[i] = calls.misses[i]
    v[ADMITTED] = admitted
    if missing > 0 and run.rules.frames > 0:
        serve_staged(run, card, phase, lo)
    if run.found.stats[ISSUED] > 0:
        for engine in range(len(run.swaps.back)):
            drop_stale(run, engine)
    if v[MISSING] > 0:
        serve(run, card, phase, lo)


def look_ahead(run: RunTables, lo: int, hi: int) -> None:
    """Ask for the memory of the experts that the next event wants: it comes while this one is served.

    Parameters
    ----------
    run
        The run.
    lo, hi
        Look-ups of the next event.
    """
    lines = run.slots.lines
    policy, policy_width = run.calls.evict_records, run.calls.evict_width
    for i in range(lo, min(hi, len(run.trace.keys))):
        key = run.trace.keys[i]
        fetch_line(lines + key * LINE)
        if policy_width > 0:
            fetch_line(policy + key * policy_width)


def serve_from(run: RunTables, tier: int, rows: int, phase: int) -> None:
    """Book a look-up.

    Parameters
    ----------
    run
        The run, changed in place.
    tier
        From where it was served.
    rows
        Rows that want the expert.
    phase
        0 prefill, 1 decode, 2 verify window.
    """
    run.found.distinct[phase * N_TIERS + tier] += 1
    run.found.routed[phase * N_TIERS + tier] += rows


def on_cpu(run: RunTables, key: int, tier: int, rows: int) -> None:
    """One more expert for the CPU pool.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The expert.
    tier
        Where it lies on the host.
    rows
        Rows that want it.
    """
    plan, n = run.plan, run.v[CPU_WORK]
    plan.cpu_key[n], plan.cpu_source[n], plan.cpu_rows[n] = key, tier, rows
    run.v[CPU_WORK] += 1


def wait_copy(run: RunTables, batch: int, at: int, copy: int, count: int) -> None:
    """The card waits for `count` copies of a batch from position `at` (the record `copy`) on.

    Parameters
    ----------
    run
        The run, changed in place.
    batch
        Number of the batch.
    at
        Position of the first copy in it.
    copy
        Number of that copy.
    count
        How many copies.
    """
    plan, n = run.plan, run.v[WAITS]
    plan.wait_batch[n], plan.wait_at[n], plan.wait_copy[n], plan.wait_count[n] = batch, at, copy, count
    run.v[WAITS] += 1


def waits_for(run: RunTables, batch: int) -> bool:
    """Whether an expert under way is waited for; otherwise the CPU computes it."""
    if run.rules.miss == M_FETCH or run.rules.miss == M_STREAM:
        return True
    return run.rules.in_flight_waits == 1 and run.batches.priority[batch] != ADAPT


def in_flight(run: RunTables, key: int, rows: int, card: int, phase: int) -> None:
    """A resident whose copy has not landed.

    Parameters
    ----------
    run
        The run, changed in place.
    key
        The expert.
    rows
        Rows that want it.
    card
        The card that has the layer.
    phase
        0 prefill, 1 decode, 2 verify window.
    """
    batch = run.slots.copy_of[key]
    if waits_for(run, batch):
        promote(run, batch, DEMAND)
        at, copy = 0, run.batches.first[batch]
        while run.copies.key[copy] != key:
            at += 1
            copy = run.copies.next[copy]
        run.copies.rows[copy] = rows
        wait_copy(run, batch, at, copy, 1)
        serve_from(run, T_IN_FLIGHT, rows, phase)
    else:
        tier = source(run, key)
        on_cpu(run, key, tier, rows)
        serve_from(run, T_DISK if tier == DISK else T_CPU_PINNED + tier, rows, phase)


def serve_staged(run: RunTables, card: int, phase: int, lo: int) -> None:
    """Serve misses whose expert stands in the staging ring, with a slot if admission lets it in.

    Parameters
    ----------
    run
        The run, changed in place.
    card
        The card that has the layer.
    phase
        0 prefill, 1 decode, 2 verify window.
    lo
        First look-up of the event.
    """
    v, plan, trace, ring = run.v, run.plan, run.trace, run.ahead.ring
    staged = 0
    for i in range(v[MISSING]):
        if ring.home[trace.keys[lo + plan.missing[i]]] >= 0:
            plan.mark[plan.missing[i]] += STAGED
            staged += 1
    if staged == 0:
        return
    run.found.stats[WANTED] += staged
    for i in range(v[ADMITTED]):
        plan.mark[plan.admitted[i]] += WELCOME
    for i in range(v[MISSING]):  # in ascending position
        at = plan.missing[i]
        if plan.mark[at] & STAGED > 0:
            key, rows = trace.keys[lo + at], trace.rows[lo + at]
            kept = plan.mark[at] & WELCOME > 0 and admit(run, key, v[NUMBER], 1, 0) % 2 == 1
            waits = waits_for(run, run.ahead.batch_of[key])
            batch = take(run, key, waits, kept)
            if run.batches.state[batch] == DONE:
                v[HIT_BYTES] += run.slots.size_of[key]
                v[HIT_ROWS] += rows
                serve_from(run, T_VRAM, rows, phase)
            elif waits:
                promote(run, batch, DEMAND)
                copy = run.batches.first[batch]
                run.copies.rows[copy] = rows
                wait_copy(run, batch, 0, copy, 1)
                serve_from(run, T_IN_FLIGHT, rows, phase)
            else:
                if kept:
                    under_way(run, key, batch)
                tier = source(run, key)
                on_cpu(run, key, tier, rows)
                serve_from(run, T_DISK if tier == DISK else T_CPU_PINNED + tier, rows, phase)
    missing = admitted = 0
    for i in range(v[MISSING]):
        if plan.mark[plan.missing[i]] & STAGED == 0:
            plan.missing[missing] = plan.missing[i]
            missing += 1
    for i in range(v[ADMITTED]):
        at = plan.admitted[i]
        if plan.mark[at] & STAGED == 0:
            plan.admitted[admitted] = at
            admitted += 1
    v[MISSING], v[ADMITTED] = missing, admitted
    for i in range(missing):
        plan.mark[plan.missing[i]] = 0


def serve(run: RunTables, card: int, phase: int, lo: int) -> None:
    """Misses: who gets a slot, who is fetched, who goes to the CPU.

    Parameters
    ----------
    run
        The run, changed in place.
    card
        The card that has the layer.
    phase
        0 prefill, 1 decode, 2 verify window.
    lo
        First look-up of the event.
    """
    v, plan, trace, rules, slots = run.v, run.plan, run.trace, run.rules, run.slots
    number, missing = v[NUMBER], v[MISSING]
    if v[ADMITTED] > 0 and rules.swap != SWAP_COPY:
        v[STATUS] = SWAPS_ONLY
        return
    stats = run.found.stats
    stats[WANTED] += missing
    if stats[ISSUED] > 0:
        for i in range(missing):
            key = trace.keys[lo + plan.missing[i]]
            if slots.displaced[key] == 1:
                missed(run, key)
    for i in range(missing):
        plan.sources[i] = source(run, trace.keys[lo + plan.missing[i]])
    if rules.insertion == PAGES:
        for i in range(missing):
            looked_up(run, trace.keys[lo + plan.missing[i]], plan.sources[i])
    mark_fetched(run, card)
    if rules.miss != M_STREAM:
        for i in range(v[ADMITTED]):
            at = plan.admitted[i]
            key = trace.keys[lo + at]
            fetched = plan.mark[at] & FETCHED > 0
            if fetched or rules.fill == 1:
                found = admit(run, key, number, int(fetched), 0)
                if found >= 2:
                    plan.mark[at] |= DEFERRED
                if found % 2 == 1 and not fetched:
                    plan.fills[v[FILLS]] = key
                    v[FILLS] += 1
    for i in range(missing):
        at, tier = plan.missing[i], plan.sources[i]
        key, rows = trace.keys[lo + at], trace.rows[lo + at]
        served = T_DISK if tier == DISK else T_PCIE
        if plan.mark[at] & FETCHED == 0:
            on_cpu(run, key, tier, rows)
            if tier != DISK:
                served = T_CPU_PINNED + tier
        elif plan.mark[at] & DEFERRED > 0:
            plan.later[v[LATERS]] = i
            v[LATERS] += 1
        else:
            plan.now[v[NOWS]] = i
            v[NOWS] += 1
            if tier == PINNED:
                v[SENDS] += 1
        serve_from(run, served, rows, phase)
    demand(run, card, lo, plan.now, v[NOWS])


def mark_fetched(run: RunTables, card: int) -> None:
    """Mark those misses that go over the link."""
    v, plan, rules = run.v, run.plan, run.rules
    missing = v[MISSING]
    if rules.miss == M_CPU:
        return
    n = missing
    if rules.miss == M_HYBRID:
        n = rules.fetched[card * (rules.most_misses + 1) + missing]
    only_pinned = rules.miss == M_HYBRID and rules.pinned_only == 1
    for i in range(missing - n, missing):
        if plan.sources[i] == PINNED or not only_pinned:
            plan.mark[plan.missing[i]] |= FETCHED


def demand(run: RunTables, card: int, lo: int, chosen: Ints, n: int) -> None:
    """Copies that this event waits for: those in memory first, source by source, then the drive's one by one.

    Parameters
    ----------
    run
        The run, changed in place.
    card
        The card that has the layer.
    lo
        First look-up of the event.
    chosen
        Positions of members.
    n
        How many of them count.
    """
    plan, trace, number = run.plan, run.trace, run.v[NUMBER]
    for tier in range(N_SOURCES):
        batch = -1
        for j in range(n):
            i = chosen[j]
            if plan.sources[i] == tier:
                if batch < 0:
                    batch = new_batch(run, card, tier, DEMAND, number, NOTHING)
                at = lo + plan.missing[i]
                add_copy(run, batch, trace.keys[at], trace.rows[at])
        if batch >= 0:
            wait_copy(run, batch, 0, run.batches.first[batch], run.batches.size[batch])
            send(run, batch)
    for j in range(n):
        i = chosen[j]
        if plan.sources[i] == DISK:
            at = lo + plan.missing[i]
            batch = ask(run, trace.keys[at], DISK, DEMAND, number, NOTHING, trace.rows[at])
            wait_copy(run, batch, 0, run.batches.first[batch], 1)


def demand_later(run: RunTables, card: int) -> None:
    """Copies of the next wave: members of the event have left for them."""
    demand(run, card, run.calls.event[E_FIRST], run.plan.later, run.v[LATERS])


def fill_slots(run: RunTables, card: int) -> None:
    """Copy experts that the CPU has just served into the slots that were made free for them."""
    v, plan = run.v, run.plan
    for i in range(v[FILLS]):
        plan.fill_source[i] = -1
        if run.slots.resident[plan.fills[i]] == 1:  # what the pool read from the drive lies in its memory
            plan.fill_source[i] = min(source(run, plan.fills[i]), PAGE_CACHE)
    for tier in range(N_SOURCES):
        batch = -1
        for i in range(v[FILLS]):
            if plan.fill_source[i] == tier:
                if batch < 0:
                    batch = new_batch(run, card, tier, ADAPT, NEVER, INTO_SLOT)
                add_copy(run, batch, plan.fills[i], 0)
        if batch >= 0:
            send(run, batch)
            copy = run.batches.first[batch]
            while copy >= 0:
                under_way(run, run.copies.key[copy], batch)
                copy = run.copies.next[copy]


def lay_segments(run: RunTables, layer: int) -> None:
    """Work of the CPU pool: what is in memory, by source, then what comes from the drive, one by one."""
    v, plan, cpu, costs, host = run.v, run.plan, run.cpu, run.costs, run.host
    n, layers = 0, len(run.costs.card_of)
    for tier in range(N_SOURCES):
        nbytes = ns = read_ns = 0
        for i in range(v[CPU_WORK]):
            if plan.cpu_source[i] == tier:
                nbytes += run.slots.size_of[plan.cpu_key[i]]
                ns += cpu_ns(run, tier, layer, plan.cpu_rows[i])
                read_ns += costs.cpu[tier * layers + layer]
        if nbytes > 0:
            rate = own_rate(nbytes, ns, read_ns, costs.cpu_rate[tier])
            cpu.nbytes[n], cpu.fixed[n], cpu.solo[n], cpu.rate[n] = nbytes, 0, ns, rate
            cpu.ready[n], cpu.fault[n] = 1, -1
            n += 1
    for i in range(v[CPU_WORK]):
        if plan.cpu_source[i] == DISK:
            key = plan.cpu_key[i]
            size, ns = run.slots.size_of[key], cpu_ns(run, PAGE_CACHE, layer, plan.cpu_rows[i])
            rate = own_rate(size, ns, costs.cpu[PAGE_CACHE * layers + layer], costs.cpu_rate[PAGE_CACHE])
            cpu.nbytes[n], cpu.fixed[n], cpu.solo[n], cpu.rate[n] = size, 0, ns, rate
            cpu.ready[n], cpu.fault[n] = 0, key
            n += 1
    v[SEGMENTS] = n
    cpu.fixed[0] += costs.dispatch
    if run.rules.overlap == 1:
        cpu.fixed[0] += (int(v[HIT_BYTES] > 0) + int(v[WAITS] > 0)) * costs.start
    if run.rules.direct == 1:  # all reads at once; pages are faulted in when the pool gets there
        for segment in range(n):
            if cpu.ready[segment] == 0:
                read_joined(run, cpu.fault[segment], host.batches + segment, DEMAND)
                cpu.fault[segment] = -1


def cpu_ns(run: RunTables, tier: int, layer: int, rows: int) -> int:
    """One expert on the CPU pool.

    Parameters
    ----------
    run
        The run.
    tier
        Where the expert lies on the host.
    layer
        MoE layer, from 0.
    rows
        Rows that want it.

    Returns
    -------
    int
        Ns.
    """
    costs = run.costs
    return pool_ns(costs.cpu[tier * len(costs.card_of) + layer], rows, costs.expert_flop, costs.cpu_flop_per_ns)
