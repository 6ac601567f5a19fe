"""`residency replay`: policies side by side, counters only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from expert_residency.sim.choices.trace import Reading, open_trace
from expert_residency.sim.cli import app
from expert_residency.sim.cli.choices import Words, option, takes_words
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
    say,
    show,
    table,
    warn,
    write_json,
)
from expert_residency.sim.cli.reading import ColdOpt, takes_reading

if TYPE_CHECKING:
    from expert_residency.sim.choices.capacity import Capacity
    from expert_residency.sim.runs.counts import ReplayResult
    from expert_residency.traces import RoutingTrace

DEFAULT = ["lru", "fifo", "lfu", "lfru", "random", "static"]
CAUSAL = ["lru", "fifo", "lfu", "lfru", "random"]
"""Those that need no more than what they have seen."""
BOUNDS = ("belady", "min")


@app.command()
@takes_reading()
@takes_words("capacity", "slots_per_layer", "scope", "admission", "placement")
def replay(
    trace: TraceArg,
    eviction: Annotated[list[str] | None, option("eviction", "Repeat to compare.")] = None,
    words: Words | None = None,
    contract: Annotated[str, typer.Option(help="event (atomic), sequential or sequential-descending.")] = "event",
    oversize: Annotated[str, typer.Option(help="An event beyond its capacity: waves or overflow.")] = "waves",
    warmup: Annotated[int, typer.Option(min=0, help="Passes that the 'warm' column leaves out.")] = 0,
    simulator: SimulatorOpt = "auto",
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Read a Parquet trace in parts and keep only the caches: for traces larger than memory. Compiled "
            "policies that need no future, so without the bounds.",
        ),
    ] = False,
    model: ModelOpt = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
    cold: ColdOpt = "trace",
    json: JsonOpt = None,
) -> None:
    """Count hits of eviction policies on a trace, beside the optimum and the compulsory-miss bound."""
    from expert_residency.errors import SimError
    from expert_residency.policies import create, named, sees_future
    from expert_residency.sim.choices.spec import make_capacity
    from expert_residency.sim.runs.basis import Basis
    from expert_residency.text import check_known

    if oversize not in ("waves", "overflow"):
        raise SimError(f"unknown oversize rule {oversize!r} (known: waves, overflow)")
    words = words or {}
    room = make_capacity(words)
    admission, placement = named("admission", words.get("admission", "always")), words.get("placement")
    placement = placement and named("placement", placement)
    bounds = () if stream else BOUNDS
    eviction = [named("eviction", word) for word in eviction or ()]
    asked = list(dict.fromkeys([*(eviction or (CAUSAL if stream else DEFAULT)), *bounds]))
    for spec in asked:  # all names are checked before anything runs
        create("eviction", spec)
    plainly = fmt in (None, "parquet") and not model and reading == Reading() and cold == "trace"
    if stream and (not plainly or simulator == "reference"):
        raise SimError("--stream reads this program's own Parquet, with its sizes, and counts in the kernel")
    options: dict[str, Any] = {"placement": placement, "contract": contract, "warmup_passes": warmup}
    check_known("cold", cold, ("trace", "request"))
    if stream:
        data, results = _streamed(trace, asked, room, admission, options | {"overflow": oversize == "overflow"})
    else:
        options |= {"oversize": oversize, "simulator": simulator, "cold": cold}
        data, results = _whole(open_trace(trace, fmt, model, reading), asked, room, admission, options)
    data["policies"] = {
        spec: result.to_dict() | data["policies"].get(spec, {}) for spec, result in results.items()
    }
    if json is not None:
        write_json(json, data)
        if str(json) == "-":
            return
    order = sorted(results, key=lambda s: (s in bounds, -results[s].phases["all"].distinct_hits))
    ahead = {spec for spec in order if sees_future(spec, placement=placement, quotas=room.quotas)}
    _show(data, results, order, warmup, ahead)
    _show_requests({spec: data["policies"][spec].get("requests", []) for spec in order})
    agreements = {spec: data["policies"][spec].get("engine_agreement") for spec in order}
    if all(agreements.values()):
        closest = max(order, key=lambda spec: agreements[spec]["equal"])
        agreed = agreements[closest]
        say(
            f"The engine that recorded the trace found the same resident as {closest} on {agreed['equal']:,} of "
            f"{agreed['compared']:,} first touches."
        )
    asked_for = [spec for spec in order if spec not in BOUNDS or spec in (eviction or [])]
    notes = dict.fromkeys(w for spec in asked_for for w in results[spec].warnings)
    say(f"over {Basis(**data['basis']).words}")
    caution(data["caveats"])
    warn(list(notes))


def _whole(
    recorded: RoutingTrace, asked: list[str], room: Capacity, admission: str, options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, ReplayResult]]:
    """Facts of the trace, and one result a policy; the steps and what oracles know are made once."""
    import numpy as np

    from expert_residency.sim.runs.basis import Basis
    from expert_residency.sim.runs.optimum import check_bound
    from expert_residency.sim.runs.replay import compulsory_bound, matches_engine, replay
    from expert_residency.sim.runs.requests import apart, hits_by_request
    from expert_residency.sim.runs.steps import Steps

    steps = Steps.of(recorded, options["contract"])
    results = {
        spec: replay(
            recorded, spec, room, admission=admission if spec not in BOUNDS else "always", steps=steps, **options
        )
        for spec in asked
    }
    if options["contract"] == "event" and options["oversize"] == "waves":
        missed = {spec: int((result.hits == 0).sum()) for spec, result in results.items()}
        check_bound(recorded, room, missed, admission=admission, placement=options["placement"])
    agreements: dict[str, dict[str, Any]] = {}
    if recorded.row_residency is not None:
        for spec, result in results.items():
            equal, compared = matches_engine(recorded, result)
            agreements[spec] = {"engine_agreement": {"equal": equal, "compared": compared}}
    if len(np.unique(recorded.pass_request)) > 1:
        for spec, result in results.items():
            agreements[spec] = agreements.get(spec, {}) | {"requests": hits_by_request(recorded, result)}
    bound = compulsory_bound(recorded)
    if parts := apart(recorded, options["cold"]):  # every request has its own first uses
        firsts = sum(len(np.unique(part.keys)) for _, part in parts)
        bound = 1 - firsts / recorded.n_lookups
    facts = {"trace_sha256": recorded.content_hash, "cold": options["cold"], "compulsory_bound": bound}
    facts["basis"] = vars(Basis.of(recorded))
    return _head(facts, recorded, results) | {"policies": agreements}, results


def _streamed(
    path: str, asked: list[str], room: Capacity, admission: str, options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, ReplayResult]]:
    """The same of a trace that is read in parts."""
    from expert_residency.sim.runs.basis import Basis, generated
    from expert_residency.sim.runs.stream import replay_stream
    from expert_residency.traces.stream import stream_geometry, stream_parquet

    first: list[RoutingTrace] = []
    requests: set[int] = set()
    tokens = 0

    def parts() -> Iterator[RoutingTrace]:
        nonlocal tokens
        for part in stream_parquet(path):
            first[:] = [part]
            names, emitted = generated(part)
            requests.update(names)
            tokens += emitted
            yield part

    found = replay_stream(parts(), stream_geometry(path), asked, room, admission=admission, **options)
    results = dict(zip(asked, found, strict=True))
    fresh = [result.phases["all"] for result in found if not result.placed]
    bound = 1 - fresh[0].compulsory / fresh[0].distinct if fresh else None
    facts = {"trace_sha256": None, "compulsory_bound": bound, "basis": vars(Basis(len(requests), tokens))}
    return _head(facts, first[0], results) | {"policies": {}}, results


def _head(facts: dict[str, Any], trace: RoutingTrace, results: dict[str, ReplayResult]) -> dict[str, Any]:
    one = next(iter(results.values()))
    return facts | {
        "caveats": one.caveats,
        "model": trace.geometry.label,
        "synthetic": trace.synthetic,
        "capacity_bytes": one.capacity_bytes,
        "scope": one.scope,
        "contract": one.contract,
    }


MOST_REQUESTS = 10
"""In the table by request; JSON has all."""


def _show_requests(found: dict[str, list[dict[str, Any]]]) -> None:
    """Hits of each request, a column a policy; of many requests, those with most look-ups."""
    first = next(iter(found.values()))
    if not first:
        return
    picked = sorted(sorted(range(len(first)), key=lambda i: -first[i]["distinct"])[:MOST_REQUESTS])
    more = f", the {len(picked)} largest of {len(first)}" if len(picked) < len(first) else ""
    shown = table(f"hit % (distinct) by request{more}", ["request", "look-ups", *found])
    for i in picked:
        cells = [percent(rows[i]["hit_rate_distinct"]) for rows in found.values()]
        shown.add_row(str(first[i]["request"]), f"{first[i]['distinct']:,}", *cells)
    show(shown)


def _show(
    data: dict[str, Any], results: dict[str, ReplayResult], order: list[str], warmup: int, ahead: set[str]
) -> None:
    """The table; policies of `ahead` see the future."""
    from expert_residency.hwmodels.units import format_bytes

    one = next(iter(results.values()))
    names = [name for name in ("prefill", "decode", "verify") if name in one.phases]
    columns: list[str | tuple[str, str]] = ["policy", "hit % (distinct)", "hit % (routed)"]
    columns += [f"{name} %" for name in names] + [f"{name} % (routed)" for name in names]
    columns += [f"after {warmup} passes %"] if warmup else []
    columns += ["evictions", "read GiB", "misses / optimum"]
    ran = sorted({result.simulator for result in results.values()})
    shown = table(
        f"{data['model']}: {format_bytes(data['capacity_bytes'])} of experts, {data['scope']} scope, "
        f"{data['contract']} contract; counted by: {', '.join(ran)}",
        columns,
    )
    best = results["min"].phases["all"] if "min" in results else None
    least = best.distinct - best.distinct_hits if best else 0
    for spec in order:
        result = results[spec]
        every = result.phases["all"]
        misses = every.distinct - every.distinct_hits
        row = [
            spec + (" (bound)" if spec in BOUNDS else " *" if spec in ahead else ""),
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
    shown.add_row("endless cache", percent(data["compulsory_bound"]))
    show(shown)
    if ahead - {*BOUNDS}:
        say(SEES_FUTURE)
    empty = any(not results[spec].placed for spec in BOUNDS if spec in results)
    if empty and (filled := [spec for spec in order if results[spec].placed]):
        say(f"{', '.join(filled)}: {FILLED}")
