"""Quantization families: what a machine's rates may depend on.

A family holds formats that a kernel unpacks alike, so that one rate is true of all of them: every type of GGUF
files (those of forks of llama.cpp too) and of Hugging Face files. A format that is none of them is `UNKNOWN` and
takes a machine's default rate.
"""

from __future__ import annotations

import re

UNKNOWN = "unknown"
FAMILIES = (
    "iq1", "iq2", "iq3", "iq4", "iq5", "iq6", "tq1", "tq2", "q1", "q2", "q3", "q4", "q5", "q6", "q8",
    "mxfp4", "nvfp4", "int2", "int3", "int4", "int8", "fp8", "fp16", "bf16", "fp32",
)  # fmt: skip

_FORMATS = (
    (r"(iq[1-6]|tq[12]|q[1-68]|mxfp4|nvfp4|int[2348])", ""),
    (r"(?:bfloat|bf)16", "bf16"),
    (r"(?:float|fp|f)16", "fp16"),
    (r"(?:float|fp|f)32", "fp32"),
    (r"(?:mxfp|float|fp|f)8", "fp8"),
    (r"(?:w8a(?:8|16)|i8|8bit)", "int8"),
    (r"(?:w4a16|4bit|nf4|fp4)", "int4"),
    (r"(?:awq|gptq|autoround|bnb|bitsandbytes)", "int4"),  # last: the bits, where they are named, say more
)


def quant_family(name: str) -> str:
    """Family by the name of a quantization, a tensor's type or a file: `UD-Q4_K_XL` is `q4`, `F8_E4M3` is `fp8`.

    `UNKNOWN` if there is none in it; a type of GGUF counts before any other.
    """
    for form, family in _FORMATS:
        if found := re.search(rf"(?<![a-z0-9]){form}(?![a-z0-9])", name.lower()):
            return family or found[1]
    return UNKNOWN


def rate_notes(label: str, family: str) -> list[str]:
    """What a result says about a model of a family that has no rate; empty if the family is known."""
    if quant_family(family) != UNKNOWN:
        return []
    return [f"the quantization family of {label} is not known: the machine's default rates are taken"]
