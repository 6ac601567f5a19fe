"""Admission policies by hand, and what periodic ones do between passes."""

from __future__ import annotations

import pytest

from expert_residency.errors import PolicyError, SimError
from expert_residency.policies import create
from expert_residency.policies.protocol import Event, Lists, Pool
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.runs.replay import replay
from expert_residency.traces import ModelGeometry, Phase, TraceBuilder
from tests.test_conformance import one_layer


def pool(layers: int = 1, experts: int = 6, slots: int = 3) -> Pool:
    keys = layers * experts
    return Pool(keys, layers, experts, 2, 1, [0] * keys, [1] * keys, [slots], [slots])


def event(keys, *, hits=None, number=0, passing=0, rows=None, phase=1, layer=0) -> Event:
    return Event(number, passing, layer, 0, keys, rows or [1] * len(keys), hits or [0] * len(keys), phase)


def selected(spec: str, keys, misses, passing: int = 0) -> list[int]:
    policy = create("admission", spec)
    state = policy.start(pool(), Lists)
    happening = event(keys, passing=passing)
    policy.learn(state, happening)
    order = list(misses)
    return order[: policy.select(state, happening, order, len(order))]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("always", [0, 2, 3, 5]),
        ("never", []),
        ("cap", [3, 5]),
        ("cap:per_event=3", [2, 3, 5]),
        ("cap:per_event=9", [0, 2, 3, 5]),
        ("fraction", [3, 5]),  # floor(0.55 x 4)
        ("fraction:share=0.2", []),
        ("two-hit", []),
    ],
)
def test_which_misses_may_enter(spec, expected):
    """The last in routing order, as the engine's own link share takes them."""
    assert selected(spec, list(range(6)), [0, 2, 3, 5]) == expected


@pytest.mark.parametrize(
    ("link", "host", "misses", "copied"),
    [
        (10, 40, 4, 1),  # q* = 1 exactly
        (10, 40, 1, 0),  # copying it takes 1/10, the CPU 1/30
        (10, 40, 2, 1),  # q* = 0.5: one copy 1/10 beats two on the CPU 2/30? no: 0.1 > 0.0667
        (20, 40, 4, 2),
        (30, 40, 4, 3),
        (40, 40, 3, 3),  # the link takes all that the RAM gives
        (50, 40, 3, 3),
    ],
)
def test_balanced_ends_soonest(link, host, misses, copied):
    """Of all whole numbers of copies, the one after which link and CPU are done first."""
    spec = f"balanced:link_gb_per_s={link},host_gb_per_s={host}"
    chosen = selected(spec, list(range(6)), list(range(misses)))
    cpu = host - link

    def done(q: int) -> float:
        rest = misses - q
        return max(q / link, rest / cpu if cpu > 0 else (float("inf") if rest else 0.0))

    best = min(range(misses + 1), key=lambda q: (done(q), q))
    assert len(chosen) == best
    assert copied == best or (link, misses) == (10, 2)


def test_balanced_takes_each_cards_link_where_no_rate_is_given():
    policy = create("admission", "balanced")
    with pytest.raises(PolicyError, match="link_gb_per_s"):
        policy.start(pool(), Lists)
    told = pool(layers=2)._replace(link_mb_per_s=[13_000, 39_000], cpu_mb_per_s=39_000)
    assert policy.start(told, Lists).share == [0.25, 0.5]
    assert create("admission", "balanced:host_gb_per_s=26").start(told, Lists).share == [0.5, 1.0]
    assert create("admission", "balanced:link_gb_per_s=13").start(told, Lists).share == [0.25, 13 / 78]


def test_frequency_gate_needs_strictly_more():
    """A is wanted 3 times, B twice: B does not displace it, at 3 neither, at 4 it does."""
    gate = create("admission", "frequency-gate")
    state = gate.start(pool(), Lists)
    for key in (0, 0, 0, 1, 1):
        gate.learn(state, event([key]))
    assert not gate.accepts(state, 1, 0)
    gate.learn(state, event([1]))
    assert not gate.accepts(state, 1, 0)
    gate.learn(state, event([1]))
    assert gate.accepts(state, 1, 0)


def test_hysteresis_needs_a_factor_and_a_margin_and_forgets():
    policy = create("admission", "hysteresis")
    state = policy.start(pool(), Lists)
    for _ in range(4):
        policy.learn(state, event([0]))
    for _ in range(9):
        policy.learn(state, event([1]))
    assert not policy.accepts(state, 1, 0)  # 9 > 1.25 x 4 + 4 = 9 does not hold
    policy.learn(state, event([1]))
    assert policy.accepts(state, 1, 0)
    policy.learn(state, event([2], passing=1024))
    assert state.heat[:3] == [2.0, 5.0, 1.0]


def test_two_hits_within_a_window():
    policy = create("admission", "two-hit:within_passes=2")
    state = policy.start(pool(), Lists)

    def admitted(passing: int, key: int) -> bool:
        happening = event([key], passing=passing)
        policy.learn(state, happening)
        return bool(policy.select(state, happening, [0], 1))

    assert [admitted(0, 3), admitted(2, 3), admitted(5, 3), admitted(6, 3)] == [False, True, False, True]


class Adaptive:
    """The periodic policy on a pool of its own."""

    def __init__(self, spec: str, resident, **shape) -> None:
        self.policy = create("admission", spec)
        self.pool = pool(**shape)
        self.state = self.policy.start(self.pool, Lists)
        self.resident = [int(key in resident) for key in range(self.pool.keys)]
        self.number = 0

    def use(self, counts, phase: int = 1) -> None:
        """Events of the current pass."""
        for key, rows in counts.items():
            layer = key // self.pool.experts
            happening = event([key], rows=[rows], phase=phase, layer=layer, passing=self.number)
            self.policy.learn(self.state, happening)

    def swaps(self, passes: int, phase: int = 1) -> list[tuple[int, int]]:
        """What is asked for at the end of the last of so many passes."""
        come, go = [0] * self.pool.keys, [0] * self.pool.keys
        n = 0
        for _ in range(passes):
            self.policy.learn(self.state, event([], phase=phase, passing=self.number))
            n = self.policy.pass_done(self.state, self.number, self.resident, come, go)
            self.number += 1
        return list(zip(come[:n], go[:n], strict=True))


def test_swaps_pair_the_hottest_with_the_coldest():
    """Residents 0, 1, 2 of one layer; candidates 3 and 4 beat two of them by 1.5, 5 is below 2.0."""
    tier = Adaptive("strata-adaptive", {0, 1, 2})
    tier.use({0: 9, 1: 1, 2: 2, 3: 3, 4: 8, 5: 1})
    assert tier.swaps(4) == [(4, 1)]  # 4 against 1: gain 7; 3 against 2: gain 1, too little
    assert tier.state.usage == pytest.approx([6.3, 0.7, 1.4, 2.1, 5.6, 0.7])


def test_swaps_happen_every_fourth_round_and_prompts_count_for_nothing():
    tier = Adaptive("strata-adaptive", {0, 1, 2})
    tier.use({3: 50}, phase=0)
    assert tier.swaps(7, phase=0) == []  # only a prompt so far: not even a round
    tier.use({3: 5})
    assert tier.swaps(3) == []
    assert tier.swaps(1) == [(3, 0)]


def test_the_period_is_capped_over_all_layers_by_gain():
    """Two layers of three experts, one resident each; two swaps at most: the two largest gains of all."""
    tier = Adaptive("strata-adaptive:swaps=2", {0, 1, 3, 4}, layers=2, experts=3, slots=4)
    tier.use({2: 4, 5: 9})
    assert tier.swaps(4) == [(5, 3), (2, 0)]
    tier = Adaptive("strata-adaptive:swaps=1", {0, 1, 3, 4}, layers=2, experts=3, slots=4)
    tier.use({2: 4, 5: 9})
    assert tier.swaps(4) == [(5, 3)]


def test_free_room_is_filled_first_or_not_at_all():
    tier = Adaptive("strata-adaptive", {0, 1}, slots=3)
    tier.use({3: 4, 4: 5})
    assert tier.swaps(4) == [(4, -1), (3, 0)]
    tier = Adaptive("strata-adaptive:fill_free=false", set(), slots=3)
    tier.use({3: 4, 4: 5})
    assert tier.swaps(4) == []


def test_a_newcomer_is_seen_when_its_copy_has_landed():
    """Expert 0 is wanted in every pass, its swap asked for after the fourth: it hits from pass 4 + lag - 1 on."""
    trace = one_layer([(0,)] * 8, 2, 1)
    for lag in (1, 2, 3):
        result = replay(trace, "lru", Capacity(total_bytes=1), admission="strata-adaptive", lag_passes=lag)
        assert result.hits.tolist() == [int(number >= 3 + lag) for number in range(8)]
        assert result.admitted_bytes == 1
    with pytest.raises(SimError, match="lag"):
        replay(trace, "lru", Capacity(total_bytes=1), lag_passes=0)


def eager_swaps(every: int, lag: int) -> int:
    """Swaps in twelve passes that want two experts by turns and would swap at each update."""
    builder = TraceBuilder(ModelGeometry("two", (0,), 2, 1, (1,), (1,)))
    for number in range(12):
        builder.begin_pass(Phase.DECODE)
        builder.row(0, [number % 2])
    eager = f"strata-adaptive:every={every},min_usage=0,min_gain=-99,decay=0"
    room = Capacity(total_bytes=1)
    return replay(builder.build(), "lru", room, admission=eager, lag_passes=lag).admitted_bytes


def test_while_copies_are_on_their_way_the_policy_is_not_asked():
    """Every pass would swap; with a lag of three only every third does."""
    assert [eager_swaps(1, lag) for lag in (1, 3)] == [12, 4]


def test_copies_on_their_way_do_not_move_the_period():
    """Updates are due after passes 1, 3, 5 ...: a lag of two passes makes none late, one of three every second."""
    assert [eager_swaps(2, lag) for lag in (1, 2, 3)] == [6, 6, 3]


def test_a_pass_without_events_makes_no_update():
    tier = Adaptive("strata-adaptive", {0, 1, 2})
    tier.use({3: 5})
    assert tier.swaps(4) == [(3, 0)]
    come, go = [0] * 6, [0] * 6
    assert tier.policy.pass_done(tier.state, tier.number, tier.resident, come, go) == 0
