"""A policy that breaks its protocol stops the run in a sentence that names it: both engines and both replays."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from expert_residency.errors import PolicyFaultError
from expert_residency.policies.admission.always import Always
from expert_residency.policies.eviction.lru import Lru
from expert_residency.policies.placement.none import Empty
from expert_residency.policies.prefetch.none import NoPrefetch
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs import simulate as simulating
from expert_residency.sim.runs.optimum import check_bound
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.testing.cases import random_trace

pytest.importorskip("numba")


@dataclass(frozen=True)
class NotResident(Lru):
    name = "not-resident"

    @staticmethod
    def victim(state, scope, incoming, guard, tick):
        for key in range(len(guard)):
            if guard[key] < 0:  # nobody has wanted it yet
                return key
        return -1


@dataclass(frozen=True)
class NoExpert(Lru):
    name = "no-expert"

    @staticmethod
    def victim(state, scope, incoming, guard, tick):
        return 1_000_000


@dataclass(frozen=True)
class OtherScope(Lru):
    """Names a resident of the first layer, whoever asks."""

    name = "other-scope"

    @staticmethod
    def victim(state, scope, incoming, guard, tick):
        found = lru_victim(state, 0, incoming, guard, tick)
        return found if found >= 0 else incoming


@dataclass(frozen=True)
class Careless(Lru):
    """Does not look who is protected."""

    name = "careless"

    @staticmethod
    def victim(state, scope, incoming, guard, tick):
        found = lru_victim(state, scope, incoming, guard, 1 << 62)
        return found if found >= 0 else incoming


lru_victim = Lru.victim


@dataclass(frozen=True)
class TwiceLetIn(Always):
    name = "twice-let-in"

    @staticmethod
    def select(state, event, misses, n):
        if n > 1:
            misses[1] = misses[0]
        return n


@dataclass(frozen=True)
class TooMany(Always):
    name = "too-many"

    @staticmethod
    def select(state, event, misses, n):
        return n + 1


@dataclass(frozen=True)
class HitLetIn(Always):
    name = "hit-let-in"

    @staticmethod
    def select(state, event, misses, n):
        for i in range(len(event.keys)):
            if event.hits[i] == 1 and n > 0:
                misses[0] = i
        return n


@dataclass(frozen=True)
class SwapsInTwice(Always):
    """Swaps in the first resident that it finds."""

    name = "swaps-in-twice"
    periodic = True

    @staticmethod
    def pass_done(state, pass_index, resident, newcomers, victims):
        for key in range(len(resident)):
            if resident[key] != 0:
                newcomers[0] = key
                victims[0] = -1
                return 1
        return 0


@dataclass(frozen=True)
class SwapsNobodyOut(Always):
    name = "swaps-nobody-out"
    periodic = True

    @staticmethod
    def pass_done(state, pass_index, resident, newcomers, victims):
        n = 0
        for key in range(len(resident)):
            if resident[key] == 0 and n < 2:
                newcomers[n] = key
                victims[n] = -1
                n += 1
        return n


@dataclass(frozen=True)
class SwapsNoExpert(Always):
    name = "swaps-no-expert"
    periodic = True

    @staticmethod
    def pass_done(state, pass_index, resident, newcomers, victims):
        newcomers[0] = len(resident)
        victims[0] = -1
        return 1


@dataclass(frozen=True)
class AsksForNobody(NoPrefetch):
    name = "asks-for-nobody"
    at_layer = True

    @staticmethod
    def propose(state, event, keys, deadlines):
        keys[0] = len(keys)
        deadlines[0] = event.number + 1
        return 1


@dataclass(frozen=True)
class AsksTooOften(NoPrefetch):
    name = "asks-too-often"
    at_layer = True

    @staticmethod
    def propose(state, event, keys, deadlines):
        return len(keys) + 1


@dataclass(frozen=True)
class RanksNobody(Empty):
    name = "ranks-nobody"

    def rank(self, pool, future):
        return [0, pool.keys]


POLICIES = [
    ("eviction", NotResident(), "not resident"),
    ("eviction", NoExpert(), "1000000 as a victim, which is no expert"),
    ("eviction", OtherScope(), "another part of the cache"),
    ("eviction", Careless(), "is protected"),
    ("admission", TwiceLetIn(), "no miss of the event or is named twice"),
    ("admission", TooMany(), "more than there are"),
    ("admission", HitLetIn(), "no miss of the event"),
    ("admission", SwapsInTwice(), "which is resident already"),
    ("admission", SwapsNobodyOut(), "no room for it"),
    ("admission", SwapsNoExpert(), "which is no expert"),
]
AHEAD = [
    ("prefetch", AsksForNobody(), "which is no expert"),
    ("prefetch", AsksTooOften(), "more than there are"),
]
ids = [policy.name for _, policy, _ in POLICIES + AHEAD]
ROOM = Capacity(slots_per_layer=3, scope="layer")


@pytest.mark.slow
@pytest.mark.parametrize("simulator", ["reference", "kernel"])
@pytest.mark.parametrize(("kind", "policy", "said"), POLICIES, ids=ids[: len(POLICIES)])
def test_a_replay_stops(kind, policy, said, simulator):
    trace = random_trace(1, passes=12)
    eviction, admission = (policy, "always") if kind == "eviction" else ("lru", policy)
    with pytest.raises(PolicyFaultError, match=f"^{kind} policy {policy.name} .*{said}"):
        replay(trace, eviction, ROOM, admission=admission, simulator=simulator)


@pytest.mark.parametrize("simulator", ["reference", "kernel"])
@pytest.mark.parametrize(("kind", "policy", "said"), POLICIES + AHEAD, ids=ids)
def test_a_timed_run_stops(kind, policy, said, simulator, monkeypatch):
    made = simulating.create
    monkeypatch.setattr(simulating, "create", lambda what, spec: policy if what == kind else made(what, spec))
    spec = RunSpec(hardware=("rtx-3090",), capacity=ROOM, miss="fetch")
    with pytest.raises(PolicyFaultError, match=f"^{kind} policy {policy.name} .*{said}"):
        simulating.simulate(random_trace(1, passes=12), spec, simulator=simulator)


@pytest.mark.parametrize("simulator", ["reference", "kernel"])
def test_a_placement_that_ranks_nobody_is_refused(simulator):
    with pytest.raises(PolicyFaultError, match="placement ranks-nobody ranks"):
        replay(random_trace(1), "lru", ROOM, placement=RanksNobody(), simulator=simulator)


def test_a_beaten_bound_is_an_error():
    trace = random_trace(3)
    room = Capacity(slots_per_layer=trace.geometry.experts, scope="layer")
    check_bound(trace, room, {"lru": 20, "min": 20})
    with pytest.raises(PolicyFaultError, match="lru misses 19 times where the optimum misses 20;"):
        check_bound(trace, room, {"lru": 19, "min": 20})
    check_bound(trace, room, {"static": 19, "min": 20})  # starts full
    check_bound(trace, Capacity(slots_per_layer=1, scope="layer"), {"lru": 19, "min": 20})  # waves: no optimum
