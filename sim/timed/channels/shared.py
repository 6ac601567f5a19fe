"""Servers whose rate is shared: DRAM, a root port, the drive.

A *flow* is a transfer in progress. First it may pay something once, `fixed_ns` in which it moves nothing and asks
nothing of a server (set-up, the latency of a read, a read by the link itself). Then it moves bytes: alone it would
take `solo_ns` at `mb_per_s`, its *own rate*, and it passes through some servers, each with a capacity.

**The law of sharing**: rates are max-min fair over all servers that a flow crosses, in parts of own rates. The
pace of all flows (rate over own rate) rises together, until a flow is at its own rate or a server that it crosses
is full; those that cross a full server keep their pace, and the others go on rising with what is left. So

- flows of one server lose in proportion: 30 + 13 GB/s alone become about 22 + 9 on 31 GB/s, as was measured;
- a flow that is held back elsewhere, by a root port or by itself, leaves what it does not use to the others;
- a server is either full, or none of its flows is slowed by it.

Whenever a flow joins, leaves or begins to move, all finish times are computed anew.

Everything is an integer. Progress of a slowed flow is rounded down, its finish and what it takes of a server up,
so that a server never moves more than its capacity. A flow that is never slowed finishes `fixed_ns + solo_ns`
after it began: a shared channel with one job equals a FIFO one.

At equal times the order is (time, priority, sequence): flows end (SimPy's urgent priority) before anybody else
acts, flows that end together end in the order in which they began, and then deciders run in the order of their
events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simpy.events import URGENT, Event

from expert_residency.sim.timed.rules import given_rate, progress_ns, slowed_ns


class Flow:
    """One transfer in progress."""

    __slots__ = ("den", "finish", "fixed", "mb_per_s", "moving", "num", "on_done", "remaining", "servers")

    def __init__(
        self, solo_ns: int, mb_per_s: int, servers: Sequence[int], on_done: Callable[[], int], fixed_ns: int
    ) -> None:
        self.fixed = fixed_ns
        self.moving = fixed_ns <= 0
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
        """Own rates of all flows that move, by server."""
        self.flows: list[Flow] = []
        self.wake: Any = None
        """The event at which the next flows end, for those who wait: it is processed after they have."""
        self._last = 0
        self._ending = False
        self._changed = False

    def start(
        self, solo_ns: int, mb_per_s: int, servers: Sequence[int], on_done: Callable[[], int], fixed_ns: int = 0
    ) -> None:
        """Begin a transfer now.

        `on_done` is called at its end; it returns the `solo_ns` of a transfer that goes on at once at the same
        rate through the same servers, or 0.

        Parameters
        ----------
        solo_ns
            What its bytes take alone.
        mb_per_s
            What it asks of each server meanwhile.
        servers
            Those that it goes through.
        on_done
            Called at its end.
        fixed_ns
            Paid once before, while it asks nothing of a server.
        """
        flow = Flow(solo_ns, mb_per_s, servers, on_done, fixed_ns)
        if flow.moving:
            self._ask(flow)
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
                if flow.moving:
                    flow.remaining -= progress_ns(elapsed, flow.num, flow.den)
                else:
                    flow.fixed -= elapsed

    def _ask(self, flow: Flow) -> None:
        for server in flow.servers:
            self.demand[server] += flow.mb_per_s

    def _replan(self) -> None:
        """Give every flow its pace and finish."""
        now = self.env.now
        for flow in self.flows:
            flow.num = flow.den = 1
        self._share()
        for flow in self.flows:
            if not flow.moving:
                flow.finish = now + flow.fixed
            elif flow.remaining > 0:
                flow.finish = now + slowed_ns(flow.remaining, flow.num, flow.den)
            else:
                flow.finish = now
        self._schedule()

    def _share(self) -> None:
        """Max-min fairness: the fullest server first, then the others with what its flows leave them."""
        asked, left = list(self.demand), list(self.capacity)
        rising = [flow for flow in self.flows if flow.moving]
        while True:
            full, num, den = -1, 1, 1
            for server, demand in enumerate(asked):
                if demand * den > num * left[server]:
                    full, num, den = server, demand, left[server]
            if full < 0:
                return
            for flow in rising:
                if full in flow.servers:
                    flow.num, flow.den = num, den
                    given = given_rate(flow.mb_per_s, num, den)
                    for server in flow.servers:
                        asked[server] -= flow.mb_per_s
                        left[server] = max(1, left[server] - given)
            rising = [flow for flow in rising if full not in flow.servers]

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
        if len(self.flows) == 1 and self.flows[0].moving:
            self._last = now
            ended = self.flows[:]
        else:
            self._settle()
            ended = [flow for flow in self.flows if flow.finish <= now]
        for flow in ended:
            if not flow.moving:
                flow.moving = True
                self._ask(flow)
                self._changed = True
                continue
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
