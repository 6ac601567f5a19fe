"""Which trace: a file or a bundled one, with the byte sizes that are asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from expert_residency.errors import SimError

if TYPE_CHECKING:  # the commands name these functions, and their help should not wait for numpy
    from expert_residency.traces import ModelGeometry, RoutingTrace


def open_trace(source: str, fmt: str | None, model: str | None) -> RoutingTrace:
    """Trace from a file or `bundled:NAME`; `model` replaces its byte sizes where the trace has its own.

    Parameters
    ----------
    source
        File or `bundled:NAME`.
    fmt
        Format of a file; sniffed if None.
    model
        NAME, NAME/QUANT or file of the byte sizes.

    Raises
    ------
    SimError, TraceError
        A format beside a bundled trace, a model of another shape, what cannot be read.
    """
    from expert_residency.traces import load_model, read_trace

    geometry = load_model(model) if model else None
    if source.startswith("bundled:"):
        from expert_residency.traces.bundled import load

        if fmt is not None:
            raise SimError(f"--format {fmt}: {source} has a format of its own; it goes with a file")
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
