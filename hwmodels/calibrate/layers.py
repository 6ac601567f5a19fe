"""Programs for whole layers of a live engine, with and without each part.

The engine that carries out recorded runs carries out these as well: programs of equal events of `now` residents,
`copies` demand copies, `cpu` experts on the CPU, `ahead` copies for later. What a part costs is the difference to
the bare layer, so that launches, hidden latencies and the host's own work are counted as an engine meets them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from expert_residency.hwmodels.executor.card import LiveSizes
from expert_residency.hwmodels.executor.steps import Program, Step

EVENTS = 960
ROOM = 1 << 30
LEAST_PASSES = 4


def program_of(
    sizes: LiveSizes, *, now: int = 0, copies: int = 0, cpu: int = 0, ahead: int = 0,
    layers: Sequence[int] | None = None, passes: int | None = None, fill: bool = False, slots: int = 0,
    seed: int = 0,
) -> Program:  # fmt: skip
    """Equal events over all layers (or some); `fill` copies what the CPU computed for later.

    Experts that miss have not been wanted for long, so each layer goes round all of its own, in a drawn order.

    Without `slots` two thirds of all experts have one, or as many as fill `ROOM` twice. Residents lie in the first
    half of the slots; copies go round the others, so that no cache of the machine holds them.

    Parameters
    ----------
    sizes
        Bytes of the model.
    now
        Residents that an event computes.
    copies
        Experts that an event waits for.
    cpu
        Experts that the CPU computes.
    ahead
        Experts that are copied for later.
    layers
        Layers of a pass; all if None.
    passes
        Passes of the program; enough to make the host's data cold if None.
    fill
        Whether what the CPU computed is copied for later.
    slots
        As many as the runs will have, whose pool is the same.
    seed
        Of the drawn order.

    Returns
    -------
    Program
        The program.
    """
    drawn = np.random.default_rng(seed)
    used = range(len(sizes.expert_bytes)) if layers is None else layers
    usual = min(sizes.experts * len(sizes.expert_bytes) // 3, ROOM // max(sizes.expert_bytes))
    residents = max(8, now, slots // 2 or usual)
    places = itertools.cycle(range(residents, 2 * residents))
    passes = passes or max(LEAST_PASSES, EVENTS // len(used))
    rounds = {
        layer: itertools.cycle((layer * sizes.experts + drawn.permutation(sizes.experts)).tolist())
        for layer in used
    }
    steps = []
    for _ in range(passes):
        for layer in used:
            wanted = list(itertools.islice(rounds[layer], copies + cpu + ahead))
            landing = [next(places) for _ in range(copies)]
            there = drawn.choice(residents, now, replace=False).tolist()
            for_later = wanted[copies:] if fill else wanted[copies + cpu :]
            steps.append(
                Step(
                    layer,
                    now=tuple(there),
                    copies=tuple(zip(wanted[:copies], landing, strict=True)),
                    later=tuple(landing),
                    cpu=tuple(wanted[copies : copies + cpu]),
                    ahead_done=tuple((key, next(places)) for key in for_later),
                    rows=_rows(sizes, [*there, *landing], drawn),
                )
            )
    return Program(steps, [p * len(used) for p in range(passes + 1)], (), 2 * residents)


def _rows(sizes: LiveSizes, slots: Sequence[int], drawn: np.random.Generator) -> dict[int, tuple[int, ...]] | None:
    """Rows that want the experts of an event, drawn; None if a pass has one row."""
    if sizes.rows == 1:
        return None
    return {slot: tuple(drawn.choice(sizes.rows, sizes.pairs, replace=False).tolist()) for slot in slots}
