"""What the passes of a live run attend over: cells of keys and values, as many bytes as the simulator reads.

A cell of the engine is that of a mean layer, keys and values in 16 bits; of layers with a window a pass has as
many fewer cells as it reads fewer bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from expert_residency.errors import SimError
from expert_residency.hwmodels.executor.steps import HEAD_BYTES
from expert_residency.sim.timed.attention import kv_bytes, lengths
from expert_residency.traces import ModelGeometry, RoutingTrace
from expert_residency.traces.session import SessionShape

KV_TYPE = "fp16"
ROOM_BYTES = 4e9
"""Of keys and values that are measured beyond what runs attend over."""
_NUMBERS = (
    "kv_layers", "key_values", "value_values", "index_cell_bytes", "rope_cell_bytes", "window_layers",
    "window_tokens", "window_key_values", "window_value_values",
)  # fmt: skip
_OWN = {"tinymoe": SessionShape(12, 512, 512, "8 heads of 64 numbers, benchmarks/tinymoe")}


def with_context(geometry: ModelGeometry) -> ModelGeometry:
    """The model with what a context occupies.

    Raises
    ------
    SimError
        If nobody knows.
    """
    shape = geometry.session_shape or _OWN.get(geometry.name)
    if shape is None:
        raise SimError(
            f"model {geometry.label} does not say how large its keys and values are, which --depth needs: give "
            "the model with --model"
        )
    return replace(geometry, session=shape)


def cells_of(trace: RoutingTrace, depth: int) -> tuple[int, tuple[int, ...]]:
    """Bytes of a cell in one layer, and how many each pass attends over.

    Parameters
    ----------
    trace
        Passes of a model that says what a context occupies.
    depth
        Positions behind each request before the trace's own.

    Returns
    -------
    int, tuple of int
        Whole heads; at least one cell.
    """
    geometry = trace.geometry
    shape = geometry.session_shape
    assert shape is not None
    of_all = shape.kv_layers * shape.cell_bytes(KV_TYPE) + shape.window_layers * shape.window_cell_bytes(KV_TYPE)
    cell = max(1, round(of_all / geometry.n_layers / HEAD_BYTES)) * HEAD_BYTES
    nbytes = kv_bytes(geometry, lengths(trace, depth), KV_TYPE)
    return cell, tuple(max(1, round(n / cell)) for n in nbytes.tolist())


def measured_cells(most: int, cell_bytes: int, layers: int) -> tuple[int, ...]:
    """Numbers of cells that a calibration measures: up to what runs attend over, and some beyond.

    Parameters
    ----------
    most
        Cells of the longest pass.
    cell_bytes, layers
        Of a cell in one layer, and layers.

    Returns
    -------
    tuple of int
        Ascending.
    """
    beyond = max(most, min(4 * most, int(ROOM_BYTES // (cell_bytes * layers))))
    return tuple(sorted({1, max(1, most // 16), max(1, most // 4), most, beyond}))


def to_cell(geometry: ModelGeometry) -> str:
    """What a context occupies, as a cell of the table of runs."""
    shape = geometry.session_shape
    return "" if shape is None else " ".join(str(getattr(shape, name)) for name in _NUMBERS)


def from_cell(text: str) -> SessionShape:
    """The same read back.

    Raises
    ------
    ValueError
        Not nine whole numbers.
    """
    numbers: dict[str, Any] = dict(zip(_NUMBERS, map(int, text.split()), strict=True))
    return SessionShape(**numbers, source="the table of runs")


def wider(shape: SessionShape | None, side: int) -> SessionShape | None:
    """Cells of a model that is `side` times as wide."""
    if shape is None:
        return None
    names = ("key_values", "value_values", "window_key_values", "window_value_values")
    return replace(shape, **{name: side * getattr(shape, name) for name in names})
