"""What a live engine is told to do: one `Step` an event, every decision already taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Copies = tuple[tuple[int, int], ...]
"""(key, slot) pairs."""
IntArray = npt.NDArray[np.int64]
ONE_ROW = (0,)
HEAD_BYTES = 256
"""Of a cell in one head of attention: a key and a value of 64 numbers of 16 bits."""
PAIRS_FEW, PAIRS_MANY, MANY_ROWS = 16, 64, 64
"""Pairs of a tile of a bfloat16 model in passes of fewer rows than `MANY_ROWS`, and of as many or more."""


class Step(NamedTuple):
    """What the engine does at one event."""

    layer: int
    now: tuple[int, ...] = ()
    """Slots to compute at once; without demand copies the last `pending` of them may have to be waited for."""
    copies: Copies = ()
    """Demand copies."""
    later: tuple[int, ...] = ()
    """Slots to compute when the demand copies, and copy-ahead batch `needs`, have landed; the first `pending` of
    them were copied ahead."""
    needs: int = -1
    """Copy-ahead batch that `now` (without demand copies) or `later` waits for, -1 for none."""
    pending: int = 0
    """Slots that batch `needs` or one before it fills."""
    cpu: tuple[int, ...] = ()
    """Keys that the CPU computes."""
    ahead_router: Copies = ()
    """Copied ahead when the router is known."""
    ahead_done: Copies = ()
    """Copied ahead, or filled after the CPU served it, when the event is done."""
    rows: Mapping[int, tuple[int, ...]] | None = None
    """Which rows of the pass want the expert in a slot; None: the pass has one row."""

    def wanting(self, slot: int) -> tuple[int, ...]:
        """Rows that want the expert in a slot."""
        return ONE_ROW if self.rows is None else self.rows[slot]


@dataclass(frozen=True)
class Program:
    """A whole run; steps `pass_steps[p]` to `pass_steps[p + 1]` are pass p.

    Parameters
    ----------
    start
        Residents at the start.
    slots
        Slots in all, staging included.
    cells
        Cells of keys and values that each pass attends over in every layer; empty: attention is left out.
    """

    steps: list[Step]
    pass_steps: list[int]
    start: Copies
    slots: int
    cells: tuple[int, ...] = field(default=(), kw_only=True)

    def first_uses(self) -> list[tuple[int, ...]]:
        """For each step the keys that are taken from the host for the first time."""
        seen: set[int] = set()
        found = []
        for step in self.steps:
            taken = (*(key for key, _ in (*step.copies, *step.ahead_router, *step.ahead_done)), *step.cpu)
            fresh = dict.fromkeys(key for key in taken if key not in seen)
            seen.update(fresh)
            found.append(tuple(fresh))
        return found


@dataclass
class Measured:
    """Times of one live run; P passes.

    Parameters
    ----------
    pass_ns : (P,)
        Host clock, from the first launch of a pass to its token on the host.
    card_ns : (P,)
        The same by the card's own events; 0 without a card.
    known_ns, cpu_ns, wait_ns, start_ns, sent_ns : (P,)
        Host time spent waiting for the router, in CPU experts, waiting for reads, launching groups of experts, and
        sending copies for later.
    """

    pass_ns: IntArray
    card_ns: IntArray
    known_ns: IntArray
    cpu_ns: IntArray
    wait_ns: IntArray
    start_ns: IntArray
    sent_ns: IntArray

    @classmethod
    def empty(cls, passes: int) -> Measured:
        """All zero."""
        return cls(*(np.zeros(passes, dtype=np.int64) for _ in range(7)))
