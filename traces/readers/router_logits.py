"""Router logits, one array [tokens, experts] a layer, as transformers' `output_router_logits` gives them.

From npz or safetensors (`layer_<n>`, or in order) or a `.pt` list. The experts used are the k of the largest
logits only where the router is a plain softmax: routers that score by sigmoid with a bias, or choose groups of
experts first, choose others, so the models that do are refused unless `routing=softmax` says that the logits are
what decides.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.readers.arrays import any_arrays, members, safetensors_header
from expert_residency.traces.readers.checks import need_model
from expert_residency.traces.readers.routed_experts import Request, trace_of_requests
from expert_residency.traces.trace import RoutingTrace

name = "router-logits"
description = "router logits, [tokens, experts] a layer: npz, safetensors, .pt of transformers (needs --model)"
marks = ("router_logits", "layer_0", "layer_1")

PLAIN = ("qwen3", "qwen2", "olmoe", "mixtral", "granite", "gpt-oss", "phi", "jamba", "dbrx", "flexolmo")
"""Families whose routers take the k largest logits."""
_NAME = re.compile(r"(?:.*\D)?(\d{1,6})")


def sniff(head: bytes, path: Path) -> bool:
    """Arrays whose names end in a number, or a torch list of floats in a file whose name says logits."""
    if head.startswith(b"PK"):
        inside = [name.removesuffix(".npy") for name in members(head) if name.endswith(".npy")]
        torch_list = b"data.pkl" in head[:200] and b"Storage" in head and "logits" in path.name
        return torch_list or (bool(inside) and all(re.fullmatch(r"(layer|logits)\D*\d+", n) for n in inside))
    header = safetensors_header(head) or {}
    names = [key for key in header if key != "__metadata__"]
    return bool(names) and all(re.fullmatch(r".*(layer|logits)\D*\d+\D*", n) for n in names)


def read(
    path: Path,
    model: ModelGeometry | None = None,
    prompt_tokens: int | None = None,
    top_k: int = 0,
    routing: str = "",
) -> RoutingTrace:
    """Read with the geometry of `model`.

    Parameters
    ----------
    path
        The file, gzipped or not.
    model
        Shape and sizes.
    prompt_tokens
        How many tokens at the start are the prompt; all of them in one forward pass, none if 0.
    top_k
        Experts of a token; 0: the model's.
    routing
        `softmax`: the largest logits are the choice, for models that this is not known of.

    Returns
    -------
    RoutingTrace
        Without weights, which depend on how the model scales them.

    Raises
    ------
    TraceError
        Arrays of another shape than the model's, no numbers, or a router that does not choose by logits alone.
    """
    geometry = need_model(path, model)
    if routing not in ("", "softmax"):
        raise TraceError(f"option routing={routing[:20]}: only softmax can be read from logits", path=path)
    if not routing and not geometry.name.lower().startswith(PLAIN):
        raise TraceError(
            f"the router of {geometry.name} is not known to choose by logits alone (sigmoid with bias, or "
            f"groups, choose "
            "others); if it does: -o routing=softmax",
            path=path,
        )
    layers = _layers(any_arrays(path), geometry, path)
    k = top_k or geometry.top_k
    if k > geometry.experts:
        raise TraceError(f"top_k = {k} of {geometry.experts} experts", path=path)
    chosen = []
    ties = 0
    for number, logits in zip(geometry.layer_ids, layers, strict=True):
        if not np.isfinite(logits).all():
            raise TraceError("logits that are no numbers", path=path, place=f"layer {number}")
        order = np.argsort(-logits, axis=1, kind="stable")
        chosen.append(order[:, :k])
        if k < geometry.experts:
            edge = np.take_along_axis(logits, order[:, k - 1 : k + 1], axis=1)
            ties += int((edge[:, 0] == edge[:, 1]).sum())
    said = [f"{ties:,} rows have two equal logits at rank {k}: the lower id was taken"] if ties else []
    block = np.stack(chosen, axis=1)
    return trace_of_requests(
        [Request(block, "")], geometry, path, prompt_tokens, k, "router logits",
        f"experts are the top {k} of the logits; weights are not taken from them", *said,
    )  # fmt: skip


def _layers(held: Any, geometry: ModelGeometry, path: Path) -> list[npt.NDArray[np.float32]]:
    """Logits of each MoE layer."""
    if isinstance(held, dict) and isinstance(held.get("router_logits"), list | tuple):
        held = held["router_logits"]
    if isinstance(held, dict):
        found = {key: _NAME.search(re.sub(r"\D*$", "", str(key))) for key in held}
        if not found or not all(found.values()):
            raise TraceError("arrays that are not numbered by layer", path=path)
        by_number = sorted((int(match[1]), key) for key, match in found.items() if match)
        numbers = [number for number, _ in by_number]
        if len(by_number) == geometry.n_layers and tuple(numbers) not in (
            geometry.layer_ids, tuple(range(geometry.n_layers))
        ):  # fmt: skip
            raise TraceError(f"layers {numbers[0]}..{numbers[-1]}, expected those of {geometry.label}", path=path)
        held = [held[key] for _, key in by_number]
    if isinstance(held, np.ndarray) and held.ndim == 3:
        held = list(held)
    if not isinstance(held, list | tuple) or len(held) != geometry.n_layers:
        n = len(held) if isinstance(held, list | tuple) else 0
        raise TraceError(f"{n} layers of logits, expected {geometry.n_layers} of {geometry.label}", path=path)
    out: list[npt.NDArray[np.float32]] = []
    for number, array in zip(geometry.layer_ids, held, strict=True):
        if isinstance(array, np.ndarray) and array.ndim == 3 and len(array) == 1:
            array = array[0]
        if (
            not isinstance(array, np.ndarray)
            or array.ndim != 2
            or array.dtype.kind != "f"
            or array.shape[1] != geometry.experts
            or len(array) != len(out[0] if out else array)
        ):
            shape = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            why = f"{shape}, expected numbers [tokens, {geometry.experts}], as many tokens as other layers"
            raise TraceError(why, path=path, place=f"layer {number}")
        out.append(array.astype(np.float32))
    return out
