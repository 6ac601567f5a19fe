"""Form of what `residency run --json` writes, for reading it back: files are edited, cut off and mixed up."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, field_validator, model_validator

from expert_residency.sim.timed.result import CAUSES

Number = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Whole = Annotated[StrictInt, Field(ge=0, lt=1 << 62)]
_OPEN = ConfigDict(extra="allow")


class Room(BaseModel):
    """The capacity of a run, in one of its forms."""

    model_config = _OPEN

    total_bytes: Whole | None = None
    slots_per_layer: Whole | None = None
    card_bytes: list[Whole] | None = None
    layer_bytes: list[Whole] | None = None
    scope: StrictStr
    quotas: StrictStr = "equal"

    @model_validator(mode="after")
    def _one_form(self) -> Room:
        if not any(
            form is not None
            for form in (self.total_bytes, self.slots_per_layer, self.card_bytes, self.layer_bytes)
        ):
            raise ValueError("expected total_bytes, slots_per_layer, card_bytes or layer_bytes")
        return self


class Choices(BaseModel):
    """What scores read of a run's choices."""

    model_config = _OPEN

    hardware: list[StrictStr] = Field(min_length=1)
    capacity: Room
    eviction: StrictStr
    admission: StrictStr
    prefetch: StrictStr
    placement: StrictStr | None
    engine: StrictStr
    miss: StrictStr | None
    host: StrictStr | None = None
    insertion: StrictStr = "free"


class Manifest(BaseModel):
    """What decides a result."""

    model_config = _OPEN

    model: StrictStr
    trace_sha256: StrictStr
    hardware_sha256: list[StrictStr]
    engine_sha256: StrictStr
    spec: Choices


class Prefetched(BaseModel):
    """What became of prefetched copies."""

    model_config = _OPEN

    issued: Whole
    useful_bytes: Whole
    late_bytes: Whole
    wasted_bytes: Whole
    harmful_bytes: Whole


class OfRequest(BaseModel):
    """Tokens and time of one request."""

    model_config = _OPEN

    request: StrictInt
    tokens: Whole = 0
    decode_tokens: Whole
    prefill_ns: Whole
    decode_ns: Whole

    @model_validator(mode="after")
    def _takes_time(self) -> OfRequest:
        if not self.prefill_ns + self.decode_ns:
            raise ValueError("no pass of it takes any time")
        return self


class Bounded(BaseModel):
    """Least times of any schedule."""

    model_config = _OPEN

    total_ns: Annotated[StrictInt, Field(ge=1, lt=1 << 62)]
    decode_ns: Whole


class ResultFile(BaseModel):
    """One run."""

    model_config = _OPEN

    manifest: Manifest
    total_ns: Annotated[StrictInt, Field(ge=1, lt=1 << 62)]
    decode_ns: Whole
    tokens_per_s: Number | None
    decode_hit_rate: Annotated[float, Field(ge=0, le=1, strict=True)] | None
    causes_ms_per_token: dict[str, Number | None]
    causes_ns: dict[str, Whole]
    prefetch: Prefetched
    warnings: list[StrictStr]
    caveats: list[StrictStr] = Field(default_factory=list)
    requests: list[OfRequest] = Field(default_factory=list)
    time_bound: Bounded | None = None

    @field_validator("causes_ms_per_token", "causes_ns")
    @classmethod
    def _all_causes(cls, causes: dict[str, Any]) -> dict[str, Any]:
        if set(causes) != set(CAUSES):
            raise ValueError(f"expected the causes {', '.join(CAUSES)}")
        return causes
