"""Form of a model's TOML file (apart, so that pydantic is imported only where a file is read)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from expert_residency.families import FAMILIES, UNKNOWN
from expert_residency.text import markdown, unknown
from expert_residency.traces.geometry import LARGEST_ID
from expert_residency.traces.session import DraftShape, SessionShape

Kind = Literal["measured", "datasheet", "derived", "assumed"]
"""What a figure is, as in a machine's profile."""
DEFAULT_STYLE = "qwen3-30b-a3b"
"""Routing style of models that have none of their own."""


class Table(BaseModel):
    """A table of the file: no unknown keys, and the text under a field is its description in schema and docs."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Quant(Table):
    """Sizes of one quantization; a list has one entry for each MoE layer."""

    family: str
    """Which of a machine's rates hold for the experts: the family of the type that most of their bytes have."""
    expert_bytes: int | list[int]
    """Bytes of one expert, scales and biases included."""
    dense_layer_bytes: int | list[int]
    """Bytes that every token reads of a MoE layer: attention or state, norms, router, shared experts."""
    head_bytes: int = 0
    """Output head and norm; of a tied head the token embedding."""
    dense_only_bytes: int = 0
    """All layers without experts together."""
    file_bytes: int = Field(default=0, ge=0)
    """All tensors of the model's files: also the token embedding, of which a pass reads a row a token, layers that
    draft tokens, and what else is left out; 0: not known."""
    kind: Kind
    """What the sizes are."""
    source: str
    """Where they come from."""

    @field_validator("family")
    @classmethod
    def _known(cls, family: str) -> str:
        if family not in (*FAMILIES, UNKNOWN):
            raise ValueError(unknown("family", family, FAMILIES))
        return family


class Session(Table):
    """What a context occupies; the fields are those of `traces.session.SessionShape`."""

    kv_layers: int = Field(ge=0)
    """Layers that keep a cell for every position."""
    key_values: int = Field(ge=1)
    """Numbers in a cell's keys; of latent attention all that it stores."""
    value_values: int = Field(ge=0)
    """Numbers in a cell's values."""
    state_bytes: int = Field(default=0, ge=0)
    """Recurrent state of all layers together."""
    buffer_bytes: int = Field(default=0, ge=0)
    """Small buffers of a fixed size."""
    index_cell_bytes: int = Field(default=0, ge=0)
    """Bytes a position of a sparse attention's index, over all layers."""
    rope_cell_bytes: int = Field(default=0, ge=0)
    """Bytes a position of stored rotations, over all layers."""
    window_layers: int = Field(default=0, ge=0)
    """Layers that attend over the last positions only."""
    window_tokens: int = Field(default=0, ge=0)
    """How many positions those are."""
    window_key_values: int = Field(default=0, ge=0)
    """Numbers in the keys of their cells, where they differ from the other layers'."""
    window_value_values: int = Field(default=0, ge=0)
    """Numbers in the values of their cells, likewise."""
    kind: Kind
    """What the figures are."""
    source: str
    """Where they come from."""


class Draft(Table):
    """The draft layer of a model that predicts more than one token."""

    layer_bytes: int = Field(ge=1)
    """The layer with all its experts."""
    head_bytes: dict[str, int]
    """Its output head by family of quantization, with a `default`."""
    cell_bytes: int = Field(default=0, ge=0)
    """Bytes a position that it keeps beside one KV cell."""
    kind: Kind
    """What the figures are."""
    source: str
    """Where they come from."""

    @model_validator(mode="after")
    def _heads(self) -> Draft:
        if "default" not in self.head_bytes:
            raise ValueError("head_bytes lacks default, the size for families that are not named")
        for family in self.head_bytes:
            if family not in ("default", *FAMILIES):
                raise ValueError(unknown("family", family, FAMILIES))
        return self


class ModelFile(Table):
    """Shape of a model, its quantizations, its context, and how it routes."""

    name: str
    """As users type it."""
    aliases: list[str] = []
    """Other names of a packaged model, of those with the same shapes."""
    description: str = ""
    """What it is, in a line."""
    total_layers: int = Field(ge=1, le=LARGEST_ID)
    """Layers, dense ones included; without those that draft tokens."""
    first_moe_layer: int = Field(default=0, ge=0)
    """First layer with experts, counted from 0; every `moe_layer_step`-th from there on has them."""
    moe_layer_step: int = Field(default=1, ge=1)
    """Distance of layers with experts."""
    moe_layers: list[int] | None = None
    """Layers with experts, where they follow no such rule."""
    experts: int = Field(ge=1, le=LARGEST_ID)
    """Experts of a layer, without shared ones."""
    top_k: int = Field(ge=1)
    """How many of them a token uses."""
    hidden_size: int = Field(default=0, ge=0)
    """Width of the residual stream."""
    handoff_bytes: int = Field(default=0, ge=0)
    """Bytes a token from one card to the next, where it is more than a row of float32."""
    expert_width: int = Field(default=0, ge=0)
    """Inner width of an expert of three matrices."""
    expert_params: int = Field(default=0, ge=0)
    """Weights of one expert, where they are not 3 x `hidden_size` x `expert_width`."""
    source: str
    """Where the shape comes from."""
    default_quant: str
    """The quantization that is meant where none is named."""
    style: str = DEFAULT_STYLE
    """Routing style (`traces/styles`) that stands for the model where no trace is given."""
    trace: str | None = None
    """Bundled trace that comes before it."""
    session: Session | None = None
    """What a context occupies."""
    draft: Draft | None = None
    """The layer that drafts tokens."""
    notes: list[str] = []
    """What the sizes leave out or take for granted, a sentence each."""
    quants: dict[str, Quant]
    """Sizes by name of the quantization."""

    @model_validator(mode="after")
    def _default_is_there(self) -> ModelFile:
        if self.default_quant not in self.quants:
            raise ValueError(f"default_quant {self.default_quant!r} is none of quants: {', '.join(self.quants)}")
        return self

    @model_validator(mode="after")
    def _layers_are_said_once(self) -> ModelFile:
        if self.moe_layers is None:
            return self
        if self.first_moe_layer or self.moe_layer_step != 1:
            raise ValueError("moe_layers names the layers: leave first_moe_layer and moe_layer_step out")
        outside = [layer for layer in self.moe_layers if not 0 <= layer < self.total_layers]
        if outside:
            raise ValueError(f"moe_layers has layer {outside[0]}, the model has {self.total_layers} layers")
        return self

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """MoE layers as the model numbers them."""
        if self.moe_layers is not None:
            return tuple(self.moe_layers)
        return tuple(range(self.first_moe_layer, self.total_layers, self.moe_layer_step))

    def session_shape(self, family: str) -> SessionShape | None:
        """What a context occupies, with the draft head of a family; None if the file does not say."""
        if self.session is None:
            return None
        draft = None
        if self.draft is not None:
            heads = self.draft.head_bytes
            draft = DraftShape(self.draft.layer_bytes, heads.get(family, heads["default"]), self.draft.cell_bytes)
        facts = self.session.model_dump(exclude={"kind", "source"})
        return SessionShape(**facts, source=f"{self.session.source} ({self.session.kind})", draft=draft)


def fields_table() -> str:
    """Every field of the file, as a table of Markdown."""
    tables: dict[str, type[Table]] = {
        "": ModelFile,
        "[session]": Session,
        "[draft]": Draft,
        '[quants."NAME"]': Quant,
    }
    rows = []
    for name, table in tables.items():
        for field, info in table.model_fields.items():
            default = (
                "required"
                if info.is_required()
                else ("" if info.default in ("", None, []) else f"`{info.default}`")
            )
            rows.append([f"{name} `{field}`".strip(), default, " ".join((info.description or "").split())])
    return markdown(["field", "default", "what"], rows)


if __name__ == "__main__":
    import json
    import sys

    sys.stdout.write(json.dumps(ModelFile.model_json_schema(), indent=1) + "\n")
