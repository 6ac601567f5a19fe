"""Programs for whole layers of a live engine, with and without each part.

The engine that carries out recorded runs carries out these as well: programs of equal events of `now` residents,
`copies` demand copies, `cpu` experts on the CPU, `ahead` copies for later. What a part costs is the difference to
the bare layer, so that launches, hidden latencies and the host's own work are counted as an engine meets them.
"""

from __future__ import annotations

import itertools

import numpy as np

from expert_residency.hwmodels.executor.card import LiveSizes
from expert_residency.hwmodels.executor.steps import Program, Step

EVENTS = 960
ROOM = 1 << 30
LEAST_PASSES = 4


def program_of(
    sizes: LiveSizes, *, now: int = 0, copies: int = 0, cpu: int = 0, ahead: int = 0, layers: int | None = None,
    passes: int | None = None, fill: bool = False, seed: int = 0,
) -> Program:  # fmt: skip
    """Equal events over all layers (or the first `layers`); `fill` copies what the CPU computed for later.

    Experts that miss have not been wanted for long, so each layer goes round all of its own, in a drawn order.

    A third of all experts have slots, or as many as fill `ROOM`; copies go round as many others, so that no cache
    of the machine holds them.

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
        Layers in a pass; all if None.
    passes
        Passes of the program; enough to make the host's data cold if None.
    fill
        Whether what the CPU computed is copied for later.
    seed
        Of the drawn order.

    Returns
    -------
    Program
        The program.
    """
    drawn = np.random.default_rng(seed)
    used = layers or len(sizes.expert_bytes)
    residents = max(8, min(sizes.experts * len(sizes.expert_bytes) // 3, ROOM // max(sizes.expert_bytes)))
    places = itertools.cycle(range(residents, 2 * residents))
    passes = passes or max(LEAST_PASSES, EVENTS // used)
    rounds = [
        itertools.cycle((layer * sizes.experts + drawn.permutation(sizes.experts)).tolist())
        for layer in range(used)
    ]
    steps = []
    for _ in range(passes):
        for layer in range(used):
            wanted = list(itertools.islice(rounds[layer], copies + cpu + ahead))
            slots = [next(places) for _ in range(copies)]
            for_later = wanted[copies:] if fill else wanted[copies + cpu :]
            steps.append(
                Step(
                    layer,
                    now=tuple(drawn.choice(residents, now, replace=False).tolist()),
                    copies=tuple(zip(wanted[:copies], slots, strict=True)),
                    later=tuple(slots),
                    cpu=tuple(wanted[copies : copies + cpu]),
                    ahead_done=tuple((key, next(places)) for key in for_later),
                )
            )
    return Program(steps, [p * used for p in range(passes + 1)], (), 2 * residents)
