"""A measured row as a question: which machine, which weights, which choices; or what a prediction lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from expert_residency.hwmodels.runs import MeasuredRun, load_measured_runs
from expert_residency.hwmodels.units import GIB
from expert_residency.sim.validation.measured.knobs import Knobs, knobs_of
from expert_residency.sim.validation.measured.machines import Rig, machine_of
from expert_residency.sim.validation.measured.models import geometry_of
from expert_residency.traces import ModelGeometry

ON_CARD_GIB = 0.7
"""Of a card's memory: what the driver, its context and compute buffers take."""


@dataclass(frozen=True)
class Question:
    """One row that can be predicted.

    Parameters
    ----------
    row
        As published.
    machine, geometry, knobs
        Its parts, its weights, its choices.
    """

    row: MeasuredRun
    machine: Rig
    geometry: ModelGeometry
    knobs: Knobs

    @property
    def name(self) -> str:
        """The row in one line."""
        row = self.row
        said = (row.model, row.quant, row.engine.split()[0], row.mode, row.cache, row.workload)
        plain = " ".join(text for text in said if text and not text.startswith("-ngl 99"))
        return f"{self.machine.cards}x {self.machine.name}, {plain}"


@dataclass(frozen=True)
class Unasked:
    """A row that cannot be predicted, and what is missing."""

    row: MeasuredRun
    missing: str


def question_of(row: MeasuredRun) -> Question | Unasked:
    """One row."""
    knobs = knobs_of(row)
    if isinstance(knobs, str):
        return Unasked(row, knobs)
    geometry = geometry_of(row.model, row.quant)
    if isinstance(geometry, str):
        return Unasked(row, geometry)
    machine = machine_of(row)
    if isinstance(machine, str):
        return Unasked(row, machine)
    asked = Question(row, machine, geometry, knobs)
    lacking = _lacking(asked)
    return Unasked(row, lacking) if lacking else asked


def _lacking(asked: Question) -> str | None:
    """What two of the three together lack."""
    knobs, machine = asked.knobs, asked.machine
    over = weight_bytes(asked.geometry) / GIB - machine.cards * (machine.card.vram_gib - ON_CARD_GIB)
    if knobs.where == "fit" and over > 0 and machine.card.shared:
        return "weights larger than the memory that the row names"
    cpu = knobs.where in ("layers", "cpu") or (knobs.where == "fit" and over > 0)
    cpu |= knobs.where == "slots" and (knobs.hit_pct or 0.0) < 99
    if cpu and machine.cpu is None and not machine.card.shared:
        return "the processor that computes experts is not named"
    if knobs.where == "slots" and not knobs.slots and knobs.hit_pct is None and "auto" not in asked.row.cache:
        return "neither slots nor hit rate printed"
    return None


def weight_bytes(geometry: ModelGeometry) -> int:
    """All that a card holds of a model whose experts are all on it."""
    dense = sum(geometry.dense_bytes) + geometry.dense_only_bytes + geometry.head_bytes
    return geometry.all_expert_bytes + dense


@cache
def _shipped() -> tuple[Question | Unasked, ...]:
    return tuple(question_of(row) for row in load_measured_runs())


def questions(rows: Sequence[MeasuredRun] | None = None) -> tuple[list[Question], list[Unasked]]:
    """Rows that can be predicted, and those that cannot with what is missing.

    Parameters
    ----------
    rows
        Instead of those that ship.
    """
    found = _shipped() if rows is None else tuple(question_of(row) for row in rows)
    return [one for one in found if isinstance(one, Question)], [one for one in found if isinstance(one, Unasked)]
