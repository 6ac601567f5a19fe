"""A newcomer must be clearly hotter than whoever would leave for it.

    learn:   heat of every member += 1; all heats are halved every `halving_passes` passes
    select:  all misses, in the event's order
    accepts: heat of the newcomer > factor x heat of the victim + margin

Free room is filled without asking. The engine's limit of 4 replacements a chat turn is left out: a trace does
not say where turns end.
Source: JustVugg/colibri #26, #474, #571 (25 % + 4 counts, halved every 1024 decode ticks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.parameters import AtLeastOne, Level, Weight
from expert_residency.policies.protocol import AdmissionPolicy, Allocator, Event, Floats, Ints, Pool


class HysteresisState(NamedTuple):
    """(keys,) heats, and [last pass seen]."""

    heat: Floats
    last: Ints
    halving: int
    factor: float
    margin: float


@dataclass(frozen=True)
class Hysteresis(AdmissionPolicy):
    """Admitted only if hotter than the victim by a factor and a margin."""

    name: ClassVar[str] = "hysteresis"
    source: ClassVar[str] = "JustVugg/colibri #26, #474, #571"
    compiled: ClassVar[bool] = True

    factor: Weight = 1.25
    margin: Level = 4.0
    halving_passes: AtLeastOne = 1024

    def start(self, pool: Pool, alloc: Allocator) -> HysteresisState:
        """All cold."""
        return HysteresisState(
            alloc.floats(pool.keys), alloc.ints(1), self.halving_passes, self.factor, self.margin
        )

    @staticmethod
    def learn(state: HysteresisState, event: Event) -> None:
        """Heat up, cool down."""
        halvings = event.pass_index // state.halving - state.last[0] // state.halving
        state.last[0] = event.pass_index
        if halvings > 0:
            for key in range(len(state.heat)):
                state.heat[key] *= 0.5**halvings
        for key in event.keys:
            state.heat[key] += 1.0

    @staticmethod
    def select(state: HysteresisState, event: Event, misses: Ints, n: int) -> int:
        """All of them; `accepts` decides."""
        return n

    @staticmethod
    def accepts(state: HysteresisState, incoming: int, victim: int) -> bool:
        """Hotter by factor and margin."""
        return state.heat[incoming] > state.factor * state.heat[victim] + state.margin
