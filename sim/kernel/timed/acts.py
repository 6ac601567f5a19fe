"""What happens between two moments of the walk, behind one C function.

The walk calls these in many places; behind an address they are compiled and optimized once, not into each caller.
"""

# ruff: noqa: TC004  (names of the seam are there at run time, but not by import)

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.kernel.timed.ahead import close, propose
from sim.kernel.timed.copies import release
from sim.kernel.timed.decide import decide, demand_later, fill_slots, lay_segments
from sim.kernel.timed.host import run_segments
from sim.kernel.timed.landings import start_swaps, wake
from sim.kernel.timed.tables import (
    DECIDE,
    DEMAND_LATER,
    FILL_SLOTS,
    LAY_SEGMENTS,
    PROPOSE_AHEAD,
    RELEASE,
    RUN_SEGMENTS,
    START_SWAPS,
    WAKE_UP,
)

if TYPE_CHECKING:
    from sim.kernel.timed.seam import run_at


def act(table: int, what: int, a: int, b: int, c: int) -> int:
    """One step of the run in `table`; `what` says which."""
    run = run_at(table)
    if what == WAKE_UP:
        wake(run)
    elif what == DECIDE:
        decide(run, a, b)
    elif what == PROPOSE_AHEAD:
        propose(run, a)
    elif what == LAY_SEGMENTS:
        lay_segments(run, a)
    elif what == RUN_SEGMENTS:
        run_segments(run)
    elif what == DEMAND_LATER:
        demand_later(run, a)
    elif what == FILL_SLOTS:
        fill_slots(run, a)
    elif what == RELEASE:
        release(run)
    elif what == START_SWAPS:
        start_swaps(run, a)
    else:
        close(run)
    return 0
