"""`residency replay`: policies side by side, counters only."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sim.cli import app
from sim.cli.common import (
    CapacityOpt,
    FormatOpt,
    JsonOpt,
    ModelOpt,
    ScopeOpt,
    SlotsOpt,
    TraceArg,
    open_trace,
    parse_capacity,
    percent,
    show,
    table,
    warn,
    write_json,
)

DEFAULT = ["lru", "fifo", "lfu", "lfru", "random", "static"]
BOUNDS = ("belady", "min")


@app.command()
def replay(
    trace: TraceArg,
    eviction: Annotated[
        list[str] | None, typer.Option("--eviction", help="Policy, NAME or NAME:param=value; repeat to compare.")
    ] = None,
    capacity: CapacityOpt = None,
    slots_per_layer: SlotsOpt = None,
    scope: ScopeOpt = "global",
    admission: Annotated[str, typer.Option(help="Which misses may take a slot.")] = "always",
    placement: Annotated[str | None, typer.Option(help="Who is resident at the start.")] = None,
    contract: Annotated[str, typer.Option(help="event (atomic), sequential or sequential-descending.")] = "event",
    oversize: Annotated[str, typer.Option(help="An event beyond its capacity: waves or overflow.")] = "waves",
    warmup: Annotated[int, typer.Option(min=0, help="Passes that the 'warm' column leaves out.")] = 0,
    model: ModelOpt = None,
    fmt: FormatOpt = None,
    json: JsonOpt = None,
) -> None:
    """Count hits of eviction policies on a trace, beside the optimum and the compulsory-miss bound."""
    from hwmodels.units import format_bytes
    from policies import create
    from sim.errors import SimError
    from sim.replay import compulsory_bound, matches_engine
    from sim.replay import replay as run_replay

    if oversize not in ("waves", "overflow"):
        raise SimError(f"unknown oversize rule {oversize!r} (known: waves, overflow)")
    room = parse_capacity(capacity, slots_per_layer, scope)
    asked = list(dict.fromkeys([*(eviction or DEFAULT), *BOUNDS]))
    for spec in asked:  # all names are checked before anything runs
        create("eviction", spec)
    recorded = open_trace(trace, fmt, model)
    results = {
        spec: run_replay(
            recorded, spec, room, admission=admission if spec not in BOUNDS else "always", placement=placement,
            contract=contract, oversize="overflow" if oversize == "overflow" else "waves", warmup_passes=warmup,
        )
        for spec in asked
    }  # fmt: skip
    best = results["min"].phases["all"]
    bound = compulsory_bound(recorded)
    data: dict[str, Any] = {
        "trace_sha256": recorded.content_hash,
        "model": recorded.geometry.label,
        "synthetic": recorded.synthetic,
        "capacity_bytes": results["min"].capacity_bytes,
        "scope": scope,
        "contract": contract,
        "compulsory_bound": bound,
        "policies": {spec: r.to_dict() for spec, r in results.items()},
    }
    for spec, result in results.items():
        if recorded.row_residency is not None:
            equal, compared = matches_engine(recorded, result)
            data["policies"][spec]["engine_agreement"] = {"equal": equal, "compared": compared}
    if json is not None:
        write_json(json, data)
        if str(json) == "-":
            return
    names = [name for name in ("prefill", "decode", "verify") if name in results["min"].phases]
    columns = ["policy", "hit % (distinct)", "hit % (routed)"]
    columns += [f"{name} %" for name in names] + [f"{name} % (routed)" for name in names]
    columns += [f"after {warmup} passes %"] if warmup else []
    columns += ["evictions", "read GiB", "misses / optimum"]
    shown = table(
        f"{recorded.geometry.label}: {format_bytes(results['min'].capacity_bytes)} of experts, {scope} scope, "
        f"{contract} contract",
        columns,
    )
    order = sorted(results, key=lambda s: (s in BOUNDS, -results[s].phases["all"].distinct_hits))
    for spec in order:
        result = results[spec]
        every = result.phases["all"]
        misses, least = every.distinct - every.distinct_hits, best.distinct - best.distinct_hits
        row = [
            spec + (" (bound)" if spec in BOUNDS else ""),
            percent(every.hit_rate),
            percent(every.routed_hit_rate),
        ]
        row += [percent(result.phases[name].hit_rate) for name in names]
        row += [percent(result.phases[name].routed_hit_rate) for name in names]
        row += [percent(result.warm.hit_rate)] if warmup else []
        row += [
            f"{result.evictions:,}",
            f"{every.miss_bytes / 2**30:.2f}",
            f"{misses / least:.2f}" if least else "n/a",
        ]
        shown.add_row(*row)
    shown.add_row("endless cache", percent(bound))
    show(shown)
    if recorded.row_residency is not None:
        closest = max(order, key=lambda spec: data["policies"][spec]["engine_agreement"]["equal"])
        agreed = data["policies"][closest]["engine_agreement"]
        typer.echo(
            f"The engine that recorded the trace found the same resident as {closest} on {agreed['equal']:,} of "
            f"{agreed['compared']:,} first touches."
        )
    asked_for = [spec for spec in order if spec not in BOUNDS or spec in (eviction or [])]
    notes = dict.fromkeys(w for spec in asked_for for w in results[spec].warnings)
    if recorded.synthetic:
        notes["the trace is synthetic: generated, not recorded from a model"] = None
    warn(list(notes))
