"""What the tensors and the metadata of a GGUF file say about a model."""

from __future__ import annotations

import re
from pathlib import Path

from expert_residency.errors import TraceError
from expert_residency.traces.weights.checkpoint import Checkpoint, Part, Role
from expert_residency.traces.weights.context import gguf_session
from expert_residency.traces.weights.ggml_types import FILE_TYPES
from expert_residency.traces.weights.gguf import Header, Tensor, Value, read_header

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_MERGED = re.compile(r"ffn_\w+_(?:exps|chexps)\.(?:weight|bias)")
"""All experts of a layer in one tensor, experts last; `chexps` are those of grovemoe, each for several others.
Scales of whole experts (gemma4) belong to the router."""
_APIECE = re.compile(r"ffn_(?:gate|up|down)\.(\d+)\.weight")
"""A tensor an expert, as in files of before April 2024."""
_OTHER = ("v.", "mm.", "a.", "enc.")
_QUANT = re.compile(
    r"(?:^|[-._ ])((?:UD-)?(?:I?Q\d|TQ\d|BF16|FP?16|FP?32|MXFP4|NVFP4)(?:_[A-Za-z0-9]+)*(?:-[A-Za-z0-9]{1,2})?)$",
    re.I,
)
_PLAIN_NAMES = ("", "model", "ggml-model", "main")


class Facts:
    """Metadata by its name behind the architecture's."""

    def __init__(self, header: Header) -> None:
        self.path, self.values = header.path, header.metadata
        self.architecture = str(header.metadata.get("general.architecture") or "")
        if not self.architecture:
            raise TraceError("general.architecture is missing: not the file of a model", path=header.path)

    def get(self, key: str) -> Value:
        """The value of `key` of this architecture; None if there is none."""
        return self.values.get(f"{self.architecture}.{key}")

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number, the only one other than 0 if there is one for each layer.

        Raises
        ------
        TraceError
            It is missing (and there is no default), no number, or differs between layers.
        """
        value = self.get(key)
        several = value if isinstance(value, list) else [value]
        found = sorted({int(v) for v in several if isinstance(v, int | float) and v})
        if len(found) == 1:
            return found[0]
        if not found and default is not None:
            return default
        name = f"{self.architecture}.{key}"
        if not found:
            raise TraceError(f"the metadata lacks {name}", path=self.path)
        raise TraceError(f"{name} differs between layers ({', '.join(map(str, found))})", path=self.path)

    def of_layer(self, key: str, layer: int, default: int) -> int:
        """A whole number that may differ between layers.

        Parameters
        ----------
        key
            Its name behind the architecture's.
        layer
            Which layer.
        default
            What to give where the file has none.

        Returns
        -------
        int
            The layer's value, or that of all layers.
        """
        value = self.get(key)
        if isinstance(value, list):
            return int(value[layer]) if layer < len(value) else default
        return int(value) if isinstance(value, int | float) else default


def read_gguf_model(path: Path) -> Checkpoint:
    """A model from the headers of its GGUF files.

    Raises
    ------
    TraceError
        As `read_header` and `model_of`.
    """
    return model_of(read_header(path))


def model_of(header: Header) -> Checkpoint:
    """A model from metadata and tensors.

    Raises
    ------
    TraceError
        Metadata that a model needs is missing, or contradicts the tensors.
    """
    path = header.path
    facts = Facts(header)
    if not facts.get("expert_count"):
        raise TraceError(
            f"not a mixture-of-experts model: {facts.architecture}.expert_count is missing or 0", path=path
        )
    experts, blocks = facts.whole("expert_count"), facts.whole("block_count")
    layers = blocks - facts.whole("nextn_predict_layers", 0)
    parts = tuple(_part(tensor, layers, blocks, experts, header) for tensor in header.tensors)
    session, notes = gguf_session(facts, parts, layers)
    name, quant = _names(header)
    return Checkpoint(
        path=path,
        name=name,
        quant=quant,
        architecture=facts.architecture,
        total_layers=layers,
        experts=experts,
        top_k=facts.whole("expert_used_count"),
        hidden_size=facts.whole("embedding_length"),
        parts=parts,
        session=session,
        source=f"tensors of {header.path.name}"
        + (f" and {header.files - 1} more files" if header.files > 1 else ""),
        notes=tuple(notes),
    )


def _part(tensor: Tensor, layers: int, blocks: int, experts: int, header: Header) -> Part:
    block = _BLOCK.fullmatch(tensor.name)
    if block is None:
        if tensor.name.startswith(("token_embd.", "per_layer_token_embd.")):
            return Part(tensor, Role.EMBEDDING)
        return Part(tensor, Role.APART if tensor.name.startswith(_OTHER) else Role.HEAD)
    layer, rest = int(block[1]), block[2]
    if layer >= blocks:
        raise TraceError(f"tensor {tensor.name} is of no block, the model has {blocks}", path=header.path)
    if layer >= layers or rest.startswith("nextn."):
        return Part(tensor, Role.DRAFT, layer)
    if _MERGED.match(rest):
        chunks = "_chexps." in rest
        if not chunks and tensor.shape[-1] != experts:
            raise TraceError(
                f"tensor {tensor.name} has {tensor.shape[-1]} experts, expert_count says {experts}",
                path=header.path,
            )
        return Part(tensor, Role.EXPERT, layer, tensor.numbers if rest.endswith(".weight") and not chunks else 0)
    if apiece := _APIECE.fullmatch(rest):
        if int(apiece[1]) >= experts:
            raise TraceError(
                f"tensor {tensor.name} is of no expert, expert_count says {experts}", path=header.path
            )
        return Part(tensor, Role.EXPERT, layer, tensor.numbers)
    return Part(tensor, Role.DENSE, layer)


def _names(header: Header) -> tuple[str, str]:
    """Model and quantization by the file's name; by its metadata where the name says nothing."""
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", header.path.name.removesuffix(".part").removesuffix(".gguf"))
    quant = ""
    if found := _QUANT.search(stem):
        quant, stem = found[1], stem[: found.start()]
    kind = header.metadata.get("general.file_type")
    quant = quant or (FILE_TYPES.get(kind, "") if isinstance(kind, int) else "") or "GGUF"
    if stem.lower() in _PLAIN_NAMES:
        stem = str(header.metadata.get("general.name") or header.metadata.get("general.basename") or "model")
    return slug(stem), quant


def slug(text: str) -> str:
    """A name as users type it: lower case, without spaces or slashes."""
    return re.sub(r"[^a-z0-9.+]+", "-", text.lower()).strip("-.") or "model"
