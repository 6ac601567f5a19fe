"""Counts of tokens by (pass, layer, expert): exact events whose order inside is lost.

SGLang's recorder in modes stat (`logical_count`) and per_pass (`global_physical_count`), TensorRT-LLM's
EXPERT_STATISTIC (safetensors, `<pass>_<layer>`), vllm-ascend's expert loads, and any array [passes, layers,
experts]. An event needs its distinct experts and how many rows want each, which counts give; the rows here are
dealt out so that both are right. Who was routed with whom, ranks, weights and the order of experts inside an
event are not recorded, so what depends on them (ties of recency, first of all) is not the engine's.

One matrix summed over all passes ([layers, experts]) is no trace but a placement: `residency placement --from`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.arrays import any_arrays, members, npy_shape, safetensors_header
from expert_residency.traces.readers.base import read_bytes
from expert_residency.traces.readers.checks import check_size, need_model
from expert_residency.traces.readers.rows import Rows, prompt_first, trace_of
from expert_residency.traces.readers.sglang_recorder import records_of
from expert_residency.traces.trace import RoutingTrace

name = "event-counts"
description = (
    "counts by pass, layer, expert: SGLang stat and per_pass, TensorRT-LLM, vllm-ascend (events, no order)"
)
marks = ("logical_count", "global_physical_count", "expert_load", "moe_load")

ORDER_LOST = "counts, not rows: events are exact, the order inside them, ranks and weights are lost"
_NAMES = ("logical_count", "counts", "expert_counts", "expert_load", "moe_load")
_KEY = re.compile(r"(\d{1,9})_(\d{1,9})")
_MOST_CELLS = 1 << 28


def sniff(head: bytes, path: Path) -> bool:
    """An array of counts, a container of one, or the recorder's file without ids."""
    if head.startswith(b"IKU1") or re.match(rb"-1 \d+ \d+\r?\n", head):
        return True  # usage counts: refused by name
    if (shape := npy_shape(head)) is not None:
        return shape[0].kind in "iuf" and (len(shape[1]) == 2 or (len(shape[1]) == 3 and shape[1][-1] > 64))
    if head.startswith(b"PK"):
        inside = {name.removesuffix(".npy") for name in members(head)}
        named = b"logical_count" in head or b"global_physical_count" in head
        return bool(inside & set(_NAMES)) or (b"data.pkl" in head[:200] and named and b"topk_ids" not in head)
    header = safetensors_header(head)
    return bool(header) and all(_KEY.fullmatch(key) for key in (header or {}) if key != "__metadata__")


def read(path: Path, model: ModelGeometry | None = None, prompt_tokens: int | None = None) -> RoutingTrace:
    """Read with the geometry of `model`.

    Parameters
    ----------
    path
        The file, gzipped or not.
    model
        Shape and sizes.
    prompt_tokens
        Rows at the start that are the prompt; inferred from the rows of passes if None.

    Returns
    -------
    RoutingTrace
        Exact in events; its `meta` has `order: lost`.

    Raises
    ------
    TraceError
        One matrix without passes, another shape than the model's, negative counts, or none.
    """
    if read_bytes(path, 4).startswith((b"-1 ", b"IKU1")):
        raise TraceError(
            "usage counts, summed over all passes, are no trace but a placement: residency placement --from",
            path=path,
        )
    geometry = need_model(path, model)
    counts = _counts(any_arrays(path), geometry, path)
    busy = counts.any(axis=(1, 2))
    if not busy.any():
        raise TraceError("all counts are 0", path=path)
    said = [] if busy.all() else [f"{int((~busy).sum())} passes without a count are left out"]
    numbers = np.flatnonzero(busy)
    counts = counts[busy]
    k = geometry.top_k
    pairs = counts.sum(axis=2)
    if not pairs.all():
        at, layer = (int(i) for i in np.argwhere(pairs == 0)[0])
        where = f"pass {int(numbers[at])}"
        raise TraceError(f"no counts of layer {geometry.layer_ids[layer]}", path=path, place=where)
    rows = np.maximum(-(-pairs // k), counts.max(axis=2))
    most = np.where((rows[:, -1] == 1) & (len(geometry.layer_ids) > 1), rows[:, :-1].max(axis=1), rows.max(axis=1))
    target = np.repeat(most[:, None], rows.shape[1], axis=1)
    target[:, -1] = np.where(rows[:, -1] == 1, 1, most)
    if (pairs < target).any():
        at, layer = (int(i) for i in np.argwhere(pairs < target)[0])
        found, rows_there = int(pairs[at, layer]), int(target[at, layer])
        why = f"layer {geometry.layer_ids[layer]} has counts of {found} for {rows_there} tokens"
        raise TraceError(why, path=path, place=f"pass {int(numbers[at])}")
    row_layer, length, experts, of_pass = _dealt(counts, target)
    made = Rows(
        layer=np.asarray(geometry.layer_ids)[row_layer],
        counts=length,
        experts=experts,
        place=lambda i: f"pass {int(numbers[of_pass[i]])}",
        pass_number=None if prompt_tokens is None else of_pass,
        new_event=None,
    )
    phases = None if prompt_tokens is None else prompt_first(prompt_tokens, path)
    return trace_of(made, geometry, path, "counts", ORDER_LOST, *said, phases=phases, order="lost")


def _counts(held: Any, geometry: ModelGeometry, path: Path) -> npt.NDArray[np.int64]:
    """[passes, MoE layers, experts] of whatever the file holds."""
    if isinstance(held, dict) and "records" in held:
        array = _per_pass(held, geometry, path)
    elif isinstance(held, dict):
        named = [key for key in _NAMES if isinstance(held.get(key), np.ndarray)]
        array = held[named[0]] if named else _keyed(held, geometry, path)
    else:
        array = held
    if isinstance(array, np.ndarray) and array.ndim == 2:
        raise TraceError(
            f"one matrix {array.shape}, summed over all passes, is no trace but a placement: residency "
            f"placement --from",
            path=path,
        )
    if not isinstance(array, np.ndarray) or array.ndim != 3 or array.dtype.kind not in "iuf":
        raise TraceError("no counts [passes, layers, experts]", path=path)
    if array.shape[1] == geometry.total_layers != geometry.n_layers:
        array = array[:, list(geometry.layer_ids)]
    check_size(array.shape[1], geometry.n_layers, f"layers, {geometry.label}", path)
    check_size(array.shape[2], geometry.experts, f"experts, {geometry.label}", path)
    if (
        not np.isfinite(array).all()
        or (array < 0).any()
        or (array != np.floor(array)).any()
        or array.max() >= 1 << 31
    ):
        raise TraceError("counts are not whole numbers of 0 or more", path=path)
    whole = array.astype(np.int64)
    if int(whole.sum()) > _MOST_CELLS:
        raise TraceError(f"counts of {int(whole.sum())} routed experts, more than {_MOST_CELLS}", path=path)
    return np.asarray(whole)


def _per_pass(held: dict[str, Any], geometry: ModelGeometry, path: Path) -> npt.NDArray[Any]:
    records, mapping = records_of(held, path)
    found: list[Any] = [record.get("global_physical_count") for record in records]
    if not all(isinstance(c, np.ndarray) and c.ndim == 2 and c.shape == np.shape(found[0]) for c in found):
        raise TraceError("records without global_physical_count [layers, experts]", path=path)
    physical = np.stack(found)
    if mapping is None or physical.shape[1:] != mapping.shape:
        return physical
    if int(mapping.min()) < 0 or int(mapping.max()) >= geometry.experts:
        raise TraceError("last_physical_to_logical_map names experts that the model lacks", path=path)
    out = np.zeros((len(physical), len(mapping), geometry.experts), dtype=np.int64)
    layer = np.repeat(np.arange(len(mapping)), mapping.shape[1])
    where: Any = (slice(None), layer, mapping.reshape(-1))
    np.add.at(out, where, physical.reshape(len(physical), -1).astype(np.int64))
    return out


def _keyed(held: dict[str, Any], geometry: ModelGeometry, path: Path) -> npt.NDArray[Any]:
    """TensorRT-LLM: an entry `<pass>_<layer>` of counts for each."""
    parts = {key: _KEY.fullmatch(str(key)) for key in held}
    if not held or not all(parts.values()):
        raise TraceError(f"no counts: neither {', '.join(_NAMES)} nor <pass>_<layer>", path=path)
    place = [(int(m[1]), int(m[2])) for m in parts.values() if m]
    passes = sorted({number for number, _ in place})
    layers = sorted({layer for _, layer in place})
    if len(place) != len(passes) * len(layers):
        raise TraceError(f"{len(place)} entries for {len(passes)} passes x {len(layers)} layers", path=path)
    if any(not isinstance(c, np.ndarray) or c.shape != (geometry.experts,) for c in held.values()):
        raise TraceError(f"an entry that is not one count for each of {geometry.experts} experts", path=path)
    out = np.zeros((len(passes), len(layers), geometry.experts))
    for (number, layer), values in zip(place, held.values(), strict=True):
        out[passes.index(number), layers.index(layer)] = values
    return out


def _dealt(counts: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
    """Rows that have these counts: layer index, length, ids and pass, of each row.

    Each event's experts, the most wanted first, are dealt in turn to its rows: an expert that c rows want lands in
    c rows that follow one another, and c is at most the number of rows, so none gets it twice.
    """
    of_pass, layer, expert = np.nonzero(counts)
    wanted = counts[of_pass, layer, expert]
    order = np.lexsort((expert, -wanted, layer, of_pass))
    of_pass, layer, expert, wanted = of_pass[order], layer[order], expert[order], wanted[order]
    entry_pass, entry_layer, entry = (np.repeat(v, wanted) for v in (of_pass, layer, expert))
    event = entry_pass * counts.shape[1] + entry_layer
    first = np.flatnonzero(np.diff(event, prepend=-1))
    turn = np.arange(len(event)) - np.repeat(first, np.diff(np.append(first, len(event))))
    row = turn % rows[entry_pass, entry_layer]
    order = np.lexsort((turn, row, event))
    key = event[order] * (int(rows.max()) + 1) + row[order]
    start = np.flatnonzero(np.diff(key, prepend=-1))
    return (
        entry_layer[order][start],
        np.diff(np.append(start, len(key))),
        entry[order].astype(np.int64),
        entry_pass[order][start],
    )
