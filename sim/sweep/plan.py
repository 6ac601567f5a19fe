"""A sweep's folder: the plan of what it runs, kept so that it can be read while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from expert_residency.errors import SimError
from expert_residency.files import write_text
from expert_residency.sim.sweep.cells import Cell
from expert_residency.sim.sweep.folder import PLAN


@dataclass(frozen=True)
class SweepPlan:
    """Title and cells of a sweep."""

    name: str
    cells: list[Cell]


def write_plan(folder: Path, plan: SweepPlan) -> None:
    """Write the plan, whole or not at all."""
    write_text(folder / PLAN, TypeAdapter(SweepPlan).dump_json(plan).decode())


def read_plan(folder: Path) -> SweepPlan:
    """The plan in `folder`."""
    try:
        return TypeAdapter(SweepPlan).validate_json((folder / PLAN).read_bytes())
    except OSError as error:
        raise SimError(f"{folder / PLAN}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        raise SimError(f"{folder / PLAN}: cannot be read ({error.errors()[0]['msg']})") from None
