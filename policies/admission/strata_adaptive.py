"""Residents are exchanged between passes, never on demand.

    learn:     usage of each expert += rows that want it, hits included; prompts are not counted
    select:    no miss takes a slot
    pass_done: every `every` rounds, in each layer: candidates (not resident, usage >= `min_usage`) hottest first,
               each against that layer's coldest remaining resident; a pair counts if the candidate has at least
               `min_gain` more; of all layers' pairs the `swaps` with most gain are made; then usage x `decay`

Free room of a layer's scope is filled first, without a victim (`fill_free`). Ties: lower layer, lower expert. A
round is a decode or verify pass, whether or not copies are under way: a late copy may cost an update, but does not
move the period. Usage outlives requests.
Source: Niko1221/Strata, adaptive tier (every 4, 2.0, 1.5, 96, 0.7), as in its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.parameters import AtLeastOne, Count, Level, Share
from expert_residency.policies.protocol import AdmissionPolicy, Allocator, Event, Floats, Ints, Pool


class AdaptiveState(NamedTuple):
    """Usage of all experts, and room for one period's choice."""

    usage: Floats
    rounds: Ints
    """[rounds begun, pass of the last one]."""
    taken: Ints
    """(keys,) 1: already in a pair of this period."""
    candidate: Ints
    """(layers,) best candidate left, or -1."""
    partner: Ints
    """(layers,) resident against it, -1 for free room."""
    free: Ints
    """(scopes,) bytes."""
    scope_of: Ints
    size_of: Ints
    capacity: Ints
    experts: int
    every: int
    swaps: int
    min_usage: float
    min_gain: float
    decay: float
    fill_free: int


@dataclass(frozen=True)
class StrataAdaptive(AdmissionPolicy):
    """The hottest non-residents replace the coldest residents every few rounds."""

    name: ClassVar[str] = "strata-adaptive"
    source: ClassVar[str] = "Niko1221/Strata"
    compiled: ClassVar[bool] = True
    periodic: ClassVar[bool] = True

    every: AtLeastOne = 4
    min_usage: Level = 2.0
    min_gain: Level = 1.5
    swaps: Count = 96
    decay: Share = 0.7
    fill_free: bool = True

    def start(self, pool: Pool, alloc: Allocator) -> AdaptiveState:
        """No usage."""
        rounds = alloc.ints(2)
        rounds[1] = -1
        return AdaptiveState(
            alloc.floats(pool.keys),
            rounds,
            alloc.ints(pool.keys),
            alloc.ints(pool.layers),
            alloc.ints(pool.layers),
            alloc.ints(pool.scopes),
            pool.scope_of,
            pool.size_of,
            pool.capacity,
            pool.experts,
            self.every,
            self.swaps,
            self.min_usage,
            self.min_gain,
            self.decay,
            int(self.fill_free),
        )

    @staticmethod
    def learn(state: AdaptiveState, event: Event) -> None:
        """Count rounds and rows."""
        if event.phase != 0:
            if event.pass_index != state.rounds[1]:
                state.rounds[0] += 1
                state.rounds[1] = event.pass_index
            for i in range(len(event.keys)):
                state.usage[event.keys[i]] += float(event.rows[i])

    @staticmethod
    def select(state: AdaptiveState, event: Event, misses: Ints, n: int) -> int:
        """None on demand."""
        return 0

    @staticmethod
    def pass_done(
        state: AdaptiveState, pass_index: int, resident: Sequence[int], newcomers: Ints, victims: Ints
    ) -> int:
        """The best pairs over all layers; a layer's gains fall from pair to pair, so its next one is enough."""
        if state.rounds[1] != pass_index or state.rounds[0] % state.every != 0:
            return 0
        for scope in range(len(state.free)):
            state.free[scope] = state.capacity[scope]
        for key in range(len(resident)):
            state.taken[key] = 0
            if resident[key] == 1:
                state.free[state.scope_of[key]] -= state.size_of[key]
        layers = len(state.candidate)
        for layer in range(layers):
            _pair(state, layer, resident)
        count = 0
        while count < state.swaps:
            best = -1
            most = 0.0
            for layer in range(layers):
                if state.candidate[layer] >= 0:
                    gain = _gain(state, layer)
                    if gain >= state.min_gain and (best < 0 or gain > most):
                        best, most = layer, gain
            if best < 0:
                break
            newcomer, victim = state.candidate[best], state.partner[best]
            if victim < 0:
                scope = state.scope_of[newcomer]
                if state.free[scope] < state.size_of[newcomer]:  # another layer has taken the room
                    _pair(state, best, resident)
                    continue
                state.free[scope] -= state.size_of[newcomer]
            else:
                state.taken[victim] = 1
            state.taken[newcomer] = 1
            newcomers[count] = newcomer
            victims[count] = victim
            count += 1
            _pair(state, best, resident)
        for key in range(len(state.usage)):
            state.usage[key] *= state.decay
        return count


def _gain(state: AdaptiveState, layer: int) -> float:
    gain = state.usage[state.candidate[layer]]
    if state.partner[layer] >= 0:
        gain -= state.usage[state.partner[layer]]
    return gain


def _pair(state: AdaptiveState, layer: int, resident: Sequence[int]) -> None:
    """Hottest candidate left in `layer`, and whom it would replace; no candidate where nobody may leave."""
    first = layer * state.experts
    hottest, coldest = -1, -1
    for key in range(first, first + state.experts):
        if state.taken[key] == 1:
            continue
        if resident[key] == 1:
            if coldest < 0 or state.usage[key] < state.usage[coldest]:
                coldest = key
        elif state.usage[key] >= state.min_usage and (hottest < 0 or state.usage[key] > state.usage[hottest]):
            hottest = key
    has_room = state.fill_free == 1 and state.free[state.scope_of[first]] >= state.size_of[first]
    if has_room:
        coldest = -1
    state.candidate[layer] = hottest if has_room or coldest >= 0 else -1
    state.partner[layer] = coldest
