"""Every schedule of a tiny trace: each answer that a policy may give, tried on the reference engine.

Who is resident at the start, which misses take a slot, who leaves for them, and what is copied ahead, at the
router and when a layer is done. Only what can do no good is left out: keeping what is never wanted again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, ClassVar

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.policies.protocol import NEVER, AdmissionPolicy, EvictionPolicy, PrefetchPolicy
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.residency.pool import CachePool
from expert_residency.sim.runs.simulate import prepare
from expert_residency.sim.timed.engine import Policies, SimPyEngine
from expert_residency.traces import RoutingTrace

AHEAD = 2
"""Copies that one call of the prefetcher may ask for."""


class Choices:
    """One path through a tree of choices after the other."""

    def __init__(self) -> None:
        self.path: list[list[int]] = []
        self.at = 0
        self.resident: list[int] = []

    def pick(self, n: int) -> int:
        """One of `n`; the last one that was not tried yet is tried next."""
        if self.at == len(self.path):
            self.path.append([0, n])
        self.at += 1
        return self.path[self.at - 1][0]

    def onwards(self) -> bool:
        """To the next path; False after the last one."""
        self.at = 0
        while self.path and self.path[-1][0] == self.path[-1][1] - 1:
            self.path.pop()
        if self.path:
            self.path[-1][0] += 1
        return bool(self.path)


@dataclass(frozen=True)
class Leaves(EvictionPolicy):
    """Anybody leaves, or the newcomer stays out."""

    name: ClassVar[str] = "anybody"
    source: ClassVar[str] = "a test"
    may_evict_members: ClassVar[bool] = True
    choices: Any = None

    def __post_init__(self) -> None:
        """Its parameter is no parameter."""

    def start(self, pool, alloc, future):
        self.choices.resident = [0] * pool.keys
        return self.choices, pool

    @staticmethod
    def insert(state, key):
        state[0].resident[key] = 1

    @staticmethod
    def remove(state, key):
        state[0].resident[key] = 0

    @staticmethod
    def victim(state, scope, incoming, guard, tick):
        choices, pool = state
        free = [
            k for k in range(pool.keys) if choices.resident[k] and pool.scope_of[k] == scope and guard[k] < tick
        ]
        return [*free, incoming][choices.pick(len(free) + 1)]


@dataclass(frozen=True)
class TakesSlots(AdmissionPolicy):
    """Any of the misses that are wanted again, or none."""

    name: ClassVar[str] = "any"
    source: ClassVar[str] = "a test"
    choices: Any = None
    following: Any = None

    def __post_init__(self) -> None:
        """Its parameters are no parameters."""

    def start(self, pool, alloc):
        return self.choices, self.following

    @staticmethod
    def select(state, event, misses, n):
        choices, following = state
        positions = [misses[i] for i in range(n) if following(event.keys[misses[i]], event.number) < NEVER]
        taken = [position for position in positions if choices.pick(2)]
        misses[: len(taken)] = taken
        return len(taken)


@dataclass(frozen=True)
class Ahead(PrefetchPolicy):
    """Any that will be wanted, in any order, or none."""

    name: ClassVar[str] = "ahead"
    source: ClassVar[str] = "a test"
    at_router: ClassVar[bool] = True
    at_layer: ClassVar[bool] = True
    choices: Any = None
    following: Any = None
    keys: int = 0

    def __post_init__(self) -> None:
        """Its parameters are no parameters."""

    def start(self, pool, alloc, future, predictions):
        return self.choices, self.following, pool.keys

    @staticmethod
    def propose(state, event, keys, deadlines):
        choices, following, n = state
        wanted = {key: following(key, event.number) for key in range(n) if not choices.resident[key]}
        wanted = {key: at for key, at in wanted.items() if at < NEVER}
        for i in range(AHEAD):
            options = list(wanted)
            chosen = choices.pick(len(options) + 1)
            if chosen == len(options):
                return i
            keys[i], deadlines[i] = options[chosen], wanted.pop(options[chosen])
        return AHEAD


def fastest(
    trace: RoutingTrace,
    spec: RunSpec,
    profiles: tuple[HardwareProfile, ...],
    preset: EnginePreset,
    most: int = 10**9,
) -> tuple[int, int] | None:
    """(least time of all passes, schedules tried), or None for more than `most` of them."""
    event = [e for e in range(trace.n_events) for _ in range(*trace.event_offsets[e : e + 2].tolist())]
    uses: dict[int, list[int]] = {}
    for key, e in zip(trace.keys.tolist(), event, strict=True):
        uses.setdefault(key, []).append(e)

    def following(key: int, after: int) -> int:
        return next((e for e in uses.get(key, ()) if e > after), NEVER)

    ready = prepare(trace, replace(spec, placement="none"), profiles=profiles, preset=preset)
    pool = ready.cache.pool
    best, tried = 1 << 62, 0
    wanted = sorted(uses)
    starts = [
        start for n in range(len(wanted) + 1) for start in combinations(wanted, n)
        if all(
            sum(pool.size_of[k] for k in start if pool.scope_of[k] == s) <= pool.capacity[s]
            for s in range(pool.scopes)
        )
    ]  # fmt: skip
    for start in starts:
        choices = Choices()
        while True:
            leaves, takes = Leaves(choices), TakesSlots(choices, following)
            policies = Policies(
                leaves, takes, Ahead(choices, following, pool.keys), None, ready.policies.insertion
            )
            cache = CachePool(pool, leaves, takes)
            cache.place(start)
            engine = SimPyEngine(
                trace, ready.machine, ready.preset, cache, policies, ready.miss, ready.host_plan,
                None, context=ready.context,
            )  # fmt: skip
            engine.run()
            best = min(best, sum(engine.pass_ns))
            tried += 1
            if tried > most:
                return None
            if not choices.onwards():
                break
    return best, tried
