"""The suite notices broken code: each mutation below is made, and the checks named beside it must fail.

| broken on purpose | caught by |
|---|---|
| the search for a victim ignores who is protected (lists, heaps, CLOCK's hand, random) | laws at every step |
| LRU: the newest leaves | nine events |
| LRU: use does not move | counts of libCacheSim |
| LRU: rows of an event reversed | order of rows |
| LFRU: age is off; ties to the higher key | its definition |
| LFU: ties to the newer | its definition |
| Belady: the nearest use leaves; MIN: always admits | trying everything |
| cache: room is not made | laws at every step |
| cache: members looked up one by one | nine events |
| cache: a periodic policy is told that nobody is resident | conformance suite |
| SIEVE: the hand stays on a removed expert | laws at every step |
| S3-FIFO: nobody is promoted; ARC: p is never adapted, nothing is remembered | counts of libCacheSim |
| adaptive tier: pairs are not looked for | admission by hand |
| a policy peeks; keeps its state; guesses; answers nonsense | conformance suite |
| layers without experts cost nothing; a hand-off takes the faster link | plain arithmetic of a pass |
| speed counts prefill tokens | plain arithmetic of a pass |
| page cache does not round up; an oracle looks too far | plain arithmetic |
| a split takes the arena's rate for a budget | plain arithmetic |
| a full server does not leave the rest to others; what is paid once is stretched | flows by hand |
| the drive is one queue; what a cancelled copy had read is left out | a drive by hand, accounts of a run |
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from expert_residency.policies import create, heaps, structures, tally
from expert_residency.policies.admission import strata_adaptive
from expert_residency.policies.admission.always import Always
from expert_residency.policies.eviction import arc, belady, clock, lfru, lfu, lru, lruk, s3fifo, sieve
from expert_residency.policies.eviction import min as minimum
from expert_residency.policies.prefetch.oracle import Oracle
from expert_residency.policies.protocol import EvictionPolicy
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.residency.future import make_future
from expert_residency.sim.residency.pool import CachePool
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.split.cost import LayerTimes
from expert_residency.sim.testing import best_hits, check_admission, check_eviction, replay_watched
from expert_residency.sim.testing.cases import random_trace
from expert_residency.sim.testing.eviction import (
    check_causal,
    check_laws_at_every_step,
    check_refuses_to_guess,
    check_same_twice,
)
from expert_residency.sim.testing.watched import WatchedPool, visited_pool
from expert_residency.sim.timed import rules
from expert_residency.sim.timed.channels import Disk, shared
from expert_residency.sim.timed.costs import Costs
from expert_residency.sim.timed.page_cache import PageCache
from expert_residency.sim.timed.result import PrefetchStats, RunResult
from tests import (
    test_admission,
    test_channels,
    test_libcachesim_counts,
    test_plain_model,
    test_prefetch,
    test_timed_kernel,
)
from tests.naive import NaiveInCacheLfu, NaiveLfru, NaiveLfu
from tests.test_conformance import NINE, hits, one_layer, test_nine_events

random_eviction = importlib.import_module("expert_residency.policies.eviction.random")


def unguarded_list(s, which, guard, tick):
    return structures.front(s, which)


def unguarded_heap(s, scope, guard, tick):
    return s.items[s.base[scope]] if s.size[scope] else -1


def laws(spec: str) -> Callable[[], None]:
    return lambda: check_laws_at_every_step(create("eviction", spec))


def nine(policy: str, expected: int) -> Callable[[], None]:
    return lambda: test_nine_events(policy, "event", expected)


def optimum(policy: str, bypass: bool) -> Callable[[], None]:
    def check() -> None:
        assert hits(one_layer(NINE, 6, 2), policy, 3) == best_hits(NINE, 3, bypass=bypass)

    return check


def row_order() -> None:
    """Two experts of one event: the first row's leaves first."""
    result = replay(one_layer([(2, 1), (0, 3), (1, 4)], 5, 2), "lru", Capacity(total_bytes=3))
    assert result.hits.tolist() == [0, 0, 0, 0, 1, 0]


def definition(spec: str, naive: EvictionPolicy, *, visited: bool = False) -> Callable[[], None]:
    """The scan over every resident of `tests/naive.py`, on one seeded trace; `visited`: others come, too."""

    def check() -> None:
        trace = random_trace(3)
        for divisor in (2, 4):
            capacity = Capacity(total_bytes=trace.geometry.all_expert_bytes // divisor)
            fast, slow = (
                replay_watched(
                    trace, policy, Always(), capacity, pool_type=visited_pool(1) if visited else WatchedPool
                )[0]
                for policy in (create("eviction", spec), naive)
            )
            assert fast == slow

    return check


def lfru_age_from_zero(state, scope, incoming, guard, tick):
    state.now[0] += 3
    found = lfru_victim(state, scope, incoming, guard, tick)
    state.now[0] -= 3
    return found


lfru_victim = lfru.Lfru.victim


def lfru_ties_to_the_higher_key(s, which, key, stamp):
    after = len(s.home) + which
    while s.prev[after] < len(s.home) and (
        stamp[s.prev[after]] > stamp[key] or (stamp[s.prev[after]] == stamp[key] and s.prev[after] < key)
    ):
        after = s.prev[after]
    structures.push_before(s, which, key, after)


def newest(s, which, guard, tick):
    end = len(s.home) + which
    node = s.prev[end]
    while node != end and guard[node] >= tick:
        node = s.prev[node]
    return node if node != end else -1


def newer_first(s, score, stamp, key, at):
    return (score, -stamp, key) < (s.scores[at], -s.stamps[at], s.items[at])


def admit_without_room(self, key, index, *, forced=True):
    self.evicted = []
    self._insert(key)
    return True


def lookup_one_by_one(self, index, keys):
    """Members become resident while the event is looked up."""
    found = []
    for key in keys:
        found.append(self.resident[key])
        if not self.resident[key]:
            self.guard[key] = index
            self.admit(key, index)
    return found


def forgetful_sieve(state, key):
    structures.unlink(state.order, key)


def arc_without_ghosts(state, key):
    structures.unlink(state.order, key)


def belady_nearest(state, scope, incoming, guard, tick):
    first = state.order.base[scope] + heaps.ROOT
    members = state.order.items[first : first + state.order.size[scope]]
    free = [key for key in members if guard[key] < tick]
    return max(free, key=lambda key: state.order.score[key], default=-1)


def always_admitting_min(state, scope, incoming, guard, tick):
    return heaps.heap_first_free(state.order, scope, guard, tick)


def plain() -> None:
    """Drawn runs beside plain arithmetic, by the reference engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_plain_model, "SIMULATORS", ["reference"])
        test_plain_model.for_plain(60)


def accounts() -> None:
    """Issued = useful + late + wasted + cancelled on a run whose prefetches are mostly wrong."""
    trace = test_prefetch.new_experts(passes=12)
    spec = RunSpec("rtx-5070-7600", Capacity(slots_per_layer=50), miss="fetch", host="flash")
    noisy = replace(spec, prefetch="noisy-oracle:recall=1,precision=0.2,window=1")
    test_timed_kernel.check_accounts(simulate(trace, noisy, simulator="reference"))


costs_of = Costs.of
net_start = shared.SharedNet.start


def faster_handoff(self, card, rows):
    nbytes, p2p = rows * self.row_bytes, self.machine.p2p
    links = [self.machine.cards[number].link for number in (card - 1, card)]
    figures = [(x.p2p_ns, x.p2p_mb_per_s) if p2p else (x.handoff_ns, x.handoff_mb_per_s) for x in links]
    return min(rules.handoff_ns(nbytes, fixed_ns, rate) for fixed_ns, rate in figures)


def changed(function, old: str, new: str):
    """The same function with one place of its source changed."""
    text = textwrap.dedent(inspect.getsource(function)).removeprefix("@staticmethod\n")
    assert text.count(old) == 1, (function, old)
    scope = dict(function.__globals__)
    exec(text.replace(old, new), scope)
    return scope[function.__name__]


def counts(policy: str) -> Callable[[], None]:
    return lambda: test_libcachesim_counts.test_frozen_counts(policy)


MUTATIONS = {
    "lru: list search ignores the guard": (lru, "first_free", unguarded_list, laws("lru")),
    "lfu: list search ignores the guard": (tally, "first_free", unguarded_list, laws("lfu")),
    "lru-k: heap search ignores the guard": (lruk, "heap_first_free", unguarded_heap, laws("lru-k")),
    "clock: hand ignores the guard": (
        clock.Clock, "victim", staticmethod(lambda s, scope, i, g, t: structures.front(s.ring, scope)),
        laws("clock"),
    ),
    "lru: use does not move": (lru, "move_to_back", lambda s, key: None, counts("lru")),
    "lru: newest leaves": (lru, "first_free", newest, nine("lru", 8)),
    "lru: rows of an event reversed": (
        lru, "push_by_stamp", lambda s, which, key, stamp: structures.push_before(
            s, which, key, s.next[len(s.home) + which]), row_order
    ),
    "lfru: age is off": (lfru.Lfru, "victim", staticmethod(lfru_age_from_zero), definition("lfru", NaiveLfru())),
    "lfru: ties to the higher key": (
        lfru, "push_by_stamp", lfru_ties_to_the_higher_key, definition("lfru", NaiveLfru())
    ),
    "lfu: ties to the newer": (tally, "first_free", newest, definition("lfu", NaiveLfu())),
    "lfu: who waits leaves first": (
        tally, "before", lambda s, score, stamp, key, at: False, definition("lfu", NaiveLfu(), visited=True)
    ),
    "in-cache lfu: ties to the newer": (
        heaps, "before", newer_first, definition("lfu:counts=in-cache", NaiveInCacheLfu())
    ),
    "belady: nearest use leaves": (
        belady.Belady, "victim", staticmethod(belady_nearest), optimum("belady", bypass=False)
    ),
    "min: always admits": (
        minimum.Min, "victim", staticmethod(always_admitting_min), optimum("min", bypass=True)
    ),
    "pool: room is not made": (CachePool, "admit", admit_without_room, laws("lru")),
    "pool: members looked up one by one": (CachePool, "lookup", lookup_one_by_one, nine("lru", 8)),
    "sieve: hand stays on a removed expert": (
        sieve.Sieve, "remove", staticmethod(forgetful_sieve), laws("sieve")
    ),
    "s3fifo: nobody is promoted": (
        s3fifo, "_from_small", lambda s, scope, g, t: structures.first_free(s.order, 3 * scope, g, t),
        counts("s3fifo"),
    ),
    "arc: nothing is remembered": (arc.Arc, "remove", staticmethod(arc_without_ghosts), counts("arc")),
    "arc: p is never adapted": (arc, "min", lambda a, b: 0.0, counts("arc")),
    "random: protected experts leave": (
        random_eviction.Random, "victim",
        staticmethod(lambda s, scope, i, g, t: s.members.items[s.members.base[scope]]),
        laws("random"),
    ),
    "adaptive: pairs are not looked for": (
        strata_adaptive, "_pair", lambda state, layer, resident: None,
        test_admission.test_swaps_pair_the_hottest_with_the_coldest,
    ),
    "costs: layers without experts cost nothing": (
        Costs, "of", classmethod(lambda cls, *given: replace(costs_of(*given), first_ns=0)), plain
    ),
    "costs: a hand-off takes the faster link": (Costs, "handoff", faster_handoff, plain),
    "result: speed counts prefill tokens": (
        RunResult, "decode_tokens", property(lambda self: int(self.pass_emits.sum())), plain
    ),
    "page cache: experts are not rounded up to pages": (
        PageCache, "insert",
        changed(PageCache.insert, "-(-nbytes // self.page_bytes)", "nbytes // self.page_bytes"),
        test_plain_model.whole_pages,
    ),
    "oracle: looks one event too far": (
        Oracle, "propose", staticmethod(changed(Oracle.propose, "event.number + state.window,",
                                                "event.number + state.window + 1,")),
        test_plain_model.oracle_sees_its_window,
    ),
    "split: the arena's rate for a budget": (
        LayerTimes, "__init__",
        changed(LayerTimes.__init__, "host.complement_mb_per_s if mode", "host.arena_mb_per_s if mode"),
        test_plain_model.budget_takes_its_own_rate,
    ),
    "net: a flow held back elsewhere claims its whole rate": (
        shared, "given_rate", lambda mb_per_s, num, den: mb_per_s,
        test_channels.test_a_flow_that_is_held_back_elsewhere_leaves_the_rest_of_a_server_to_others,
    ),
    "net: what is paid once asks for the whole rate": (
        shared.SharedNet, "start",
        lambda self, solo, rate, servers, done, fixed=0: net_start(self, solo + fixed, rate, servers, done),
        test_channels.test_what_is_paid_once_is_not_stretched_and_asks_nothing,
    ),
    "drive: one queue for all": (
        Disk, "submit", changed(Disk.submit, "self.queues[read.priority]", "self.queues[0]"),
        test_channels.test_a_demand_passes_queued_prefetches_on_the_drive,
    ),
    "accounts: what a cancelled copy had read is left out": (
        PrefetchStats, "cancelled_copy",
        lambda self, nbytes, read_bytes, begun_bytes: vars(self).update(cancelled=self.cancelled + 1),
        accounts,
    ),
    "pool: periodic policy sees nobody resident": (
        CachePool, "adapt",
        lambda self, number, come, go: self.admission.pass_done(
            self.admission_state, number, [0] * self.pool.keys, come, go
        ),
        lambda: check_admission(create("admission", "strata-adaptive")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_caught(name, monkeypatch):
    owner, attribute, replacement, check = MUTATIONS[name]
    check()  # the code as it is passes
    monkeypatch.setattr(owner, attribute, replacement, raising=False)
    with pytest.raises((AssertionError, IndexError)):
        check()


def test_a_policy_that_peeks_is_caught(monkeypatch):
    """It looks the future up behind the seam's back."""

    @dataclass(frozen=True)
    class Peeking(belady.Belady):
        """Reads the future without saying so."""

        name = "peeking"
        needs_future = False

        def start(self, pool, alloc, future):
            return super().start(pool, alloc, seen[-1])

    seen = []
    monkeypatch.setattr(
        "expert_residency.sim.testing.watched.make_future",
        lambda trace: seen.append(make_future(trace)) or seen[-1],
    )
    with pytest.raises(AssertionError, match="depend on what comes after"):
        check_causal(Peeking())


def test_a_policy_that_remembers_an_earlier_run_is_caught():
    kept = {}

    @dataclass(frozen=True)
    class Remembering(lfu.Lfu):
        """Keeps its counts from run to run."""

        name = "remembering"

        def start(self, pool, alloc, future):
            state = super().start(pool, alloc, future)
            score = kept.setdefault(pool.keys, state.order.waiting.score)
            return state._replace(order=state.order._replace(waiting=state.order.waiting._replace(score=score)))

    with pytest.raises(AssertionError, match="two runs differ"):
        check_same_twice(Remembering())


def test_an_oracle_that_guesses_is_caught():
    @dataclass(frozen=True)
    class Guessing(lru.Lru):
        """Says it needs the future, and starts without."""

        name = "guessing"
        needs_future = True

    with pytest.raises(AssertionError, match="starts without"):
        check_refuses_to_guess(Guessing())


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (lambda s, scope, i, g, t: -1, "found nobody"),
        (lambda s, scope, i, g, t: 10**6, "no key"),
        (lambda s, scope, i, g, t: i + 1 if i >= 0 else 0, "not resident|protected|scope"),
    ],
)
def test_nonsense_victims_are_caught(broken, text, monkeypatch):
    monkeypatch.setattr(lru.Lru, "victim", staticmethod(broken))
    with pytest.raises(AssertionError, match=text):
        check_eviction(create("eviction", "lru"))
