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
from expert_residency.sim.timed.rules import given_rate, progress_ns, slowed_ns

DRAM_SERVER, DISK_SERVER = 0, 1


def start(run: RunTables, fixed_ns: int, solo_ns: int, rate: int, kind: int, ref: int, port: int) -> None:
    """Begin a transfer now; through the drive's server if it is a READ, else through DRAM and perhaps a port.

    Parameters
    ----------
    run
        The run, changed in place.
    fixed_ns
        Paid once before, while it asks nothing of a server.
    solo_ns
        What its bytes take alone.
    rate
        MB/s that it asks of each server meanwhile.
    kind
        Of the flow.
    ref
        Number of what it belongs to.
    port
        Server of the card's root port, or -1.
    """
    net, v = run.net, run.v
    v[FREE_FLOWS] -= 1
    flow = net.free[v[FREE_FLOWS]]
    net.fixed[flow] = fixed_ns
    net.moving[flow] = int(fixed_ns <= 0)
    net.remaining[flow] = solo_ns
    net.rate[flow] = rate
    net.num[flow] = 1
    net.den[flow] = 1
    net.finish[flow] = 0
    net.kind[flow] = kind
    net.ref[flow] = ref
    net.port[flow] = port
    if net.moving[flow] == 1:
        ask_servers(run, flow)
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
            if net.moving[flow] == 1:
                net.remaining[flow] -= progress_ns(elapsed, net.num[flow], net.den[flow])
            else:
                net.fixed[flow] -= elapsed


def ask_servers(run: RunTables, flow: int) -> None:
    """A flow begins to move bytes."""
    net = run.net
    net.demand[DISK_SERVER if net.kind[flow] == READ else DRAM_SERVER] += net.rate[flow]
    if net.port[flow] >= 0:
        net.demand[net.port[flow]] += net.rate[flow]


def replan(run: RunTables) -> None:
    """Give every flow its pace and finish."""
    net, v = run.net, run.v
    now = v[NOW]
    for i in range(v[FLOWS]):
        flow = net.order[i]
        net.num[flow] = 1
        net.den[flow] = 1
        net.rising[flow] = net.moving[flow]
    share(run)
    for i in range(v[FLOWS]):
        flow = net.order[i]
        if net.moving[flow] == 0:
            net.finish[flow] = now + net.fixed[flow]
        elif net.remaining[flow] > 0:
            net.finish[flow] = now + slowed_ns(net.remaining[flow], net.num[flow], net.den[flow])
        else:
            net.finish[flow] = now
    plan_wake(run)


def share(run: RunTables) -> None:
    """Max-min fairness: the fullest server first, then the others with what its flows leave them."""
    net, v = run.net, run.v
    servers = len(net.capacity)
    for server in range(servers):
        net.asked[server] = net.demand[server]
        net.left[server] = net.capacity[server]
    while True:
        full, num, den = -1, 1, 1
        for server in range(servers):
            if net.asked[server] * den > num * net.left[server]:
                full, num, den = server, net.asked[server], net.left[server]
        if full < 0:
            return
        for i in range(v[FLOWS]):
            flow = net.order[i]
            first, port = DISK_SERVER if net.kind[flow] == READ else DRAM_SERVER, net.port[flow]
            if net.rising[flow] == 1 and (first == full or port == full):
                net.rising[flow] = 0
                net.num[flow], net.den[flow] = num, den
                given = given_rate(net.rate[flow], num, den)
                net.asked[first] -= net.rate[flow]
                net.left[first] = max(1, net.left[first] - given)
                if port >= 0:
                    net.asked[port] -= net.rate[flow]
                    net.left[port] = max(1, net.left[port] - given)


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
