"""From the tensors of a model, each with its role, to bytes of experts and of the dense part layer by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from expert_residency.errors import TraceError
from expert_residency.families import quant_family
from expert_residency.traces.model_file import DEFAULT_STYLE, ModelFile, Quant, Session
from expert_residency.traces.weights.gguf import Tensor


class Role(StrEnum):
    """What a tensor is for."""

    EXPERT = "experts"
    DENSE = "dense part of a layer"
    HEAD = "output head"
    EMBEDDING = "token embedding"
    DRAFT = "layers for multi-token prediction"
    APART = "other modalities"


@dataclass(frozen=True)
class Part:
    """A tensor in its place.

    Parameters
    ----------
    tensor
        Name, shape, type, bytes.
    role
        What it is for.
    layer
        The model's own number, for experts and dense parts.
    weights
        Numbers that are multiplied with, over all experts; 0 for biases and scales.
    """

    tensor: Tensor
    role: Role
    layer: int = -1
    weights: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """A model as its files have it, whatever their format.

    Parameters
    ----------
    path
        The file that was named, for messages.
    name, quant
        As users type them.
    architecture
        What the format calls the architecture.
    total_layers
        Layers without those for multi-token prediction.
    experts, top_k, hidden_size
        Experts of a layer, those that a token uses, width of the residual stream.
    parts
        Every tensor.
    session
        What a context occupies; None if that cannot be told.
    source
        The file and what was read of it.
    family
        Of the experts, where the types of the tensors do not say it.
    notes
        What was left out or taken for granted, a sentence each.
    """

    path: Path
    name: str
    quant: str
    architecture: str
    total_layers: int
    experts: int
    top_k: int
    hidden_size: int
    parts: tuple[Part, ...]
    session: Session | None
    source: str
    family: str = ""
    notes: tuple[str, ...] = field(default=())


def model_file(checkpoint: Checkpoint) -> ModelFile:
    """The model's file with one quantization.

    Raises
    ------
    TraceError
        No experts, experts that do not divide a tensor, or a layer without a dense part.
    """
    experts = _by_layer(checkpoint, Role.EXPERT)
    if not experts:
        raise TraceError(
            f"no tensor of experts, so {checkpoint.name} is no mixture-of-experts model that is known here "
            f"(architecture {checkpoint.architecture})",
            path=checkpoint.path,
        )
    dense = _by_layer(checkpoint, Role.DENSE)
    layers = sorted(experts)
    _refuse_gaps(checkpoint, layers, dense)
    tied, head = _head(checkpoint.parts)
    quant = Quant(
        family=checkpoint.family or _family(checkpoint.parts),
        expert_bytes=_short([experts[layer] // checkpoint.experts for layer in layers]),
        dense_layer_bytes=_short([dense[layer] for layer in layers]),
        head_bytes=head,
        dense_only_bytes=sum(nbytes for layer, nbytes in dense.items() if layer not in experts),
        file_bytes=sum(part.tensor.nbytes for part in checkpoint.parts),
        kind="measured",
        source=checkpoint.source,
    )
    known = _packaged_like(checkpoint.name)
    first = [p for p in checkpoint.parts if p.role is Role.EXPERT and p.layer == layers[0]]
    regular = layers == list(range(layers[0], checkpoint.total_layers))
    return ModelFile(
        name=checkpoint.name,
        description=known.description if known else checkpoint.architecture,
        total_layers=checkpoint.total_layers,
        first_moe_layer=layers[0] if regular else 0,
        moe_layers=None if regular else layers,
        experts=checkpoint.experts,
        top_k=checkpoint.top_k,
        hidden_size=checkpoint.hidden_size,
        expert_params=sum(part.weights for part in first) // checkpoint.experts,
        source=checkpoint.source,
        default_quant=checkpoint.quant,
        style=known.style if known else DEFAULT_STYLE,
        session=checkpoint.session,
        quants={checkpoint.quant: quant},
        notes=[*_left_out(checkpoint.parts), *(["the output head is the token embedding (tied)"] if tied else []),
               *checkpoint.notes],
    )  # fmt: skip


def _by_layer(checkpoint: Checkpoint, role: Role) -> dict[int, int]:
    """Bytes of all tensors of a role in each layer."""
    found: Counter[int] = Counter()
    for part in checkpoint.parts:
        if part.role is role:
            found[part.layer] += part.tensor.nbytes
    return dict(found)


def _refuse_gaps(checkpoint: Checkpoint, layers: list[int], dense: dict[int, int]) -> None:
    kinds = {
        layer: sorted(
            {_kind(p.tensor.name) for p in checkpoint.parts if p.role is Role.EXPERT and p.layer == layer}
        )
        for layer in layers
    }
    usual = Counter(tuple(kind) for kind in kinds.values()).most_common(1)[0][0]
    for layer in layers:
        lacks = [kind for kind in usual if kind not in kinds[layer] and kind.endswith("weight")]
        if lacks and len(usual) > len(kinds[layer]):
            raise TraceError(
                f"layer {layer} lacks {', '.join(lacks)}, which the other layers have", path=checkpoint.path
            )
        if layer not in dense:
            raise TraceError(f"layer {layer} has experts, but neither attention nor router", path=checkpoint.path)
    absent = sorted(set(range(checkpoint.total_layers)) - set(dense))
    if absent:
        raise TraceError(
            f"{len(absent)} of {checkpoint.total_layers} layers have no tensors (layer {absent[0]} first)",
            path=checkpoint.path,
        )


def _kind(name: str) -> str:
    """A tensor's name without numbers: the same in every layer, and for each expert."""
    return ".".join(part for part in name.split(".") if not part.isdigit())


def _head(parts: Iterable[Part]) -> tuple[bool, int]:
    """Whether the head is the embedding, and what is read after the last layer."""
    heads = [p for p in parts if p.role is Role.HEAD]
    nbytes = sum(part.tensor.nbytes for part in heads)
    if any(len(part.tensor.shape) > 1 for part in heads):
        return False, nbytes
    embeddings = [p.tensor.nbytes for p in parts if p.role is Role.EMBEDDING and len(p.tensor.shape) > 1]
    return True, nbytes + max(embeddings, default=0)


def _family(parts: Iterable[Part]) -> str:
    """Family of the type in which most bytes of experts are."""
    found: Counter[str] = Counter()
    for part in parts:
        if part.role is Role.EXPERT:
            found[part.tensor.type] += part.tensor.nbytes
    return quant_family(found.most_common(1)[0][0])


def _left_out(parts: Iterable[Part]) -> list[str]:
    lines = []
    for role in (Role.DRAFT, Role.APART):
        nbytes = sum(part.tensor.nbytes for part in parts if part.role is role)
        if nbytes:
            where = sorted({p.layer for p in parts if p.role is role and p.layer >= 0})
            named = f" (layer {', '.join(map(str, where))})" if where else ""
            lines.append(f"left out: {role.value}{named}, {nbytes / 1e9:.2f} GB")
    return lines


def _short(values: list[int]) -> int | list[int]:
    return values[0] if len(set(values)) == 1 else values


def _packaged_like(name: str) -> ModelFile | None:
    """The packaged model that `name` is, or is a variant of."""
    from expert_residency.traces.geometry import list_models, read_model

    close = [known for known in list_models() if name.lower().startswith(known)]
    return read_model(max(close, key=len)) if close else None
