"""Time of attention over the context: what each pass reads of keys and values, by the length that it has reached.

Every pass reads the KV cells of its request from first to last position once, in every layer that attends over all
of them, and the last `window_tokens` in layers with a window; with an index it is the index that is read in full,
and the `SELECTED_CELLS` cells that it chooses; latent attention has its one vector a cell, and recurrent layers
read a state whose size does not grow, which is in the dense rate. Rows of one pass share the reading.
The bytes are spread evenly over the MoE layers: which layer attends how is not told apart. A calibrated
card has measured times (`attention_us_by_bytes`); otherwise the rate is the card's for dense bf16 weights, a prior
for attention kernels: from DGX Spark's published decode of gpt-oss-120b at 0, 4k, 16k and 32k tokens of context
(57.8, 54.7, 48.3, 42.9 tokens/s) it comes out as 154, 178 and 201 GB/s of 273.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from expert_residency.errors import SimError
from expert_residency.hwmodels.profile import Gpu
from expert_residency.sim.choices.kv_type import KV_TYPE
from expert_residency.sim.timed.machine import Machine
from expert_residency.text import check_known
from expert_residency.traces import ModelGeometry, RoutingTrace
from expert_residency.traces.session import KV_TYPES, kv_parts

FAMILY = "bf16"
"""Rate of the card's that KV is read at."""
MOST_TOKENS = 1 << 31
SELECTED_CELLS = 2048
"""Cells that sparse attention reads in full, once its index has chosen them (DeepSeek-V3.2; assumed of others)."""


@dataclass(frozen=True)
class Context:
    """What requests attend over.

    Parameters
    ----------
    depth
        Tokens that each request has behind it before the trace's position 0, as `llama-bench -d`.
    kv_type
        Storage of a cell (`traces.session.KV_TYPES`).

    Raises
    ------
    SimError
        A depth that is negative or endless, or an unknown KV type.
    """

    depth: int = 0
    kv_type: str = KV_TYPE

    def __post_init__(self) -> None:
        if not 0 <= self.depth < MOST_TOKENS:
            raise SimError(f"a depth of {self.depth} tokens: expected 0 to {MOST_TOKENS - 1}")
        for part in kv_parts(self.kv_type):
            check_known("KV type", part, KV_TYPES)


NO_DEPTH = Context()
"""Requests that begin where their trace does."""


def lengths(trace: RoutingTrace, depth: int) -> npt.NDArray[np.int64]:
    """(passes,) positions that each pass attends over; `depth` alone where the trace knows no positions."""
    if not trace.n_rows:
        return np.full(trace.n_passes, depth, dtype=np.int64)
    rows = trace.event_row_offsets[trace.pass_event_offsets]
    longest = np.maximum.reduceat(trace.row_position.astype(np.int64), rows[:-1])
    return longest + 1 + depth


def kv_bytes(geometry: ModelGeometry, length: npt.NDArray[np.int64], kv_type: str) -> npt.NDArray[np.int64]:
    """Bytes that attention reads in one MoE layer's share of a pass.

    Parameters
    ----------
    geometry
        The model; one whose context is not known reads nothing, which `sim.choices.caveats` says.
    length : (passes,)
        Positions attended over.
    kv_type
        Storage of a cell.

    Returns
    -------
    array (passes,)
        Bytes.
    """
    shape = geometry.session_shape
    if shape is None:
        return np.zeros(len(length), dtype=np.int64)
    cells = np.minimum(length, SELECTED_CELLS) if shape.index_cell_bytes else length
    whole = shape.kv_layers * shape.cell_bytes(kv_type) * cells
    beside = (shape.index_cell_bytes + shape.rope_cell_bytes) * length
    window = shape.window_layers * shape.window_cell_bytes(kv_type)
    total = whole + beside + window * np.minimum(length, shape.window_tokens)
    return np.asarray(total // geometry.n_layers, dtype=np.int64)


def attention_ns(trace: RoutingTrace, machine: Machine, context: Context) -> npt.NDArray[np.int64]:
    """What attention adds to each MoE layer of a pass.

    Parameters
    ----------
    trace
        Positions, and the model.
    machine
        The cards.
    context
        What requests have behind them.

    Returns
    -------
    array (cards, passes)
        Ns, by the card that runs the layer.
    """
    nbytes = kv_bytes(trace.geometry, lengths(trace, context.depth), context.kv_type)
    return np.stack([_card_ns(nbytes, card.gpu) for card in machine.cards])


def _card_ns(nbytes: npt.NDArray[np.int64], gpu: Gpu) -> npt.NDArray[np.int64]:
    """Ns on one card: by measured times, the first one's below it and the last line beyond, or by the rate."""
    points = gpu.attention_points
    if len(points) < 2 or not nbytes.any():
        return np.asarray(-(-nbytes * 1000 // gpu.dense_gb_per_s.mb_per_s(FAMILY)), dtype=np.int64)
    at, ns = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    found = np.interp(nbytes, at, ns)
    beyond = np.maximum(0, nbytes - at[-1]) * (ns[-1] - ns[-2]) / (at[-1] - at[-2])
    return np.asarray(np.rint(found + beyond), dtype=np.int64)
