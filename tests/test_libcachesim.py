"""Every single hit and miss equals an independent implementation's, on events of one expert."""

from __future__ import annotations

import numpy as np
import pytest

from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.runs.replay import replay
from tests.test_conformance import one_layer

lcs = pytest.importorskip("libcachesim", reason="libcachesim is not installed (optional oracle)")

PAIRS = {"lru": "LRU", "fifo": "FIFO", "sieve": "Sieve", "s3fifo": "S3FIFO", "arc": "ARC", "clock": "Clock"}


def sequence(kind: str, experts: int, slots: int, n: int) -> list[int]:
    rng = np.random.default_rng(7)
    if kind == "zipf":
        share = 1 / np.arange(1, experts + 1) ** 0.8
        return rng.choice(experts, n, p=share / share.sum()).tolist()
    if kind == "drift":
        return ((rng.choice(experts // 4, n) + np.arange(n) * experts // n) % experts).tolist()
    loop = np.arange(n) % (slots + 3)
    return np.where(rng.random(n) < 0.7, loop, rng.integers(0, experts, n)).tolist()


@pytest.mark.parametrize(("experts", "slots"), [(200, 50), (64, 20), (100, 93)])
@pytest.mark.parametrize("kind", ["zipf", "drift", "loop"])
@pytest.mark.parametrize("policy", PAIRS)
def test_same_hits(policy, kind, experts, slots):
    wanted = sequence(kind, experts, slots, 3000)
    result = replay(one_layer([(k,) for k in wanted], experts, 1), policy, Capacity(total_bytes=slots))
    cache = getattr(lcs, PAIRS[policy])(cache_size=slots)
    theirs = []
    for time, key in enumerate(wanted):
        request = lcs.Request()
        request.obj_id, request.obj_size, request.clock_time = key + 1, 1, time
        theirs.append(int(cache.get(request)))
    assert result.hits.tolist() == theirs
