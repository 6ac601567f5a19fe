"""onnx-genai `scripts/moe_expert_trace.json`: prompts, each with prefill and decode as [token][layer][k].

Source of the format: github.com/justinchuby/onnx-genai. Each prompt is a request: one prefill pass with all
its tokens, then one pass a decoded token. No weights. Sizes come from the packaged model that the file names,
or from a given one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.base import source_meta
from expert_residency.traces.readers.checks import check_experts, check_size, named_model
from expert_residency.traces.readers.files import load_json
from expert_residency.traces.trace import Phase, RoutingTrace, assemble

name = "onnx-genai"
description = "onnx-genai expert trace JSON (prompts with prefill and decode)"

_FIELDS = ("model", "num_layers", "num_experts", "top_k", "prompts")


def sniff(head: bytes, path: Path) -> bool:
    """Names of the first fields."""
    start = head.lstrip()[:4096]
    return start.startswith(b"{") and b'"num_layers"' in start and b'"prompts"' in start


def read(path: Path, model: ModelGeometry | None = None) -> RoutingTrace:
    """Read; layers are counted over MoE layers, in the model's order."""
    data = load_json(path)
    if not isinstance(data, dict) or any(field not in data for field in _FIELDS):
        found = ", ".join(data) if isinstance(data, dict) else type(data).__name__
        raise TraceError(f"expected an object with {', '.join(_FIELDS)}, found {found}", path=path)
    geometry = named_model(path, str(data["model"]), model)
    check_size(data["num_layers"], geometry.n_layers, f"layers, {geometry.label}", path, "num_layers")
    check_size(data["num_experts"], geometry.experts, f"experts, {geometry.label}", path, "num_experts")
    if type(data["top_k"]) is not int or not 0 < data["top_k"] <= geometry.experts:
        raise TraceError(f"top_k {data['top_k']!r} is impossible", path=path)
    geometry = geometry.with_top_k(data["top_k"])
    if not isinstance(data["prompts"], dict) or not data["prompts"]:
        raise TraceError("no prompts", path=path)

    blocks: list[npt.NDArray[np.int64]] = []
    passes: list[tuple[int, int]] = []
    row_pass: list[npt.NDArray[np.int64]] = []
    positions: list[npt.NDArray[np.int64]] = []
    for request, (title, prompt) in enumerate(data["prompts"].items()):
        prefill, decode = (_block(prompt, part, geometry, path, title) for part in ("prefill", "decode"))
        if prompt.get("prompt_len") is not None:
            check_size(len(prefill), prompt["prompt_len"], "prefill tokens", path, f"prompt {title}")
        base = len(passes)
        passes += [(request, Phase.PREFILL)] + [(request, Phase.DECODE)] * len(decode)
        numbers = np.concatenate([np.full(len(prefill), base), base + 1 + np.arange(len(decode))])
        row_pass.append(numbers)
        positions.append(np.arange(len(numbers)))
        blocks += [prefill, decode]
    experts = np.concatenate(blocks)
    n_rows, n_layers = experts.shape[0] * geometry.n_layers, geometry.n_layers
    table = np.asarray(passes)
    return assemble(
        geometry,
        pass_request=table[:, 0],
        pass_phase=table[:, 1],
        pass_emits=np.ones(len(table), dtype=np.int64),
        row_pass=np.repeat(np.concatenate(row_pass), n_layers),
        row_layer=np.tile(np.arange(n_layers), len(experts)),
        row_position=np.repeat(np.concatenate(positions), n_layers),
        row_counts=np.full(n_rows, geometry.top_k),
        row_experts=experts.reshape(-1),
        meta=source_meta(path, "onnx-genai", f"prompts: {', '.join(data['prompts'])}"),
    )


def _block(prompt: Any, part: str, geometry: ModelGeometry, path: Path, title: str) -> npt.NDArray[np.int64]:
    """`prompt[part]` as (tokens, layers, k)."""
    where = f"prompt {title}, {part}"
    if not isinstance(prompt, dict) or not isinstance(prompt.get(part), list):
        raise TraceError("missing, or not a list of tokens", path=path, place=where)
    tokens = prompt[part]
    if part == "prefill" and not tokens:
        raise TraceError("no tokens", path=path, place=where)
    for t, token in enumerate(tokens):
        check_size(_length(token), geometry.n_layers, "layers", path, f"{where}, token {t}")
        for i, ids in enumerate(token):
            check_size(
                _length(ids), geometry.top_k, "experts", path, f"{where}, token {t}, layer {geometry.layer_ids[i]}"
            )
    try:
        block = np.asarray(tokens).reshape(len(tokens), geometry.n_layers, geometry.top_k)
    except ValueError:  # lists or texts instead of an id
        block = np.asarray([""])
    if block.size and block.dtype.kind != "i":
        raise TraceError("expert ids are not whole numbers", path=path, place=where)
    flat = block.reshape(-1, geometry.top_k).astype(np.int64)

    def place(i: int) -> str:
        return f"{where}, token {i // geometry.n_layers}, layer {geometry.layer_ids[i % geometry.n_layers]}"

    check_experts(flat, geometry, path, place)
    return flat.reshape(block.shape)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0
