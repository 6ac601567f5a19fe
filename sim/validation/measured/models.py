"""The weights of a measured row: a packaged model, scaled where its quantization is not packaged."""

from __future__ import annotations

import re
from dataclasses import replace

from expert_residency.traces import ModelGeometry, load_model
from expert_residency.traces.geometry import list_models

SHAPES = (
    (r"qwen3\.8-flash-next.*coder", "qwen3.8-flash-next-coder"),
    (r"qwen3\.8-flash-next", "qwen3.8-flash-next"),
    (r"3\.[56]-35b-a3b", "qwen3.5-35b-a3b"),
    (r"qwen3-coder-next", "qwen3-next-80b-a3b"),
    (r"qwen3-(coder-)?30b-a3b", "qwen3-30b-a3b"),
    (r"qwen3-235b-a22b", "qwen3-235b-a22b"),
    (r"qwen1\.5-moe", "qwen1.5-moe-a2.7b"),
    (r"-4-26b-a4b", "gemma-4-26b-a4b"),
    (r"nemotron-(3-nano|cascade-2).*30b-a3b", "nemotron-3-nano-30b-a3b"),
    (r"deepseek-(coder-)?v2-lite", "deepseek-v2-lite"),
    (r"deepseek-v3", "deepseek-v3"),
    (r"gpt-oss-120b", "gpt-oss-120b"),
    (r"gpt-oss-20b", "gpt-oss-20b"),
    (r"glm-4\.7-flash", "glm-4.7-flash"),
    (r"mixtral-8x7b", "mixtral-8x7b"),
    (r"olmoe-1b-7b", "olmoe-1b-7b"),
)
"""Whose shapes a name says: fine-tunes have those of their base."""
BITS = {
    "IQ1_M": 2.0, "IQ2_XXS": 2.25, "IQ2_XS": 2.45, "IQ2_M": 2.75, "Q2_K_XL": 3.1, "Q2_K_P": 3.1, "IQ3_XXS": 3.2,
    "IQ3_S": 3.45, "Q3_K_S": 3.5, "Q3_K_P": 4.0, "Q3_K_XL": 4.1, "MXFP4": 4.25, "INT4": 4.25, "IQ4_NL": 4.5,
    "NVFP4": 4.5, "Q4_0": 4.5, "Q4_K_S": 4.6, "Q4_K_XL": 4.9, "Q4_K_L": 4.95, "Q5_K_S": 5.5, "Q6_K_XL": 7.1,
    "INT8": 8.25, "Q8_K_XL": 9.3,
}  # fmt: skip
"""Bits of a weight of an expert in mixes that no packaged model has, by the sizes of published files."""
_KEPT_LARGE = "Q8_0"
"""Of Unsloth's mixes of 4 bits and more: what they keep attention and shared experts in."""


def geometry_of(model: str, quant: str, dense: str = "") -> ModelGeometry | str:
    """The sizes of a row's weights, or what is missing in words.

    Parameters
    ----------
    model, quant
        As published.
    dense
        Packaged quantization of all that is not experts, if another.

    Returns
    -------
    ModelGeometry or str
        Sizes; of a mix that is not packaged, the nearest one's scaled by the bits of a weight.
    """
    found = _of_file(model, quant)
    if isinstance(found, str) or not dense:
        return found
    other = load_model(found.name, dense)
    return replace(
        found, dense_bytes=other.dense_bytes, dense_only_bytes=other.dense_only_bytes, head_bytes=other.head_bytes
    )


def _of_file(model: str, quant: str) -> ModelGeometry | str:
    plain = re.sub(r"[\s_]+", "-", model.lower())
    name = next((name for pattern, name in SHAPES if re.search(pattern, plain)), None)
    if name is None:
        return f"no sizes of the model {model}"
    if name.startswith("gpt-oss") and quant and not quant.startswith("INT"):
        return load_model(name, "MXFP4")  # their experts are MXFP4 in every file
    mix = _mix(quant)
    if not mix:
        return f"no quantization of {model} is named"
    known = {packaged.upper(): packaged for packaged in list_models()[name]}
    if (own := known.get(quant.upper()) or known.get(mix)) is not None:
        found = load_model(name, own)
        return replace(found, dense_bytes=_larger(name, found)) if _is_dynamic(quant, known) else found
    if mix not in BITS:
        return f"no sizes of {model} in {quant}"
    return _scaled(name, mix, dynamic=_is_dynamic(quant, known))


def _mix(quant: str) -> str:
    """`Unsloth-Dynamic-IQ4_XS`, `Coder IQ1_M`, `INT4/INT4`, `q4km`: the mix alone, in capitals."""
    text = re.sub(r"^(UD-|UNSLOTH-DYNAMIC-|CODER |GSQ-RCO )", "", quant.upper()).partition("/")[0]
    return {"Q4KM": "Q4_K_M", "FP16": "FP16"}.get(text, text.partition(" ")[0])


def _is_dynamic(quant: str, known: dict[str, str]) -> bool:
    return quant.upper() not in known and bool(re.match(r"UD-|UNSLOTH", quant.upper()) or quant.endswith("_XL"))


def _larger(name: str, found: ModelGeometry) -> tuple[int, ...]:
    kept = _KEPT_LARGE if _bits(found) > 4 else "Q6_K"
    if kept not in list_models()[name]:
        return found.dense_bytes
    return load_model(name, kept).dense_bytes


def _bits(geometry: ModelGeometry) -> float:
    return 8 * sum(geometry.expert_bytes) / geometry.n_layers / geometry.expert_params


def _scaled(name: str, mix: str, *, dynamic: bool) -> ModelGeometry:
    wanted = BITS[mix]
    packaged = [load_model(name, quant) for quant in list_models()[name] if quant not in ("BF16", "FP16")]
    near = min(packaged, key=lambda one: abs(_bits(one) - wanted))
    ratio = wanted / _bits(near)
    family = re.match(r"I?Q\d|MXFP4|NVFP4|INT\d", mix)
    dense = _larger(name, near) if dynamic else tuple(round(size * ratio) for size in near.dense_bytes)
    return replace(
        near, quant=mix, quant_family=family[0].lower().replace("int", "q") if family else near.quant_family,
        expert_bytes=tuple(round(size * ratio) for size in near.expert_bytes), dense_bytes=dense,
        source=f"{near.quant} scaled to {wanted:g} bits a weight",
    )  # fmt: skip
