"""Our own Parquet form, read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.parquet import HAS_BLOCK, column_names, read_parquet
from expert_residency.traces.readers.checks import with_sizes_of
from expert_residency.traces.trace import RoutingTrace
from expert_residency.traces.whole import only_layers_seen

name = "parquet"
description = "this program's own traces (Parquet, one row for each routing row)"


def sniff(head: bytes, path: Path) -> bool:
    """Parquet that has our block of facts, or that cannot be read at all."""
    return head.startswith(b"PAR1") and (not (names := column_names(path)) or HAS_BLOCK in names)


def read(path: Path, model: ModelGeometry | None = None, partial: bool = False) -> RoutingTrace:
    """Read.

    Parameters
    ----------
    path
        The file.
    model
        Replaces the sizes.
    partial
        Cut the model to the layers that the trace has.

    Returns
    -------
    RoutingTrace
        The trace.
    """
    trace = read_parquet(path)
    trace = only_layers_seen(trace) if partial else trace
    return trace if model is None else replace(trace, geometry=with_sizes_of(model, trace.geometry, path))
