"""`residency inspect`: what a trace holds."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from expert_residency.sim.choices.trace import Reading, open_trace
from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import (
    FormatOpt,
    JsonOpt,
    ModelOpt,
    TraceArg,
    number,
    percent,
    show,
    table,
    warn,
    write_json,
)
from expert_residency.sim.cli.reading import takes_reading


@app.command()
@takes_reading()
def inspect(
    trace: TraceArg,
    layers: Annotated[bool, typer.Option("--layers", help="Also one row for each MoE layer.")] = False,
    model: ModelOpt = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
    json: JsonOpt = None,
) -> None:
    """Geometry, passes, overlap, token cycle and working set of a trace."""
    from expert_residency.traces import describe

    recorded = open_trace(trace, fmt, model, reading)
    found = describe(recorded)
    if json is not None:
        write_json(json, found)
        if str(json) == "-":
            return
    show(_summary(found))
    if layers:
        show(_per_layer(found))
    notes = ["the trace is synthetic: generated, not recorded from a model"] if found["synthetic"] else []
    warn(notes + ([gap] if (gap := recorded.geometry.gap) else []))


def _summary(found: dict[str, Any]) -> Any:
    from expert_residency.hwmodels.units import format_bytes

    shown = table(str(found["model"]), ["what", "value"], left=2)
    k = f"{found['k_min']}" if found["k_min"] == found["k_max"] else f"{found['k_min']} to {found['k_max']}"
    passes = ", ".join(f"{n:,} {phase}" for phase, n in found["passes"].items() if n)
    working = format_bytes(found["working_set_bytes"])
    rows = [
        ("experts", f"{found['moe_layers']} layers x {found['experts_per_layer']}, top-{k}"),
        ("recorded by", found["source_engine"] or "not said"),
        ("requests, passes", f"{found['requests']:,} request(s): {passes}"),
        ("rows, routed, look-ups", f"{found['rows']:,}, {found['routed']:,}, {found['lookups']:,} distinct"),
        ("all experts", format_bytes(found["all_expert_bytes"])),
        ("token cycle", format_bytes(found["token_cycle_bytes"])),
        ("global LRU", f"below {format_bytes(found['lru_floor_bytes'])} it hits exactly 0 %"),
        ("dense part of a pass", format_bytes(found["dense_pass_bytes"])),
        (
            "working set",
            f"{found['working_set_experts']:,} experts = {percent(found['working_set_share'], 1)} %, {working}",
        ),
        ("compulsory look-ups", f"{percent(found['compulsory_share'])} %"),
    ]
    for phase, union in found["union"].items():
        mean, rows_mean = number(union["distinct_mean"], 1), number(union["rows_mean"], 1)
        text = f"mean {mean} of {rows_mean} rows, at most {union['distinct_max']}"
        rows.append((f"distinct an event, {phase}", text))
    overlap = ", ".join(f"{lag.removeprefix('lag_')}: {percent(v, 1)} %" for lag, v in found["overlap"].items())
    rows += [
        ("overlap by lag, decode", overlap),
        ("share of the hottest 10 %", f"{percent(found['hottest_10_percent_share'], 1)} %"),
        ("normalised entropy", number(found["normalised_entropy"], 3)),
        ("recorded besides", ", ".join(_extras(found)) or "nothing"),
    ]
    rows += [("note", note) for note in found["notes"]]
    for name, value in rows:
        shown.add_row(name, value)
    return shown


def _extras(found: dict[str, Any]) -> list[str]:
    extras = ["weights"] if found["has_weights"] else []
    extras += ["the engine's own residency"] if found["has_residency"] else []
    if found["prediction_depths"]:
        scored = ", ".join(map(str, found["score_depths"]))
        extras.append(
            f"predictions {', '.join(map(str, found['prediction_depths']))} layer(s) ahead"
            + (f" (with scores: {scored})" if scored else "")
        )
    return extras


def _per_layer(found: dict[str, Any]) -> Any:
    shown = table(
        "by layer", ["layer", "expert MiB", "look-ups", "touched", "overlap lag 1 %", "hottest 10 % share"]
    )
    for layer in found["layers"]:
        shown.add_row(
            str(layer["layer"]),
            number(layer["expert_bytes"] / 2**20),
            f"{layer['lookups']:,}",
            f"{layer['experts_touched']:,}",
            percent(layer["overlap_lag_1"], 1),
            percent(layer["hottest_10_percent_share"], 1),
        )
    return shown
