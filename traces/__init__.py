"""What the model asked for: routing traces, model geometries, readers and the synthetic generator."""

from traces.builder import TraceBuilder
from traces.errors import TraceError
from traces.geometry import ModelGeometry, list_models, load_model
from traces.inspect import convert, describe
from traces.parquet import write_parquet
from traces.readers.base import list_formats, read_trace
from traces.trace import Phase, RoutingTrace

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
