"""Eviction, admission, prefetch and placement policies, one file each."""

from expert_residency.errors import PolicyError
from expert_residency.policies.protocol import (
    AdmissionPolicy,
    Event,
    EvictionPolicy,
    Future,
    PlacementPolicy,
    Policy,
    Pool,
    PrefetchPolicy,
)
from expert_residency.policies.registry import (
    Given,
    adopt,
    adopt_all,
    adopted,
    adopted_sha256,
    available,
    create,
    describe,
    named,
    placed_class,
    policy_of,
    sees_future,
    words_of,
)

__all__ = [
    "AdmissionPolicy",
    "Event",
    "EvictionPolicy",
    "Future",
    "Given",
    "PlacementPolicy",
    "Policy",
    "PolicyError",
    "Pool",
    "PrefetchPolicy",
    "adopt",
    "adopt_all",
    "adopted",
    "adopted_sha256",
    "available",
    "create",
    "describe",
    "named",
    "placed_class",
    "policy_of",
    "sees_future",
    "words_of",
]
