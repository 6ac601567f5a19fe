"""`sim.timed.engine.walk` on arrays: the walk through the passes, layer by layer."""

# ruff: noqa: TC004  (names of the seam are there at run time, but not by import)

from __future__ import annotations

from typing import TYPE_CHECKING

from expert_residency.sim.kernel.timed.ahead import close, propose
from expert_residency.sim.kernel.timed.copies import alone, release
from expert_residency.sim.kernel.timed.decide import decide, demand_later, fill_slots, lay_segments
from expert_residency.sim.kernel.timed.host import run_segments
from expert_residency.sim.kernel.timed.landings import start_swaps, wake
from expert_residency.sim.kernel.timed.tables import (
    CARD,
    COPYING,
    CPU_BUSY,
    CPU_WAITS,
    CPU_WORK,
    E_END,
    E_FIRST,
    E_LAYER,
    E_NUMBER,
    E_PASS,
    E_PHASE,
    E_REQUEST,
    FILLS,
    FROM_PASS,
    GPU_BYTES,
    HIT_BYTES,
    HIT_ROWS,
    ISSUED,
    LATERS,
    LEARN,
    MOVING,
    NOW,
    NUMBER,
    OK,
    PASS,
    PASS_DONE,
    PREFILL,
    SENDS,
    SPENT_BYTES,
    STATUS,
    TO_PASS,
    VERIFY,
    WAITS,
    WAKE,
    WAVES,
    RunTables,
)
from expert_residency.sim.timed.result import (
    ADAPT_WAIT,
    CAUSES,
    CPU_WAIT,
    DENSE,
    DISK_WAIT,
    DRAFT,
    EXPERTS,
    HANDOFF,
    OVERHEAD,
    PCIE_WAIT,
    SYNC,
)
from expert_residency.sim.timed.rules import common_ns, dense_ns, disk_part_ns, group_ns, measured_ns

if TYPE_CHECKING:
    from expert_residency.sim.kernel.timed.seam import call, run_at

N_CAUSES = len(CAUSES)


def run_passes(table: int) -> None:
    """Simulate the passes FROM_PASS up to TO_PASS of the run in `table`; after the last one, settle accounts."""
    run = run_at(table)
    v = run.v
    while v[FROM_PASS] < v[TO_PASS] and v[STATUS] == OK:
        one_pass(run, v[FROM_PASS])
        v[FROM_PASS] += 1
    if v[FROM_PASS] == len(run.trace.phase_of) and v[STATUS] == OK:
        close(run)


def one_pass(run: RunTables, number: int) -> None:
    """One pass."""
    v, costs, trace = run.v, run.costs, run.trace
    began = v[NOW]
    phase = trace.phase_of[number]
    first = trace.pass_first[number]
    v[CARD] = 0
    v[PASS] = number
    v[SPENT_BYTES] = 0
    if costs.first > 0:
        spend(run, costs.first, DENSE)
    for e in range(first, trace.pass_first[number + 1]):
        one_event(run, e, number, phase)
        release(run)
        if v[STATUS] != OK:
            return
    if costs.head > 0:
        spend(run, costs.head, DENSE)
    if run.rules.periodic == 1 and v[COPYING] == 0 and v[MOVING] == 0:
        start_swaps(run, call(run.calls.admit_code, run.calls.admit_table, PASS_DONE, number, 0, 0))
    if costs.whole_pass > 0:
        spend(run, costs.whole_pass, OVERHEAD)
    if costs.draft > 0 and phase == VERIFY:
        spend(run, (trace.event_rows[first] - 1) * costs.draft, DRAFT)
    if run.rules.swaps_block == 1 and (v[COPYING] > 0 or v[MOVING] == 1):
        waited = v[NOW]
        while (v[COPYING] > 0 or v[MOVING] == 1) and v[STATUS] == OK:
            wake(run)
        run.found.causes[number * N_CAUSES + ADAPT_WAIT] += v[NOW] - waited
    run.found.pass_ns[number] = v[NOW] - began


def advance(run: RunTables, ns: int) -> None:
    """Let `ns` pass; flows that end at its very end still end before."""
    v = run.v
    until = v[NOW] + ns
    while v[WAKE] >= 0 and v[WAKE] <= until:
        wake(run)
    v[NOW] = until


def spend(run: RunTables, ns: int, cause: int) -> None:
    """Let `ns` pass for `cause`.

    Parameters
    ----------
    run
        The run, changed in place.
    ns
        How long.
    cause
        Number of the cause.
    """
    advance(run, ns)
    run.found.causes[run.v[PASS] * N_CAUSES + cause] += ns


def one_event(run: RunTables, number: int, pass_index: int, phase: int) -> None:
    """One layer of one pass.

    Parameters
    ----------
    run
        The run, changed in place.
    number
        Running number of the event.
    pass_index
        Number of the pass.
    phase
        0 prefill, 1 decode, 2 verify window.
    """
    v, costs, trace, rules, calls = run.v, run.costs, run.trace, run.rules, run.calls
    layer, n_rows = trace.layers[number], trace.event_rows[number]
    lo, hi = trace.offsets[number], trace.offsets[number + 1]
    card = costs.card_of[layer]
    if card != v[CARD]:
        spend(run, costs.handoff[card * (costs.most_rows + 1) + n_rows], HANDOFF)
        v[CARD] = card
    dense = dense_ns(costs.dense[layer], n_rows, costs.dense_flop[layer], costs.flop_per_ns[card])
    dense += costs.attention[card * len(trace.phase_of) + pass_index]
    sync = costs.sync[card]
    if phase != PREFILL:
        dense += (n_rows - 1) * costs.row
    if run.engines.current[card] >= 0:
        sync += costs.beside
    advance(run, dense + sync)
    causes = pass_index * N_CAUSES
    run.found.causes[causes + DENSE] += dense
    run.found.causes[causes + SYNC] += sync

    v[NUMBER] = number
    event = calls.event
    event[E_NUMBER], event[E_PASS], event[E_LAYER] = number, pass_index, layer
    event[E_FIRST], event[E_END], event[E_PHASE] = lo, hi, phase
    event[E_REQUEST] = trace.request_of[pass_index]
    decide(run, card, phase)
    sending = costs.send + v[SENDS] * costs.copy if v[SENDS] > 0 else 0
    stats = run.found.stats
    if rules.at_router == 1:
        issued = stats[ISSUED]
        predict(run, number)
        if stats[ISSUED] > issued:
            sending += costs.send + (stats[ISSUED] - issued) * costs.copy
    if sending > 0:
        spend(run, sending, SYNC)
    host_free = v[NOW]
    cpu_work = v[CPU_WORK] > 0
    if cpu_work:
        lay_segments(run, layer)
        if rules.overlap == 1:
            run_segments(run)

    if v[HIT_BYTES] > 0:
        compute_group(run, card, v[HIT_BYTES], v[HIT_ROWS])
    if v[WAITS] > 0:
        land(run, card)
    if v[LATERS] > 0:
        v[WAVES] += 1
        demand_later(run, card)
        land(run, card)

    if cpu_work:
        if rules.overlap == 0:
            run_segments(run)
        if v[CPU_BUSY] == 1:
            wait_for_pool(run)
    if costs.combine > 0:
        spend(run, costs.combine, SYNC)
    if v[FILLS] > 0:
        fill_slots(run, card)
    if calls.ahead_learns == 1:
        call(calls.ahead_code, calls.ahead_table, LEARN, 0, 0, 0)
    issued = stats[ISSUED]
    last = layer == len(costs.card_of) - 1
    if rules.at_layer == 1 or (rules.at_pass == 1 and last):
        predict(run, number + 1)
    issued = stats[ISSUED] - issued
    if v[FILLS] > 0 or issued != 0:
        host_ns = costs.fill + v[FILLS] * costs.fill_copy if v[FILLS] > 0 else costs.ahead
        still = (v[NOW] if cpu_work else host_free) + host_ns + issued * costs.copy - v[NOW]
        if still > 0:
            spend(run, still, SYNC)


def predict(run: RunTables, tick: int) -> None:
    """Let the prefetcher predict, which may take time, and ask for copies."""
    if run.costs.predict > 0:
        spend(run, run.costs.predict, SYNC)
    propose(run, tick)


def compute_group(run: RunTables, card: int, nbytes: int, rows: int) -> None:
    """The card computes one group of experts.

    Parameters
    ----------
    run
        The run, changed in place.
    card
        The card.
    nbytes
        Bytes of the group.
    rows
        (token, expert) pairs that it serves.
    """
    costs = run.costs
    run.v[GPU_BYTES] += nbytes
    rate, first, end = costs.expert_rate[card], costs.points[card], costs.points[card + 1]
    known_ns = measured_ns(nbytes, costs.point_bytes, costs.point_ns, first, end, rate)
    launch_ns, flop_per_ns = costs.expert_launch[card], costs.flop_per_ns[card]
    spend(run, group_ns(nbytes, rows, launch_ns, rate, costs.expert_flop, flop_per_ns, known_ns), EXPERTS)


def land(run: RunTables, card: int) -> None:
    """Compute experts as they land: of each batch in turn, all that have landed since as one group."""
    plan, v, copies, landed = run.plan, run.v, run.copies, run.batches.landed
    nbytes = rows = 0
    for i in range(v[WAITS]):
        batch, at, copy = plan.wait_batch[i], plan.wait_at[i], plan.wait_copy[i]
        end = at + plan.wait_count[i]
        if run.rules.by_layer == 1:
            wait_for(run, batch, end - 1)
        while at < end and v[STATUS] == OK:
            if landed[batch] <= at:
                wait_for(run, batch, at)
            upto = min(end, landed[batch])
            if run.rules.by_layer == 0:
                nbytes = rows = 0
            while at < upto:
                nbytes += run.slots.size_of[copies.key[copy]]
                rows += copies.rows[copy]
                copy = copies.next[copy]
                at += 1
            if run.rules.by_layer == 0:
                compute_group(run, card, nbytes, rows)
    if run.rules.by_layer == 1:
        compute_group(run, card, nbytes, rows)
    v[WAITS] = 0


def wait_for(run: RunTables, batch: int, at: int) -> None:
    """Wait until copy `at` of a batch has landed, for its read first and then for the link.

    Parameters
    ----------
    run
        The run, changed in place.
    batch
        Number of the batch.
    at
        Position of the copy.
    """
    v, batches = run.v, run.batches
    began = v[NOW]
    while batches.landed[batch] <= at and v[STATUS] == OK:
        wake(run)
    waited = v[NOW] - began
    copying = alone(run, batch, batches.first[batch])
    disk_ns = disk_part_ns(waited, batches.submitted[batch] - began, batches.read_ns[batch], copying)
    causes = v[PASS] * N_CAUSES
    run.found.causes[causes + DISK_WAIT] += disk_ns
    run.found.causes[causes + PCIE_WAIT] += waited - disk_ns


def wait_for_pool(run: RunTables) -> None:
    """Wait for the CPU pool: while it waits for the drive, and while it works."""
    v, cpu = run.v, run.cpu
    began = v[NOW]
    while v[CPU_BUSY] == 1 and v[STATUS] == OK:
        wake(run)
    disk_ns = 0
    for i in range(v[CPU_WAITS]):
        disk_ns += common_ns(cpu.wait_from[i], cpu.wait_to[i], began, v[NOW])
    causes = v[PASS] * N_CAUSES
    run.found.causes[causes + DISK_WAIT] += disk_ns
    run.found.causes[causes + CPU_WAIT] += v[NOW] - began - disk_ns
