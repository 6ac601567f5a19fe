"""Form of a model's TOML file (apart, so that pydantic is imported only where a file is read)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from expert_residency.families import FAMILIES, UNKNOWN
from expert_residency.text import unknown
from expert_residency.traces.session import DraftShape, SessionShape

Kind = Literal["measured", "datasheet", "derived", "assumed"]
"""What a figure is, as in a machine's profile."""
DEFAULT_STYLE = "qwen3-30b-a3b"
"""Routing style of models that have none of their own."""


class Quant(BaseModel):
    """Sizes of one quantization; lists have one entry for each MoE layer."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    family: str
    expert_bytes: int | list[int]
    dense_layer_bytes: int | list[int]
    head_bytes: int = 0
    dense_only_bytes: int = 0
    kind: Kind
    source: str

    @field_validator("family")
    @classmethod
    def _known(cls, family: str) -> str:
        if family not in (*FAMILIES, UNKNOWN):
            raise ValueError(unknown("family", family, FAMILIES))
        return family


class Session(BaseModel):
    """What a context occupies; the fields are those of `traces.session.SessionShape`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kv_layers: int = Field(ge=0)
    key_values: int = Field(ge=1)
    value_values: int = Field(ge=0)
    state_bytes: int = Field(default=0, ge=0)
    buffer_bytes: int = Field(default=0, ge=0)
    index_cell_bytes: int = Field(default=0, ge=0)
    rope_cell_bytes: int = Field(default=0, ge=0)
    window_layers: int = Field(default=0, ge=0)
    window_tokens: int = Field(default=0, ge=0)
    kind: Kind
    source: str


class Draft(BaseModel):
    """The draft layer; `head_bytes` by family of quantization, with a `default`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    layer_bytes: int = Field(ge=1)
    head_bytes: dict[str, int]
    cell_bytes: int = Field(default=0, ge=0)
    kind: Kind
    source: str

    @model_validator(mode="after")
    def _heads(self) -> Draft:
        if "default" not in self.head_bytes:
            raise ValueError("head_bytes lacks default, the size for families that are not named")
        for family in self.head_bytes:
            if family not in ("default", *FAMILIES):
                raise ValueError(unknown("family", family, FAMILIES))
        return self


class ModelFile(BaseModel):
    """Shape of a model, its quantizations, its context, and how it routes.

    `style` is the routing style (`traces/styles`) that stands for the model where no trace is given, `trace` the
    bundled trace that comes before it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    description: str = ""
    total_layers: int
    first_moe_layer: int = 0
    moe_layer_step: int = 1
    experts: int
    top_k: int
    hidden_size: int = 0
    handoff_bytes: int = Field(default=0, ge=0)
    expert_width: int = 0
    source: str
    default_quant: str
    style: str = DEFAULT_STYLE
    trace: str | None = None
    session: Session | None = None
    draft: Draft | None = None
    quants: dict[str, Quant]

    @model_validator(mode="after")
    def _default_is_there(self) -> ModelFile:
        if self.default_quant not in self.quants:
            raise ValueError(f"default_quant {self.default_quant!r} is none of quants: {', '.join(self.quants)}")
        return self

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
