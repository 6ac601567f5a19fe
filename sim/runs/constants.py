"""The constants of a machine and an engine that cost time, each with how well it is known before any run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.quantity import Kind, Quantity
from expert_residency.sim.choices.preset import EnginePreset

PRIOR_SD: dict[Kind, float] = {"measured": 0.15, "derived": 0.4, "datasheet": 0.4, "assumed": 0.7}
"""Standard deviation of the logarithm of a number of each kind; a wider spread of its own counts. Ours: a measured
number is mostly of somebody else's machine with the same parts, derived ones come from fits that could not tell
some of them apart, and kernels reach 24 to 90 % of what data sheets say."""
ENDINGS = ("_gb_per_s", "_us", "_tflops", "gflops", "_launches", "core_share")
"""Of names that cost time; capacities do not, and a share of DRAM's rate is the same factor as that rate."""
NOT_TIME = ("mem_gb_per_s", "theory_gb_per_s")
"""Figures of the data sheet that no run uses."""
Path = tuple[str, ...]


@dataclass(frozen=True)
class Constant:
    """One number that runs may determine.

    Parameters
    ----------
    card
        Which profile, from 0; None for the engine's preset.
    path
        Fields from the top.
    value, kind
        As its file has it.
    sd
        Of its logarithm before any run.
    source, spread
        As its file has them.
    """

    card: int | None
    path: Path
    value: float
    kind: Kind
    sd: float
    source: str = ""
    spread: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """Dotted, with the card from 2 on."""
        owner = "engine" if self.card is None else "" if self.card == 0 else f"card {self.card + 1}"
        return (f"{owner}: " if owner else "") + ".".join(self.path)


def constants_of(
    profiles: tuple[HardwareProfile, ...], preset: EnginePreset, given: frozenset[str] = frozenset()
) -> list[Constant]:
    """All that may be fitted; zeros are not, since a factor does not change them.

    Parameters
    ----------
    profiles
        One a card; a profile that comes again is fitted once, on its first card.
    preset
        The engine.
    given
        Fields of the preset that the runs set themselves.

    Returns
    -------
    list of Constant
        Machine first, in the order of the files.
    """
    found = []
    for card, profile in enumerate(profiles):
        if profile not in profiles[:card]:
            found += [_constant(card, *item) for item in _quantities(profile, ())]
    found += [_constant(None, *item) for item in _quantities(preset, ()) if item[0][0] not in given]
    return [one for one in found if one.value > 0]


def _constant(card: int | None, path: Path, quantity: Quantity) -> Constant:
    sd = PRIOR_SD[quantity.kind]
    if quantity.spread and quantity.spread[0] > 0:
        sd = max(sd, math.log(quantity.spread[1] / quantity.spread[0]) / 4)
    return Constant(card, path, quantity.value, quantity.kind, sd, quantity.source, quantity.spread)


def _quantities(model: BaseModel, path: Path) -> Iterator[tuple[Path, Quantity]]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        at = (*path, name)
        if isinstance(value, Quantity):
            if any(part.endswith(ENDINGS) for part in at) and name not in NOT_TIME:
                yield at, value
        elif isinstance(value, BaseModel):
            yield from _quantities(value, at)
        elif isinstance(value, Mapping) and name.startswith(("group_us", "expert_gb_per_s_by")):
            yield from (((*at, str(key)), q) for key, q in value.items() if isinstance(q, Quantity))


def scaled(
    profiles: tuple[HardwareProfile, ...], preset: EnginePreset, factors: Mapping[Constant, float]
) -> tuple[tuple[HardwareProfile, ...], EnginePreset]:
    """Profiles and preset with their constants multiplied.

    Parameters
    ----------
    profiles, preset
        As the files have them.
    factors
        By constant; those not in it stay.

    Returns
    -------
    profiles, preset
        New ones.
    """
    cards = []
    for profile in profiles:
        first = profiles.index(profile)
        own = {one.path: factor for one, factor in factors.items() if one.card == first}
        cards.append(_scaled(profile, own) if own else profile)
    engine = {one.path: factor for one, factor in factors.items() if one.card is None}
    return tuple(cards), _scaled(preset, engine) if engine else preset


def _scaled(model: Any, factors: Mapping[Path, float]) -> Any:
    data = model.model_dump(exclude_none=True)
    for path, factor in factors.items():
        entry = data
        for part in path:
            entry = entry[int(part)] if part.isdigit() and int(part) in entry else entry[part]
        entry["value"] *= factor
        entry.pop("spread", None)
    return type(model).model_validate(data)
