"""Every registered policy runs the published conformance suite, with its defaults and with other parameters."""

from __future__ import annotations

import dataclasses
import re

import pytest

from expert_residency.errors import PolicyError
from expert_residency.policies import available, create
from expert_residency.policies.eviction.fifo import Fifo
from expert_residency.policies.eviction.sieve import Sieve
from expert_residency.policies.registry import describe
from expert_residency.sim.testing import ADMISSION_CHECKS, EVICTION_CHECKS, check_admission, check_eviction
from expert_residency.sim.testing.eviction import check_keeps_promises

EVICTION = [
    *available("eviction"),
    "lfu:counts=in-cache",
    "lfu:counts=decayed,half_life_tokens=0.1",
    "clock:insert_bit=1",
    "lru-k:k=1",
    "lru-k:k=4",
    "hyperbolic:sample=3,seed=9",
    "s3fifo:threshold=1,ghost_share=1.0",
    "s3fifo:ghost_share=0",
    "slru:protected_share=0",
    "wtinylfu:sample_factor=1",
    "belady-window:window_tokens=0",
    "hobbit:recency=0,frequency=0",
]
ADMISSION = [
    *(name for name in available("admission") if name != "balanced"),
    "balanced:link_gb_per_s=13,host_gb_per_s=44",
    "cap:per_event=0",
    "fraction:share=1.0",
    "hysteresis:factor=1,margin=0,halving_passes=3",
    "two-hit:within_passes=2",
    "strata-adaptive:every=1,min_usage=0,min_gain=0,swaps=3",
    "strata-adaptive:every=2,fill_free=false",
]


def laws(checks):
    """Each by its name; compiling every policy takes minutes."""
    return [
        pytest.param(check, id=check.__name__, marks=pytest.mark.slow if "compiles" in check.__name__ else ())
        for check in checks
    ]


@pytest.mark.parametrize("check", laws(EVICTION_CHECKS))
@pytest.mark.parametrize("spec", EVICTION)
def test_eviction(spec, check):
    check(create("eviction", spec))


@pytest.mark.parametrize("check", laws(ADMISSION_CHECKS))
@pytest.mark.parametrize("spec", ADMISSION)
def test_admission(spec, check):
    check(create("admission", spec))


def test_the_suite_is_one_call_too():
    check_eviction(create("eviction", "fifo"))
    check_admission(create("admission", "never"))


def test_docstrings_give_algorithm_and_source():
    """Each policy's file says in a few lines what it does, and where it comes from."""
    import sys

    for kind in ("eviction", "admission", "placement"):
        for row in describe(kind):
            module = sys.modules[type(create(kind, row["name"])).__module__]
            assert module.__doc__, row["name"]
            assert row["source"], row["name"]
            assert len(module.__doc__.splitlines()) <= 24, row["name"]
            if kind != "placement":
                assert "Source:" in module.__doc__, row["name"]


class FromTheEnd(Fifo):
    name = "from-the-end"

    @staticmethod
    def learn(state, event):
        state.order.home[-1]


class TooMany(Sieve):
    name = "too-many"

    @staticmethod
    def learn(state, event):
        for key in event.keys:
            state.bit[key] += 1


@pytest.mark.parametrize(
    ("policy", "reason"), [(FromTheEnd(), "does not count from the end"), (TooMany(), "promised -1 to 1")]
)
def test_what_compiled_code_takes_for_granted_is_checked(policy, reason):
    with pytest.raises(AssertionError, match=reason):
        check_keeps_promises(policy)


@pytest.mark.parametrize(
    "spec", ["lru-k:k=0", "lfu:counts=decayed,half_life_tokens=0", "belady-window:half_life_tokens=-1"]
)
def test_impossible_parameters_are_refused(spec):
    from expert_residency.sim.choices.capacity import Capacity
    from expert_residency.sim.runs.replay import replay
    from expert_residency.sim.testing.cases import random_trace

    with pytest.raises(PolicyError):
        replay(random_trace(0), spec, Capacity(total_bytes=50))


def test_parameters_are_kept_as_given():
    policy = create("eviction", "wtinylfu:window_share=0.2")
    assert dataclasses.asdict(policy)["window_share"] == 0.2


class Dictionary(Fifo):
    """Keeps its state in a dictionary."""

    name = "dictionary"

    def start(self, pool, alloc, future):
        return {"order": [], "scope_of": list(pool.scope_of)}

    @staticmethod
    def insert(state, key):
        state["order"].append(key)

    @staticmethod
    def remove(state, key):
        state["order"].remove(key)

    @staticmethod
    def victim(state, scope, incoming, guard, tick):
        free = [key for key in state["order"] if state["scope_of"][key] == scope and guard[key] < tick]
        return free[0] if free else -1


class LeastGuarded(Fifo):
    """Looks for its victim with a key function."""

    name = "least-guarded"

    @staticmethod
    def victim(state, scope, incoming, guard, tick):
        order = state.order
        free = [key for key in range(len(guard)) if order.home[key] == scope and guard[key] < tick]
        return min(free, key=lambda key: guard[key]) if free else -1


CAPTURED = (
    "Cannot capture the non-constant value associated with variable 'guard' in a function that may escape. "
    "(test_policy_laws.py line N: return min(free, key=lambda key: guard[key]) if free else -1)"
)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Dictionary(), "state is a dict: compiled states hold numbers and sequences of numbers"),
        (LeastGuarded(), CAPTURED),
    ],
)
def test_what_says_compiled_is_compiled_and_the_reason_is_said_whole(policy, reason):
    """Both passed the suite; the kernel then said `Failed in nopython mode pipeline` three times."""
    pytest.importorskip("numba")
    assert policy.compiled
    said = re.escape(reason).replace("line\\ N:", r"line\ \d+:")
    with pytest.raises(AssertionError, match=f"^{policy.name} says compiled = True: .*{said}"):
        check_eviction(policy)
