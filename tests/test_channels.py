"""Shared servers, copy engines, CPU pool and disk: laws that hold for any schedule."""

import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from expert_residency.sim.timed.channels import (
    ADAPT,
    DEMAND,
    PREFETCH,
    Batch,
    CopyEngine,
    CpuPool,
    Disk,
    SharedNet,
)
from expert_residency.sim.timed.channels.copy_engine import CANCELLED, DONE
from expert_residency.sim.timed.channels.cpu import Segment
from expert_residency.sim.timed.channels.disk import Read

MB = 1_000_000


def net(*capacities):
    env = simpy.Environment()
    return env, SharedNet(env, list(capacities))


def at(env, time, action):
    def process():
        yield env.timeout(time)
        action()

    env.process(process())


def batch(log, keys, solo_ns, priority=DEMAND, deadline=10**9, mb_per_s=1000):
    def landed(made, position):
        log.append((made.keys[position] if position >= 0 else -1, log.env.now))

    n = len(keys)
    return Batch(list(keys), [MB] * n, list(solo_ns), mb_per_s, priority, deadline, 0, landed)


class Log(list):
    def __init__(self, env):
        self.env = env


def engine(env, shared, set_up_ns=0, is_stale=lambda deadline: False):
    return CopyEngine(shared, (0,), set_up_ns, is_stale, "H2D")


def test_one_flow_takes_exactly_its_own_time():
    env, shared = net(1000)
    ends = []
    shared.start(12345, 1000, (0,), lambda: ends.append(env.now) or 0)
    env.run()
    assert ends == [12345]


def test_two_flows_lose_in_proportion_and_the_server_is_never_exceeded():
    # 30 + 13 GB/s ask for 43 of 31: published together 21.9 + 8.4 (FlashML-org/FreeToken#436).
    env, shared = net(31_000)
    ends = {}
    shared.start(1_000_000, 30_000, (0,), lambda: ends.setdefault("cpu", env.now) and 0)
    shared.start(1_000_000, 13_000, (0,), lambda: ends.setdefault("dma", env.now) and 0)
    env.run()
    assert ends["cpu"] == ends["dma"] == -(-1_000_000 * 43 // 31)


def test_a_flow_that_joins_late_only_slows_what_is_left():
    env, shared = net(1000)
    ends = []
    shared.start(1000, 1000, (0,), lambda: ends.append(("a", env.now)) or 0)
    at(env, 500, lambda: shared.start(1000, 1000, (0,), lambda: ends.append(("b", env.now)) or 0))
    env.run()
    assert ends == [("a", 1500), ("b", 2000)]


def test_a_flow_through_two_servers_goes_at_the_pace_of_the_slower():
    # Two links of 13 GB/s behind one root port of 20 (user case: 26 together, 20 with the limit).
    env, shared = net(100_000, 20_000)
    ends = []
    for _ in range(2):
        shared.start(2000, 13_000, (0, 1), lambda: ends.append(env.now) or 0)
    env.run()
    assert ends == [2600, 2600]


def test_a_flow_that_is_held_back_elsewhere_leaves_the_rest_of_a_server_to_others():
    # Two links of 10 GB/s behind a root port of 10 take 5 each of a memory of 20: the CPU has its 10.
    env, shared = net(20_000, 10_000)
    ends = {}
    for name, servers in (("a", (0, 1)), ("b", (0, 1)), ("cpu", (0,))):
        shared.start(1000, 10_000, servers, lambda n=name: ends.setdefault(n, env.now) and 0)
    env.run()
    assert ends == {"cpu": 1000, "a": 2000, "b": 2000}


def test_what_is_left_is_shared_in_proportion():
    # Memory 20, port 3. The flows behind the port (3 and 6 alone) have a third each of what they ask for: 1 and 2.
    # Of the 17 that they leave, 34 alone has a half.
    env, shared = net(20_000, 3_000)
    ends = {}
    flows = (("a", 3000, 3_000, (0, 1)), ("b", 3000, 6_000, (0, 1)), ("cpu", 1500, 34_000, (0,)))
    for name, solo_ns, rate, servers in flows:
        shared.start(solo_ns, rate, servers, lambda n=name: ends.setdefault(n, env.now) and 0)
    assert [(flow.num, flow.den) for flow in shared.flows] == [(9_000, 3_000)] * 2 + [(34_000, 17_000)]
    env.run()
    assert ends == {"a": 9000, "b": 9000, "cpu": 3000}
    # Now the memory is the fuller one: everybody has 10 of 22, and the port's flows ask for less than it gives.
    env, shared = net(10_000, 6_000)
    for rate, servers in ((2_000, (0, 1)), (6_000, (0, 1)), (14_000, (0,))):
        shared.start(1000, rate, servers, lambda: 0)
    assert {(flow.num, flow.den) for flow in shared.flows} == {(22_000, 10_000)}


def test_what_is_paid_once_is_not_stretched_and_asks_nothing():
    # One flow of the whole rate; another pays 500 before its 1000: it is slowed, and slows, only while it moves.
    env, shared = net(1000)
    ends = {}
    shared.start(1000, 1000, (0,), lambda: ends.setdefault("a", env.now) and 0)
    shared.start(1000, 1000, (0,), lambda: ends.setdefault("b", env.now) and 0, 500)
    env.run()
    assert ends == {"a": 1500, "b": 2000}


FLOWS = st.tuples(
    st.integers(0, 300), st.integers(1, 400), st.integers(1, 40), st.sampled_from([(0,), (0, 1), (0, 2), (1,)]),
    st.sampled_from([0, 0, 30]),
)  # fmt: skip


@given(
    st.tuples(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50)), st.lists(FLOWS, min_size=1, max_size=9)
)
@settings(max_examples=200, deadline=None)
def test_rates_are_max_min_fair_at_every_moment(capacities, jobs):
    env, shared = net(*(1000 * c for c in capacities))
    ends = [None] * len(jobs)
    plan = shared._share

    def checked():
        plan()
        moving = [flow for flow in shared.flows if flow.moving]
        rate = {id(flow): flow.mb_per_s * flow.den / flow.num for flow in moving}
        full = []
        for server, capacity in enumerate(shared.capacity):
            taken = sum(rate[id(flow)] for flow in moving if server in flow.servers)
            assert taken <= capacity + 1e-6
            if taken >= capacity - len(moving):  # what is given is rounded to whole MB/s
                full.append(server)
        for flow in moving:
            pace = flow.den / flow.num
            if pace < 1:  # it crosses a full server of which nobody has a greater part of what he asks for
                held = [
                    s for s in full if s in flow.servers
                    and all(other.den / other.num <= pace + 1e-3 for other in moving if s in other.servers)
                ]  # fmt: skip
                assert held

    shared._share = checked

    def start(number, solo, rate, servers, fixed):
        shared.start(solo, 1000 * rate, servers, lambda: ends.__setitem__(number, env.now) or 0, fixed)

    for number, (when, *flow) in enumerate(jobs):
        at(env, when, lambda n=number, f=tuple(flow): start(n, *f))
    env.run()
    assert shared.flows == []
    assert shared.demand == [0, 0, 0]
    for (when, solo, _, _, fixed), end in zip(jobs, ends, strict=True):
        assert end - when >= solo + fixed


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 400), st.integers(1, 40)), min_size=1, max_size=12),
)
@settings(max_examples=200, deadline=None)
def test_work_is_conserved_and_no_flow_beats_its_own_rate(capacity, jobs):
    env, shared = net(capacity)
    ends = [None] * len(jobs)

    def start(number, solo, rate):
        shared.start(solo, rate, (0,), lambda: ends.__setitem__(number, env.now) or 0)

    for number, (when, solo, rate) in enumerate(jobs):
        at(env, when, lambda n=number, s=solo, r=rate: start(n, s, r))
    env.run()
    assert shared.flows == []
    assert shared.demand == [0]
    for (when, solo, _), end in zip(jobs, ends, strict=True):
        assert end - when >= solo
    # Bytes through the server: at most capacity x time from the first start to the last end.
    first, last = min(when for when, *_ in jobs), max(ends)
    assert sum(solo * rate for _, solo, rate in jobs) <= capacity * (last - first)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60)), min_size=1, max_size=20), st.integers(0, 15))
@settings(max_examples=150, deadline=None)
def test_a_copy_engine_alone_is_a_fifo_queue(copies, set_up_ns):
    """The analytic timeline of a FIFO server and the shared channel with one job at a time are the same."""
    copies = sorted(copies, key=lambda c: c[0])
    env, shared = net(10**9)
    log = Log(env)
    link = engine(env, shared, set_up_ns)
    for number, (when, solo) in enumerate(copies):
        made = batch(log, [number], [solo])
        at(env, when, lambda b=made: link.submit(b))
    env.run()
    free, expected = 0, []
    for number, (when, solo) in enumerate(copies):
        # A copy that arrives at the very moment at which the engine falls idle finds it idle.
        start = when + set_up_ns if when >= free else free
        free = start + solo
        expected.append((number, free))
    assert log == expected


def test_latency_is_paid_once():
    # 1 MB over 1 GB/s with 10 us of set-up: 1.010 ms, not 1.020.
    env, shared = net(10_000)
    log = Log(env)
    engine(env, shared, 10_000).submit(batch(log, [7], [1_000_000]))
    env.run()
    assert log == [(7, 1_010_000)]


def test_a_demand_passes_queued_prefetches_but_not_the_copy_in_service():
    # Ten wrong 1 MB prefetches at t = 0, a demand at t = 1 ms on 1 MB per ms: 2 ms here, 11 ms in plain FIFO.
    for priority, end in ((DEMAND, 2_000_000), (PREFETCH, 11_000_000)):
        env, shared = net(10_000)
        log = Log(env)
        link = engine(env, shared)
        for key in range(10):
            link.submit(batch(log, [key], [1_000_000], PREFETCH))
        wanted = batch(log, [99], [1_000_000], priority)
        at(env, 999_999, lambda ln=link, b=wanted: ln.submit(b))
        env.run()
        assert dict(log)[99] == end
        assert link.nbytes == ([MB, 0, 10 * MB] if priority == DEMAND else [0, 0, 11 * MB])


def test_classes_go_demand_adapt_prefetch_and_fifo_within():
    env, shared = net(10_000)
    log = Log(env)
    link = engine(env, shared)
    link.submit(batch(log, [0], [10], PREFETCH))
    for key, priority in ((1, PREFETCH), (2, ADAPT), (3, DEMAND), (4, ADAPT), (5, DEMAND)):
        link.submit(batch(log, [key], [10], priority))
    env.run()
    assert [key for key, _ in log] == [0, 3, 5, 2, 4, 1]


def test_a_batch_gives_way_between_two_copies():
    env, shared = net(10_000)
    log = Log(env)
    link = engine(env, shared)
    link.submit(batch(log, [0, 1, 2], [10, 10, 10], ADAPT))
    at(env, 5, lambda: link.submit(batch(log, [9], [10], DEMAND)))
    env.run()
    assert log == [(0, 10), (9, 20), (1, 30), (2, 40)]


def test_a_promoted_prefetch_goes_to_the_end_of_the_demands():
    env, shared = net(10_000)
    log = Log(env)
    link = engine(env, shared)
    waiting = batch(log, [3], [10], PREFETCH)
    for made in (batch(log, [0], [10]), batch(log, [1], [10], ADAPT), waiting, batch(log, [2], [10])):
        link.submit(made)
    link.promote(waiting, DEMAND)
    env.run()
    assert [key for key, _ in log] == [0, 2, 3, 1]


def test_stale_prefetches_are_dropped_when_their_turn_comes_and_cancelled_ones_at_once():
    env, shared = net(10_000)
    log = Log(env)
    link = engine(env, shared, is_stale=lambda deadline: deadline < 5)
    stale, kept, cancelled = (batch(log, [k], [10], PREFETCH, d) for k, d in ((1, 4), (2, 5), (3, 9)))
    link.submit(batch(log, [0], [10]))
    for made in (stale, kept, cancelled):
        link.submit(made)
    assert link.cancel(cancelled)
    env.run()
    assert log == [(-1, 0), (0, 10), (-1, 10), (2, 20)]
    assert (stale.state, kept.state, cancelled.state) == (CANCELLED, DONE, CANCELLED)
    assert not link.cancel(kept)
    assert link.current is None
    assert all(not queue for queue in link.queues)


def test_the_cpu_pool_works_in_order_and_notes_when_it_waited_for_bytes():
    env, shared = net(10_000)
    pool = CpuPool(shared, (0,))
    late = Segment(5, 30, 1000, ready=False)
    pool.run([Segment(4, 20, 1000), late, Segment(6, 10, 1000)])
    at(env, 50, lambda: pool.arrived(late))
    env.run()
    assert (env.now, pool.idle, pool.nbytes, pool.busy_ns, pool.waits) == (90, True, 15, 60, [(20, 50)])


def test_disk_lanes_share_the_drive():
    # Latency 10, 1 byte per ns a lane, the drive gives 1.5 lanes: three reads of 100 on two lanes.
    env, shared = net(1500)
    ends = []
    disk = Disk(shared, 0, lanes=2, latency_ns=10, lane_mb_per_s=1000)
    for key in range(3):
        disk.submit(Read(key, 100, lambda read: ends.append((read.key, env.now))))
    env.run()
    pair = 10 + -(-100 * 4 // 3)  # the latency is paid once, and is not stretched
    assert ends == [(0, pair), (1, pair), (2, pair + 110)]
    assert (disk.nbytes, disk.reads, disk.active) == (300, 3, 0)


def test_a_demand_passes_queued_prefetches_on_the_drive():
    """One lane, slices of 100: a demand waits for the slice of a prefetch in service, not for five slices."""
    env, shared = net(1000)
    ends = []
    disk = Disk(shared, 0, lanes=1, latency_ns=0, lane_mb_per_s=1000)
    done = lambda read: ends.append((read.key, env.now))  # noqa: E731
    ahead = [Read(key, 100, done, slices=2, priority=PREFETCH) for key in range(2)]
    swap, wanted = Read(8, 100, done, priority=ADAPT), Read(9, 100, done)
    for read in (*ahead, swap):
        disk.submit(read)
    at(env, 50, lambda: disk.submit(wanted))
    env.run()
    assert ends == [(0, 100), (9, 200), (8, 300), (0, 400), (1, 500), (1, 600)]
    assert (disk.blocked_ns, disk.blocking_bytes) == (50, 100)


def test_reads_are_promoted_and_withdrawn():
    env, shared = net(1000)
    ends = []
    disk = Disk(shared, 0, lanes=1, latency_ns=0, lane_mb_per_s=1000)
    done = lambda read: ends.append((read.key, env.now))  # noqa: E731
    begun, given_up, wanted = (Read(key, 100, done, slices=3, priority=PREFETCH) for key in range(3))
    for read in (begun, given_up, wanted):
        disk.submit(read)
    disk.promote(wanted, DEMAND)
    assert disk.withdraw(given_up) == 3
    at(env, 150, lambda: disk.promote(begun, ADAPT))
    env.run()
    assert ends == [(0, 100), (2, 200), (2, 300), (2, 400), (0, 500), (0, 600)]
    assert disk.blocked_ns == 100  # from the promotion on, behind one slice
    assert (disk.active, disk._ahead, disk.reads) == (0, 0, 6)
