"""Eviction, admission, prefetch and placement policies, one file each."""

from expert_residency.errors import PolicyError
from expert_residency.policies.protocol import (
    AdmissionPolicy,
    Event,
    EvictionPolicy,
    Future,
    PlacementPolicy,
    Pool,
    PrefetchPolicy,
)
from expert_residency.policies.registry import available, create, describe, sees_future

__all__ = [
    "AdmissionPolicy",
    "Event",
    "EvictionPolicy",
    "Future",
    "PlacementPolicy",
    "PolicyError",
    "Pool",
    "PrefetchPolicy",
    "available",
    "create",
    "describe",
    "sees_future",
]
