"""Decode routing of many sequences as npz: `experts` [N, L, k], `offsets` [S + 1], `first_pos` [S], `probs`.

Sequence s holds tokens `offsets[s]..offsets[s + 1]`, the first at context position `first_pos[s]`. Every
sequence is a request, every token a decode pass. `probs` [N, L, k] is optional. No pickles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.arrays import members, npz
from expert_residency.traces.readers.base import read_bytes, source_meta
from expert_residency.traces.readers.checks import check_experts, check_size, need_model
from expert_residency.traces.trace import IntArray, Phase, RoutingTrace, assemble

name = "routing-npz"
description = "npz of decode routing: experts [N, L, k], offsets, first_pos (needs --model)"

_REQUIRED = ("experts", "offsets", "first_pos")


def sniff(head: bytes, path: Path) -> bool:
    """A zip with one of the arrays, by name."""
    return {"experts.npy", "offsets.npy", "first_pos.npy"} & set(members(head)) != set()


def read(path: Path, model: ModelGeometry | None = None) -> RoutingTrace:
    """Read with the geometry of `model`; layers are counted over MoE layers; k is the file's."""
    geometry = need_model(path, model)
    arrays = _arrays(path)
    experts, offsets, first_pos = (arrays[n] for n in _REQUIRED)
    if experts.ndim != 3 or experts.dtype.kind not in "iu" or not experts.size:
        raise TraceError(
            f"experts is {experts.dtype} {experts.shape}, expected whole numbers [N, L, k]", path=path
        )
    n, n_layers, k = experts.shape
    check_size(n_layers, geometry.n_layers, f"layers, {geometry.label}", path, "experts")
    for field, values in (("offsets", offsets), ("first_pos", first_pos)):
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise TraceError(
                f"{field} is {values.dtype} {values.shape}, expected a row of whole numbers", path=path
            )
    bounds = offsets.astype(np.int64)
    lengths: IntArray = bounds[1:] - bounds[:-1]
    if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != n or (lengths <= 0).any():
        raise TraceError(f"offsets must rise from 0 to the {n} tokens of experts", path=path)
    check_size(len(first_pos), len(lengths), "entries of first_pos", path)

    def place(i: int) -> str:
        return f"token {i // n_layers}, layer {geometry.layer_ids[i % n_layers]}"

    check_experts(experts.reshape(-1, k), geometry, path, place)
    probs = arrays.get("probs")
    if probs is not None and (probs.shape != experts.shape or probs.dtype.kind != "f"):
        raise TraceError(
            f"probs is {probs.dtype} {probs.shape}, expected numbers of shape {experts.shape}", path=path
        )
    position = np.repeat(first_pos.astype(np.int64) - bounds[:-1], lengths) + np.arange(n)
    return assemble(
        geometry.with_top_k(k),
        pass_request=np.repeat(np.arange(len(lengths)), lengths),
        pass_phase=np.full(n, Phase.DECODE),
        pass_emits=np.ones(n, dtype=np.int64),
        row_pass=np.repeat(np.arange(n), n_layers),
        row_layer=np.tile(np.arange(n_layers), n),
        row_position=np.repeat(position, n_layers),
        row_counts=np.full(n * n_layers, k),
        row_experts=experts.reshape(-1),
        row_weights=None if probs is None else probs.reshape(-1),
        meta=source_meta(path, "npz", "decode only: prompts were not recorded"),
    )


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    data = read_bytes(path)
    if not data.startswith(b"PK"):
        raise TraceError("not an npz: it does not begin as a zip file", path=path)
    found = npz(data, path)
    missing = [n for n in _REQUIRED if n not in found]
    if missing:
        raise TraceError(f"array(s) {', '.join(missing)} missing (found: {', '.join(found)})", path=path)
    return found
