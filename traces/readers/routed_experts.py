"""The routed-experts array of serving and training frameworks: [tokens, layers, k] whole numbers for a request.

vLLM (`--enable-return-routed-experts`: `routed_experts`, since 0.21 with `prompt_routed_experts`), SGLang
(`meta_info.routed_experts`, base64 of int32), slime (`rollout_routed_experts`), verl, SkyRL and Megatron's router
replay hand over the same array. It is read from npy, npz, `.pt`, Parquet, and JSON or JSONL of one or more
responses.

- Where the prompt ends is in the file (a prompt array, token ids, usage), or is said by `prompt_tokens`.
- Ids of -1 are padding; a token all of -1 (a prefix-cache hit, left padding) or all of 0 has no routing in the
  file and is left out, and counted.
- Layers are the model's MoE layers, or all of its layers, of which dense ones are then left out.
- The last sampled token is never routed, so n generated tokens have n - 1 rows.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.parquet import column_names
from expert_residency.traces.readers.arrays import any_arrays, members, npy_shape
from expert_residency.traces.readers.base import read_bytes
from expert_residency.traces.readers.checks import need_model
from expert_residency.traces.readers.files import json_lines, load_json
from expert_residency.traces.readers.rows import Rows, trace_of
from expert_residency.traces.trace import Phase, RoutingTrace

name = "routed-experts"
description = "routed-experts arrays of vLLM, SGLang, slime, verl, SkyRL, Megatron: npy, npz, .pt, Parquet, JSON"
marks = ("routed_experts", "prompt_routed_experts", "rollout_routed_experts", "meta_info", "completion_tokens")

_KEYS = ("routed_experts", "rollout_routed_experts", "output_routed_experts")
_PROMPT = "prompt_routed_experts"
_WIDEST_K = 64
"""A last dimension up to which an array of whole numbers is taken for ids, not for counts of experts."""
_FEW_RESPONSES = 1 << 20


@dataclass
class Request:
    """One request's array [tokens, layers, k], as far as it is known."""

    routed: Any
    place: str
    prompt: Any = None
    """A separate array of the prompt."""
    prompt_tokens: int | None = None


def sniff(head: bytes, path: Path) -> bool:
    """An array of small last dimension, or a container that names one of the fields."""
    if (shape := npy_shape(head)) is not None:
        return shape[0].kind in "iu" and len(shape[1]) in (3, 4) and shape[1][-1] <= _WIDEST_K
    if head.startswith(b"PK"):
        inside = {name.removesuffix(".npy") for name in members(head)}
        return bool(inside & {*_KEYS, _PROMPT}) or (b"data.pkl" in head[:200] and _named(head))
    if head.startswith(b"PAR1"):
        return bool({*_KEYS} & set(column_names(path)))
    return head.lstrip()[:1] in (b"{", b"[") and _named(head)


def _named(head: bytes) -> bool:
    return re.search(rb"(?:prompt|rollout|output)?_?routed_experts", head) is not None


def read(
    path: Path, model: ModelGeometry | None = None, prompt_tokens: int | None = None, top_k: int = 0
) -> RoutingTrace:
    """Read with the geometry of `model`; k is the file's.

    Parameters
    ----------
    path
        The file, gzipped or not.
    model
        Shape and sizes.
    prompt_tokens
        Of each request, where the file does not say it; 0: no prompt is in the file.
    top_k
        Experts of a token in base64 arrays, which have no shape; 0: the model's.

    Returns
    -------
    RoutingTrace
        A prefill pass for each request's prompt and a decode pass for each further token.

    Raises
    ------
    TraceError
        No such array, a shape that is not the model's, ids out of range, or a prompt whose end nobody says.
    """
    geometry = need_model(path, model)
    found = list(_requests(path))
    if not found:
        raise TraceError(f"no field {', '.join(_KEYS)}", path=path)
    return trace_of_requests(found, geometry, path, prompt_tokens, top_k)


def trace_of_requests(
    found: list[Request],
    geometry: ModelGeometry,
    path: Path,
    prompt_tokens: int | None,
    top_k: int = 0,
    engine: str = "routed-experts array",
    *notes: str,
) -> RoutingTrace:
    """A trace of arrays [tokens, layers, k], one a request.

    Parameters
    ----------
    found
        The requests.
    geometry
        The model.
    path
        The file, for messages.
    prompt_tokens
        Of each request that does not say it.
    top_k
        Experts of a token in base64 arrays; 0: the model's.
    engine
        What wrote the file.
    notes
        What the reader has to say.

    Returns
    -------
    RoutingTrace
        The trace.

    Raises
    ------
    TraceError
        As `read`.
    """
    blocks, phases, requests, tokens, passes = [], [], [], [], []
    missing = 0
    for number, request in enumerate(found):
        block, prompt = _block(request, geometry, path, prompt_tokens, top_k)
        absent = (block < 0).all(axis=(1, 2)) | ((block == 0).all(axis=(1, 2)) if block.shape[2] > 1 else False)
        missing += int(absent.sum())
        present = np.flatnonzero(~absent)
        blocks.append(block[present])
        tokens.append(present)
        # the prompt is one pass, however many of its tokens the file lacks
        passes.append(np.maximum(present - prompt + 1, 0))
        requests.append(np.full(len(present), number))
        phases.append(np.where(present < prompt, Phase.PREFILL, Phase.DECODE))
    width = max(block.shape[2] for block in blocks)
    blocks = [np.pad(b, ((0, 0), (0, 0), (0, width - b.shape[2])), constant_values=-1) for b in blocks]
    routed = np.concatenate(blocks)
    if not len(routed):
        raise TraceError("no token has routing: all are padding", path=path)
    said = list(notes)
    if missing:
        said.append(
            f"{missing:,} tokens have no routing in the file (prefix-cache hits or padding) and are left out"
        )
    n, layers, _ = routed.shape
    token, owner = np.concatenate(tokens), np.concatenate(requests)
    phase = np.concatenate(phases)

    def place(i: int) -> str:
        at = i // layers
        where = found[int(owner[at])].place
        text = f"token {int(token[at])}, layer {geometry.layer_ids[i % layers]}"
        return f"{where}, {text}" if where else text

    kept = routed >= 0
    rows = Rows(
        layer=np.tile(np.asarray(geometry.layer_ids), n),
        counts=kept.sum(axis=2).reshape(-1),
        experts=routed[kept].astype(np.int64),
        place=place,
        request=np.repeat(owner, layers),
        phase=np.repeat(phase, layers),
        position=np.repeat(token, layers),
        pass_number=np.repeat(np.concatenate(passes), layers),
    )
    return trace_of(rows, geometry, path, engine, *said)


def _block(
    request: Request, geometry: ModelGeometry, path: Path, prompt_tokens: int | None, top_k: int
) -> tuple[npt.NDArray[np.int64], int]:
    """[tokens, MoE layers, k] and the number of prompt tokens."""
    block = _array(request.routed, geometry, path, request.place, top_k)
    if request.prompt is not None:
        prompt = _array(request.prompt, geometry, path, request.place, top_k)
        if prompt.shape[1:] != block.shape[1:]:
            raise TraceError(f"prompt of shape {prompt.shape}, answer of {block.shape}", path=path)
        return np.concatenate([prompt, block]), len(prompt)
    n = request.prompt_tokens if prompt_tokens is None else prompt_tokens
    if n is None:
        raise TraceError(
            "the file does not say how many tokens are the prompt: -o prompt_tokens=N (0: it has none of the "
            "prompt)",
            path=path, place=request.place or None,
        )  # fmt: skip
    if n > len(block):
        raise TraceError(f"{n} prompt tokens of {len(block)}", path=path, place=request.place or None)
    return block, n


def _array(value: Any, geometry: ModelGeometry, path: Path, place: str, top_k: int) -> npt.NDArray[np.int64]:
    """[tokens, MoE layers, k] of whatever a field holds."""
    where = place or None
    if isinstance(value, str | bytes):
        value = _from_base64(value, geometry, path, place, top_k)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        array = np.asarray(None)
    if array.ndim != 3 or array.dtype.kind not in "iu" or not array.size:
        raise TraceError(
            f"routed experts are {array.dtype} {array.shape}, expected whole numbers [tokens, layers, k]",
            path=path, place=where,
        )  # fmt: skip
    if array.dtype == np.uint64 or array.shape[2] > geometry.experts:
        raise TraceError(
            f"k = {array.shape[2]} of {geometry.experts} experts: counts, not ids?", path=path, place=where
        )
    layers = array.shape[1]
    if layers == geometry.total_layers != geometry.n_layers:
        array = array[:, list(geometry.layer_ids)]
    elif layers != geometry.n_layers:
        raise TraceError(
            f"{layers} layers, expected the {geometry.n_layers} MoE layers of {geometry.label}"
            + (f" or all its {geometry.total_layers}" if geometry.total_layers > geometry.n_layers else ""),
            path=path, place=where,
        )  # fmt: skip
    return array.astype(np.int64)


def _from_base64(
    value: str | bytes, geometry: ModelGeometry, path: Path, place: str, top_k: int
) -> npt.NDArray[np.int32]:
    try:
        data = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise TraceError("routed experts are not valid base64", path=path, place=place or None) from None
    k = top_k or geometry.top_k
    for layers in dict.fromkeys((geometry.n_layers, geometry.total_layers)):
        if layers and data and len(data) % (4 * layers * k) == 0:
            return np.frombuffer(data, dtype="<i4").reshape(-1, layers, k)
    raise TraceError(
        f"{len(data)} bytes of base64 are no whole number of tokens of {geometry.n_layers} layers x k = {k} x 4 "
        f"bytes; say "
        "the run's k with -o top_k=",
        path=path, place=place or None,
    )  # fmt: skip


def _requests(path: Path) -> Iterator[Request]:
    """Requests of a file of any of the forms."""
    head = read_bytes(path, 1 << 16)
    if head.startswith(b"PAR1"):
        yield from _from_parquet(path)
    elif head.startswith((b"\x93NUMPY", b"PK")):
        held = any_arrays(path)
        if isinstance(held, np.ndarray):
            blocks = held if held.ndim == 4 else held[None]
            many = len(blocks) > 1
            yield from (Request(block, f"request {i}" if many else "") for i, block in enumerate(blocks))
        else:
            yield from _in(held, "")
    elif b"\n" in head.strip() and head.lstrip().startswith(b"{") and _is_line(head):
        for number, data in json_lines(path, False, []):
            yield from _in(data, f"line {number}")
    else:
        yield from _in(load_json(path), "")


def _is_line(head: bytes) -> bool:
    """Whether the first line is a whole object, as in JSONL."""
    return head.lstrip().split(b"\n", 1)[0].rstrip().endswith(b"}")


def _from_parquet(path: Path) -> Iterator[Request]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(read_bytes(path)))
        rows = table.select(
            [n for n in table.column_names if n in (*_KEYS, _PROMPT, "prompt_tokens", "prompt_length")]
        ).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise TraceError(f"not a whole Parquet file ({str(error).splitlines()[0]})", path=path) from None
    for i, row in enumerate(rows):
        yield from _in(row, f"row {i}")


def _in(data: Any, place: str) -> Iterator[Request]:
    """Every object, at whatever depth, that has one of the fields, in order; what it says of its prompt counts."""
    stack: list[tuple[Any, str, dict[str, Any]]] = [(data, place, {})]
    seen = 0
    while stack:
        item, where, above = stack.pop()
        seen += 1
        if seen > _FEW_RESPONSES:
            return
        if isinstance(item, dict):
            facts = above | _facts(item)
            key = next((key for key in _KEYS if item.get(key) is not None), None)
            if key is not None:
                yield Request(item[key], where, facts.get("prompt"), facts.get("tokens"))
            inner = [(k, v) for k, v in item.items() if k not in (*_KEYS, _PROMPT) and isinstance(v, dict | list)]
            stack += [(v, ", ".join(filter(None, (where, str(k)[:40]))), facts) for k, v in reversed(inner)]
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            stack += [
                (v, ", ".join(filter(None, (where, f"entry {i}"))) if len(item) > 1 else where, above)
                for i, v in reversed(list(enumerate(item)))
            ]


def _facts(item: dict[str, Any]) -> dict[str, Any]:
    """What an object says of the prompt of the arrays in it."""
    facts: dict[str, Any] = {}
    if item.get(_PROMPT) is not None:
        facts["prompt"] = item[_PROMPT]
    usage = item.get("usage")
    said = [item.get(key) for key in ("prompt_tokens", "prompt_length")]
    said += [usage.get("prompt_tokens")] if isinstance(usage, dict) else []
    said += [
        np.shape(item[key])[0] for key in ("prompt_token_ids", "prompt_ids") if np.ndim(item.get(key, 0)) == 1
    ]
    for number in said:
        number = number.item() if isinstance(number, np.ndarray) and number.ndim == 0 else number
        if type(number) is int and number >= 0:
            facts["tokens"] = number
    return facts
