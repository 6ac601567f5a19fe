"""Policies that say they can be compiled, compiled with numba: the same source gives the same decisions."""

from __future__ import annotations

import pytest

from expert_residency.policies import available, create
from expert_residency.policies.admission.always import Always
from expert_residency.policies.eviction.lru import Lru
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.testing import replay_watched
from expert_residency.sim.testing.cases import random_trace
from expert_residency.sim.testing.compiled import CompiledPool

pytest.importorskip("numba")

EVICTION = [name for name in available("eviction") if create("eviction", name).compiled]
ADMISSION = [name for name in available("admission") if create("admission", name).compiled]


def same(eviction, admission):
    trace = random_trace(11, passes=40)
    capacity = Capacity(total_bytes=trace.geometry.all_expert_bytes // 2)
    plain, cache = replay_watched(trace, eviction, admission, capacity)
    fast, other = replay_watched(trace, eviction, admission, capacity, pool_type=CompiledPool)
    assert cache.evictions == other.evictions
    assert cache.resident == other.resident
    assert plain == fast


@pytest.mark.slow
@pytest.mark.parametrize("spec", EVICTION)
def test_eviction(spec):
    same(create("eviction", spec), Always())


@pytest.mark.parametrize("spec", [name for name in ADMISSION if name != "always"])
def test_admission(spec):
    rates = ":link_gb_per_s=13,host_gb_per_s=44" if spec == "balanced" else ""
    same(Lru(), create("admission", spec + rates))
