"""Hypothesis strategies: geometries, traces, capacities. Needs `hypothesis` (extra `test`)."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from expert_residency.sim.choices.capacity import Capacity
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace, TraceBuilder


@st.composite
def geometries(
    draw: DrawFn, *, max_layers: int = 3, max_experts: int = 6, max_top_k: int = 3, uniform: bool = False
) -> ModelGeometry:
    """Small models; layer ids with gaps, expert sizes that differ between layers unless `uniform`.

    Parameters
    ----------
    draw
        Given by hypothesis.
    max_layers
        Most MoE layers.
    max_experts
        Most experts of a layer.
    max_top_k
        Most experts of a row.
    uniform
        Whether all experts have 1 byte.

    Returns
    -------
    ModelGeometry
        The geometry.
    """
    experts = draw(st.integers(1, max_experts))
    top_k = draw(st.integers(1, min(max_top_k, experts)))
    layer_ids = tuple(sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=max_layers))))
    sizes = tuple(1 if uniform else draw(st.integers(1, 4)) for _ in layer_ids)
    return ModelGeometry("drawn", layer_ids, experts, top_k, sizes, (1,) * len(layer_ids))


@st.composite
def traces(
    draw: DrawFn,
    geometry: SearchStrategy[ModelGeometry] | None = None,
    *,
    max_passes: int = 25,
    max_rows: int = 3,
) -> RoutingTrace:
    """Traces of any phases, several requests, several rows a pass; every pass visits every layer.

    Parameters
    ----------
    draw
        Given by hypothesis.
    geometry
        Strategy for the model; `geometries()` by default.
    max_passes, max_rows
        Most passes, and most rows of each.

    Returns
    -------
    RoutingTrace
        The trace.
    """
    model = draw(geometries() if geometry is None else geometry)
    builder = TraceBuilder(model)
    row = st.permutations(range(model.experts)).map(lambda order: list(order[: model.top_k]))
    request = 0
    for _ in range(draw(st.integers(1, max_passes))):
        request += draw(st.integers(0, 5)) == 5
        rows = draw(st.integers(1, max_rows))
        phase = Phase.DECODE if rows == 1 else draw(st.sampled_from([Phase.PREFILL, Phase.VERIFY]))
        builder.begin_pass(phase, request=request)
        for layer in model.layer_ids:
            for _ in range(rows):
                builder.row(layer, draw(row))
    return builder.build(whole=False)


@st.composite
def capacities(draw: DrawFn, geometry: ModelGeometry) -> Capacity:
    """From one expert a scope to more than everything: bytes or slots, one pool or quotas of layers."""
    if draw(st.booleans()):
        scope = draw(st.sampled_from(["global", "layer"]))
        return Capacity(slots_per_layer=draw(st.integers(1, geometry.experts + 1)), scope=scope)
    scope = draw(st.sampled_from(["global", "layer"]))
    least = geometry.n_layers * max(geometry.expert_bytes) if scope == "layer" else min(geometry.expert_bytes)
    return Capacity(total_bytes=draw(st.integers(least, max(least, geometry.all_expert_bytes) + 2)), scope=scope)
