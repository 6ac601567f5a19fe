"""Which trace: a file or a bundled one, with the byte sizes that are asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from expert_residency.errors import SimError

if TYPE_CHECKING:  # the commands name these functions, and their help should not wait for numpy
    from expert_residency.traces import ModelGeometry, RoutingTrace


def open_trace(source: str, fmt: str | None, model: str | None) -> RoutingTrace:
    """Trace from a file or `bundled:NAME`; `model` replaces its byte sizes where the trace has its own."""
    from expert_residency.traces import load_model, read_trace

    geometry = load_model(model) if model else None
    if source.startswith("bundled:"):
        from expert_residency.traces.bundled import load

        trace = load(source.removeprefix("bundled:"))
    else:
        trace = read_trace(source, format=fmt, model=geometry)
    if geometry is not None and geometry.label != trace.geometry.label:
        trace = fit_geometry(trace, geometry)
    return trace


def fit_geometry(trace: RoutingTrace, model: ModelGeometry) -> RoutingTrace:
    """The same routing with another model's byte sizes.

    Raises
    ------
    SimError
        If the layers or expert counts differ.
    """
    own = trace.geometry
    if (model.n_layers, model.experts) != (own.n_layers, own.experts):
        raise SimError(
            f"model {model.label} has {model.n_layers} x {model.experts} experts, the trace of {own.label} has "
            f"{own.n_layers} x {own.experts}"
        )
    return replace(trace, geometry=replace(model, top_k=own.top_k))
