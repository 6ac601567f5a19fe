"""`residency run`: one timed run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from expert_residency.sim.choices.trace import Reading
from expert_residency.sim.cli import app
from expert_residency.sim.cli.choices import Words, takes_cache_types, takes_words
from expert_residency.sim.cli.common import (
    FormatOpt,
    JsonOpt,
    ModelOpt,
    SimulatorOpt,
    caution,
    given,
    number,
    percent,
    say,
    say_cliffs,
    show,
    table,
    warn,
    writable,
    write_json,
)
from expert_residency.sim.cli.reading import ColdOpt, takes_reading
from expert_residency.sim.cli.terms import show_terms
from expert_residency.sim.cli.trust import show_trust, trust_of

if TYPE_CHECKING:
    from expert_residency.sim.choices.scenario import Scenario
    from expert_residency.sim.choices.spec import RunSpec
    from expert_residency.sim.runs.interval import Interval
    from expert_residency.sim.runs.time_bound import TimeBound
    from expert_residency.sim.runs.variants import Variant
    from expert_residency.sim.studies.explain import Term
    from expert_residency.sim.studies.headroom import Ceiling
    from expert_residency.sim.timed.result import RunResult
    from expert_residency.traces import RoutingTrace

MOST_REQUESTS = 10
"""In the table by request; JSON has all."""
SEES = "a policy sees the future: an oracle, not a candidate"


@app.command()
@takes_cache_types
@takes_words()
@takes_reading()
def run(
    context: typer.Context,
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="TRACE|SCENARIO.toml",
            help="Trace file, or scenario file of one run or of variants in order, or case:NAME.",
        ),
    ] = None,
    trace: Annotated[str | None, typer.Option(help="The trace, as the argument: a file, or bundled:NAME.")] = None,
    model: ModelOpt = None,
    words: Words | None = None,
    passes: Annotated[int | None, typer.Option(min=1, help="Only the first so many passes.")] = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
    cold: ColdOpt = "trace",
    ceiling: Annotated[
        bool,
        typer.Option(
            help="Also lift one limit at a time (slots, prefetch, fixed costs) and name the one that binds."
        ),
    ] = False,
    explain: Annotated[
        bool, typer.Option(help="Also derive one token's time, constant by constant, each with its source.")
    ] = False,
    simulator: SimulatorOpt = "auto",
    timeline: Annotated[
        Path | None, typer.Option(callback=writable, help="Write a Chrome trace that opens in Perfetto.")
    ] = None,
    json: JsonOpt = None,
) -> None:
    """Simulate one run in time: tokens per second, where the time goes, from where experts were served."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from expert_residency.errors import SimError
    from expert_residency.sim.choices.scenario import build_scenario, open_scenario_trace
    from expert_residency.sim.runs.cliffs import cliffs
    from expert_residency.sim.runs.interval import interval_90
    from expert_residency.sim.runs.longest import longest
    from expert_residency.sim.runs.simulate import simulate
    from expert_residency.sim.runs.time_bound import time_bound
    from expert_residency.sim.runs.variants import load_variants

    if scenario is not None and not scenario.startswith("case:") and Path(scenario).suffix != ".toml":
        if trace is not None:
            raise SimError(f"two traces are given, {scenario} and {trace}: a run has one")
        scenario, trace = None, scenario
    if scenario is not None:
        if extra := given(context, "scenario", "ceiling", "explain", "simulator", "timeline", "json"):
            raise SimError(f"a scenario file makes the choices itself; {extra[0]} and the like go with --trace")
        variants = load_variants(scenario)
        if len(variants) > 1:
            if timeline is not None or ceiling or explain:
                raise SimError("timelines, ceilings and terms are of one run; this scenario has several variants")
            _run_variants(variants, json, simulator)
            return
        chosen = variants[0].scenario
    else:
        if trace is None:
            raise SimError("give a scenario file, or at least a trace, --hardware and --capacity")
        own = {
            "trace": trace, "model": model, "format": fmt, "passes": passes, "cold": cold,
            "reading": None if reading is None else reading.to_table(),
        }  # fmt: skip
        chosen = build_scenario({key: value for key, value in own.items() if value is not None} | (words or {}))
    recorded = open_scenario_trace(chosen)
    quiet = str(json) == "-"
    edges = cliffs(recorded, chosen.spec)
    if not quiet:
        say_cliffs(edges)
    with Progress(
        TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("passes"), TimeRemainingColumn(),
        transient=True, disable=quiet,
    ) as bar:  # fmt: skip
        task = bar.add_task("run", total=recorded.n_passes)
        result = simulate(
            recorded, chosen.spec, timeline=timeline, simulator=simulator,
            progress=lambda done: bar.update(task, completed=done), cold=chosen.cold or "trace",
        )  # fmt: skip
    bound = time_bound(recorded, chosen.spec, cold=chosen.cold or "trace")
    bound.check(result, chosen.spec.eviction)
    interval = interval_90(recorded, chosen.spec, result)
    behind = trust_of(recorded.geometry.label, chosen.spec.hardware, chosen.spec.engine)
    most = longest(recorded, chosen.spec, cold=chosen.cold or "trace")
    lifted = _ceilings(recorded, chosen) if ceiling else []
    terms = _terms(recorded, chosen, result) if explain else []
    if json is not None:
        more = {"ceilings": [one.to_dict() for one in lifted], "explain": [term.to_dict() for term in terms]}
        added: dict[str, Any] = {"trust": behind.to_dict(), "interval_90": interval and interval.to_dict()}
        added |= {"time_bound": bound.to_dict(), "cliffs": [edge.to_dict() for edge in edges]}
        added["largest_context"] = most and most.to_dict()
        write_json(json, result.to_dict(passes=True) | {name: rows for name, rows in more.items() if rows} | added)
        if quiet:
            return
    _print(recorded, result, interval)
    _print_bound(result, bound)
    if most is not None:
        say(most.text)
    _print_requests(result.requests())
    show_terms(terms)
    _print_ceilings(lifted)
    if timeline is not None:
        say(f"timeline: {timeline} (open it at ui.perfetto.dev)")
    show_trust(behind)
    caution(result.caveats)
    warn([*result.warnings, *([SEES] if _ahead(chosen.spec) else [])])


def _print_bound(result: RunResult, bound: TimeBound) -> None:
    """What no schedule is faster than, how near this run comes, and what that limit is."""
    from expert_residency.sim.cli.score import bound_sentence

    time_ns = result.decode_ns or result.total_ns
    share = percent(bound.time_ns / time_ns, 0)
    say(f"{bound_sentence(result.tokens_per_s, time_ns, bound.time_ns)}: this run has {share} % of that speed.")
    say(f"It stands on {bound.binds}." + "".join(f" Not in it: {text}." for text in bound.left_out))


def _ceilings(trace: RoutingTrace, chosen: Scenario) -> list[Ceiling]:
    from expert_residency.errors import SimError
    from expert_residency.sim.studies.headroom import ceilings

    if chosen.cold == "request":
        raise SimError("--ceiling is of one run; --cold request makes one of each request")
    return ceilings(trace, chosen.spec)


def _terms(trace: RoutingTrace, chosen: Scenario, result: RunResult) -> list[Term]:
    from expert_residency.sim.studies.explain import explain

    return explain(trace, chosen.spec, result)


def _print_ceilings(lifted: list[Ceiling]) -> None:
    from expert_residency.sim.cli.score import print_ceilings

    if lifted:
        print_ceilings(lifted)


def _ahead(spec: RunSpec) -> bool:
    from expert_residency.policies import sees_future

    return sees_future(spec.eviction, spec.prefetch, spec.placement, spec.capacity.quotas)


def _run_variants(variants: tuple[Variant, ...], json: Path | None, simulator: str) -> None:
    """Run a scenario of several variants and print one line each."""
    from expert_residency.sim.runs.variants import run_variants
    from expert_residency.sim.timed.result import CAUSES

    quiet = str(json) == "-"
    found = run_variants(
        variants,
        done=lambda one: None if quiet else say(f"{one.variant.name}: done", err=True),
        simulator=simulator,
    )
    if json is not None:
        write_json(
            json,
            [
                {"variant": one.variant.name, "measured_tok_s": one.variant.measured_tok_s, "error": one.error}
                | {"result": one.result.to_dict()}
                for one in found
            ],
        )
        if quiet:
            return
    shown = table(None, ["variant", "tokens/s", "measured", "error %", "VRAM hits %", "ms a pass", "RAM load s"])
    causes = [c for i, c in enumerate(CAUSES) if any(one.result.pass_causes[:, i].any() for one in found)]
    where = table("ms a pass by cause", ["variant", *causes])
    for one in found:
        result, passes = one.result, max(1, int((one.result.pass_phase != 0).sum()))
        sums = result.pass_causes[result.pass_phase != 0].sum(axis=0)
        shown.add_row(
            one.variant.name,
            number(result.tokens_per_s),
            number(one.variant.measured_tok_s),
            percent(one.error, 1),
            percent(result.decode_hit_rate(), 1),
            number(result.decode_ns / passes / 1e6),
            number(result.load_ns / 1e9, 1),
        )
        where.add_row(one.variant.name, *(number(int(sums[CAUSES.index(c)]) / passes / 1e6) for c in causes))
    show(shown, where)
    caution(sorted({caveat for one in found for caveat in one.result.caveats}))
    warn(sorted({warning for one in found for warning in one.result.warnings}))


def _print_requests(found: list[dict[str, Any]]) -> None:
    """Of several requests a line each; of many, the slowest ones."""
    if len(found) < 2:
        return
    ranked = sorted(found, key=lambda one: one["tokens_per_s"] or 0.0)
    most = ranked[:MOST_REQUESTS]
    title = f"by request, the {len(most)} slowest of {len(found)}" if len(found) > len(most) else "by request"
    shown = table(title, ["request", "decoded tokens", "prefill s", "decode s", "tokens/s"])
    for one in most if len(found) > len(most) else found:
        shown.add_row(
            str(one["request"]), f"{one['decode_tokens']:,}", number(one["prefill_ns"] / 1e9, 3),
            number(one["decode_ns"] / 1e9, 3), number(one["tokens_per_s"]),
        )  # fmt: skip
    show(shown)


def _print(trace: RoutingTrace, result: RunResult, interval: Interval | None) -> None:
    """Three small tables."""
    from expert_residency.hwmodels.units import format_bytes

    spec = result.manifest["spec"]
    shown = table(
        f"{trace.geometry.label} on {' + '.join(spec['hardware'])}: {spec['eviction']}, "
        f"prefetch {spec['prefetch']}, engine {spec['engine']}, host {spec['host']} (by the {result.simulator})",
        ["tokens/s", "90 %", "ms a token", "p50 ms", "p95 ms", "p99 ms", "VRAM hits %", "simulated s"],
        left=0,
    )
    shown.add_row(
        number(result.tokens_per_s),
        interval.text if interval else "n/a",
        number(result.ms_per_token, 3),
        number(result.percentile_ms(50), 3),
        number(result.percentile_ms(95), 3),
        number(result.percentile_ms(99), 3),
        percent(result.decode_hit_rate()),
        number(result.total_ns / 1e9, 3),
    )
    causes = result.causes_ms_per_token()
    where = table("time of a decoded token", ["cause", "ms", "%"])
    whole = result.ms_per_token
    for cause, ms in causes.items():
        if ms:
            where.add_row(cause, number(ms, 3), percent(ms / whole if whole else None, 1))
    where.add_row("total", number(whole, 3), "100.0" if whole else "n/a")
    served = table("from where experts were served, decode", ["tier", "distinct %", "routed %"])
    decode = [phase for phase in ("decode", "verify") if any(result.shares(phase).values())]
    for phase in decode:
        distinct, routed = result.shares(phase), result.shares(phase, routed=True)
        for tier, share in distinct.items():
            if share:
                label = tier if len(decode) == 1 else f"{tier} ({phase})"
                served.add_row(label, percent(share), percent(routed[tier]))
    moved = table("bytes moved", ["link", "bytes"])
    for link, nbytes in result.link_bytes.items():
        if nbytes:
            moved.add_row(link, format_bytes(nbytes))
    show(shown, where, served, moved)
    stats = result.prefetch
    if stats.issued:
        say(
            f"prefetch: {stats.issued:,} copies asked for: {stats.useful:,} useful, {stats.late:,} late, "
            f"{stats.wasted:,} wasted, {stats.cancelled:,} cancelled; recall {percent(stats.recall, 1)} %, "
            f"precision {percent(stats.precision, 1)} %, in time {percent(stats.timeliness, 1)} %; wasted "
            f"{format_bytes(stats.wasted_bytes)}, harmful {format_bytes(stats.harmful_bytes)}; no room for "
            f"{stats.refused + stats.over_budget:,}"
        )
