"""What `config.json` and the headers of safetensors files say about a model of Hugging Face.

Layers and sizes come from the tensors; the config is asked for k, for the number of experts and layers, and for
what a context takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from expert_residency.errors import TraceError
from expert_residency.families import UNKNOWN, quant_family
from expert_residency.traces.weights.checkpoint import Checkpoint, Part, Role
from expert_residency.traces.weights.context import huggingface_session
from expert_residency.traces.weights.gguf import Tensor
from expert_residency.traces.weights.gguf_model import slug
from expert_residency.traces.weights.safetensors import read_tensors

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "moe_k", "moe_top_k",
         "num_selected_experts", "experts_per_token")  # fmt: skip
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_WIDTHS = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
INDEX = "model.safetensors.index.json"

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.(.+)")
_APART = re.compile(
    r"(?:^|\.)(?:visual|vision_tower|vision_model|vision_embed_tokens|audio_tower|multi_modal_projector|mm_projector|"
    r"embed_vision|embed_audio)\."
)
_EXPERT = re.compile(r"(?:^|\.)experts\.(?:(\d+)\.)?")
_SHARED = re.compile(r"shared_experts?\.")
_SCALE = re.compile(r"(?:bias|scales?|scale_inv|zeros|zero_point|g_idx|weight_shape|_scale_2|input_scale|amax)$")
_PACKED = ("U8", "I8", "I32", "U32", "I64", "F4")


def read_huggingface_model(path: Path) -> Checkpoint:
    """A model from the folder of a `config.json` (or of a safetensors file beside one).

    Raises
    ------
    TraceError
        No config, no or missing safetensors files, no experts, or a config that contradicts the tensors.
    """
    folder = path.parent
    config_path = folder / "config.json" if path.suffix == ".safetensors" or path.name == INDEX else path
    whole = _read_json(config_path)
    text = ("text_config", "llm_config", "language_config")
    config = next((c for key in text if isinstance(c := whole.get(key), dict)), whole)
    config = {**{k: v for k, v in whole.items() if not isinstance(v, dict)}, **config}
    experts = _whole(config, EXPERTS, config_path, "not a mixture-of-experts model")
    top_k = _whole(config, TOP_K, config_path, "not a mixture-of-experts model")
    layers = _whole(config, LAYERS, config_path, "not the config of a model")
    files = _files(folder, config_path)
    tensors = [tensor for file in files for tensor in read_tensors(file)]
    quantization = _quantization(whole, config)
    parts = tuple(_part(tensor, layers, experts, config_path) for tensor in tensors)
    parts = _with_weights(parts, config, experts)
    _check_experts(parts, experts, config_path)
    source = f"headers of {len(files)} safetensors files and config.json of {folder.resolve().name}"
    session, notes = huggingface_session(config, layers, source)
    quant, family = _quant_of(parts, quantization)
    return Checkpoint(
        path=path,
        name=slug(folder.resolve().name),
        quant=quant,
        architecture=str(config.get("model_type") or "unknown"),
        total_layers=layers,
        experts=experts,
        top_k=top_k,
        hidden_size=_whole(config, ("hidden_size", "n_embd", "d_model"), config_path, "not the config of a model"),
        parts=parts,
        session=session,
        source=source,
        family=family,
        notes=tuple(notes),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError("no such file", path=path) from None
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror})", path=path) from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"not valid JSON ({error})", path=path) from None
    if not isinstance(table, dict):
        raise TraceError("no table of settings", path=path)
    return table


def _whole(config: Mapping[str, Any], names: Iterable[str], path: Path, otherwise: str) -> int:
    """A whole number by the first of its names that has one."""
    wrong = ""
    for name in names:
        value = config.get(name)
        several = sorted({v for v in value if type(v) is int}) if isinstance(value, list) else [value]
        if len(several) > 1:
            raise TraceError(f"{name} differs between layers ({', '.join(map(str, several))})", path=path)
        if several and type(several[0]) is int and several[0] > 0:
            return several[0]
        if value is not None and not wrong:
            wrong = f"{name} is {json.dumps(value)[:40]}, expected a whole number above 0"
    raise TraceError(f"{otherwise}: {wrong or 'it has none of ' + ', '.join(names)}", path=path)


def _files(folder: Path, config: Path) -> list[Path]:
    """The safetensors files of the model: those of its index if there is one."""
    index = folder / INDEX
    if index.is_file():
        table = _read_json(index).get("weight_map")
        if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
            raise TraceError("weight_map is missing or damaged", path=index)
        names = sorted(set(table.values()))
        if any("/" in name or "\\" in name for name in names):
            raise TraceError("weight_map names files of other folders", path=index)
        absent = [name for name in names if not (folder / name).is_file()]
        if absent:
            more = f" and {len(absent) - 3} more" if absent[3:] else ""
            raise TraceError(
                f"{len(absent)} of {len(names)} files are missing: {', '.join(absent[:3])}{more}", path=index
            )
        return [folder / name for name in names]
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise TraceError(
            "there are no safetensors files beside it, which have the sizes (their headers are enough: the first "
            "megabytes of each file)",
            path=config,
        )
    for file in found:
        if part := re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.safetensors", file.name):
            have = sum(
                1
                for p in found
                if p.name.startswith(f"{part[1]}-") and p.name.endswith(f"-of-{part[3]}.safetensors")
            )
            if have != int(part[3]):
                raise TraceError(f"{int(part[3]) - have} of {int(part[3])} files are missing", path=file)
    return found


def _part(tensor: Tensor, layers: int, experts: int, path: Path) -> Part:
    name = tensor.name
    if _APART.search(name):
        return Part(tensor, Role.APART)
    if name.startswith("mtp.") or ".mtp." in name:
        return Part(tensor, Role.DRAFT)
    place = _LAYER.search(name)
    if place is None:
        return Part(
            tensor, Role.EMBEDDING if re.search(r"embed_tokens|word_embeddings|\bwte\b", name) else Role.HEAD
        )
    layer, rest = int(place[1]), place[2]
    if layer >= layers:
        return Part(tensor, Role.DRAFT, layer)
    stacked = len(tensor.shape) == 3 and tensor.shape[0] == experts and "router" not in rest
    expert = None if _SHARED.search(rest) else _EXPERT.search(rest)
    if expert is None and not stacked:
        return Part(tensor, Role.DENSE, layer)
    if expert is not None and expert[1] is not None and int(expert[1]) >= experts:
        raise TraceError(f"{name} is of no expert, the config says {experts}", path=path)
    return Part(tensor, Role.EXPERT, layer, 0 if _SCALE.search(rest) or len(tensor.shape) < 2 else tensor.numbers)


def _with_weights(parts: tuple[Part, ...], config: Mapping[str, Any], experts: int) -> tuple[Part, ...]:
    """Weights of packed experts, whose tensors hold several in a number, from the widths of the config."""
    packed = any(p.weights and p.tensor.type in _PACKED for p in parts if p.role is Role.EXPERT)
    if not packed:
        return parts
    first = min(p.layer for p in parts if p.role is Role.EXPERT)
    names = {p.tensor.name for p in parts if p.role is Role.EXPERT and p.layer == first}
    two = not any(word in name for name in names for word in ("gate", "w3", "w13"))
    width = next((int(config[name]) for name in _WIDTHS if type(config.get(name)) is int), 0)
    weights = (2 if two else 3) * width * int(config.get("hidden_size") or 0) * experts
    once = next(i for i, p in enumerate(parts) if p.role is Role.EXPERT and p.layer == first)
    return tuple(
        Part(p.tensor, p.role, p.layer, weights if i == once else 0) if p.role is Role.EXPERT else p
        for i, p in enumerate(parts)
    )


def _check_experts(parts: Iterable[Part], experts: int, path: Path) -> None:
    """See that layers of an expert a tensor have all of them."""
    seen: dict[int, set[int]] = {}
    for part in parts:
        if part.role is Role.EXPERT and (found := _EXPERT.search(part.tensor.name)) and found[1] is not None:
            seen.setdefault(part.layer, set()).add(int(found[1]))
    for layer, ids in sorted(seen.items()):
        if len(ids) != experts:
            raise TraceError(f"layer {layer} has {len(ids)} experts, the config says {experts}", path=path)


def _quantization(whole: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """What the config calls its quantization, in words that have a family."""
    table = whole.get("quantization_config") or config.get("quantization_config")
    if not isinstance(table, dict):
        return ""
    method = str(table.get("quant_algo") or table.get("quant_method") or "")
    bits = table.get("bits") or table.get("num_bits")
    groups = table.get("config_groups")
    if bits is None and isinstance(groups, dict):
        weights = next((g.get("weights") for g in groups.values() if isinstance(g, dict)), None)
        if isinstance(weights, dict):
            kind = str(weights.get("type") or "int")
            return f"{'fp' if kind == 'float' else 'int'}{weights.get('num_bits')}"
    if type(bits) is int and method not in ("fp8", "mxfp4", "nvfp4"):
        return f"int{bits}-{method}" if method else f"int{bits}"
    return method


def _quant_of(parts: Iterable[Part], quantization: str) -> tuple[str, str]:
    """Label and family: what the config says, else the type in which most bytes of experts are."""
    kinds: dict[str, int] = {}
    for part in parts:
        if part.role is Role.EXPERT:
            kinds[part.tensor.type] = kinds.get(part.tensor.type, 0) + part.tensor.nbytes
    main = max(kinds, key=kinds.__getitem__, default="")
    if main in ("BF16", "F16", "F32") or not quantization:
        return main, quant_family(main) if main else UNKNOWN
    return slug(quantization).upper(), quant_family(quantization)
