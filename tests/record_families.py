"""Tiny models with random weights, one of each family of transformers that calls experts."""

from __future__ import annotations

import re
from typing import Any

EXPERTS, TOP_K, LAYERS, HIDDEN, WIDTH = 8, 2, 4, 32, 16
BASE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts"), TOP_K),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "expert_ffn_hidden_size", "ffn_hidden_size",
                     "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
                     "shared_intermediate_size", "intermediate_size_mlp"), WIDTH),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
                     "linear_key_head_dim", "linear_value_head_dim", "mamba_d_state", "ssm_state_size"), 8),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "num_dense_layers", "n_groups",
                     "mamba_n_groups"), 1),
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "index_n_heads": 2, "index_head_dim": 16,
    "index_topk": 16, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_num_heads": 4, "mamba_head_dim": 16,
}  # fmt: skip
LATENT = {"head_dim": 8}
LINEAR_LAST = {"layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"]}

FAMILIES: dict[str, dict[str, Any]] = {
    "afmoe": {}, "aria_text": {}, "axk1": LATENT, "axk2": {}, "cohere2_moe": {}, "deepseek_v2": {},
    "deepseek_v3": LATENT, "deepseek_v32": {}, "dots1": {"n_shared_experts": 1},
    "ernie4_5_moe": {}, "exaone_moe": {}, "flex_olmo": {}, "flint": {}, "gemma4_text": {"enable_moe_block": True},
    "glm4_moe": {}, "glm4_moe_lite": {}, "glm_moe_dsa": {}, "gpt_oss": {}, "granitemoe": {}, "granitemoe_swa": {},

    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2}, "granitemoeshared": {},
    "hunyuan_v1_moe": {}, "hy_v3": {}, "hy_v4": {},
    "inkling_text": {}, "jamba": {"expert_layer_offset": 1, "expert_layer_period": 2, "attn_layer_offset": 0,
                                  "attn_layer_period": 2, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "kolibri1": {}, "laguna": {}, "lara_mini": {},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "llama4_text": {}, "longcat_flash": {**LATENT, "num_layers": 2, "zero_expert_num": 0}, "mellum": {},
    "minimax": {}, "minimax_m2": {}, "minimax_m3_vl_text": {}, "mixtral": {},
    "nemotron_h": {"layers_block_type": ["mamba", "moe", "attention", "moe"]}, "olmoe": {}, "phimoe": {},
    "qwen2_moe": {}, "qwen3_5_moe_text": {}, "qwen3_moe": {}, "qwen3_next": {}, "solar_open": {},
    "bailing_hybrid": LINEAR_LAST, "kimi_linear": LINEAR_LAST,
    "deepseek_v4": {"mlp_layer_types": ["moe"] * LAYERS}, "dots3_note_text": {},
    "beam": {"mlp_layer_types": ["sparse"] * LAYERS},
    "mimo_v2_flash": {"num_key_value_heads": 1},
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 16,
                       "indexer_compress_ratio": 4},
}  # fmt: skip
"""By transformers' `model_type`, what its smallest config needs beside `BASE`."""
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "jetmoe": ({}, "two routers in layer 0"),
    "zaya": ({"num_experts_per_tok": 1}, "a token uses none of the 8 experts"),
}
"""Families that no trace can hold, and what is said of them."""


def make(family: str, **changes: Any) -> Any:
    """A model of a family; its routers decide clearly.

    Raises
    ------
    LookupError
        This transformers does not have it.
    """
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if family not in CONFIG_MAPPING or family not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise LookupError(family)
    kind = CONFIG_MAPPING[family]
    own = (REFUSED[family][0] if family in REFUSED else FAMILIES[family]) | changes
    known = kind()
    config = kind(**{name: value for name, value in {**BASE, **own}.items() if _has(known, name) or name in own})
    torch.manual_seed(5)
    model = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family])(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and re.search(r"gate\.|router", name):
                torch.nn.init.normal_(parameter, std=0.5)
    return model


def _has(config: Any, name: str) -> bool:
    try:
        return hasattr(config, name)
    except Exception:  # a value that differs by layer
        return False
