"""Form of a model's TOML file (apart, so that pydantic is imported only where a file is read)."""

from __future__ import annotations

import tomllib

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import QUANT_FAMILIES


class Quant(BaseModel):
    """Sizes of one quantization; lists have one entry for each MoE layer."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    family: str
    expert_bytes: int | list[int] | None = None
    dense_layer_bytes: int | list[int] | None = None
    head_bytes: int = 0
    dense_only_bytes: int = 0
    kind: str = Field(pattern="^(measured|datasheet|derived|assumed)$")
    source: str

    @model_validator(mode="after")
    def _sizes(self) -> Quant:
        if self.expert_bytes is None:
            raise ValueError("expert_bytes is missing")
        if self.family not in QUANT_FAMILIES:
            raise ValueError(f"unknown family {self.family!r} (known: {', '.join(QUANT_FAMILIES)})")
        return self


class ModelFile(BaseModel):
    """Shape of a model and its quantizations."""

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
    quants: dict[str, Quant]


def parse(text: str, origin: str) -> ModelFile:
    """Checked contents of a model file; `origin` names it in errors."""
    try:
        return ModelFile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise TraceError(f"not valid TOML ({error})", path=origin) from None
    except ValidationError as error:
        first = error.errors()[0]
        raise TraceError(first["msg"], path=origin, place=".".join(map(str, first["loc"]))) from None
