"""Laws of admission policies, one function each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from expert_residency.policies.eviction.lru import Lru
from expert_residency.policies.placement.hindsight import Hindsight
from expert_residency.policies.protocol import AdmissionPolicy, Event
from expert_residency.sim.testing.cases import capacities, random_trace
from expert_residency.sim.testing.compiled import ArrayPool
from expert_residency.sim.testing.compiling import check_compiles_admission
from expert_residency.sim.testing.shared import SEEDS, Replayed, declared, instance, same_on
from expert_residency.sim.testing.strict import StrictPool
from expert_residency.sim.testing.watched import WatchedPool, replay_watched


class _Selecting(WatchedPool):
    """Checks what `select` and `pass_done` answer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.admission_name = self.admission.name

    def learn(self, event: Event) -> list[int]:
        misses = [i for i, hit in enumerate(event.hits) if not hit]
        chosen = super().learn(event)
        left = self._misses[: len(misses)]
        assert sorted(left) == misses, f"{self.admission_name}: select() lost or doubled a miss"
        return chosen

    def adapt(self, pass_index: int, newcomers: list[int], victims: list[int]) -> int:
        before = list(self.resident)
        n = super().adapt(pass_index, newcomers, victims)
        name = self.admission_name
        assert list(self.resident) == before, f"{name}: pass_done() wrote into resident"
        come, go = newcomers[:n], [victim for victim in victims[:n] if victim >= 0]
        assert len(set(come)) == n, f"{name}: a newcomer is named twice"
        assert len(set(go)) == len(go), f"{name}: a victim is named twice"
        assert not any(self.resident[key] for key in come), f"{name}: a newcomer is resident already"
        assert all(self.resident[key] for key in go), f"{name}: a victim is not resident"
        return n


def check_declarations(policy: AdmissionPolicy) -> None:
    """Name, source and a docstring are there; parameters are a frozen dataclass's fields with defaults."""
    declared(policy, AdmissionPolicy)


def _replayed(policy: AdmissionPolicy) -> Replayed:
    return lambda trace, capacity, **more: replay_watched(trace, Lru(), policy, capacity, **more)


def check_laws_at_every_step(policy: AdmissionPolicy) -> None:
    """Capacity holds, members stay, `select` answers with a permutation, swaps name residents and newcomers."""
    for seed in SEEDS:
        trace = random_trace(seed)
        for capacity in capacities(trace.geometry):
            for placement in (None, Hindsight()):
                replay_watched(trace, Lru(), policy, capacity, placement=placement, pool_type=_Selecting)


def check_same_twice(policy: AdmissionPolicy) -> None:
    """Two runs agree and leave the policy object as it was."""
    trace = random_trace(1)
    before = dataclasses.replace(policy)
    for capacity in capacities(trace.geometry):
        first, _ = replay_watched(trace, Lru(), policy, capacity)
        second, _ = replay_watched(trace, Lru(), policy, capacity)
        assert first == second, f"{policy.name}: two runs differ"
    assert policy == before, f"{policy.name}: a run changed the policy object"


def check_causal(policy: AdmissionPolicy) -> None:
    """A shorter trace gives the same beginning."""
    trace = random_trace(2)
    cut = trace.select_passes(np.arange(trace.n_passes) < trace.n_passes // 2)
    for capacity in capacities(trace.geometry):
        _, whole = replay_watched(trace, Lru(), policy, capacity)
        _, part = replay_watched(cut, Lru(), policy, capacity)
        assert isinstance(whole, WatchedPool)
        assert isinstance(part, WatchedPool)
        left = part.departures
        assert left == whole.departures[: len(left)], f"{policy.name}: decisions depend on what comes after"


def check_runs_on_arrays(policy: AdmissionPolicy) -> None:
    """A policy that says it can be compiled gives the same on lists and on arrays."""
    same_on(ArrayPool, policy, _replayed(policy), "lists and arrays differ")


def check_keeps_promises(policy: AdmissionPolicy) -> None:
    """A policy that says it can be compiled counts no index from the end and keeps to the ranges it promised."""
    same_on(StrictPool, policy, _replayed(policy), "the kind of list matters")


ADMISSION_CHECKS: tuple[Callable[[AdmissionPolicy], None], ...] = (
    check_declarations,
    check_laws_at_every_step,
    check_same_twice,
    check_causal,
    check_runs_on_arrays,
    check_keeps_promises,
    check_compiles_admission,
)


def check_admission(policy: AdmissionPolicy | type[AdmissionPolicy]) -> None:
    """Run every check on a policy, or on a class with its defaults.

    Raises
    ------
    AssertionError
        The first law that does not hold, with the policy's name.
    """
    policy = instance(policy, AdmissionPolicy)
    for check in ADMISSION_CHECKS:
        check(policy)
