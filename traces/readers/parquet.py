"""Our own Parquet form, read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.parquet import read_parquet
from expert_residency.traces.readers.checks import with_sizes_of
from expert_residency.traces.trace import RoutingTrace

name = "parquet"
description = "this program's own traces (Parquet, one row for each routing row)"


def sniff(head: bytes, path: Path) -> bool:
    """Parquet magic."""
    return head.startswith(b"PAR1")


def read(path: Path, model: ModelGeometry | None = None) -> RoutingTrace:
    """Read; a given model replaces the sizes."""
    trace = read_parquet(path)
    return trace if model is None else replace(trace, geometry=with_sizes_of(model, trace.geometry, path))
