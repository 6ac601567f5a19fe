"""From choices to runs: every cell checked before any of them starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from expert_residency.errors import MisfitError, SimError, SweepError, UserError
from expert_residency.hwmodels.registry import load_profile
from expert_residency.policies import words_of
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec, make_spec
from expert_residency.sim.residency.future import recorded_predictions
from expert_residency.sim.residency.pool import LISTS
from expert_residency.sim.runs.simulate import Prepared, manifest, prepare
from expert_residency.sim.sweep.spec import OWN, Choices, SweepFile, TraceRef, expand, filled
from expert_residency.sim.sweep.stored import View, load_trace, open_view, store
from expert_residency.sim.timed.host.tiers import BESIDE_CARDS
from expert_residency.text import hash_of
from expert_residency.traces import RoutingTrace

REMEDIES = {"ram": 'host = "mmap", or a smaller quantization, would fit'}
"""What helps in a file of a sweep, by what is too small."""
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
    seed
        Of what is drawn; None where nothing is.
    setting
        What the file chooses but the seed, as JSON: equal for cells that differ in the seed alone.
    """

    number: int
    cell_id: str
    trace: str
    scenario: str | None
    view: View
    spec: RunSpec
    misfit: str | None = None
    seed: int | None = None
    setting: str | None = None


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
    try:
        chosen = list(expand(sweep))
    except SweepError as error:
        chosen = []
        problems = {problem: [] for problem in error.problems}
    folders: dict[str, str] = {}
    for name, seed in _traces(sweep, chosen):
        if progress is not None:
            progress(f"trace {name}")
        try:
            trace = load_trace(sweep.trace_ref(name), base, seed)
            folders[trace_key(name, seed)] = str(store(trace, cache_folder))
        except UserError as error:
            problems.setdefault(f"trace {name}: {error}", [])
    cells: list[Cell] = []
    known: dict[str, int] = {}
    for number, choices in enumerate(chosen):
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
    if problems:
        raise SweepError(where, [_sentence(reason, bad, len(chosen)) for reason, bad in problems.items()])
    return cells


def _traces(sweep: SweepFile, chosen: list[Choices]) -> list[tuple[str, int | None]]:
    """Every trace of the file, a drawn one with each seed that a cell has."""
    found: dict[tuple[str, int | None], None] = {}
    for name in sweep.traces:
        ref = sweep.trace_ref(name)
        drawn = isinstance(ref, TraceRef) and ref.drawn
        seeds = {one.get("seed") for one in chosen if drawn and sweep.chosen_trace(one) == name}
        found |= dict.fromkeys((name, seed) for seed in sorted(seeds or {None}, key=lambda s: s or 0))
    return list(found)


def trace_key(name: str, seed: int | None) -> str:
    """Name of a trace that is drawn with a seed, among those of a sweep."""
    return name if seed is None else f"{name}\0{seed}"


def _sentence(reason: str, bad: list[int], total: int) -> str:
    if not bad:
        return reason
    named = ", ".join(map(str, bad[:_SHOWN])) + (f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else "")
    return f"cell{'s' if len(bad) > 1 else ''} {named} of {total}: {reason}"


def make_cell(number: int, choices: Choices, sweep: SweepFile, folders: dict[str, str]) -> Cell:
    """One cell, checked.

    Raises
    ------
    SimError, PolicyError, HardwareError
        The first thing that is wrong with it; an empty message for a trace that could not be read at all.
    """
    scenario = choices.get("scenario")
    if scenario is not None and scenario not in sweep.scenarios:
        known = ", ".join(sweep.scenarios) or "none"
        raise SimError(f"unknown scenario {scenario!r} (known: {known})")
    name = sweep.chosen_trace(choices)
    if name is None or name not in sweep.traces:
        raise SimError(f"{'no trace chosen' if name is None else f'unknown trace {name!r}'} "
                       f"(known: {', '.join(sweep.traces)})")  # fmt: skip
    ref, seed = sweep.trace_ref(name), choices.get("seed")
    key = trace_key(name, seed if isinstance(ref, TraceRef) and ref.drawn else None)
    if key not in folders:
        raise SimError("")
    passes, model = choices.get("passes"), choices.get("model")
    if passes is not None and (type(passes) is not int or passes < 1):
        raise SimError(f"passes is {passes!r}, expected a whole number above 0")
    if not isinstance(model, str | None):
        raise SimError(f"model is {model!r}, expected a name")
    cold = choices.get("cold", "trace")
    if cold not in ("trace", "request"):
        raise SimError(f"cold is {cold!r}, expected trace or request")
    view = View(folders[key], passes, model, cold)
    asked = {key: value for key, value in choices.items() if key not in OWN}
    spec = make_spec(asked if seed is None else filled(asked, {"seed": seed}))
    spec = spec.settled(open_view(view).geometry)
    cell_id, misfit = _check(view, spec)
    cell = Cell(number, cell_id, name, scenario, view, spec, misfit)
    if seed is not None:
        words = {other: words_of(value) for other, value in choices.items() if other != "seed"} | {"trace": name}
        return replace(cell, seed=seed, setting=json.dumps(words, sort_keys=True, default=str))
    own = ref.synthetic if isinstance(ref, TraceRef) else None
    return cell if own is None else replace(cell, seed=own.get("seed", 0))


def _check(view: View, spec: RunSpec) -> tuple[str, str | None]:
    """Id of the cell, and why it does not fit if it does not; raises what `simulate` would raise for the rest."""
    misfit, start = None, None
    trace = open_view(view) if spec.host.partition(":")[0] in BESIDE_CARDS else _first_pass(view)
    try:
        ready = begin(trace, spec)
        start = ready.start if "file=" in (spec.placement or "") else None  # what the file says now
    except MisfitError as error:
        misfit = error.told(REMEDIES)
    made = manifest(
        open_view(view), spec, tuple(load_profile(name) for name in spec.hardware), load_engine(spec.engine)
    )
    own = ({"cold": view.cold} if view.cold != "trace" else {}) | ({"start": start} if start else {})
    return hash_of(made | own), misfit


def begin(trace: RoutingTrace, spec: RunSpec) -> Prepared:
    """Everything that can be refused of a run: `prepare`, and the start of its prefetcher.

    Raises
    ------
    MisfitError
        Valid choices on a machine that is too small for them.
    """
    ready = prepare(trace, spec)
    prefetch, pool = ready.policies.prefetch, ready.cache.pool
    future = ready.policies.future if prefetch.needs_future else None
    prefetch.start(pool, LISTS, future, recorded_predictions(trace))
    return ready


@lru_cache(maxsize=4)
def _first_pass(view: View) -> RoutingTrace:
    # Most choices are checked against the model, so the first pass is enough, and quick for oracles too.
    trace = open_view(view)
    return trace.select_passes(np.arange(trace.n_passes) < 1)
