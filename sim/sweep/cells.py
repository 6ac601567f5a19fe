"""From choices to runs: every cell checked before any of them starts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from expert_residency.errors import MisfitError, SimError, SweepError, UserError
from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.units import parse_size
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.residency.pool import LISTS
from expert_residency.sim.runs.simulate import manifest, prepare
from expert_residency.sim.sweep.spec import CHOICES, RUN, Choices, SweepFile, expand
from expert_residency.sim.sweep.stored import View, load_trace, open_view, store
from expert_residency.sim.timed.host.tiers import BESIDE_CARDS
from expert_residency.traces import RoutingTrace, TraceError

_HINTS = get_type_hints(RunSpec)
_SHOWN = 8


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Parameters
    ----------
    number
        Place in the sweep, from 0.
    cell_id
        Hash of everything that decides the result: equal ids give equal rows.
    trace, scenario
        Names that the sweep file gives them.
    view, spec
        What is simulated, and how.
    misfit
        Why the machine cannot hold it, or None.
    """

    number: int
    cell_id: str
    trace: str
    scenario: str | None
    view: View
    spec: RunSpec
    misfit: str | None = None


def plan_cells(
    sweep: SweepFile, where: str, base: Path, cache_folder: Path, progress: Callable[[str], None] | None = None
) -> list[Cell]:
    """Store the traces, and expand and check every cell.

    Raises
    ------
    SweepError
        All that is wrong, at once: each reason with the cells that it concerns.
    """
    problems: dict[str, list[int]] = {}
    folders: dict[str, str] = {}
    for name in sweep.traces:
        if progress is not None:
            progress(f"trace {name}")
        try:
            folders[name] = str(store(load_trace(sweep.trace_ref(name), base), cache_folder))
        except TraceError as error:
            problems.setdefault(f"trace {name}: {error}", [])
    cells: list[Cell] = []
    known: dict[str, int] = {}
    total = 0
    try:
        for number, choices in enumerate(expand(sweep)):
            total += 1
            try:
                cell = make_cell(number, choices, sweep, folders)
            except UserError as error:
                if str(error):
                    problems.setdefault(str(error), []).append(number)
                continue
            twin = known.setdefault(cell.cell_id, number)
            if twin != number:
                problems.setdefault(f"the same run as cell {twin}", []).append(number)
            if cell.misfit and sweep.misfits == "refuse":
                problems.setdefault(f'{cell.misfit} (misfits = "record" keeps such cells)', []).append(number)
            cells.append(cell)
    except SweepError as error:
        problems |= {problem: [] for problem in error.problems}
    if problems:
        raise SweepError(where, [_sentence(reason, bad, total) for reason, bad in problems.items()])
    return cells


def _sentence(reason: str, bad: list[int], total: int) -> str:
    if not bad:
        return reason
    named = ", ".join(map(str, bad[:_SHOWN])) + (f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else "")
    return f"cell{'s' if len(bad) > 1 else ''} {named} of {total}: {reason}"


def make_cell(number: int, choices: Choices, sweep: SweepFile, folders: dict[str, str]) -> Cell:
    """One cell, checked.

    Raises
    ------
    SimError, PolicyError, HardwareError, TraceError
        The first thing that is wrong with it; an empty message for a trace that could not be read at all.
    """
    scenario = choices.get("scenario")
    if scenario is not None and scenario not in sweep.scenarios:
        known = ", ".join(sweep.scenarios) or "none"
        raise SimError(f"unknown scenario {scenario!r} (known: {known})")
    name = choices.get("trace") or (next(iter(sweep.traces)) if len(sweep.traces) == 1 else None)
    if name not in sweep.traces:
        raise SimError(f"{'no trace chosen' if name is None else f'unknown trace {name!r}'} "
                       f"(known: {', '.join(sweep.traces)})")  # fmt: skip
    if name not in folders:
        raise SimError("")
    passes = _typed("passes", choices.get("passes"), int | None)
    if passes is not None and passes < 1:
        raise SimError(f"passes = {passes} simulates nothing")
    view = View(folders[name], passes, _typed("model", choices.get("model"), str | None))
    trace = open_view(view)
    spec = make_spec(choices, trace)
    cell_id, misfit = _check(view, spec)
    return Cell(number, cell_id, name, scenario, view, spec, misfit)


def make_spec(choices: Choices, trace: RoutingTrace) -> RunSpec:
    """`RunSpec` from choices as they are written.

    Raises
    ------
    SimError
        A choice of the wrong kind, an unknown one, or none where one is needed.
    """
    unknown = [key for key in choices if key not in CHOICES]
    if unknown:
        raise SimError(f"unknown choice {unknown[0]!r} (known: {', '.join(CHOICES)})")
    policy = load_engine(_typed("engine", choices.get("engine") or "generic", str)).policy
    choices = dict(policy) | {key: value for key, value in choices.items() if value is not None}
    given = {key: choices[key] for key in RUN if key in choices}
    if "hardware" not in given:
        raise SimError("no hardware chosen")
    if isinstance(given["hardware"], str):
        given["hardware"] = given["hardware"].split("+")
    typed = {key: _typed(key, value, _HINTS[key]) for key, value in given.items()}
    return RunSpec(capacity=_capacity(choices, trace, typed), **typed)


def _typed(name: str, value: Any, hint: Any) -> Any:
    if isinstance(value, list):
        value = tuple(value)
    try:
        return _adapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        raise SimError(f"{name} = {value!r}: {error.errors()[0]['msg'].lower()}") from None


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def _capacity(choices: Choices, trace: RoutingTrace, typed: dict[str, Any]) -> Capacity:
    """Bytes with a unit, one size a card, or a share of the experts of each card's own layers."""
    scope = _typed("scope", choices.get("scope", "global"), str)
    slots = _typed("slots_per_layer", choices.get("slots_per_layer"), int | None)
    size = choices.get("capacity")
    if isinstance(size, str) and size.endswith("%"):
        try:
            share = float(size[:-1]) / 100
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise SimError(f"capacity = {size!r}: expected a share from 0% to 100%")
        geometry = trace.geometry
        each = typed.get("layers_each") or (geometry.n_layers,) + (0,) * (len(typed["hardware"]) - 1)
        edges = [sum(each[:i]) for i in range(len(each) + 1)]
        whole = [geometry.experts * sum(geometry.expert_bytes[a:b]) for a, b in pairwise(edges)]
        room = tuple(int(share * nbytes) for nbytes in whole)
        if len(room) == 1:
            return Capacity(total_bytes=room[0], slots_per_layer=slots, scope=scope)
        return Capacity(card_bytes=room, slots_per_layer=slots, scope=scope)
    if isinstance(size, list):
        return Capacity(card_bytes=tuple(map(parse_size, size)), slots_per_layer=slots, scope=scope)
    return Capacity(total_bytes=None if size is None else parse_size(size), slots_per_layer=slots, scope=scope)


def _check(view: View, spec: RunSpec) -> tuple[str, str | None]:
    """Id of the cell, and why it does not fit if it does not; raises what `simulate` would raise for the rest."""
    misfit = None
    trace = open_view(view) if spec.host.partition(":")[0] in BESIDE_CARDS else _first_pass(view)
    try:
        ready = prepare(trace, spec)
        prefetch, pool = ready.policies.prefetch, ready.cache.pool
        future = ready.policies.future if prefetch.needs_future else None
        prefetch.start(pool, LISTS, future, trace.predictions or None)
    except MisfitError as error:
        misfit = str(error)
    made = manifest(
        open_view(view), spec, tuple(load_profile(name) for name in spec.hardware), load_engine(spec.engine)
    )
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16], misfit


@lru_cache(maxsize=4)
def _first_pass(view: View) -> RoutingTrace:
    # Most choices are checked against the model, so the first pass is enough, and quick for oracles too.
    trace = open_view(view)
    return trace.select_passes(np.arange(trace.n_passes) < 1)
