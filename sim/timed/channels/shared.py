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

from expert_residency.sim.timed.rules import progress_ns, slowed_ns


class Flow:
    """One transfer in progress."""

    __slots__ = ("den", "finish", "mb_per_s", "num", "on_done", "remaining", "servers")

    def __init__(self, solo_ns: int, mb_per_s: int, servers: Sequence[int], on_done: Callable[[], int]) -> None:
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
        self.wake: Any = None
        """The event at which the next flows end, for those who wait: it is processed after they have."""
        self._last = 0
        self._ending = False
        self._changed = False

    def start(self, solo_ns: int, mb_per_s: int, servers: Sequence[int], on_done: Callable[[], int]) -> None:
        """Begin a transfer now.

        `on_done` is called at its end; it returns the `solo_ns` of a transfer that goes on at once at the same
        rate through the same servers, or 0.

        Parameters
        ----------
        solo_ns
            What it takes alone.
        mb_per_s
            What it asks of each server.
        servers
            Those that it goes through.
        on_done
            Called at its end.
        """
        for server in servers:
            self.demand[server] += mb_per_s
        flow = Flow(solo_ns, mb_per_s, servers, on_done)
        if self._ending:  # a callback of `_on_wake`, which has settled and will plan anew
            self.flows.append(flow)
            self._changed = True
            return
        self._settle()
        self.flows.append(flow)
        self._replan()

    def _settle(self) -> None:
        """Book the progress made since the last change."""
        now = self.env.now
        elapsed = now - self._last
        self._last = now
        if elapsed:
            for flow in self.flows:
                flow.remaining -= progress_ns(elapsed, flow.num, flow.den)

    def _replan(self) -> None:
        """Give every flow its pace and finish."""
        now = self.env.now
        demands, capacities = self.demand, self.capacity
        for flow in self.flows:
            num, den = 1, 1
            for server in flow.servers:
                demand, capacity = demands[server], capacities[server]
                if demand * den > num * capacity:
                    num, den = demand, capacity
            flow.num, flow.den = num, den
            flow.finish = now + slowed_ns(flow.remaining, num, den) if flow.remaining > 0 else now
        self._schedule()

    def _schedule(self) -> None:
        """Wake up at the first finish."""
        flows = self.flows
        if not flows:
            self.wake = None
            return
        first = flows[0].finish
        if len(flows) > 1:
            first = min(flow.finish for flow in flows)
        env = self.env
        self.wake = wake = Event(env)
        wake._ok = True
        wake._value = None
        wake.callbacks = [self._on_wake]
        env.schedule(wake, URGENT, first - env.now)

    def _on_wake(self, event: Any) -> None:
        if event is not self.wake:
            return  # an older plan; flows changed since
        now = self.env.now
        self._ending = True
        self._changed = False
        if len(self.flows) == 1:
            self._last = now
            ended = self.flows[:]
        else:
            self._settle()
            ended = [flow for flow in self.flows if flow.finish <= now]
        for flow in ended:
            solo_ns = flow.on_done()
            if solo_ns:
                flow.remaining = solo_ns
                flow.finish = now + slowed_ns(solo_ns, flow.num, flow.den)
            else:
                self.flows.remove(flow)
                for server in flow.servers:
                    self.demand[server] -= flow.mb_per_s
                self._changed = True
        self._ending = False
        if self._changed:
            self._replan()
        else:
            self._schedule()
