"""Counts that libCacheSim 0.3.5 gave on a fixed sequence, for machines without it."""

from __future__ import annotations

import pytest

from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.runs.replay import replay
from tests.test_conformance import one_layer

EXPERTS, SLOTS, N = 64, 20, 3000


def fixed_sequence() -> list[int]:
    """A loop slightly larger than the cache with random keys between, from a small generator."""
    drawn, out = 12345, []
    for number in range(N):
        drawn = drawn * 48271 % 2147483647
        out.append(number % (SLOTS + 3) if drawn % 10 < 7 else (drawn // 10) % EXPERTS)
    return out


COUNTS = {"lru": 802, "fifo": 1220, "clock": 868, "sieve": 1745, "s3fifo": 1620, "arc": 1532}


@pytest.mark.parametrize("policy", COUNTS)
def test_frozen_counts(policy):
    wanted = fixed_sequence()
    result = replay(one_layer([(k,) for k in wanted], EXPERTS, 1), policy, Capacity(total_bytes=SLOTS))
    assert result.phases["all"].distinct_hits == COUNTS[policy]
