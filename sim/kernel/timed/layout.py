"""A run laid out in the groups of `tables`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from expert_residency.policies.structures import Links
from expert_residency.sim.kernel.timed import tables as t
from expert_residency.sim.residency.future import kept_with
from expert_residency.sim.residency.pool import CachePool
from expert_residency.sim.timed.attention import Context, attention_ns
from expert_residency.sim.timed.costs import Costs
from expert_residency.sim.timed.engine.transfers import drive_rates, shared_servers
from expert_residency.sim.timed.host import HostPlan
from expert_residency.sim.timed.page_cache import ACTIVE_SHARE, PageCache
from expert_residency.sim.timed.result import CAUSES, PHASES, TIERS
from expert_residency.traces import RoutingTrace

if TYPE_CHECKING:
    from expert_residency.sim.choices.preset import EnginePreset
    from expert_residency.sim.timed.engine import Policies
    from expert_residency.sim.timed.machine import Machine

MISS = {"cpu": t.M_CPU, "fetch": t.M_FETCH, "hybrid": t.M_HYBRID, "stream": t.M_STREAM}
INSERTION = {
    "free": t.FREE, "guarded": t.GUARDED, "never-evict": t.NEVER_EVICT, "staging": t.STAGING, "pages": t.PAGES
}  # fmt: skip
SWAP = {"copy": t.SWAP_COPY, "exchange": t.SWAP_EXCHANGE, "streams": t.SWAP_STREAMS}
SLOT = np.dtype(
    [("guard", np.int64), ("size_of", np.int64), ("copy_of", np.int32), ("scope_of", np.int32),
     ("card_of", np.int16), ("source_of", np.int8), ("resident", np.int8), ("ready", np.int8), ("unused", np.int8),
     ("displaced", np.int8)],
    align=True,
)  # fmt: skip
"""What the model keeps of a key."""
SPARE = 64
"""Records beyond those that a run can need at once by count."""


def ints(n: int | Sequence[int], fill: int = 0) -> Any:
    """Whole numbers in an array: `n` of them, or a copy of a sequence."""
    return np.full(n, fill, dtype=np.int64) if isinstance(n, int) else np.array(n, dtype=np.int64)


def records(n: int, names: Sequence[str]) -> dict[str, Any]:
    """Columns of one array of records, so that all numbers of one lie side by side."""
    made = np.zeros(n, dtype=[(name, np.int64) for name in names])
    return {name: made[name] for name in names}


def slot_columns(lines: npt.NDArray[np.uint8], keys: int) -> dict[str, Any]:
    """The fields of `SLOT` in the first bytes of each line."""
    made = lines[:keys, : SLOT.itemsize].view(SLOT)[:, 0]
    return {name: made[name] for name in SLOT.names or ()}


def lists(keys: int, n: int) -> Links:
    """Empty lists in arrays; see `policies.structures.links`."""
    nodes: Any = np.arange(keys + n, dtype=np.int64)
    return Links(nodes.copy(), nodes.copy(), ints(n), ints(keys, -1))


def trace_table(trace: RoutingTrace) -> t.Trace:
    """Arrays of a trace, of fixed types so that one kernel serves all traces."""

    def array(values: Any, kind: Any) -> Any:
        return np.ascontiguousarray(values, dtype=kind)

    keys: Any = trace.keys
    return t.Trace(
        offsets=array(trace.event_offsets, np.int64),
        layers=array(trace.event_layer, np.int32),
        event_rows=array(trace.event_rows, np.int32),
        pass_first=array(trace.pass_event_offsets, np.int64),
        phase_of=array(trace.pass_phase, np.int8),
        request_of=array(trace.pass_request, np.int32),
        keys=keys.view(np.uint32) if keys.dtype == np.int32 else array(keys, np.uint32),
        rows=array(trace.rows_wanting, np.int32),
    )


def costs_table(
    trace: RoutingTrace, machine: Machine, preset: EnginePreset, plan: HostPlan, predict: int, context: Context
) -> t.Costs:
    """Times of compute; hand-offs are tabled by rows.

    Parameters
    ----------
    trace
        The trace.
    machine
        Cards and host.
    preset
        The engine's fixed times.
    plan
        Where experts lie on the host.
    predict
        Ns of one prediction.
    context
        What requests attend over.

    Returns
    -------
    t.Costs
        Tables in ns, bytes and MB/s.
    """
    costs = Costs.of(trace.geometry, machine, preset, plan.cpu_sources, plan.weights)
    cards, most = len(machine.cards), int(trace.event_rows.max(initial=1))
    handoff = ints(cards * (most + 1))
    for card in sorted(set(machine.layer_card) - {0}):
        for rows in np.unique(trace.event_rows).tolist():
            handoff[card * (most + 1) + rows] = costs.handoff(card, rows)
    return t.Costs(
        card_of=ints(machine.layer_card),
        dense=ints(costs.dense_ns),
        attention=ints(attention_ns(trace, machine, context).reshape(-1).tolist()),
        dense_flop=ints(costs.dense_flop),
        flop_per_ns=ints(costs.flop_per_ns),
        expert_rate=ints(costs.expert_mb_per_s),
        expert_launch=ints(costs.expert_launch_ns),
        points=ints(costs.points),
        point_bytes=ints(costs.point_bytes),
        point_ns=ints(costs.point_ns),
        sync=ints([ns + preset.plan_ns for ns in costs.sync_ns]),
        handoff=handoff,
        most_rows=most,
        cpu=ints(costs.cpu_ns[0] + costs.cpu_ns[1] + costs.cpu_ns[2]),
        cpu_rate=ints(costs.cpu_mb_per_s),
        cpu_flop_per_ns=costs.cpu_flop_per_ns,
        expert_flop=costs.expert_flop,
        dispatch=costs.dispatch_ns,
        head=costs.head_ns,
        first=costs.first_ns,
        row=preset.row_ns,
        combine=preset.combine_ns,
        whole_pass=preset.pass_ns,
        draft=preset.draft_ns,
        start=preset.start_ns,
        send=preset.send_ns,
        ahead=preset.ahead_ns,
        copy=preset.copy_ns,
        fill=preset.fill_ns,
        fill_copy=preset.fill_copy_ns,
        beside=preset.beside_ns,
        predict=predict,
    )


def rules_table(
    trace: RoutingTrace, machine: Machine, preset: EnginePreset, policies: Policies, miss: str, plan: HostPlan
) -> t.Rules:
    """Choices.

    Parameters
    ----------
    trace
        The trace.
    machine
        Cards and host.
    preset
        The engine's rules.
    policies
        Of the run.
    miss
        Miss mode.
    plan
        Where experts lie on the host.

    Returns
    -------
    t.Rules
        Choices as numbers.
    """
    rule, prefetch = policies.insertion, policies.prefetch
    pinned_mb_per_s = machine.host.cpu.expert_mb_per_s(plan.cpu_sources[0], trace.geometry.quant_family)
    most = int(np.diff(trace.event_offsets).max(initial=1))
    return t.Rules(
        miss=MISS[miss],
        fill=int(preset.fill),
        in_flight_waits=int(preset.in_flight == "wait"),
        overlap=int(preset.overlap),
        by_layer=int(preset.copy_unit == "layer"),
        prefill_admits=int(preset.prefill_admits),
        pinned_only=int(preset.pcie_pinned_only),
        fetched=ints(
            [
                preset.fetched(misses, card.link.h2d_mb_per_s, pinned_mb_per_s)
                for card in machine.cards
                for misses in range(most + 1)
            ]
        ),
        most_misses=most,
        periodic=int(policies.admission.periodic),
        members_may_leave=int(policies.eviction.may_evict_members),
        at_router=int(prefetch.at_router),
        at_layer=int(prefetch.at_layer),
        at_pass=int(prefetch.at_pass),
        insertion=INSERTION[rule.rule],
        frames=rule.staging_slots,
        reach=(rule.amount or trace.geometry.n_layers) if rule.rule == "guarded" else 0,
        budget=-1 if policies.prefetch_bytes is None else policies.prefetch_bytes,
        swap=SWAP[plan.swap],
        swaps_block=int(plan.swap == "exchange" or (preset.adapt_waits and plan.swap == "copy")),
        link_reads=int(preset.reads == "link"),
        direct=int(plan.access == "direct"),
    )


def host_table(
    machine: Machine, plan: HostPlan, cache: PageCache | None, keys: int, batches: int, segments: int
) -> t.Host:
    """Where experts lie, and the page cache as it stands.

    Parameters
    ----------
    machine
        Cards and host.
    plan
        Where experts lie on the host.
    cache
        The page cache, or None.
    keys
        Experts of the model.
    batches
        Room for batches.
    segments
        Room for experts on the CPU.

    Returns
    -------
    t.Host
        The tables.
    """
    disk = machine.host.disk
    lanes, lane_rate, _ = drive_rates(disk, plan.access)
    known = [] if cache is None else [*cache.inactive, *cache.active]
    nodes = max([keys * (plan.file + 1), *(key + 1 for key in known)]) if cache is not None else 1
    pages, held = ints(nodes), lists(nodes, 2)
    if cache is not None:
        from expert_residency.policies.structures import push_back

        for which, side in enumerate((cache.inactive, cache.active)):
            for key, count in side.items():
                push_back(held, which, key)
                pages[key] = count
    return t.Host(
        reading=ints(keys),
        left=ints(keys),
        wait_first=ints(keys, -1),
        wait_last=ints(keys, -1),
        wait_next=ints(batches + segments, -1),
        batches=batches,
        queues=lists(keys, 3),
        queued=ints(keys),
        flying=ints(keys),
        missing=ints(keys),
        priority=ints(keys),
        lanes=lanes,
        latency=disk.latency_ns,
        lane_rate=lane_rate,
        page_bytes=disk.page_bytes.count,
        slices=plan.slices,
        cached=int(cache is not None),
        lists=held,
        pages=pages,
        page_base=plan.file * keys,
        page_capacity=0 if cache is None else cache.capacity,
        share=ACTIVE_SHARE[0],
        whole=ACTIVE_SHARE[1],
    )


def net_table(machine: Machine, plan: HostPlan) -> tuple[t.Net, list[int]]:
    """Shared servers, no flow; and the port of each card, -1 for none."""
    lanes, _, drive_rate = drive_rates(machine.host.disk, plan.access)
    capacities, ports = shared_servers(machine, drive_rate)
    flows = 2 * len(machine.cards) + lanes + 3
    fields = {name: ints(flows) for name in t.Net._fields}
    fields |= {name: ints(len(capacities)) for name in ("demand", "asked", "left")}
    fields |= {"capacity": ints(capacities), "free": ints(list(range(flows)))}
    made = t.Net(**fields)
    return made, ports


def run_table(
    trace: RoutingTrace, machine: Machine, preset: EnginePreset, pool: CachePool, policies: Policies, miss: str,
    plan: HostPlan, cache: PageCache | None, lines: npt.NDArray[np.uint8], context: Context,
) -> t.RunTables:  # fmt: skip
    """Everything but the compiled policies; `lines` have room for a `SLOT` of each key.

    Parameters
    ----------
    trace
        The trace.
    machine
        Cards and host.
    preset
        The engine's.
    pool
        Residents at the start.
    policies
        Of the run.
    miss
        Miss mode.
    plan
        Where experts lie on the host.
    cache
        The page cache, or None.
    lines
        (keys, bytes of a line) records of experts.
    context
        What requests attend over.

    Returns
    -------
    t.RunTables
        The tables.
    """
    keys, cards, passes = pool.pool.keys, len(machine.cards), trace.n_passes
    members = max(1, int(np.diff(trace.event_offsets).max(initial=1)))
    segments = members + 3
    rules = rules_table(trace, machine, preset, policies, miss, plan)
    # A copy is under way into at most one slot a key; besides, the ring's, an event's demands, and what one call
    # of a prefetcher asks for and drops again.
    n = 3 * keys + 2 * cards * max(1, rules.frames) + 2 * members + SPARE
    net, ports = net_table(machine, plan)
    links = [card.link for card in machine.cards]
    per_key = slot_columns(lines, keys)
    per_key["guard"][:] = pool.guard
    per_key["size_of"][:] = pool.pool.size_of
    per_key["scope_of"][:] = pool.pool.scope_of
    per_key["card_of"][:] = np.repeat(machine.layer_card, trace.geometry.experts)
    per_key["source_of"][:] = plan.source_of
    per_key["copy_of"][:] = -1
    per_key["resident"][:] = per_key["ready"][:] = pool.resident
    v = ints(t.N_NUMBERS)
    v[t.NUMBER] = v[t.WAKE] = v[t.WAITING_SINCE] = v[t.DRIVE_BLOCKED_SINCE] = -1
    v[t.FREE_FLOWS] = len(net.free)
    if cache is not None:
        v[t.ACTIVE_PAGES], v[t.INACTIVE_PAGES] = cache.active_pages, cache.inactive_pages
    plan_fields = {name: ints(members) for name in t.EventPlan._fields}
    plan_fields["hits"] = np.zeros(members, dtype=np.int8)
    in_order = int(preset.copy_order == "asked")
    return t.RunTables(
        v=v,
        trace=kept_with(trace, "timed", lambda: trace_table(trace)),
        costs=costs_table(trace, machine, preset, plan, policies.predict_ns, context),
        rules=rules,
        net=net,
        batches=t.Batches(**records(n, t.Batches._fields)),
        copies=t.Copies(**records(n, t.Copies._fields)),
        engines=t.Engines(
            queues=lists(n, 8 * cards),
            current=ints(2 * cards, -1),
            set_up=ints([link.copy_t0_ns for link in links] * 2),
            floor=ints([link.submit_ns for link in links] * 2),
            port=ints(ports * 2),
            rate=ints(
                [rate for link in links for rate in (link.h2d_mb_per_s, link.h2d_pageable_mb_per_s)]
                + [rate for link in links for rate in (link.d2h_mb_per_s, link.d2h_mb_per_s)]
            ),
            flow_rate=ints(2 * cards),
            in_order=ints([in_order] * cards + [0] * cards),
            nbytes=ints(6 * cards),
            blocked_since=ints(2 * cards, -1),
            awaited=ints(2 * cards),
            blocked_ns=ints(2 * cards),
            blocking_bytes=ints(2 * cards),
            free_batches=ints(n),
            free_copies=ints(n),
            finished=ints(n),
        ),
        host=host_table(machine, plan, cache, keys, n, segments),
        cpu=t.Cpu(*(ints(segments) for _ in t.Cpu._fields)),
        slots=t.Slots(
            lines=int(lines.ctypes.data),
            **per_key,
            used=ints(pool.used),
            capacity=ints(pool.pool.capacity),
        ),
        plan=t.EventPlan(**plan_fields),
        ahead=t.Ahead(
            ints(keys), ints(keys), lists(keys, cards), ints(keys, -1), ints(pool.pool.scopes, -1),
            ints(pool.pool.scopes), ints(keys),
        ),
        swaps=t.Swaps(ints(keys), ints(keys), ints(cards, -1), ints(cards)),
        calls=t.Calls(0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, ints(8), ints(max(keys, members)), ints(members, -1)),
        found=t.Found(
            pass_ns=ints(passes), causes=ints(passes * len(CAUSES)), distinct=ints(len(PHASES) * len(TIERS)),
            routed=ints(len(PHASES) * len(TIERS)), stats=ints(t.N_STATS),
        ),
    )  # fmt: skip
