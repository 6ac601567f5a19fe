"""What is checked in the same way whatever the kind of policy."""

from __future__ import annotations

import dataclasses
from typing import Protocol, TypeVar

from expert_residency.policies.protocol import Policy
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.residency.pool import CachePool
from expert_residency.sim.testing.cases import capacities, random_trace
from expert_residency.traces import RoutingTrace

SEEDS = range(3)


class Replayed(Protocol):
    """A replay of a policy with some partner: its hits, and the cache at the end."""

    def __call__(
        self, trace: RoutingTrace, capacity: Capacity, *, pool_type: type[CachePool] = ...
    ) -> tuple[list[int], CachePool]:
        """Replay a trace."""
        ...


P = TypeVar("P", bound=Policy)


def instance(policy: P | type[P], kind: type[Policy]) -> P:
    """A policy to check; of a class, the one with its defaults.

    Raises
    ------
    AssertionError
        It is of another kind, or a class with a parameter that has no default.
    """
    cls = policy if isinstance(policy, type) else type(policy)
    assert issubclass(cls, kind), f"{cls.__name__} is no {kind.__name__}"
    if not isinstance(policy, type):
        return policy
    try:
        return policy()
    except TypeError as error:
        raise AssertionError(f"{cls.__name__} cannot be made with defaults ({error}): give an instance") from None


def declared(policy: Policy, kind: type[Policy]) -> None:
    """Name, source and a docstring are there; parameters are a frozen dataclass's fields with defaults."""
    cls = type(policy)
    assert isinstance(policy, kind), f"{cls.__name__} is no {kind.__name__}"
    assert cls.name, f"{cls.__name__} has no name"
    assert cls.name == cls.name.lower().strip(), f"{cls.__name__}: name {cls.name!r} is not plain lower case"
    assert cls.source, f"{cls.__name__} names no source"
    assert (cls.__doc__ or "").strip(), f"{cls.__name__} has no docstring"
    assert dataclasses.is_dataclass(cls), f"{cls.__name__} is no dataclass"
    assert cls.__dataclass_params__.frozen, f"{cls.__name__} is not frozen"  # type: ignore[attr-defined]
    for field in dataclasses.fields(cls):
        assert field.default is not dataclasses.MISSING, f"{cls.__name__}.{field.name} has no default"


def same_on(pool_type: type[CachePool], policy: Policy, replayed: Replayed, otherwise: str) -> None:
    """A policy that says it can be compiled hits the same in another kind of cache; `otherwise` says if not.

    Parameters
    ----------
    pool_type
        The other cache.
    policy
        Checked if it says `compiled`.
    replayed
        Replays a trace at a capacity in a cache of the given type.
    otherwise
        What to say if the two differ.
    """
    if not policy.compiled:
        return
    for seed in SEEDS:
        trace = random_trace(seed, passes=30)
        for capacity in capacities(trace.geometry):
            plain, _ = replayed(trace, capacity)
            other, _ = replayed(trace, capacity, pool_type=pool_type)
            assert plain == other, f"{policy.name}: {otherwise}"
