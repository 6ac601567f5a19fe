"""Predictions of rows as predictions of events: an event's set, each expert once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.trace import IntArray, csr_offsets

Scores = npt.NDArray[np.float32]


def check_depth(depth: int, n_layers: int) -> None:
    """See that a look-ahead reaches no further back than the first layer.

    Raises
    ------
    TraceError
        It does.
    """
    if depth >= n_layers:
        most = f"at most {n_layers - 1} (the model has {n_layers} MoE layers)"
        raise TraceError(f"{depth} layers ahead, expected {most}")


def united(
    event: IntArray,
    counts: IntArray,
    ids: npt.NDArray[Any],
    scores: npt.NDArray[Any] | None,
    *,
    n_events: int,
    experts: int,
) -> tuple[IntArray, IntArray, Scores | None]:
    """Union of the rows' predictions by event: by falling score, or in the order in which they came.

    Parameters
    ----------
    event : (R,)
        Event of each row.
    counts : (R,)
        How many experts were predicted for it.
    ids : (N,)
        Their ids, N = sum of `counts`.
    scores : (N,) or None
        Their scores; where rows differ about an expert, the highest counts.
    n_events
        Events of the trace.
    experts
        Experts a layer.

    Returns
    -------
    tuple
        Offsets (n_events + 1,), ids, and their scores or None.

    Raises
    ------
    TraceError
        An id out of range, or a score that is no number.
    """
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < experts:
        raise TraceError(f"expert id outside 0..{experts - 1}")
    if scores is not None and not np.isfinite(scores).all():
        raise TraceError("a prediction's score is no number")
    at = np.repeat(np.asarray(event, dtype=np.int64), counts)
    order = np.lexsort((np.arange(len(ids)), np.zeros(len(ids)) if scores is None else -scores, at))
    code = (at * experts + ids)[order]
    first = np.sort(np.unique(code, return_index=True)[1])
    per_event = np.bincount(code[first] // experts, minlength=n_events)
    kept = None if scores is None else np.asarray(scores, dtype=np.float32)[order][first]
    return csr_offsets(per_event), (code[first] % experts).astype(np.int16), kept
