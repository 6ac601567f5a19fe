"""Model geometry: which layers have experts, how many, how many bytes each.

A geometry is a frozen value. It comes from a TOML file of this package (`load_model`), from a file of the
user's (TOML, or the model's own weights: `traces.weights`), or from a trace's own header. Layer ids are the
model's own numbers: a model whose first layers are dense starts its list at the first MoE layer, and nothing is
renumbered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from expert_residency.errors import TraceError
from expert_residency.toml import Shelf, checked
from expert_residency.traces.session import SessionShape

if TYPE_CHECKING:
    from expert_residency.traces.model_file import ModelFile


@cache
def _aliases() -> dict[str, str]:
    """Other names of packaged models, of those with the same shapes."""
    return {alias: name for name in MODELS.names() for alias in MODELS.read(name).get("aliases", ())}


MODELS = Shelf("expert_residency.traces", "models", "model", TraceError, aliases=_aliases)
"""Where model files are."""
LARGEST_ID = (1 << 15) - 1
"""Of a layer or an expert: ids of traces have 16 bits."""
LARGEST_BYTES = 1 << 60
"""Of a whole model: sums of it stay integers of 64 bits."""

_PLAIN_SIZES = ("head_bytes", "dense_only_bytes", "expert_params", "hidden_size", "handoff_bytes", "total_layers")


def _is_packaged(name: str) -> bool:
    return name.lower() in MODELS.names() or name.lower() in _aliases()


@dataclass(frozen=True)
class ModelGeometry:
    """Shape and sizes of one model in one quantization.

    Parameters
    ----------
    name, quant
        As users type them; `quant` is empty where there is only one.
    layer_ids
        MoE layers as the model numbers them, ascending.
    experts, top_k
        Experts of one layer, and how many of them a token uses.
    expert_bytes, dense_bytes
        For each entry of `layer_ids`: bytes of one expert, and of the part that every token reads
        (mixer, norms, router, shared experts).
    head_bytes
        Output head (and whatever else is read once a pass after the last layer).
    expert_params
        Weights in one expert, for compute-bound passes; 0 when unknown.
    dense_only_bytes
        Bytes of layers without experts, read once a pass (before the first MoE layer).
    hidden_size
        Width of the residual stream; sizes the activation rows that travel.
    handoff_bytes
        What a token hands from one pipeline stage to the next, where it is more than a row of float32; 0: a row.
    quant_family
        Key into a machine's rates (`q4`, `q2`, `iq3`, `mxfp4`, `bf16`, ...).
    source
        Where the sizes come from.
    session
        What a context occupies, where the model's file says so; no part of a trace, nor of what makes two
        geometries equal. See `session_shape`.

    Raises
    ------
    TraceError
        If lists do not match, or a size is missing or not positive (a missing size is never 0).
    """

    name: str
    layer_ids: tuple[int, ...]
    experts: int
    top_k: int
    expert_bytes: tuple[int, ...]
    dense_bytes: tuple[int, ...]
    quant: str = ""
    quant_family: str = "unknown"
    head_bytes: int = 0
    dense_only_bytes: int = 0
    expert_params: int = 0
    hidden_size: int = 0
    handoff_bytes: int = 0
    total_layers: int = 0
    source: str = ""
    session: SessionShape | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        n = len(self.layer_ids)
        if n == 0:
            raise TraceError(f"model {self.name!r} has no MoE layer")
        if not 0 <= min(self.layer_ids) <= max(*self.layer_ids, self.experts) <= LARGEST_ID:
            raise TraceError(f"model {self.name!r}: ids of layers and experts go from 0 to {LARGEST_ID:,}")
        if list(self.layer_ids) != sorted(set(self.layer_ids)):
            raise TraceError(f"model {self.name!r}: layer ids must ascend without repeats")
        for name in ("expert_bytes", "dense_bytes"):
            values = getattr(self, name)
            if len(values) != n:
                raise TraceError(f"model {self.name!r}: {name} has {len(values)} entries for {n} MoE layers")
        for layer, size in zip(self.layer_ids, self.expert_bytes, strict=True):
            if size <= 0:
                raise TraceError(f"model {self.name!r}: expert bytes of layer {layer} are missing (found {size})")
        if not 0 < self.top_k <= self.experts:
            raise TraceError(f"model {self.name!r}: top-k {self.top_k} of {self.experts} experts is impossible")
        rest = {name: getattr(self, name) for name in _PLAIN_SIZES} | {"dense_bytes": min(self.dense_bytes)}
        negative = [name for name, size in rest.items() if size < 0]
        if negative:
            raise TraceError(f"model {self.name!r}: {negative[0]} is {rest[negative[0]]}, less than nothing")
        if self.all_expert_bytes + sum(self.dense_bytes) + sum(rest.values()) > LARGEST_BYTES:
            raise TraceError(f"model {self.name!r}: its sizes add up to more than {LARGEST_BYTES:,} bytes")

    @property
    def n_layers(self) -> int:
        """MoE layers."""
        return len(self.layer_ids)

    @property
    def n_experts(self) -> int:
        """Experts over all layers, i.e. the number of keys."""
        return self.n_layers * self.experts

    @property
    def label(self) -> str:
        """`name` or `name/quant`."""
        return f"{self.name}/{self.quant}" if self.quant else self.name

    @property
    def token_handoff_bytes(self) -> int:
        """Bytes that a token hands to the next stage; 0 when the model's width is unknown."""
        return self.handoff_bytes or 4 * self.hidden_size

    @property
    def all_expert_bytes(self) -> int:
        """Bytes of every expert of the model."""
        return self.experts * sum(self.expert_bytes)

    @property
    def token_cycle_bytes(self) -> int:
        """Bytes that one token touches over all layers."""
        return self.top_k * sum(self.expert_bytes)

    def lru_floor_bytes(self, top_k: int | None = None) -> int:
        """Below so many bytes a global LRU that starts empty and admits always hits exactly 0 %.

        Between two uses of an expert at least `top_k` experts of every other layer are used. The one of its own
        event that was used last needs room beside them only for itself, since an event is looked up before any of
        it leaves: so the floor is a token cycle less `top_k - 1` of the largest experts.
        """
        k = self.top_k if top_k is None else top_k
        return k * sum(self.expert_bytes) - (k - 1) * max(self.expert_bytes)

    @property
    def gap(self) -> str:
        """What the sizes leave out, so that it costs neither time nor memory, in a sentence; empty if nothing."""
        sizes = {
            "output head": self.head_bytes,
            "weights of an expert": self.expert_params,
            "hidden size": self.hidden_size,
        }
        left_out = [name for name, value in sizes.items() if not value]
        if not left_out:
            return ""
        return (
            f"the sizes of {self.label} lack {' and '.join(left_out)}, which then cost nothing: give the model "
            "with --model (residency list models)"
        )

    @property
    def session_shape(self) -> SessionShape | None:
        """What a context occupies: as given, or as the packaged model of this name has it (for traces)."""
        if self.session is not None or self.name not in list_models():
            return self.session
        return read_model(self.name).session_shape(self.quant_family)

    def key(self, layer_index: int, expert: int) -> int:
        """Integer key of an expert; `layer_index` counts MoE layers from 0."""
        return layer_index * self.experts + expert

    def layer_of_key(self, key: int) -> tuple[int, int]:
        """(layer id as the model numbers it, expert id) of a key."""
        return self.layer_ids[key // self.experts], key % self.experts

    def with_top_k(self, top_k: int) -> ModelGeometry:
        """Same model run with another k."""
        return replace(self, top_k=top_k)

    def only_layers(self, indices: list[int]) -> ModelGeometry:
        """The model cut to some of its MoE layers (by index), which its name then says."""
        name = f"{self.name} ({len(indices)} of {self.n_layers} MoE layers)"
        kept: dict[str, Any] = {
            f: tuple(getattr(self, f)[i] for i in indices) for f in ("layer_ids", "expert_bytes", "dense_bytes")
        }
        return replace(self, name=name, session=None, **kept)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able form; `from_dict` reads it back."""
        return {f: (list(v) if isinstance(v, tuple) else v) for f, v in vars(self).items() if f != "session"}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelGeometry:
        """Geometry from `to_dict`'s form; unknown keys and values of another kind are refused."""
        from expert_residency.traces.header import GeometryForm

        data = checked(GeometryForm, data, TraceError).model_dump()
        fields: dict[str, Any] = {f: (tuple(v) if isinstance(v, list) else v) for f, v in data.items()}
        return cls(**fields)


@cache
def list_models() -> dict[str, list[str]]:
    """Names of the packaged models, each with its quantizations (the default first)."""
    found: dict[str, list[str]] = {}
    for name in MODELS.names():
        data = MODELS.read(name)
        default = data["default_quant"]
        found[data["name"]] = [default, *(q for q in data["quants"] if q != default)]
    return found


def load_model(spec: str, quant: str | None = None, top_k: int | None = None) -> ModelGeometry:
    """Geometry by name (`name`, `name/quant`), from a TOML file of the same form, or from the model's own files.

    Parameters
    ----------
    spec
        Name or file, as `read_model`; `:top_k=6` at its end says the run's own k.
    quant
        Quantization; by default that of `spec`, or the file's default.
    top_k
        Experts a token in the run that is meant, where they are not the model's.

    Returns
    -------
    ModelGeometry
        The model in that quantization.

    Raises
    ------
    TraceError
        As `read_model`, an unknown quantization (the valid ones are listed), or an impossible k.
    """
    spec, own_k = _with_own_k(spec)
    name, tail = name_and_quant(spec)
    quant, quants_k = _with_own_k(quant or tail or "")
    top_k = top_k or own_k or quants_k
    data = read_model(name)
    geometry = _build(data, quant or data.default_quant)
    return geometry.with_top_k(top_k) if top_k is not None else geometry


def _with_own_k(text: str) -> tuple[str, int | None]:
    """`NAME/QUANT:top_k=6` apart: experts a token in a run that were not the model's."""
    found = re.fullmatch(r"(.*):top[-_]k=(\d+)", text)
    return (found[1], int(found[2])) if found else (text, None)


def name_and_quant(spec: str) -> tuple[str, str | None]:
    """`name/quant` of a packaged model apart; a file is a name as a whole."""
    name, _, tail = spec.partition("/")
    return (name, tail or None) if _is_packaged(name) else (spec, None)


def read_model(spec: str) -> ModelFile:
    """Checked contents of a model's file: all its quantizations, its context, its routing style.

    Parameters
    ----------
    spec
        Name of a packaged model, path of a TOML file of the same form, or of the model's weights: a GGUF file, a
        folder, a `config.json` beside safetensors files. `:top_k=6` at its end replaces the model's k.

    Raises
    ------
    TraceError
        Unknown name (the valid ones are listed), no such file, or a file that does not validate.
    """
    from expert_residency.traces.model_file import ModelFile
    from expert_residency.traces.weights import is_weights, read_weights

    spec, own_k = _with_own_k(spec)
    if own_k is not None:
        return read_model(spec).model_copy(update={"top_k": own_k})
    if not _is_packaged(spec):
        if is_weights(spec):
            return read_weights(spec)
        if "/" in spec and not spec.endswith(".toml"):
            if spec.startswith((".", "/", "~")):
                raise TraceError("no such file or folder", path=spec)
            spec = spec.partition("/")[0]

    return checked(ModelFile, MODELS.load(spec), TraceError, MODELS.where(spec))


def _build(data: ModelFile, quant: str) -> ModelGeometry:
    by_lower = {name.lower(): name for name in data.quants}
    if quant.lower() not in by_lower:
        raise TraceError(f"unknown quantization {quant!r} of {data.name} (known: {', '.join(data.quants)})")
    quant = by_lower[quant.lower()]
    chosen = data.quants[quant]
    layers = data.layer_ids

    def per_layer(value: int | list[int]) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, list) else (value,) * len(layers)

    return ModelGeometry(
        name=data.name,
        layer_ids=layers,
        experts=data.experts,
        top_k=data.top_k,
        expert_bytes=per_layer(chosen.expert_bytes),
        dense_bytes=per_layer(chosen.dense_layer_bytes),
        quant=quant,
        quant_family=chosen.family,
        head_bytes=chosen.head_bytes,
        dense_only_bytes=chosen.dense_only_bytes,
        expert_params=data.expert_params or 3 * data.hidden_size * data.expert_width,
        hidden_size=data.hidden_size,
        handoff_bytes=data.handoff_bytes,
        total_layers=data.total_layers,
        source=f"{chosen.source} ({chosen.kind})",
        session=data.session_shape(chosen.family),
    )
