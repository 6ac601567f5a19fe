"""Policies by their definition: every resident is scored at every eviction. The fast ones are compared with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

from expert_residency.policies.protocol import NEVER, Allocator, Event, EvictionPolicy, Future, Pool


@dataclass(frozen=True)
class Scan(EvictionPolicy):
    """Least score leaves; ties: lower key."""

    name: ClassVar[str] = "scan"
    source: ClassVar[str] = "tests"
    parameters: dict[str, Any] = field(default_factory=dict)

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> Any:
        return SimpleNamespace(
            pool=pool, future=future, resident=set(), uses=defaultdict(list), event=None, clock=0, came={},
            look_ups=defaultdict(list), rule=type(self), **self.parameters,
        )  # fmt: skip

    @staticmethod
    def learn(state: Any, event: Event) -> None:
        state.event = event
        state.rule.see(state, event)
        for i, key in enumerate(event.keys):
            state.clock += 1
            state.uses[key].append(
                (event.number, event.pass_index, event.request, event.rows[i], event.offset + i)
            )
            state.look_ups[key].append(state.clock)

    @staticmethod
    def see(state: Any, event: Event) -> None:
        """Before the members are recorded."""

    @staticmethod
    def insert(state: Any, key: int) -> None:
        state.resident.add(key)
        state.came[key] = (state.event.number if state.event else 0, len(state.uses[key]))

    @staticmethod
    def remove(state: Any, key: int) -> None:
        state.resident.discard(key)

    @staticmethod
    def victim(state: Any, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        free = [k for k in state.resident if state.pool.scope_of[k] == scope and guard[k] < tick]
        return min(free, key=lambda key: (state.rule.score(state, key), key), default=-1)

    @staticmethod
    def score(state: Any, key: int) -> Any:
        raise NotImplementedError


class NaiveLfru(Scan):
    @staticmethod
    def score(state, key):
        from fractions import Fraction

        uses = state.uses[key]
        last = uses[-1][0] if uses else 0
        return Fraction(len(uses), (state.event.number if state.event else 0) - last + 1)


class NaiveLfu(Scan):
    @staticmethod
    def score(state, key):
        return (len(state.uses[key]), state.look_ups[key][-1] if state.uses[key] else 0)


class NaiveInCacheLfu(Scan):
    @staticmethod
    def insert(state, key):
        Scan.insert(state, key)
        state.came[key] = (state.clock, len(state.uses[key]))
        state.clock += 1

    @staticmethod
    def score(state, key):
        came, before = state.came[key]
        return (len(state.uses[key]) - before, came)


class NaiveLruK(Scan):
    @staticmethod
    def score(state, key):
        stamps = state.look_ups[key]
        return (stamps[-state.k] if len(stamps) >= state.k else 0, stamps[-1] if stamps else 0)


class NaiveDecayedLfu(Scan):
    @staticmethod
    def score(state, key):
        now = state.event.pass_index
        stamps = state.look_ups[key]
        heat = sum(2.0 ** ((used[1] - now) / state.half_life) for used in state.uses[key])
        return (round(heat, 9), stamps[-1] if stamps else 0)


class NaiveHyperbolic(Scan):
    @staticmethod
    def score(state, key):
        from fractions import Fraction

        came, before = state.came[key]
        return Fraction(1 + len(state.uses[key]) - before, (state.event.number if state.event else 0) - came + 1)


class NaiveMoeInfinity(Scan):
    @staticmethod
    def score(state, key):
        experts, layers, request = state.pool.experts, state.pool.layers, state.event.request
        layer = key // experts

        def activation(k):
            return float(sum(used[3] for used in state.uses[k] if used[2] == request))

        total = sum(activation(k) for k in range(layer * experts, (layer + 1) * experts))
        share = (activation(key) + state.eps) / (total + state.eps * experts)
        # Within a layer equal activations go by key; between layers values decide.
        return share * (1.0 - layer / layers)


class NaiveHobbit(Scan):
    @staticmethod
    def see(state, event):
        if getattr(state, "request", 0) != event.request or not hasattr(state, "began"):
            state.began = event.pass_index if getattr(state, "request", 0) != event.request else 0
            state.request = event.request

    @staticmethod
    def score(state, key):
        event, layers = state.event, state.pool.layers
        mine = [used for used in state.uses[key] if used[2] == event.request]
        passes = event.pass_index - state.began + 1
        last = mine[-1][1] - state.began + 1 if mine else 0
        ahead = (key // state.pool.experts - event.layer) % layers
        stamps = state.look_ups[key]
        value = (last + len(mine)) / passes + (1.0 - ahead / layers)
        return (value, key // state.pool.experts, stamps[-1] if stamps else 0)


class NaiveBeladyWindow(Scan):
    needs_future: ClassVar[bool] = True

    @staticmethod
    def score(state, key):
        now, offsets, keys = state.event.number, state.future.event_offsets, state.future.keys
        horizon = min(now + 1 + state.window * state.pool.layers, len(offsets) - 1)
        following = next((e for e in range(now + 1, horizon) if key in keys[offsets[e] : offsets[e + 1]]), NEVER)
        if following < NEVER:
            return (1, -following, state.look_ups[key][-1] if state.look_ups[key] else 0)
        passing = state.event.pass_index
        stamps = state.look_ups[key]
        heat = sum(2.0 ** ((used[1] - passing) / state.half_life) for used in state.uses[key])
        return (0, round(heat, 9), stamps[-1] if stamps else 0)
