"""Checks that any policy can run, built-in or a stranger's, and what they are made of.

    from expert_residency.sim.testing import check_admission, check_eviction, check_prefetch
    check_eviction(MyPolicy())

Each law is a function of its own, so that a test suite can name the one that fails:

    @pytest.mark.parametrize("check", EVICTION_CHECKS, ids=lambda check: check.__name__)
    def test_my_policy(check):
        check(MyPolicy())

`strategies` has hypothesis strategies for geometries, traces and capacities; `optimum` the best possible hits of
tiny traces, by trying everything.
"""

from expert_residency.sim.testing.admission import ADMISSION_CHECKS, check_admission
from expert_residency.sim.testing.eviction import EVICTION_CHECKS, check_eviction
from expert_residency.sim.testing.optimum import best_hits
from expert_residency.sim.testing.prefetch import PREFETCH_CHECKS, check_prefetch
from expert_residency.sim.testing.watched import WatchedPool, replay_watched

__all__ = [
    "ADMISSION_CHECKS",
    "EVICTION_CHECKS",
    "PREFETCH_CHECKS",
    "WatchedPool",
    "best_hits",
    "check_admission",
    "check_eviction",
    "check_prefetch",
    "replay_watched",
]
