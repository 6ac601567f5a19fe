"""Knobs: what a user of an engine may set, each with its values, as the engine's preset has them.

A preset's TOML holds a table `[knobs.NAME]` for each: the space that `residency advise` searches is a part of the
engine's own file.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

Value = StrictBool | StrictInt | StrictFloat | StrictStr
WHOLE = ("capacity", "host", "miss", "workers", "rows", "floor", "cpu_layers", "first_card")
"""What a knob may set, beside `engine.FIELD` of the preset and `admission.NAME`, a parameter of its policy."""
DOTTED = ("engine", "admission", "eviction")
OWN = "own"
"""The value of a knob that nobody sets."""
PLACES = frozenset({"value", "percent", "mib", "slots", "gib"})
"""What stands in a flag: the value, 100 times it, and a capacity in three units."""


class Knob(BaseModel):
    """One setting of an engine.

    Parameters
    ----------
    flag
        How the engine's user gives it: `{value}`, `{percent}`, `{gib}`, of a capacity also `{mib}` and `{slots}`.
    sets
        What it changes. `capacity`: shares of what VRAM leaves for experts; `host`, `miss`: words of a run
        (`budget@0.75` is that share of the memory left for it); `workers`: shares of the processor's cores;
        `rows`: of a verify window, drafts + 1; `floor`: confidence below which drafting stops; `cpu_layers`:
        layers whose experts the CPU computes, all of them are tried; `first_card`: shares of the layers on the
        first of two cards; `engine.FIELD`, `admission.NAME` and `eviction.NAME`: a number of the preset, or a
        parameter of its policy.
    values
        To be tried, ascending where they have an order.
    default
        What the engine does by itself: one of the values, `own` for what the preset's number says (which may
        depend on the machine), None where it has none.
    clears
        Numbers of the preset that do not hold where the user sets the knob.
    flags
        Other flags, by the word that a value begins with; empty where nothing is given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    flag: str = ""
    sets: str
    values: tuple[Value, ...] = ()
    default: Value | None = None
    clears: tuple[str, ...] = ()
    flags: dict[str, str] = Field(default_factory=dict)
    kind: Literal["ordered", "words"] = "ordered"

    @model_validator(mode="after")
    def _makes_sense(self) -> Knob:
        first, dot, rest = self.sets.partition(".")
        if not (self.sets in WHOLE or (dot and first in DOTTED and rest)):
            raise ValueError(
                f"sets {self.sets!r}: expected {', '.join(WHOLE)}, or engine., admission. or eviction.NAME"
            )
        if self.sets != "cpu_layers" and len(self.values) < 2:
            raise ValueError("a knob has two values at least")
        if self.default is not None and self.values and self.default not in (*self.values, OWN):
            raise ValueError(f"default {self.default!r} is not among the values")
        for flag in (self.flag, *self.flags.values()):
            try:
                flag.format(**dict.fromkeys(PLACES, 0))
            except (KeyError, IndexError, ValueError):
                raise ValueError(f"flag {flag!r}: expected places {', '.join(sorted(PLACES))}") from None
        return self


def flag_of(knob: Knob, value: Value, **places: float) -> str:
    """A value as the user gives it.

    Parameters
    ----------
    knob
        Whose value.
    value
        As in the list of values.
    places
        What else its flag names: `mib`, `slots`, `gib`.

    Returns
    -------
    str
        Empty where the engine does it without being told.
    """
    if value == OWN:
        return ""
    word = str(value).partition("@")[0]
    flag = knob.flags.get(word, "" if knob.flags else knob.flag)
    percent = 100 * value if isinstance(value, int | float) else 0.0
    return flag.format(**({"mib": 0.0, "slots": 0, "gib": 0.0} | places | {"value": value, "percent": percent}))
