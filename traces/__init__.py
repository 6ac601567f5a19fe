"""What the model asked for: routing traces, model geometries, readers and the synthetic generator."""

from expert_residency.errors import TraceError
from expert_residency.traces.builder import TraceBuilder
from expert_residency.traces.geometry import ModelGeometry, list_models, load_model
from expert_residency.traces.inspect import convert, describe
from expert_residency.traces.parquet import write_parquet
from expert_residency.traces.readers.base import list_formats, read_trace
from expert_residency.traces.trace import Phase, RoutingTrace

__all__ = [
    "ModelGeometry",
    "Phase",
    "RoutingTrace",
    "TraceBuilder",
    "TraceError",
    "convert",
    "describe",
    "list_formats",
    "list_models",
    "load_model",
    "read_trace",
    "write_parquet",
]
