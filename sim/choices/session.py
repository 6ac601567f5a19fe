"""Bytes of a context: what a model keeps for each position, as lines of a card's budget."""

from __future__ import annotations

from expert_residency.errors import SimError
from expert_residency.hwmodels.vram import Line
from expert_residency.sim.choices.kv_type import KV_TYPE
from expert_residency.traces import ModelGeometry
from expert_residency.traces.session import SessionShape

MIN_KV_RESIDENT_CELLS = 20_480
"""Smallest part of a streamed KV cache that the engine Strata keeps on the card."""


def session_shape(geometry: ModelGeometry) -> SessionShape:
    """What a context takes in this model: as its file says, or the packaged model of its name.

    Raises
    ------
    SimError
        If neither is there; the fix is named.
    """
    found = geometry.session_shape
    if found is None:
        raise SimError(
            f"what a context of {geometry.name} occupies is not known: add a [session] table to the model's file "
            "(packaged models have one), or give its bytes for each card, as in --session 2GiB (0B for none)"
        )
    return found


def session_lines(
    shape: SessionShape, context_tokens: int, *, kv_type: str = KV_TYPE, kv_resident: int = 0, draft: bool = False
) -> list[Line]:
    """Lines of one context on the card.

    Parameters
    ----------
    shape
        The architecture.
    context_tokens
        Positions that the context can hold.
    kv_type
        Storage of a KV cell.
    kv_resident
        Cells a layer kept on the card, the rest streamed from page-locked memory; 0 keeps all.
    draft
        With the draft layer's KV, where the model has a draft layer.

    Returns
    -------
    list of Line
        Without those that this architecture has none of.

    Raises
    ------
    SimError, TraceError
        A `kv_resident` below what the engine needs, an empty context, an unknown KV type.
    """
    cells = resident_cells(context_tokens, kv_resident)
    cell = shape.cell_bytes(kv_type)
    window = min(shape.window_tokens, context_tokens)
    sizes = {
        "recurrent state": shape.state_bytes,
        f"KV, {kv_type}, {cells:,} cells": cells * shape.kv_layers * cell,
        f"KV of sliding windows, {window:,} cells": window
        * shape.window_layers
        * shape.window_cell_bytes(kv_type),
        "index": context_tokens * shape.index_cell_bytes,
        "rope": context_tokens * shape.rope_cell_bytes,
        "buffers": shape.buffer_bytes,
    }
    if draft and shape.draft is not None:
        # Published slots do not fall with the context once KV is streamed, so the draft's KV is streamed too.
        sizes["draft KV"] = cells * (cell + shape.draft.cell_bytes)
    return [Line(name, nbytes, shape.source) for name, nbytes in sizes.items() if nbytes]


def resident_cells(context_tokens: int, kv_resident: int) -> int:
    """Cells a layer on the card."""
    if context_tokens < 1:
        raise SimError(f"a context of {context_tokens} tokens holds nothing")
    if 0 < kv_resident < MIN_KV_RESIDENT_CELLS or kv_resident < 0:
        raise SimError(
            f"kv-resident {kv_resident} is below the {MIN_KV_RESIDENT_CELLS} cells that streaming needs"
        )
    return min(context_tokens, kv_resident) if kv_resident else context_tokens


def streamed_kv_bytes(shape: SessionShape, context_tokens: int, *, kv_type: str, kv_resident: int) -> int:
    """Page-locked host bytes of the KV cells that are not on the card.

    Parameters
    ----------
    shape
        The architecture.
    context_tokens
        Positions that the context can hold.
    kv_type
        Storage of a KV cell.
    kv_resident
        Cells a layer kept on the card; 0: all.

    Returns
    -------
    int
        Bytes of all layers together.

    Raises
    ------
    SimError, TraceError
        As `session_lines`.
    """
    rest = context_tokens - resident_cells(context_tokens, kv_resident)
    return rest * shape.kv_layers * shape.cell_bytes(kv_type)
