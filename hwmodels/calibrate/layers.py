"""Programs for whole layers of a live engine, with and without each part.

The engine that carries out recorded runs carries out these as well: programs of equal events of `now` residents,
`copies` demand copies, `cpu` experts on the CPU, `ahead` copies for later. What a part costs is the difference to
the bare layer, so that launches, hidden latencies and the host's own work are counted as an engine meets them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from expert_residency.hwmodels.executor.card import LiveSizes
from expert_residency.hwmodels.executor.steps import Program, Step

EVENTS = 960
MOVED_BYTES = 6_000_000_000
"""Of experts in a program; with few of them it has `EVENTS` and fewer bytes."""
ROOM = 1 << 30
LEAST_PASSES = 4
SPACING, USED_AFTER = 8, 13
"""Events from one batch of copies for later to the next, and to the event that computes what was copied."""


def program_of(
    sizes: LiveSizes, *, now: int = 0, copies: int = 0, cpu: int = 0, ahead: int = 0,
    layers: Sequence[int] | None = None, moved_bytes: int = MOVED_BYTES, fill: bool = False, slots: int = 0,
    order: Sequence[Sequence[int]] = (), cells: int = 0, seed: int = 0,
) -> Program:  # fmt: skip
    """Equal events over all layers (or some); `fill` copies what the CPU computed for later.

    Experts that are taken from the host come in the order given, in which a run misses them: how long ago one was
    last wanted decides whether the processor's caches still hold it. Without an order each layer goes round all of
    its own, which no cache holds.

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
    moved_bytes
        Of experts at most, but `LEAST_PASSES` passes; after `EVENTS` events the host's data is cold.
    fill
        Whether what the CPU computed is copied for later.
    slots
        As many as the runs will have, whose pool is the same.
    order
        For each layer numbers of experts, used again from the start when they are all used; none: drawn.
    cells
        That every event attends over; 0: attention is left out.
    seed
        Of what is drawn.

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
    moved = (copies + cpu + ahead) * sizes.mean_expert_bytes
    events = min(EVENTS, int(moved_bytes // moved)) if moved else EVENTS
    passes = max(LEAST_PASSES, events // len(used))
    rounds = {layer: itertools.cycle(_keys(sizes, layer, order, drawn)) for layer in used}
    steps = []
    for _ in range(passes):
        for layer in used:
            wanted = _distinct(rounds[layer], copies + cpu + ahead)
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
    context = (cells,) * passes if cells else ()
    return Program(steps, [p * len(used) for p in range(passes + 1)], (), 2 * residents, cells=context)


def spaced(sizes: LiveSizes, ahead: int, *, used: bool, slots: int = 0, seed: int = 0) -> Program:
    """Events of one resident; every `SPACING`-th sends copies for later.

    Parameters
    ----------
    sizes
        Bytes of the model.
    ahead
        Copies in a batch.
    used
        Whether the event `USED_AFTER` after the sending one computes what was copied, and no resident.
    slots
        As many as the runs will have.
    seed
        Of what is drawn.

    Returns
    -------
    Program
        As many events as fit `EVENTS`.
    """
    drawn = np.random.default_rng(seed)
    plain = program_of(sizes, now=1, slots=slots, seed=seed)
    layers, half = len(sizes.expert_bytes), plain.slots // 2
    places = itertools.cycle(range(half, plain.slots))
    rounds = [itertools.cycle(_keys(sizes, layer, (), drawn)) for layer in range(layers)]
    landing: dict[int, tuple[int, tuple[int, ...]]] = {}
    steps, batch = [], -1
    for number, step in enumerate(plain.steps):
        needs, there = landing.pop(number, (-1, ()))
        copies = []
        if number % SPACING == SPACING - 1:
            layer = (number + USED_AFTER) % layers if used else step.layer
            copies = [(key, next(places)) for key in _distinct(rounds[layer], ahead)]
            batch += 1
            if used:
                landing[number + USED_AFTER] = batch, tuple(slot for _, slot in copies)
        now = there or step.now
        steps.append(
            step._replace(
                now=now, needs=needs, pending=len(there), ahead_done=tuple(copies), rows=_rows(sizes, now, drawn)
            )
        )
    return replace(plain, steps=steps)


def _distinct(keys: Iterator[int], count: int) -> list[int]:
    """The next keys, each once; what comes twice is passed over."""
    found: dict[int, None] = {}
    while len(found) < count:
        found[next(keys)] = None
    return list(found)


def _keys(sizes: LiveSizes, layer: int, order: Sequence[Sequence[int]], drawn: np.random.Generator) -> list[int]:
    """Keys of a layer in the order in which they are taken; too few of them to fill an event are not enough."""
    own = list(order[layer]) if order else []
    if len(set(own)) < min(sizes.experts, 8):
        own = drawn.permutation(sizes.experts).tolist()
    return [layer * sizes.experts + expert for expert in own]


def _rows(sizes: LiveSizes, slots: Sequence[int], drawn: np.random.Generator) -> dict[int, tuple[int, ...]] | None:
    """Rows that want the experts of an event, drawn; None if a pass has one row."""
    if sizes.rows == 1:
        return None
    return {slot: tuple(drawn.choice(sizes.rows, sizes.pairs, replace=False).tolist()) for slot in slots}
