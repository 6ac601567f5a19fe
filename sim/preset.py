"""Engine presets: what is the engine's and not the machine's.

A preset is a TOML file; its numbers carry unit, kind and source like a machine's. Built-ins are in
`sim/engines/`; a path is taken too.
"""

from __future__ import annotations

import difflib
import tomllib
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hwmodels.quantity import Quantity
from sim.errors import SimError

MISS_MODES: tuple[str, ...] = ("cpu", "fetch", "hybrid", "stream")


class EnginePreset(BaseModel):
    """Behaviour of one engine.

    Parameters
    ----------
    miss
        What a miss does by default: `cpu` (computed from RAM), `fetch` (copied, then computed on the card),
        `hybrid` (a share fetched, the rest on the CPU), `stream` (read over PCIe without keeping).
    fill
        Whether a miss served by the CPU is also copied into a slot for later, behind everything urgent.
    in_flight
        An expert whose copy has not landed: `wait` for it, or treat it as a `miss` (CPU and hybrid modes).
    overlap
        Whether CPU pool and card work at the same time within a layer.
    copy_unit
        `expert`: the card computes experts as they land; `layer`: when all of the layer's have.
    pcie_share
        Share of a layer's misses that `hybrid` fetches, the last in routing order; `balanced` takes
        link / (link + CPU) rates.
    plan_us, combine_us
        Host planning and joining, a layer.
    dense_launches, expert_launches
        Kernels started for the dense part of a layer, and for each group of experts.
    pass_us
        Sampling, commit and bookkeeping, a pass.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    summary: str
    source: str
    miss: Literal["cpu", "fetch", "hybrid", "stream"] = "cpu"
    fill: bool = True
    in_flight: Literal["wait", "miss"] = "wait"
    overlap: bool = True
    copy_unit: Literal["expert", "layer"] = "expert"
    pcie_share: Quantity | Literal["balanced"] = "balanced"
    plan_us: Quantity
    combine_us: Quantity
    dense_launches: Quantity
    expert_launches: Quantity
    pass_us: Quantity
    notes: list[str] = Field(default_factory=list)

    @cached_property
    def plan_ns(self) -> int:
        """Host planning, a layer."""
        return round(self.plan_us.value * 1000)

    @cached_property
    def combine_ns(self) -> int:
        """Joining, a layer."""
        return round(self.combine_us.value * 1000)

    @cached_property
    def pass_ns(self) -> int:
        """Sampling and bookkeeping, a pass."""
        return round(self.pass_us.value * 1000)


def list_engines() -> list[str]:
    """Names of the built-in presets."""
    folder = resources.files("sim").joinpath("engines")
    return sorted(e.name.removesuffix(".toml") for e in folder.iterdir() if e.name.endswith(".toml"))


def load_engine(name: str) -> EnginePreset:
    """Preset by name or path.

    Raises
    ------
    SimError
        Unknown name (the valid ones are listed) or a file that does not validate.
    """
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise SimError(f"{name}: no such engine preset file")
        text = Path(name).read_text(encoding="utf-8")
    else:
        known = list_engines()
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise SimError(f"unknown engine {name!r}{hint} (known: {', '.join(known)})")
        text = resources.files("sim").joinpath("engines", f"{name}.toml").read_text(encoding="utf-8")
    try:
        return EnginePreset.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SimError(f"engine {name}: not valid TOML ({error})") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise SimError(f"engine {name}: {place}: {first['msg'].lower()}") from None
