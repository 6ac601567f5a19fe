"""`residency curve`: hit rate against capacity, every policy beside the optimum."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from expert_residency.sim.choices.trace import Reading, open_trace
from expert_residency.sim.cli import app
from expert_residency.sim.cli.choices import option
from expert_residency.sim.cli.common import (
    FILLED,
    SEES_FUTURE,
    FormatOpt,
    JsonOpt,
    ModelOpt,
    SimulatorOpt,
    TraceArg,
    caution,
    percent,
    picture,
    say,
    show,
    table,
    write_json,
)
from expert_residency.sim.cli.reading import ColdOpt, takes_reading

if TYPE_CHECKING:
    from expert_residency.sim.runs.curve import Point

BOUNDS = ("belady", "min")
COLUMNS = 8
"""Capacities in the table; JSON and plot have them all."""


@app.command()
@takes_reading("phase")
def curve(
    trace: TraceArg,
    eviction: Annotated[list[str] | None, option("eviction", "Repeat to compare; all by default.")] = None,
    capacity: Annotated[list[str] | None, option("capacity", "Repeat for several points.")] = None,
    scope: Annotated[str, option("scope", default=True)] = "layer",
    admission: Annotated[str, option("admission", default=True)] = "always",
    points: Annotated[
        int, typer.Option(min=1, help="Without --capacity: capacities, evenly spaced up to all experts.")
    ] = 16,
    phase: Annotated[
        str | None, typer.Option(help="all, prefill, decode or verify; decode by default if there is any.")
    ] = None,
    simulator: SimulatorOpt = "auto",
    plot: Annotated[
        Path | None, typer.Option(callback=picture, help="Draw the curves into this PNG, SVG or PDF.")
    ] = None,
    model: ModelOpt = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
    cold: ColdOpt = "trace",
    json: JsonOpt = None,
) -> None:
    """Hit rate against capacity for every policy, with the optimum."""
    from expert_residency.errors import SimError
    from expert_residency.policies import available, create, named, sees_future
    from expert_residency.sim.choices.capacity import Capacity
    from expert_residency.sim.runs.curve import even_capacities, hit_curve
    from expert_residency.sim.runs.optimum import check_bound
    from expert_residency.sim.runs.steps import Steps

    admission = named("admission", admission)
    eviction = [named("eviction", word) for word in eviction or ()]
    asked = list(dict.fromkeys([*(eviction or available("eviction")), *BOUNDS]))
    for spec in asked:  # all names are checked before anything runs
        create("eviction", spec)
    recorded = open_trace(trace, fmt, model, reading)
    capacities = [Capacity.of(words, scope) for words in capacity or ()] or even_capacities(
        recorded, points, scope
    )
    steps = Steps.of(recorded)
    curves = {
        spec: hit_curve(
            recorded, spec, capacities, admission=admission if spec not in BOUNDS else "always", steps=steps,
            simulator=simulator, cold=cold,
        )
        for spec in asked
    }  # fmt: skip
    for i, room in enumerate(capacities):
        counted = {spec: found[i].phases["all"] for spec, found in curves.items()}
        missed = {spec: every.distinct - every.distinct_hits for spec, every in counted.items()}
        check_bound(recorded, room, missed, admission=admission)
    present = list(curves["min"][0].phases)
    phase = phase or ("decode" if "decode" in present else "all")
    if phase not in present:
        raise SimError(f"the trace has no phase {phase!r} (it has: {', '.join(present)})")
    data = {
        "trace_sha256": recorded.content_hash,
        "model": recorded.geometry.label,
        "synthetic": recorded.synthetic,
        "caveats": curves["min"][0].caveats,
        "scope": scope,
        "cold": cold,
        "admission": admission,
        "experts_bytes": recorded.geometry.all_expert_bytes,
        "policies": {spec: [point.to_dict() for point in found] for spec, found in curves.items()},
    }
    if json is not None:
        write_json(json, data)
    if plot is not None:
        _draw(plot, curves, phase, recorded.geometry.all_expert_bytes, f"{recorded.geometry.label}, {scope} scope")
    if json is not None and str(json) == "-":
        return
    every = -(-len(capacities) // COLUMNS)
    picked = range((len(capacities) - 1) % every, len(capacities), every)
    slots = [str(room.slots_per_layer) for room in capacities if room.slots_per_layer is not None]
    names = (
        slots
        if len(slots) == len(capacities)
        else [percent(point.capacity_bytes / recorded.geometry.all_expert_bytes, 1) for point in curves["min"]]
    )
    by = "slots a layer" if names is slots else "capacity in % of all experts"
    shown = table(
        f"{recorded.geometry.label}: {phase} hit % (distinct) by {by}, {scope} scope",
        ["policy", *(names[i] for i in picked)],
    )
    ahead = {spec for spec in asked if sees_future(spec)}
    for spec in _ranked(curves, phase):
        name = spec + (" (bound)" if spec in BOUNDS else " *" if spec in ahead else "")
        shown.add_row(name, *(percent(curves[spec][i].phases[phase].hit_rate, 1) for i in picked))
    show(shown)
    if ahead - {*BOUNDS}:
        say(SEES_FUTURE)
    if filled := [spec for spec in asked if create("eviction", spec).default_placement != "none"]:
        say(f"{', '.join(filled)}: {FILLED}")
    methods = dict.fromkeys(point.method for found in curves.values() for point in found)
    caution(curves["min"][0].caveats)
    say(f"counted by: {', '.join(methods)}")


def _ranked(curves: dict[str, list[Point]], phase: str) -> list[str]:
    """Bounds last, the others by their hits over all capacities."""
    return sorted(curves, key=lambda s: (s in BOUNDS, -sum(p.phases[phase].distinct_hits for p in curves[s])))


def _draw(path: Path, curves: dict[str, list[Point]], phase: str, whole: int, title: str) -> None:
    """Curves, the best policies in colour and named at their side, the others in grey."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        from expert_residency.errors import SimError

        raise SimError("plots need matplotlib: pip install 'expert-residency[plot]'") from None
    from expert_residency.files import save_figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes: Any = figure.add_subplot()
    named = 6
    for rank, spec in enumerate(_ranked(curves, phase)):
        x = [100 * point.capacity_bytes / whole for point in curves[spec]]
        y = [100 * (point.phases[phase].hit_rate or 0.0) for point in curves[spec]]
        style: dict[str, Any]
        if spec in BOUNDS:
            style = {"color": "black", "linestyle": "-" if spec == "min" else "--", "label": f"{spec} (bound)"}
        elif rank < named or spec in ("lru", "lfu", "random"):
            style = {"label": spec}
        else:
            style = {"color": "0.8", "zorder": 1}
        axes.plot(x, y, linewidth=1.5, **style)
    axes.set_xlabel("room for experts, % of all")
    axes.set_ylabel(f"{phase} hit rate, % of distinct look-ups")
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlim(0, 100)
    axes.set_ylim(top=100)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right", title="others in grey" if len(curves) > named + 5 else None)
    save_figure(figure, path, 130)
