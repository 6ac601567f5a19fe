"""Numbers that say what they are: value, kind and source, with the unit in the name of the field that holds them.

In a profile a number is written ``h2d_gb_per_s = { value = 28.4, kind = "measured", source = "..." }``. Its
integer form is read through a view declared beside the field, `h2d_mb_per_s`. The engine uses only the views.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from expert_residency.errors import HardwareError
from expert_residency.families import quant_family
from expert_residency.hwmodels.units import bytes_from_gib, bytes_from_mib, mb_per_s, ns_from_us

Kind = Literal["measured", "datasheet", "derived", "assumed"]


class Whole:
    """Integer view of a quantity: ``h2d_mb_per_s: ClassVar[Whole] = Whole()`` reads the field ``h2d_gb_per_s``.

    The pairs are ``_mb_per_s`` from ``_gb_per_s``, ``_ns`` from ``_us``, ``_bytes`` from ``_gib`` or ``_mib``, and
    ``_flop_per_ns`` from ``_tflops``. A view of an absent optional field raises `HardwareError`.
    """

    _PAIRS = (
        ("_mb_per_s", "_gb_per_s", mb_per_s),
        ("_ns", "_us", ns_from_us),
        ("_bytes", "_gib", bytes_from_gib),
        ("_bytes", "_mib", bytes_from_mib),
        ("_flop_per_ns", "_tflops", lambda tera: round(tera * 1000)),
    )

    def __set_name__(self, owner: type[BaseModel], name: str) -> None:
        annotations = owner.__annotations__
        for suffix, field_suffix, convert in self._PAIRS:
            field = name.removesuffix(suffix) + field_suffix
            if name.endswith(suffix) and field in annotations:
                self._field, self._convert = field, convert
                return
        raise TypeError(f"{owner.__name__}.{name} has no quantity to be a view of")

    def __get__(self, instance: Any, owner: type) -> int:
        quantity = getattr(instance, self._field)
        if quantity is None:
            raise HardwareError(f"the profile gives no {self._field}, which this run needs")
        return int(self._convert(quantity.value))


def _is_open(value: Any) -> bool:
    return value == "?" or (isinstance(value, dict) and "value" in value and "?" in value.values())


class Section(BaseModel):
    """Base of every part of a profile: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _not_filled_in(cls, data: Any) -> Any:
        """What `residency list hardware --template` asks for and nobody has filled in is missing."""
        if not isinstance(data, dict):
            return data
        fields = cls.model_fields
        return {k: v for k, v in data.items() if not (_is_open(v) and k in fields and fields[k].is_required())}


def _says_where(source: str) -> str:
    if len(source.strip()) < _SHORTEST_SOURCE:
        raise ValueError("a source is a name or a sentence: say where the number was read")
    return source


_SHORTEST_SOURCE = 3


class Quantity(Section):
    """One number with its provenance.

    Parameters
    ----------
    value
        The number, in the unit that the field's name ends with; never negative.
    kind
        ``measured`` (somebody printed it), ``datasheet``, ``derived`` (arithmetic on published figures) or
        ``assumed`` (a guess, reasoned in `source`).
    source
        Where it comes from, and the reasoning if it is derived or assumed.
    spread
        Lowest and highest value seen, in the same unit.
    """

    value: float = Field(ge=0, le=1e9, allow_inf_nan=False, strict=True)
    kind: Kind
    source: Annotated[str, AfterValidator(_says_where)]
    spread: tuple[float, float] | None = None

    @model_validator(mode="before")
    @classmethod
    def _no_bare_number(cls, data: Any) -> Any:
        if isinstance(data, int | float) and not isinstance(data, bool):
            example = f'{{ value = {data}, kind = "measured", source = "where it was read" }}'
            raise ValueError(f"a bare number; every number says what it is, as in {example}")
        return data

    @property
    def count(self) -> int:
        """The value as a whole number, for fields that count things."""
        return round(self.value)

    @model_validator(mode="after")
    def _value_inside_spread(self) -> Self:
        if self.spread and not self.spread[0] <= self.value <= self.spread[1]:
            raise ValueError(f"value {self.value:g} lies outside its spread {list(self.spread)}")
        return self


def _positive(quantity: Quantity) -> Quantity:
    if not quantity.value > 0:
        raise ValueError("must be greater than 0")
    return quantity


def _rate(quantity: Quantity) -> Quantity:
    if quantity.value < 0.001:
        raise ValueError("must be at least 0.001 GB/s")
    return quantity


def _count(quantity: Quantity) -> Quantity:
    if quantity.value < 1 or not math.isclose(quantity.value, round(quantity.value)):
        raise ValueError("must be a whole number from 1")
    return quantity


def _share(quantity: Quantity) -> Quantity:
    if quantity.value > 1:
        raise ValueError("must be a share from 0 to 1")
    return quantity


Positive = Annotated[Quantity, AfterValidator(_positive)]
Rate = Annotated[Quantity, AfterValidator(_rate)]
Count = Annotated[Quantity, AfterValidator(_count)]
Share = Annotated[Quantity, AfterValidator(_share)]
PositiveShare = Annotated[Share, AfterValidator(_positive)]


class FamilyRates(Section):
    """GB/s by quantization family; a family without a figure of its own uses `default`."""

    default: Rate
    iq1: Rate | None = None
    iq2: Rate | None = None
    iq3: Rate | None = None
    iq4: Rate | None = None
    iq5: Rate | None = None
    iq6: Rate | None = None
    tq1: Rate | None = None
    tq2: Rate | None = None
    q1: Rate | None = None
    q2: Rate | None = None
    q3: Rate | None = None
    q4: Rate | None = None
    q5: Rate | None = None
    q6: Rate | None = None
    q8: Rate | None = None
    mxfp4: Rate | None = None
    nvfp4: Rate | None = None
    int2: Rate | None = None
    int3: Rate | None = None
    int4: Rate | None = None
    int8: Rate | None = None
    fp8: Rate | None = None
    fp16: Rate | None = None
    bf16: Rate | None = None
    fp32: Rate | None = None

    def of(self, family: str) -> Quantity:
        """The quantity for a family, or for any name that `families.quant_family` reads."""
        found: Quantity | None = getattr(self, quant_family(family), None)
        return found or self.default

    def mb_per_s(self, family: str) -> int:
        """Whole MB/s for a family."""
        return mb_per_s(self.of(family).value)
