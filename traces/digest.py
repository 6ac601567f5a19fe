"""A hash of a trace's content that can be taken part by part, for traces that are never held whole."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.traces.trace import RoutingTrace


class PartsDigest:
    """One running hash a column, over consecutive parts of whole passes: the same however the trace is cut."""

    def __init__(self) -> None:
        self._columns: dict[str, Any] = {}

    def add(self, part: RoutingTrace) -> None:
        """Take the next passes."""
        events = np.bincount(part.event_pass, minlength=part.n_passes)
        self._take("request", part.pass_request, np.int32)
        self._take("phase", part.pass_phase, np.int8)
        self._take("emits", part.pass_emits, np.int32)
        self._take("events", events, np.int32)
        self._take("layer", part.event_layer, np.int16)
        self._take("rows", np.diff(part.event_row_offsets), np.int32)
        self._take("position", part.row_position, np.int32)
        self._take("k", np.diff(part.row_offsets), np.int32)
        self._take("experts", part.row_experts, np.int16)
        self._take("weights", part.row_weights, np.float32)
        self._take("residency", part.row_residency, np.int8)
        for depth, (offsets, experts) in part.predictions.items():
            self._take(f"predicted {depth}", np.diff(offsets), np.int32)
            self._take(f"predicted experts {depth}", experts, np.int16)
            self._take(f"scores {depth}", part.prediction_scores.get(depth), np.float32)

    def _take(self, name: str, values: npt.NDArray[Any] | None, dtype: type[np.generic]) -> None:
        if values is not None and len(values):
            own = self._columns.setdefault(name, hashlib.sha256())
            own.update(np.ascontiguousarray(values, dtype=dtype).tobytes())

    def hexdigest(self) -> str:
        """SHA-256 of all columns' hashes."""
        whole = "".join(f"{name} {own.hexdigest()}\n" for name, own in sorted(self._columns.items()))
        return hashlib.sha256(whole.encode()).hexdigest()


def parts_hash(trace: RoutingTrace) -> str:
    """`PartsDigest` of a whole trace."""
    digest = PartsDigest()
    digest.add(trace)
    return digest.hexdigest()
