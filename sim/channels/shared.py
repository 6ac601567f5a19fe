"""Servers whose rate is shared: DRAM, a root port, the drive.

A *flow* is a transfer in progress. Alone it would take `solo_ns` at `mb_per_s`; it passes through some servers,
each with a capacity. While the flows of a server ask for more than its capacity, each of them is slowed by
demand / capacity (so both sides lose in proportion: 30 + 13 GB/s alone become about 22 + 9 on 31 GB/s), and a
flow through several servers goes at the pace of the slowest. Whenever a flow joins or leaves, all finish times
are computed anew.

Everything is an integer. Progress of a slowed flow is rounded down and its finish up, so that a server never
moves more than its capacity. A flow that is never slowed finishes exactly `solo_ns` after it began: a shared
channel with one job equals a FIFO one.

At equal times the order is (time, priority, sequence): flows end (SimPy's urgent priority) before anybody else
acts, flows that end together end in the order in which they began, and then deciders run in the order of their
events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simpy.events import URGENT, Event


class Flow:
    """One transfer in progress."""

    __slots__ = ("den", "finish", "mb_per_s", "num", "on_done", "remaining", "servers", "solo_ns")

    def __init__(self, solo_ns: int, mb_per_s: int, servers: Sequence[int], on_done: Callable[[], None]) -> None:
        self.solo_ns = solo_ns
        self.remaining = solo_ns
        self.mb_per_s = mb_per_s
        self.servers = servers
        self.on_done = on_done
        self.num = 1
        self.den = 1
        self.finish = 0


class SharedNet:
    """All shared servers of a machine and the flows through them.

    Parameters
    ----------
    env
        The SimPy environment, its time in integer ns.
    capacities_mb_per_s
        One entry a server; the index is what flows name.
    """

    def __init__(self, env: Any, capacities_mb_per_s: Sequence[int]) -> None:
        self.env = env
        self.capacity = list(capacities_mb_per_s)
        self.demand = [0] * len(self.capacity)
        self.flows: list[Flow] = []
        self._last = 0
        self._wake: Any = None

    def start(self, solo_ns: int, mb_per_s: int, servers: Sequence[int], on_done: Callable[[], None]) -> Flow:
        """Begin a transfer now; `on_done` is called at its end."""
        flow = Flow(solo_ns, mb_per_s, servers, on_done)
        self._settle()
        for server in servers:
            self.demand[server] += mb_per_s
        self.flows.append(flow)
        self._retime()
        return flow

    def _settle(self) -> None:
        """Book the progress made since the last change."""
        now = self.env.now
        elapsed = now - self._last
        self._last = now
        if elapsed:
            for flow in self.flows:
                flow.remaining -= elapsed * flow.den // flow.num

    def _retime(self) -> None:
        """Give every flow its pace and finish, and wake up at the first of them."""
        now = self.env.now
        first = -1
        for flow in self.flows:
            num, den = 1, 1
            for server in flow.servers:
                demand, capacity = self.demand[server], self.capacity[server]
                if demand * den > num * capacity:
                    num, den = demand, capacity
            flow.num, flow.den = num, den
            flow.finish = now - (-flow.remaining * num // den) if flow.remaining > 0 else now
            if first < 0 or flow.finish < first:
                first = flow.finish
        if first >= 0:
            wake = Event(self.env)
            wake._ok = True
            wake._value = None
            wake.callbacks.append(self._on_wake)
            self._wake = wake
            self.env.schedule(wake, URGENT, first - now)
        else:
            self._wake = None

    def _on_wake(self, event: Any) -> None:
        if event is not self._wake:
            return  # an older plan; flows changed since
        self._settle()
        now = self.env.now
        done = [flow for flow in self.flows if flow.finish <= now]
        self.flows = [flow for flow in self.flows if flow.finish > now]
        for flow in done:
            for server in flow.servers:
                self.demand[server] -= flow.mb_per_s
        self._wake = None
        for flow in done:
            flow.on_done()
        if self._wake is None:
            self._retime()
