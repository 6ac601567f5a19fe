"""A measured row as a question: which machine, which weights, which choices; or what a prediction lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from expert_residency.hwmodels.runs import MeasuredRun, load_llama_runs, load_measured_runs, load_strata_runs
from expert_residency.hwmodels.units import GIB
from expert_residency.sim.validation.measured.knobs import Knobs, knobs_of
from expert_residency.sim.validation.measured.machines import Rig, machine_of
from expert_residency.sim.validation.measured.models import geometry_of
from expert_residency.sim.validation.measured.tables import of_llama, of_strata
from expert_residency.traces import ModelGeometry

ON_CARD_GIB = 0.7
"""Of a card's memory: what the driver, its context and compute buffers take."""


_SYSTEM_GIB = 2.0
_CLOSE_GIB = 1.0


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
    geometry = geometry_of(row.model, row.quant, knobs.dense)
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
    held = knobs.slots / asked.geometry.n_experts
    if knobs.where != "slots":  # by layers: what the cards cannot hold
        held = machine.cards * machine.card.vram_gib * GIB / weight_bytes(asked.geometry)
    elif not knobs.slots:
        held = (knobs.hit_pct or 0.0) / 100
    beside = asked.geometry.all_expert_bytes / GIB * max(0.0, 1 - held)
    if knobs.budget_gib and knobs.budget_gib < 0.98 * beside:
        return "a part of its experts is read from the drive"
    if knobs.where != "card" and 0 < machine.ram_gib - _SYSTEM_GIB < beside and not machine.card.shared:
        return "its experts do not fit its memory: a part is read from the drive"
    over = weight_bytes(asked.geometry) / GIB - machine.cards * (machine.card.vram_gib - ON_CARD_GIB)
    if knobs.where == "fit" and machine.cpu is None and not machine.card.shared and -_CLOSE_GIB < over <= 0:
        return "whether all of it was on the card is not recorded, and it barely fits"
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
    found = [question_of(row) for row in load_measured_runs()]
    for run in load_strata_runs():
        if (row := of_strata(run)) is not None:
            asked = question_of(row)
            if isinstance(asked, Question) and run.tokens_window:
                asked = replace(asked, knobs=replace(asked.knobs, tokens=run.tokens_window))
            found.append(asked)
    found += [question_of(of_llama(run)) for run in load_llama_runs()]
    return tuple(_once(found))


def run_key(one: Question) -> tuple[object, ...]:
    """What two tellings of one run have in common."""
    row = one.row
    return one.machine.name, row.n_gpus, row.mode, row.cache, row.workload, one.geometry.name, row.tok_s


def _once(found: Iterable[Question | Unasked]) -> Iterator[Question | Unasked]:
    """Each run once: a figure that stands twice, its digits equal, under two names of one file was run once."""
    seen: dict[tuple[object, ...], str] = {}
    for one in found:
        if isinstance(one, Question) and (first := seen.setdefault(run_key(one), one.name)) != one.name:
            yield Unasked(one.row, f"the same run is listed twice: {first}")
            continue
        yield one


def questions(rows: Sequence[MeasuredRun] | None = None) -> tuple[list[Question], list[Unasked]]:
    """Rows that can be predicted, and those that cannot with what is missing.

    Parameters
    ----------
    rows
        Instead of those that ship.
    """
    found = _shipped() if rows is None else tuple(_once(question_of(row) for row in rows))
    return [one for one in found if isinstance(one, Question)], [one for one in found if isinstance(one, Unasked)]
