"""A whole GGUF file of a tiny mixture-of-experts model, with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.gguf_files import header

LAYERS, HIDDEN, WIDTH, EXPERTS, TOP_K, HEAD = 3, 32, 32, 8, 2, 16
SPECIAL = ["<unk>", "<s>", "</s>"]
TOKENS = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *"abcdefghijklmnopqrstuvwxyz"]
Arrays = Mapping[str, npt.NDArray[np.float32]]


def metadata(arch: str, **more: Any) -> dict[str, Any]:
    """Keys of the file; a text is bytes, each a token."""
    own: dict[str, Any] = {
        "block_count": LAYERS, "context_length": 256, "embedding_length": HIDDEN, "feed_forward_length": WIDTH,
        "attention.head_count": 2, "attention.head_count_kv": 2, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 10000.0,
        "expert_count": EXPERTS, "expert_used_count": TOP_K, "expert_feed_forward_length": WIDTH,
    } | more  # fmt: skip
    return {
        "general.architecture": arch, "general.name": "tiny", **{f"{arch}.{key}": v for key, v in own.items()},
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": [0.0] * len(TOKENS),
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (len(TOKENS) - 259)],
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip


def random_arrays(seed: int = 0, *, bias: bool = False, dense: int = 0, norms: bool = True) -> dict[str, Any]:
    """Weights by tensor name, shaped as numpy has them (row length last)."""
    rng = np.random.default_rng(seed)

    def made(*shape: int) -> npt.NDArray[np.float32]:
        return (rng.normal(size=shape) * 0.3).astype(np.float32)

    one = np.ones(HIDDEN, np.float32)
    arrays: dict[str, Any] = {
        "token_embd.weight": made(len(TOKENS), HIDDEN), "output_norm.weight": one,
        "output.weight": made(len(TOKENS), HIDDEN),
    }  # fmt: skip
    for layer in range(LAYERS):
        block = {
            "attn_norm.weight": one, "ffn_norm.weight": one, "attn_output.weight": made(HIDDEN, 2 * HEAD),
            **{f"attn_{x}.weight": made(2 * HEAD, HIDDEN) for x in "qkv"},
        }  # fmt: skip
        if norms:
            block |= {f"attn_{x}_norm.weight": np.ones(HEAD, np.float32) for x in "qk"}
        if layer < dense:
            block |= {"ffn_gate.weight": made(WIDTH, HIDDEN), "ffn_up.weight": made(WIDTH, HIDDEN),
                      "ffn_down.weight": made(HIDDEN, WIDTH)}  # fmt: skip
        else:
            block |= {
                "ffn_gate_inp.weight": made(EXPERTS, HIDDEN),
                "ffn_gate_exps.weight": made(EXPERTS, WIDTH, HIDDEN),
                "ffn_up_exps.weight": made(EXPERTS, WIDTH, HIDDEN),
                "ffn_down_exps.weight": made(EXPERTS, HIDDEN, WIDTH),
            }  # fmt: skip
            if bias:
                block |= {
                    "exp_probs_b.bias": made(EXPERTS), "ffn_gate_shexp.weight": made(WIDTH, HIDDEN),
                    "ffn_up_shexp.weight": made(WIDTH, HIDDEN), "ffn_down_shexp.weight": made(HIDDEN, WIDTH),
                }  # fmt: skip
        arrays |= {f"blk.{layer}.{name}": array for name, array in block.items()}
    return arrays


def write(path: Path, keys: Mapping[str, Any], arrays: Arrays) -> Path:
    """The file, every tensor in 32 bits."""
    head, _ = header(keys, [(name, array.shape[::-1], "f32") for name, array in arrays.items()])
    with path.open("wb") as file:
        file.write(head)
        for array in arrays.values():
            file.write(bytes(-file.tell() % 32) + np.ascontiguousarray(array, np.float32).tobytes())
    return path


HF_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate",
}  # fmt: skip


def qwen3_state(arrays: Arrays) -> dict[str, npt.NDArray[np.float32]]:
    """The same weights by the names of transformers' Qwen3-MoE."""
    state = {
        "model.embed_tokens.weight": arrays["token_embd.weight"],
        "model.norm.weight": arrays["output_norm.weight"], "lm_head.weight": arrays["output.weight"],
    }  # fmt: skip
    for layer in range(LAYERS):
        mine, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        state |= {f"{theirs}{to}.weight": arrays[f"{mine}{name}.weight"] for name, to in HF_NAMES.items()}
        gate, up = (arrays[f"{mine}ffn_{name}_exps.weight"] for name in ("gate", "up"))
        state[f"{theirs}mlp.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        state[f"{theirs}mlp.experts.down_proj"] = arrays[f"{mine}ffn_down_exps.weight"]
    return state
