"""What a context occupies, by the metadata of GGUF files and by `config.json`.

A layer attends over the whole context, over a window, or keeps a state of fixed size. How many layers of each
kind there are is told by the tensors where they show it, else by the metadata. A state is counted as llama.cpp
stores it, in float32: that of a state-space or delta-rule layer and the last positions before its convolution.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from expert_residency.traces.model_file import Session
from expert_residency.traces.weights.checkpoint import Part, Role

if TYPE_CHECKING:
    from expert_residency.traces.weights.gguf_model import Facts

_EVERY_NTH_IS_FULL = {
    "gpt-oss": 2,
    "llama4": 4,
    "gemma3": 6,
    "cohere2": 4,
    "cohere2moe": 4,
    "exaone-moe": 4,
    "afmoe": 4,
}
"""Architectures whose files name the window but not which layers have it: every so many-th attends over all."""
_CHUNK_TOKENS = {"llama4": 8192}
"""Windows that files do not name."""
_STATE_BYTES = 4


@dataclass(frozen=True)
class Layer:
    """What one layer keeps of a context.

    Parameters
    ----------
    key_values, value_values
        Numbers of a cell; 0 for layers that do not attend.
    window
        Positions that it attends over; 0: all.
    state_values
        Numbers of its fixed state.
    index_values
        Numbers a position of an indexer of sparse attention.
    """

    key_values: int = 0
    value_values: int = 0
    window: int = 0
    state_values: int = 0
    index_values: int = 0


def session_of(layers: Iterable[Layer], source: str, notes: list[str]) -> Session | None:
    """Layers put together.

    Parameters
    ----------
    layers
        What each layer keeps.
    source
        What to say where the figures come from.
    notes
        Takes a sentence if the layers are of more kinds than a session can say.

    Returns
    -------
    Session or None
        None if they are.
    """
    layers = list(layers)
    full = {(x.key_values, x.value_values) for x in layers if x.key_values and not x.window}
    windowed = {(x.key_values, x.value_values) for x in layers if x.key_values and x.window}
    windows = {x.window for x in layers if x.key_values and x.window}
    if max(len(full), len(windowed), len(windows)) > 1:
        notes.append("what a context occupies differs too much between layers to be told here: give --session")
        return None
    cell = next(iter(full or windowed), (1, 0))
    own = next(iter(windowed), cell)
    return Session(
        kv_layers=sum(1 for x in layers if x.key_values and not x.window),
        key_values=cell[0],
        value_values=cell[1],
        state_bytes=_STATE_BYTES * sum(x.state_values for x in layers),
        index_cell_bytes=2 * sum(x.index_values for x in layers),
        window_layers=sum(1 for x in layers if x.key_values and x.window),
        window_tokens=next(iter(windows), 0),
        window_key_values=own[0] if own != cell else 0,
        window_value_values=own[1] if own != cell else 0,
        kind="derived",
        source=source,
    )


def gguf_session(facts: Facts, parts: Iterable[Part], total_layers: int) -> tuple[Session | None, list[str]]:
    """What a context occupies, by a GGUF file.

    Parameters
    ----------
    facts
        The file's metadata.
    parts
        Its tensors, each in its layer.
    total_layers
        Layers without those for multi-token prediction.

    Returns
    -------
    session, notes
        The session (None if it cannot be told), and what was taken for granted.
    """
    names: dict[int, set[str]] = {layer: set() for layer in range(total_layers)}
    for part in parts:
        if part.role is Role.DENSE:
            names[part.layer].add(part.tensor.name.split(".", 2)[2].split(".")[0])
            if ".indexer." in part.tensor.name:
                names[part.layer].add("indexer")
    notes: list[str] = []
    windows = _gguf_windows(facts, total_layers, notes)
    layers = [_gguf_layer(facts, layer, names[layer], windows[layer]) for layer in range(total_layers)]
    source = f"metadata of {facts.path.name}; an engine's buffers are not in it"
    return session_of(layers, source, notes), notes


def _gguf_layer(facts: Facts, layer: int, names: set[str], window: int) -> Layer:
    state = 0
    if any(name.startswith("ssm_") for name in names):
        state = _ssm_state(facts)
    elif "shortconv" in names:
        state = facts.whole("embedding_length") * max(0, facts.whole("shortconv.l_cache", 1) - 1)
    attends = any(name.startswith(("attn_k", "attn_v", "attn_qkv")) for name in names)
    mixed = state and not any(name in names for name in ("attn_k", "attn_v"))  # their attn_qkv feeds the state
    if not attends or mixed:
        return Layer(state_values=state)
    index = facts.whole("attention.indexer.key_length", 0) if "indexer" in names else 0
    rank = facts.whole("attention.kv_lora_rank", 0)
    if rank:
        return Layer(rank + facts.whole("rope.dimension_count", 0), 0, window, state, index)
    heads = facts.of_layer("attention.head_count", layer, 0)
    kv_heads = facts.of_layer("attention.head_count_kv", layer, heads)
    if not kv_heads:
        return Layer(state_values=state)
    width = facts.whole("embedding_length") // heads if heads else 0
    key, value = facts.whole("attention.key_length", width), facts.whole("attention.value_length", width)
    if window:
        key, value = facts.whole("attention.key_length_swa", key), facts.whole("attention.value_length_swa", value)
    return Layer(kv_heads * key, kv_heads * value, window, state, index)


def _ssm_state(facts: Facts) -> int:
    """Numbers that a Mamba, Mamba-2 or gated delta-rule layer keeps; of Kimi's delta attention a matrix a head."""
    kernel = facts.whole("ssm.conv_kernel", 1)
    head = facts.whole("kda.head_dim", 0)
    if head:
        inner = head * facts.whole("attention.head_count")
        return 3 * (kernel - 1) * inner + head * inner
    inner, state = facts.whole("ssm.inner_size", 0), facts.whole("ssm.state_size", 0)
    return (kernel - 1) * (inner + 2 * facts.whole("ssm.group_count", 0) * state) + state * inner


def _gguf_windows(facts: Facts, total_layers: int, notes: list[str]) -> list[int]:
    """Window of each layer; 0 for layers that attend over all."""
    window = facts.whole("attention.sliding_window", facts.whole("attention.chunk_size", 0))
    window = window or _CHUNK_TOKENS.get(facts.architecture, 0)
    if not window:
        return [0] * total_layers
    pattern = facts.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return [window if layer < len(pattern) and pattern[layer] else 0 for layer in range(total_layers)]
    every = int(pattern) if isinstance(pattern, int) else _EVERY_NTH_IS_FULL.get(facts.architecture, 0)
    if not every:
        notes.append(
            f"the file names a window of {window:,} tokens, but not which layers have it: "
            "all are taken to attend over the whole context"
        )
        return [0] * total_layers
    return [window if (layer + 1) % every else 0 for layer in range(total_layers)]


def huggingface_session(
    config: Mapping[str, Any], total_layers: int, source: str
) -> tuple[Session | None, list[str]]:
    """What a context occupies, by a `config.json`.

    Parameters
    ----------
    config
        The part of it that is about text.
    total_layers
        Layers without those for multi-token prediction.
    source
        What to say where the figures come from.

    Returns
    -------
    session, notes
        As `gguf_session`.
    """
    notes: list[str] = []
    heads = int(config.get("num_attention_heads") or 0)
    if not heads:
        return None, [
            "what a context occupies is not known (config.json has no num_attention_heads): give --session"
        ]
    kinds = _kinds(config, total_layers, notes)
    layers = [_huggingface_layer(config, kind, heads) for kind in kinds]
    return session_of(layers, f"{source}; an engine's buffers are not in it", notes), notes


def _kinds(config: Mapping[str, Any], total_layers: int, notes: list[str]) -> list[str]:
    """full, sliding, linear or none, for each layer."""
    words = {
        "attention": "full",
        "mamba": "linear",
        "mamba2": "linear",
        "conv": "linear",
        "moe": "none",
        "mlp": "none",
    }
    given = config.get("layer_types") or config.get("layers_block_type") or config.get("hybrid_override_pattern")
    if isinstance(given, str):
        given = [{"M": "mamba", "*": "attention"}.get(mark, "moe") for mark in given]
    if isinstance(given, list):
        kinds = [words.get(str(kind), str(kind).split("_")[0]) for kind in given][:total_layers]
        kinds = [{"chunked": "sliding"}.get(k, k) for k in kinds]
        return [*kinds, *["full"] * (total_layers - len(kinds))]
    every = int(config.get("full_attention_interval") or 0)
    if every:
        return ["full" if (layer + 1) % every == 0 else "linear" for layer in range(total_layers)]
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        model = str(config.get("model_type", "")).replace("_text", "").replace("_", "-")
        every = int(config.get("sliding_window_pattern") or _EVERY_NTH_IS_FULL.get(model, 0))
        if every:
            return ["sliding" if (layer + 1) % every else "full" for layer in range(total_layers)]
        notes.append(
            f"config.json names a window of {config['sliding_window']:,} tokens, but not which layers have it: "
            "all are taken to attend over the whole context"
        )
    if config.get("attn_layer_period"):
        period, offset = int(config["attn_layer_period"]), int(config.get("attn_layer_offset", 0))
        return ["full" if layer % period == offset else "linear" for layer in range(total_layers)]
    return ["full"] * total_layers


def _huggingface_layer(config: Mapping[str, Any], kind: str, heads: int) -> Layer:
    if kind == "none":
        return Layer()
    if kind == "linear":
        return Layer(state_values=_huggingface_state(config))
    if rank := int(config.get("kv_lora_rank") or 0):
        return Layer(rank + int(config.get("qk_rope_head_dim") or 0))
    width = int(config.get("head_dim") or int(config.get("hidden_size") or 0) // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    if kind != "sliding":
        width = int(config.get("global_head_dim") or width)
        kv_heads = int(config.get("num_global_key_value_heads") or kv_heads)
        return Layer(kv_heads * width, kv_heads * int(config.get("v_head_dim") or width))
    window = int(config.get("sliding_window") or config.get("attention_chunk_size") or 0)
    return Layer(kv_heads * width, kv_heads * int(config.get("v_head_dim") or width), window)


def _huggingface_state(config: Mapping[str, Any]) -> int:
    """Numbers that a layer of fixed state keeps; 0 where the config has none of the known shapes."""
    if config.get("linear_num_value_heads"):
        value_heads, value = int(config["linear_num_value_heads"]), int(config["linear_value_head_dim"])
        key_heads, key = int(config["linear_num_key_heads"]), int(config["linear_key_head_dim"])
        inner, kernel = value_heads * value, int(config.get("linear_conv_kernel_dim") or 1)
        return (kernel - 1) * (inner + 2 * key_heads * key) + key * inner
    if config.get("conv_L_cache"):
        return int(config["hidden_size"]) * (int(config["conv_L_cache"]) - 1)
    state = int(config.get("mamba_d_state") or config.get("ssm_state_size") or 0)
    inner = int(config.get("mamba_n_heads") or config.get("mamba_num_heads") or 0) * int(
        config.get("mamba_d_head") or config.get("mamba_head_dim") or 0
    ) or int(config.get("mamba_expand") or 0) * int(config.get("hidden_size") or 0)
    kernel = int(config.get("mamba_d_conv") or config.get("conv_kernel") or 1)
    groups = int(config.get("mamba_n_groups") or config.get("n_groups") or 0)
    return (kernel - 1) * (inner + 2 * groups * state) + state * inner
