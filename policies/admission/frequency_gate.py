"""A newcomer must have been wanted strictly more often than whoever would leave for it.

    learn:   count every member of the event; counts are kept for all experts
    select:  all misses, in the event's order
    accepts: count of the newcomer > count of the victim

Free room is filled without asking.
Source: Bigtea; in the same spirit TinyLFU (Einziger et al. 2017) and llama.cpp RFC #20757.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.protocol import AdmissionPolicy, Allocator, Event, Ints, Pool


class GateState(NamedTuple):
    """(keys,) events that wanted each expert."""

    uses: Ints


@dataclass(frozen=True)
class FrequencyGate(AdmissionPolicy):
    """Admitted only if wanted more often than the victim."""

    name: ClassVar[str] = "frequency-gate"
    source: ClassVar[str] = "Bigtea; llama.cpp RFC #20757"
    compiled: ClassVar[bool] = True

    def start(self, pool: Pool, alloc: Allocator) -> GateState:
        """Nobody wanted yet."""
        return GateState(alloc.ints(pool.keys))

    @staticmethod
    def learn(state: GateState, event: Event) -> None:
        """Count."""
        for key in event.keys:
            state.uses[key] += 1

    @staticmethod
    def select(state: GateState, event: Event, misses: Ints, n: int) -> int:
        """All of them; `accepts` decides."""
        return n

    @staticmethod
    def accepts(state: GateState, incoming: int, victim: int) -> bool:
        """More often than the victim."""
        return state.uses[incoming] > state.uses[victim]
