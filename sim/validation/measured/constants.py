"""The numbers that rows decide, each with a prior and its spread: where they live, and what they are worth.

Machines' are rules of `hwmodels/parts/priors.csv`, engines' stand in their presets: what is validated is what a
user is told. Only what texts do (drafts, hits) is this group's own. All are shared by all machines of a kind and
never of one row: `fit` takes them from the rows of *other* machines. One that no row speaks of keeps its prior.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from expert_residency.hwmodels.parts.rules import priors
from expert_residency.sim.choices.preset import EnginePreset, load_engine
from expert_residency.sim.validation.measured.arrays import FloatArray

Owner = Literal["machine", "engine", "text"]


@dataclass(frozen=True)
class Constant:
    """One number.

    Parameters
    ----------
    name
        Of an engine's: `PRESET: FIELD`.
    owner
        Whose it is.
    value
        As it ships: by all rows.
    prior, spread
        Before any row: the number, and one standard deviation of its logarithm.
    source
        What the prior rests on.
    """

    name: str
    owner: Owner
    value: float
    prior: float
    spread: float
    source: str


_ENGINES = (
    ("llama.cpp: dense_launches", 6.0, 0.3, "kernels of a mixer that depend on each other"),
    ("llama.cpp: expert_launches", 6.0, 0.3, "router, three mul_mat_id, activation, weighting and adding"),
    ("llama.cpp: pass_us", 300.0, 0.5, "sampling and commit 0.5 ms a window (Strata)"),
    ("strata: kernels", 20.0, 0.4, "14.6 ms a window of 48 layers on an RTX 5070, weights and rows off"),
    ("strata: cpu_layer_us", 20.0, 0.4, "planning, quantizing, jobs 0.5-1.2 ms over 48 layers"),
    ("strata: row_us", 40.0, 0.3, "2.99 ms a row over 48 layers on an RTX 5070 Ti, drafts off"),
    ("strata: draft_us", 1000.0, 0.3, "0.55 to 1.3 ms a draft on three cards"),
)
_TEXTS = (
    ("drafts go on", 0.7888, 0.80, 0.06, "2.1 drafts a window of four rows at a floor of 0.5"),
    ("drafts accepted", 0.7186, 0.72, 0.06, "2.4 to 3.6 tokens a window"),
    ("hits odds", 0.6644, 1.3, 0.4, "generated routing beside engines' counts"),
    ("hits slope", 1.133, 1.2, 0.2, "the same"),
    ("first odds", 0.3328, 0.4, 0.4, "19-42 % after a start, then 70 % (Strata)"),
)
_BASES = {"ktransformers": "llama.cpp", "krasis": "llama.cpp", "moe-l2": "llama.cpp"}
"""Engines whose numbers are another's, since they were measured on one machine only."""


@cache
def _engine(name: str) -> EnginePreset:
    return load_engine(name)


def owner_of(engine: str) -> str:
    """Whose numbers an engine takes."""
    return _BASES.get(engine, engine)


def preset_of(engine: str, values: Mapping[str, float]) -> EnginePreset:
    """A preset with its numbers as given.

    Parameters
    ----------
    engine
        Its name.
    values
        Of all constants.
    """
    found, owner = _engine(engine), owner_of(engine)
    moved = {}
    for name, *_ in _ENGINES:
        whose, _, field = name.partition(": ")
        own = getattr(found, field)
        if whose == owner and own is not None and own != "balanced" and (engine == owner or field in _SHARED):
            moved[field] = own.model_copy(update={"value": values[name], "spread": None})
    return found.model_copy(update=moved)


_SHARED = ("dense_launches", "expert_launches", "pass_us")


def _shipped(name: str) -> float:
    whose, _, field = name.partition(": ")
    return float(getattr(_engine(whose), field).value)


CONSTANTS = (
    *(Constant(one.name, "machine", one.value, one.prior, one.spread, one.source) for one in priors().values()),
    *(Constant(name, "engine", _shipped(name), prior, spread, why) for name, prior, spread, why in _ENGINES),
    *(Constant(name, "text", value, prior, sd, why) for name, value, prior, sd, why in _TEXTS),
)
"""All of them."""
NAMES = tuple(one.name for one in CONSTANTS)
INDEX = {name: number for number, name in enumerate(NAMES)}
PRIORS: FloatArray = np.array([one.prior for one in CONSTANTS])
SHIPPED: FloatArray = np.array([one.value for one in CONSTANTS])
SPREADS: FloatArray = np.array([one.spread for one in CONSTANTS])
