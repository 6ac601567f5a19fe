"""Small random traces on which policies are checked: several layers, unequal sizes, prompts, windows, requests."""

from __future__ import annotations

import random

from expert_residency.sim.choices.capacity import Capacity
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace, TraceBuilder

PHASES = (Phase.DECODE, Phase.DECODE, Phase.DECODE, Phase.VERIFY, Phase.PREFILL)


def random_trace(
    seed: int, *, layers: int = 3, experts: int = 7, top_k: int = 2, passes: int = 60, uniform: bool = False
) -> RoutingTrace:
    """A seeded trace; popular experts are wanted more often, and every fifth pass or so has many rows.

    Parameters
    ----------
    seed
        Of the draws.
    layers
        MoE layers.
    experts
        Experts of a layer.
    top_k
        Experts of a row.
    passes
        Passes of the trace.
    uniform
        Whether all experts have one size.

    Returns
    -------
    RoutingTrace
        The trace.
    """
    rng = random.Random(seed)
    sizes = tuple(10 if uniform else 10 + 3 * layer for layer in range(layers))
    geometry = ModelGeometry("random", tuple(range(layers)), experts, top_k, sizes, (1,) * layers)
    builder = TraceBuilder(geometry)
    weights = [1.0 / (1 + expert) for expert in range(experts)]
    for number in range(passes):
        phase = rng.choice(PHASES)
        builder.begin_pass(phase, request=number * 3 // passes)
        rows = {Phase.DECODE: 1, Phase.VERIFY: 2, Phase.PREFILL: 4}[phase]
        for layer in range(layers):
            for _ in range(rows):
                builder.row(layer, _sample(rng, weights, top_k))
    return builder.build()


def _sample(rng: random.Random, weights: list[float], count: int) -> list[int]:
    """Distinct experts, drawn by weight."""
    left = list(weights)
    drawn: list[int] = []
    for _ in range(count):
        expert = rng.choices(range(len(left)), left)[0]
        drawn.append(expert)
        left[expert] = 0.0
    return drawn


def capacities(geometry: ModelGeometry) -> list[Capacity]:
    """From less than one event to everything, global and by layer."""
    whole = geometry.all_expert_bytes
    return [
        Capacity(total_bytes=whole // 8),
        Capacity(total_bytes=whole // 2),
        Capacity(total_bytes=whole),
        Capacity(total_bytes=whole // 2, scope="layer"),
        Capacity(slots_per_layer=geometry.top_k + 1, scope="layer"),
    ]
