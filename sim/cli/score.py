"""`residency score`: runs of one case against each other, ranked by time."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from expert_residency.sim.choices.trace import Reading, open_trace
from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import (
    SEES_FUTURE,
    FormatOpt,
    JsonOpt,
    ModelOpt,
    caution,
    number,
    percent,
    say,
    show,
    table,
    warn,
    write_json,
)
from expert_residency.sim.cli.reading import takes_reading

if TYPE_CHECKING:
    from expert_residency.sim.studies.headroom import Ceiling
    from expert_residency.sim.studies.score import Score, ScoredRun


@app.command()
@takes_reading("join", "partial")
def score(
    paths: Annotated[
        list[Path], typer.Argument(help="Folder of a sweep, folder of JSON results, or files of `run --json`.")
    ],
    trace: Annotated[
        str | None,
        typer.Option(help="Their trace: adds the bound on time, a missing baseline, gap in misses and regime."),
    ] = None,
    model: ModelOpt = None,
    passes: Annotated[int | None, typer.Option(min=1, help="Passes of the trace that the runs used.")] = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            metavar="A B",
            help="Instead: is A faster than B? Policies as the ranking names them, files, or cells of a sweep; "
            "with an interval over requests.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="MODULE:CLASS",
            help="Class of a policy of the runs that no package registers; or repeat it.",
        ),
    ] = None,
    json: JsonOpt = None,
) -> None:
    """Rank runs by time, with the share of the possible gain that each takes, and what binds it."""
    from expert_residency.errors import SimError
    from expert_residency.policies import placed_class
    from expert_residency.sim.studies.bounds import assess
    from expert_residency.sim.studies.score import score as score_runs

    for word in policy or ():
        if placed_class(word) is None:
            raise SimError(f"--policy {word}: expected where a class is, as my_policies:MyPolicy")
    if trace is None and (model or passes or fmt):
        raise SimError("--model, --passes and --format say how to read the runs' trace: give it with --trace")
    runs = [run for path in paths for run in _runs(path, by_seed=trace is not None)]
    if compare is not None:
        if trace is not None:
            raise SimError("--compare needs no --trace: times by request are in the results")
        _compare(runs, compare, json)
        return
    if trace is None:
        scores = score_runs(runs)
    else:
        recorded = open_trace(trace, fmt, model, reading)
        if passes is not None and passes < recorded.n_passes:
            import numpy as np

            recorded = recorded.select_passes(np.arange(recorded.n_passes) < passes)
        scores = assess(recorded, runs)
    if json is not None:
        write_json(json, [made.to_dict() for made in scores])
        if str(json) == "-":
            return
    for case in dict.fromkeys(made.run.case for made in scores):
        _print([made for made in scores if made.run.case == case])


def _compare(runs: list[ScoredRun], names: tuple[str, str], json: Path | None) -> None:
    from expert_residency.sim.studies.compare import compare_named

    found = compare_named(runs, *names)
    if json is not None:
        write_json(json, [one.to_dict() for one in found])
        if str(json) == "-":
            return
    for one in found:
        say(one.sentence)


def _runs(path: Path, by_seed: bool = False) -> list[ScoredRun]:
    """Runs of a file, of all JSON files of a folder, or of a sweep, where seeds are taken together or apart.

    Raises
    ------
    SimError
        If nothing is there, or it is not a result.
    """
    from expert_residency.errors import SimError
    from expert_residency.sim.studies.score import ScoredRun

    if path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files or (path / "cells").is_dir():
            from expert_residency.sim.sweep.dataset import read_dataset
            from expert_residency.sim.sweep.seeds import over_seeds

            frame = read_dataset(path)
            rows: list[dict[str, Any]] = (frame if by_seed else over_seeds(frame)).to_dict("records")  # type: ignore[assignment]
            return [ScoredRun.of_row(row, f"{path} cell {row['cell']}") for row in rows if row["status"] == "ok"]
        return [run for file in files for run in _runs(file, by_seed)]
    try:
        data = jsonlib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SimError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise SimError(f"{path}: not JSON ({error})") from None
    return [ScoredRun.of_json(data, path.name)]


def _print(scores: list[Score]) -> None:
    """One case: a table, then what binds the fastest candidate and what to beware of."""
    from expert_residency.sim.studies.score import ONLY_TRACE

    columns = ["#", "policies", "tokens/s", "vs base", "headroom %", "hits %"]
    gap = any(made.gap for made in scores)
    if gap:
        columns += ["admission gap", "victim gap"]
    columns += ["useful MB", "late", "wasted", "harmful"]
    title = scores[0].run.where
    if scores[0].run.trace_name not in ("", ONLY_TRACE):
        title += f", trace {scores[0].run.trace}"
    shown = table(title, columns, left=2)
    for made in scores:
        run = made.run
        cells = [
            str(made.rank), run.policies + (" *" if run.oracle else ""), number(run.tokens_per_s),
            _speedup(made), percent(made.headroom, 1),
            percent(run.hit_rate, 1),
        ]  # fmt: skip
        if gap:
            cells += [str(made.gap[k]) if made.gap else "n/a" for k in ("admission_share", "victim_share")]
        cells += [_megabytes(run.prefetch[kind]) for kind in ("useful", "late", "wasted", "harmful")]
        shown.add_row(*cells)
    show(shown)
    if any(made.run.oracle for made in scores):
        say(SEES_FUTURE)
    if gap:
        lookups = next(made.gap["lookups"] for made in scores if made.gap)
        say(f"gaps: misses beyond the optimum, of {lookups:,} look-ups, prefill included (replay without time)")
    if scores[0].bound_ns is not None:
        run = scores[0].run
        say(bound_sentence(run.tokens_per_s, run.time_ns, scores[0].bound_ns) + ".")
    regime = scores[0].regime
    if regime is not None:
        overlap = "n/a" if regime["overlap"] is None else percent(regime["overlap"], 1)
        say(
            f"regime: {regime['slots_per_layer']:.1f} slots a layer = {regime['slots_over_k']:.2f} x k, "
            f"{regime['cycles']:.2f} token cycles, {percent(regime['cached_share'], 1)} % of all experts, union "
            f"{number(regime['union_mean'])} an event, overlap with the next token {overlap} %"
        )
    first = next((made for made in scores if not made.run.oracle), scores[0])
    say(f"{first.run.policies}: {first.run.binds}")
    caution(list(dict.fromkeys(caveat for made in scores for caveat in made.run.caveats)))
    warn(_shared_first(scores))


def bound_sentence(tokens_per_s: float | None, time_ns: int, bound_ns: int) -> str:
    """What no schedule can be faster than.

    Parameters
    ----------
    tokens_per_s, time_ns
        Of a run; the first is None where nothing is decoded.
    bound_ns
        Least time of any schedule.

    Returns
    -------
    str
        A sentence without its full stop.
    """
    speed = "" if tokens_per_s is None else f", {number(tokens_per_s * time_ns / bound_ns)} tokens/s"
    return f"bound: no schedule, whatever it knows, is faster than {bound_ns / 1e9:.3f} s{speed}"


def _shared_first(scores: list[Score]) -> list[str]:
    """Warnings of all runs once, those of single runs with the run's policies."""
    every = set.intersection(*(set(made.warnings) for made in scores))
    found = [text for text in scores[0].warnings if text in every]
    for made in scores:
        found += [
            f"{made.run.policies}: {text}"
            for text in made.warnings
            if text not in every and "an oracle, not a candidate" not in text
        ]
    return list(dict.fromkeys(found))


def _speedup(made: Score) -> str:
    """`1.230x`, with its interval over requests where there are enough."""
    if made.speedup is None:
        return "n/a"
    interval = f" ({made.interval[0]:.2f}-{made.interval[1]:.2f})" if made.interval and made.speedup != 1 else ""
    return f"{made.speedup:.3f}x{interval}"


def _megabytes(nbytes: int | None) -> str:
    return "n/a" if nbytes is None else f"{nbytes / 1e6:,.0f}"


def print_ceilings(found: list[Ceiling]) -> None:
    """Table of a run with each limit lifted in turn, and which one binds."""
    from expert_residency.sim.studies.bounds import time_ns
    from expert_residency.sim.studies.headroom import binding_limit
    from expert_residency.sim.timed.binding import binding_sentence

    binds = "then what binds is"
    title = "how fast could it be: one limit lifted at a time"
    shown = table(title, ["lifted", "tokens/s", "gain", binds], also_text=(binds,))
    now = time_ns(found[0].result)
    for ceiling in found:
        shown.add_row(
            ceiling.limit or "nothing", number(ceiling.result.tokens_per_s),
            f"{now / time_ns(ceiling.result):.2f}x",
            binding_sentence(ceiling.result).removeprefix("What binds is "),
        )  # fmt: skip
    show(shown)
    say(binding_limit(found))
