"""`sim.timed.channels.shared` on arrays: flows through servers whose rate is shared."""

from __future__ import annotations

from expert_residency.sim.kernel.timed.tables import (
    CHANGED,
    ENDING,
    FLOWS,
    FREE_FLOWS,
    NOW,
    READ,
    SETTLED,
    WAKE,
    RunTables,
)
from expert_residency.sim.timed.rules import progress_ns, slowed_ns

DRAM_SERVER, DISK_SERVER = 0, 1


def start(run: RunTables, solo_ns: int, rate: int, kind: int, ref: int, port: int) -> None:
    """Begin a transfer now; through the drive's server if it is a READ, else through DRAM and perhaps a port.

    Parameters
    ----------
    run
        The run, changed in place.
    solo_ns
        What it takes alone.
    rate
        MB/s that it asks of each server.
    kind
        Of the flow.
    ref
        Number of what it belongs to.
    port
        Server of the card's root port, or -1.
    """
    net, v = run.net, run.v
    net.demand[DISK_SERVER if kind == READ else DRAM_SERVER] += rate
    if port >= 0:
        net.demand[port] += rate
    v[FREE_FLOWS] -= 1
    flow = net.free[v[FREE_FLOWS]]
    net.remaining[flow] = solo_ns
    net.rate[flow] = rate
    net.num[flow] = 1
    net.den[flow] = 1
    net.finish[flow] = 0
    net.kind[flow] = kind
    net.ref[flow] = ref
    net.port[flow] = port
    if v[ENDING] == 1:
        v[CHANGED] = 1
    else:
        settle(run)
    net.order[v[FLOWS]] = flow
    v[FLOWS] += 1
    if v[ENDING] == 0:
        replan(run)


def settle(run: RunTables) -> None:
    """Book the progress made since the last change."""
    net, v = run.net, run.v
    elapsed = v[NOW] - v[SETTLED]
    v[SETTLED] = v[NOW]
    if elapsed > 0:
        for i in range(v[FLOWS]):
            flow = net.order[i]
            net.remaining[flow] -= progress_ns(elapsed, net.num[flow], net.den[flow])


def replan(run: RunTables) -> None:
    """Give every flow its pace and finish."""
    net, v = run.net, run.v
    now = v[NOW]
    for i in range(v[FLOWS]):
        flow = net.order[i]
        num, den = 1, 1
        server = DISK_SERVER if net.kind[flow] == READ else DRAM_SERVER
        while server >= 0:
            demand, capacity = net.demand[server], net.capacity[server]
            if demand * den > num * capacity:
                num, den = demand, capacity
            server = net.port[flow] if server != net.port[flow] else -1
        net.num[flow] = num
        net.den[flow] = den
        net.finish[flow] = now + slowed_ns(net.remaining[flow], num, den) if net.remaining[flow] > 0 else now
    plan_wake(run)


def plan_wake(run: RunTables) -> None:
    """Wake up at the first finish."""
    net, v = run.net, run.v
    if v[FLOWS] == 0:
        v[WAKE] = -1
        return
    first = net.finish[net.order[0]]
    for i in range(1, v[FLOWS]):
        if net.finish[net.order[i]] < first:
            first = net.finish[net.order[i]]
    v[WAKE] = first


def leave(run: RunTables, flow: int) -> None:
    """A flow has ended."""
    net, v = run.net, run.v
    net.demand[DISK_SERVER if net.kind[flow] == READ else DRAM_SERVER] -= net.rate[flow]
    if net.port[flow] >= 0:
        net.demand[net.port[flow]] -= net.rate[flow]
    at = 0
    while net.order[at] != flow:
        at += 1
    v[FLOWS] -= 1
    for i in range(at, v[FLOWS]):
        net.order[i] = net.order[i + 1]
    net.free[v[FREE_FLOWS]] = flow
    v[FREE_FLOWS] += 1
    v[CHANGED] = 1
