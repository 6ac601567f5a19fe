"""SGLang's expert distribution recorder in mode per_token: a `.pt` of passes with `topk_ids_of_layer`.

Source of the format: sgl-project/sglang, `python/sglang/srt/eplb/expert_distribution.py`. A record is one forward
pass: ids [layers, tokens, 8] padded with -1, `forward_mode`, `extend_seq_lens`. Ids are of *physical* experts; the
file's `last_physical_to_logical_map` turns them into the model's. `forward_mode` is a number of an enum that has
changed, so it is believed only where the rest of the record agrees: an extend pass has `extend_seq_lens`, a
decode pass has none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.arrays import torch_file
from expert_residency.traces.readers.base import read_bytes
from expert_residency.traces.readers.checks import need_model
from expert_residency.traces.readers.rows import Rows, trace_of
from expert_residency.traces.trace import IntArray, Phase, RoutingTrace

name = "sglang-recorder"
description = "SGLang expert distribution recorder, per_token (.pt, read without PyTorch; needs --model)"

EXTEND, DECODE, MIXED, IDLE, VERIFY = 1, 2, 3, 4, 5
"""`ForwardMode` of SGLang; draft passes come after."""


def sniff(head: bytes, path: Path) -> bool:
    """A torch zip whose pickle names the ids."""
    return head.startswith(b"PK") and b"topk_ids_of_layer" in head


def read(path: Path, model: ModelGeometry | None = None) -> RoutingTrace:
    """Read with the geometry of `model`; k is the file's."""
    geometry = need_model(path, model)
    records, mapping = records_of(torch_file(read_bytes(path), path), path)
    columns: list[tuple[IntArray, IntArray, IntArray, int]] = []
    skipped = 0
    request, after_decode = 0, False
    said = []
    numbers = []
    for at, record in enumerate(records):
        place = f"record {at}"
        ids = record.get("topk_ids_of_layer")
        if not isinstance(ids, np.ndarray) or ids.ndim != 3 or ids.dtype.kind != "i":
            raise TraceError("no topk_ids_of_layer [layers, tokens, k]", path=path, place=place)
        phase = _phase(record, path, place)
        if phase is None or not ids.size:
            skipped += 1
            continue
        block = logical(_moe_layers(ids, geometry, path, place), mapping, geometry, path, place)
        if phase == Phase.PREFILL and after_decode:
            request, after_decode = request + 1, False
        after_decode |= phase != Phase.PREFILL
        present = np.flatnonzero((block >= 0).any(axis=(0, 2)))  # CUDA graphs pad passes with rows of -1
        columns.append(
            (block[:, present], np.asarray([request]), _positions(record, ids.shape[1])[present], phase)
        )
        numbers.append(at)
    if not columns:
        raise TraceError("no pass that routes", path=path)
    if skipped:
        said.append(f"{skipped} idle or draft passes are left out")
    if any(phase == Phase.DECODE and block.shape[1] > 1 for block, _, _, phase in columns):
        said.append("decode passes hold a batch of requests, which the file does not tell apart")
    flat = [block.reshape(-1, block.shape[2]) for block, _, _, _ in columns]
    width = max(block.shape[1] for block in flat)
    table = np.concatenate([np.pad(b, ((0, 0), (0, width - b.shape[1])), constant_values=-1) for b in flat])
    layers = np.asarray(geometry.layer_ids)
    sizes = np.asarray([len(block) for block in flat])
    pass_number = np.repeat(np.arange(len(columns)), sizes)
    kept = table >= 0
    rows = Rows(
        layer=np.concatenate([np.repeat(layers, block.shape[1]) for block, _, _, _ in columns]),
        counts=kept.sum(axis=1),
        experts=table[kept].astype(np.int64),
        place=lambda i: f"record {numbers[int(pass_number[i])]}",
        request=np.repeat([int(number[0]) for _, number, _, _ in columns], sizes),
        phase=np.repeat([int(phase) for _, _, _, phase in columns], sizes),
        position=np.concatenate([np.tile(position, len(layers)) for _, _, position, _ in columns]),
        pass_number=pass_number,
    )
    return trace_of(rows, geometry, path, "SGLang", *said)


def records_of(held: Any, path: Path) -> tuple[list[dict[str, Any]], IntArray | None]:
    """Records of a recorder's file, and its map of physical to logical experts.

    Raises
    ------
    TraceError
        No list of records.
    """
    records = held.get("records") if isinstance(held, dict) else None
    if not isinstance(records, list) or not records or not all(isinstance(r, dict) for r in records):
        raise TraceError("no list of records", path=path)
    mapping = held.get("last_physical_to_logical_map")
    return records, mapping if isinstance(mapping, np.ndarray) and mapping.ndim == 2 else None


def _phase(record: dict[str, Any], path: Path, place: str) -> Phase | None:
    """Of a pass; None where it routes nothing of the model's own layers."""
    mode, lengths = record.get("forward_mode"), record.get("extend_seq_lens")
    if mode in (EXTEND, MIXED) and lengths:
        return Phase.PREFILL
    if mode == DECODE and not lengths:
        return Phase.DECODE
    if mode == VERIFY:
        return Phase.VERIFY
    if mode == IDLE or (type(mode) is int and mode > VERIFY):
        return None
    raise TraceError(
        f"forward_mode {mode!r} {'with' if lengths else 'without'} extend_seq_lens: the number means another "
        f"mode in the "
        "version that wrote the file",
        path=path, place=place,
    )  # fmt: skip


def _moe_layers(ids: IntArray, geometry: ModelGeometry, path: Path, place: str) -> IntArray:
    if len(ids) == geometry.n_layers:
        return ids
    if len(ids) == geometry.total_layers:
        return ids[list(geometry.layer_ids)]
    why = f"{len(ids)} layers, expected {geometry.n_layers} of {geometry.label}"
    raise TraceError(why, path=path, place=place)


def logical(ids: IntArray, mapping: IntArray | None, geometry: ModelGeometry, path: Path, place: str) -> IntArray:
    """Physical ids as the model's own; -1 stays.

    Parameters
    ----------
    ids
        (layers, ...) physical ids of MoE layers.
    mapping
        (layers, physical) logical ids, or None: they are logical already.
    geometry
        The model.
    path
        The file, for messages.
    place
        Where in it.

    Returns
    -------
    IntArray
        As `ids`.

    Raises
    ------
    TraceError
        An id beyond the map.
    """
    if mapping is None:
        return ids
    if len(mapping) == geometry.total_layers:
        mapping = mapping[list(geometry.layer_ids)]
    if len(mapping) != geometry.n_layers or int(ids.max(initial=-1)) >= mapping.shape[1]:
        raise TraceError("physical ids beyond last_physical_to_logical_map", path=path, place=place)
    flat = ids.reshape(len(ids), -1)
    found = np.take_along_axis(mapping, np.maximum(flat, 0).astype(np.int64), axis=1)
    return np.where(flat < 0, -1, found).reshape(ids.shape)


def _positions(record: dict[str, Any], n: int) -> IntArray:
    """Positions of the tokens, or -1."""
    try:
        found = np.asarray(record.get("positions"), dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        found = np.zeros(0, dtype=np.int64)
    return found if found.shape == (n,) and not (found < 0).any() else np.full(n, -1)
