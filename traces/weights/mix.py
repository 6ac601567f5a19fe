"""Which type llama.cpp's `llama-quantize` gives each tensor in a named mix (Q4_K_M, IQ4_XS, ...).

The rules are those of `src/llama-quant.cpp` (ggml-org/llama.cpp 007dbbf), with an importance matrix where that
matters, as published files have it. Files of others choose otherwise (Unsloth's UD mixes): read those themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from expert_residency.errors import TraceError
from expert_residency.text import unknown
from expert_residency.traces.weights.ggml_types import TYPES
from expert_residency.traces.weights.gguf import Tensor

Shape = tuple[str, tuple[int, ...]]
"""A tensor's name and dimensions, row length first."""

BASE = {
    "Q8_0": "q8_0", "Q6_K": "q6_K", "Q5_K_M": "q5_K", "Q4_K_M": "q4_K", "Q4_K_S": "q4_K", "Q4_0": "q4_0",
    "Q3_K_M": "q3_K", "Q2_K": "q2_K", "IQ4_XS": "iq4_xs", "MXFP4": "mxfp4", "MXFP4-F16": "mxfp4",
    "MXFP4-BF16": "mxfp4", "F16": "f16", "BF16": "bf16", "FP16": "f16",
}  # fmt: skip
"""The mixes that are known, each with the type that most tensors have."""
_PLAIN = ("F16", "BF16", "FP16")
_WITH_EXPERTS_IN_MXFP4 = {"MXFP4": "q8_0", "MXFP4-F16": "f16", "MXFP4-BF16": "bf16"}
"""Type of all the rest."""
_SMALLER_BLOCKS = {
    "q4_K": "q5_0",
    "q5_K": "q5_1",
    "q6_K": "q8_0",
    "q2_K": "q4_0",
    "q3_K": "q4_0",
    "iq4_xs": "iq4_nl",
}
_KEPT = ("_norm.weight", "ffn_gate_inp.weight", "ssm_conv1d", "shortconv.conv.weight")
"""Tensors that stay in float32."""
_EIGHT_EXPERTS = 8
"""Mixtral's number, for which there are rules of their own."""


@dataclass(frozen=True)
class _Model:
    """What the rules ask of a model."""

    blocks: int
    experts: int
    query_groups: int
    tied: bool
    values: dict[str, int]
    """Each attention V (or QKV, or KV-B) tensor, numbered in the order of layers."""


def mixed(shapes: Iterable[Shape], mix: str, *, blocks: int, experts: int, query_groups: int) -> list[Tensor]:
    """Tensors of a file in a mix.

    Parameters
    ----------
    shapes
        Every tensor's name and dimensions.
    mix
        One of `BASE`; BF16 and FP16 are a Hugging Face checkpoint, in which every tensor has 16 bits.
    blocks, experts, query_groups
        Blocks (those for multi-token prediction too), experts of a layer, query heads a key head.

    Returns
    -------
    list of Tensor
        In the same order.

    Raises
    ------
    TraceError
        The mix is not known.
    """
    if mix not in BASE:
        raise TraceError(unknown("mix", mix, BASE))
    shapes = list(shapes)
    values = sorted((_block(name), name) for name, _ in shapes if _is_value(name))
    model = _Model(
        blocks,
        experts,
        query_groups,
        not any(name == "output.weight" for name, _ in shapes),
        {name: i for i, (_, name) in enumerate(values)},
    )
    sizes = {kind.name: kind for kind in TYPES.values()}
    found = []
    for name, shape in shapes:
        kind = _type(name, shape, mix, model)
        found.append(Tensor(name, shape, kind, sizes[kind].size(shape)))
    return found


def _block(name: str) -> int:
    return int(name.split(".")[1]) if name.startswith("blk.") else -1


def _is_value(name: str) -> bool:
    return name.endswith(("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"))


def _type(name: str, shape: tuple[int, ...], mix: str, model: _Model) -> str:
    if mix in ("BF16", "FP16"):
        return BASE[mix]
    if sum(n > 1 for n in shape) < 2 or not name.endswith("weight") or any(part in name for part in _KEPT):
        return "f32"
    kind = _chosen(name, shape, mix, model)
    while shape[0] % next(t.block for t in TYPES.values() if t.name == kind):
        kind = _SMALLER_BLOCKS.get(kind, "f16")
    return kind


def _chosen(name: str, shape: tuple[int, ...], mix: str, model: _Model) -> str:
    """The rule for a tensor, whatever its row length."""
    base = BASE[mix]
    if mix in _PLAIN:
        return base
    if mix in _WITH_EXPERTS_IN_MXFP4:
        return base if "_exps." in name else _WITH_EXPERTS_IN_MXFP4[mix]
    if name == "output.weight" or (model.tied and name == "token_embd.weight"):
        return "q8_0" if base == "q8_0" or shape[0] % 256 else "q6_K"
    if _is_value(name):
        return _value_type(model.values[name], mix, model)
    if name.endswith("attn_k.weight") and model.experts == _EIGHT_EXPERTS:
        return "q8_0"
    if "ffn_down" in name:
        return _down_type(_block(name), mix, model.blocks)
    if name.endswith("attn_output.weight"):
        if model.experts == _EIGHT_EXPERTS:
            return "q5_K" if mix in ("Q2_K", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_XS") else base
        return {"Q2_K": "q3_K", "Q3_K_M": "q4_K"}.get(mix, base)
    return base


def _value_type(index: int, mix: str, model: _Model) -> str:
    if model.experts == _EIGHT_EXPERTS:
        return "q8_0"
    many = model.query_groups >= 4
    if mix in ("Q4_K_M", "Q5_K_M") and _more_bits(index, len(model.values)):
        return "q6_K"
    if mix == "Q2_K":
        return "q4_K" if many else "q3_K"
    if mix == "IQ4_XS" and many:
        return "q5_K"
    if mix == "Q4_K_S" and index < 4:
        return "q5_K"
    if mix == "Q3_K_M":
        return "q5_K" if index < 2 else "q4_K"
    return BASE[mix]


def _down_type(block: int, mix: str, blocks: int) -> str:
    first = block < blocks // 8
    if mix in ("Q4_K_M", "Q5_K_M") and _more_bits(block, blocks):
        return "q6_K"
    if mix == "Q3_K_M":
        return "q5_K" if block < blocks // 16 else "q4_K"
    if first and mix in ("Q4_K_S", "Q4_0"):
        return "q5_K" if mix == "Q4_K_S" else "q4_1"
    return "q3_K" if mix == "Q2_K" else BASE[mix]


def _more_bits(index: int, count: int) -> bool:
    """The first and the last eighth, and every third between."""
    return index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2
