"""Whole layers of a live engine, with and without each part.

The engine that carries out recorded runs carries out these as well: programs of equal events of `now` residents,
`copies` demand copies, `cpu` experts on the CPU, `ahead` copies for later. What a part costs is the difference to
the bare layer, so that launches, hidden latencies and the host's own work are counted as an engine meets them.
"""

from __future__ import annotations

import itertools
from typing import Protocol

import numpy as np

from hwmodels.calibrate.readings import Bench
from hwmodels.live.card import LiveSizes
from hwmodels.live.steps import Measured, Program, Step

COUNTS = (1, 2, 4, 8)
EVENTS = 288
SKIPPED = 2
"""Passes of a program that are not counted."""


class Engine(Protocol):
    """A live engine."""

    def load(self, program: Program) -> None:
        """Make a program ready."""

    def run(self) -> Measured:
        """Carry it out."""


def program_of(
    sizes: LiveSizes, *, now: int = 0, copies: int = 0, cpu: int = 0, ahead: int = 0, layers: int | None = None,
    seed: int = 0,
) -> Program:  # fmt: skip
    """Equal events over all layers (or the first `layers`), experts drawn at random from all of a layer.

    A third of all experts have slots; copies go round another third, so that no cache of the machine holds them.
    """
    drawn = np.random.default_rng(seed)
    used = layers or len(sizes.expert_bytes)
    residents = max(8, sizes.experts * len(sizes.expert_bytes) // 3)
    places = itertools.cycle(range(residents, 2 * residents))
    passes = max(SKIPPED + 2, EVENTS // used)
    steps = []
    for _ in range(passes):
        for layer in range(used):
            first = layer * sizes.experts
            wanted = (first + drawn.choice(sizes.experts, copies + cpu + ahead, replace=False)).tolist()
            slots = [next(places) for _ in range(copies)]
            spare = [next(places) for _ in range(ahead)]
            steps.append(
                Step(
                    layer,
                    now=tuple(drawn.choice(residents, now, replace=False).tolist()),
                    copies=tuple(zip(wanted[:copies], slots, strict=True)),
                    later=tuple(slots),
                    cpu=tuple(wanted[copies : copies + cpu]),
                    ahead_done=tuple(zip(wanted[copies + cpu :], spare, strict=True)),
                )
            )
    return Program(steps, [p * used for p in range(passes + 1)], (), 2 * residents)


def layer_benches(engine: Engine, sizes: LiveSizes, *, cpu: bool) -> list[Bench]:
    """Time of a layer: a mean over passes, the head's share in it; `one layer` is a pass of one layer.

    Parameters
    ----------
    cpu
        Whether the engine can give experts to the CPU.
    """
    layers = len(sizes.expert_bytes)

    def bench(name: str, program: Program, divisor: int, params: dict[str, int]) -> Bench:
        def run() -> float:
            engine.load(program)
            return float(engine.run().pass_ns[SKIPPED:].mean()) / divisor

        return Bench(name, params, run)

    def layer(**parts: int) -> Bench:
        shown = {"now": 0, "copies": 0, "cpu": 0, "ahead": 0} | parts
        return bench("layer", program_of(sizes, **parts), layers, shown)

    most = min(COUNTS[-1], sizes.experts)
    counts = [n for n in COUNTS if n <= most]
    return [
        bench("one layer", program_of(sizes, layers=1), 1, {}),
        layer(),
        *(layer(now=n) for n in counts),
        *(layer(copies=n) for n in counts),
        *((layer(cpu=n) for n in counts) if cpu else ()),
        layer(now=4, copies=min(4, most)),
        layer(now=most - 1, copies=1),
        layer(now=4, ahead=min(4, most)),
        layer(now=most, ahead=1),
        *((layer(now=4, copies=2, cpu=2), layer(now=4, cpu=4, ahead=4)) if cpu else ()),
    ]
