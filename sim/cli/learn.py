"""`residency learn`: a learned predictor, fitted to some requests of a trace and evaluated on the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from expert_residency.sim.choices.trace import Reading, open_trace
from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import (
    FormatOpt,
    JsonOpt,
    ModelOpt,
    TraceArg,
    number,
    say,
    show,
    table,
    writable,
    write_json,
)
from expert_residency.sim.cli.reading import takes_reading

if TYPE_CHECKING:
    from expert_residency.sim.studies.learning import Foretold

FOLDS = 5
MOST = 20
"""Requests that have a line of their own."""


@app.command()
@takes_reading("partial")
def learn(
    trace: TraceArg,
    predictor: Annotated[
        str,
        typer.Option(help="transitions, logistic, or a package's own; with parameters as in logistic:hidden=64."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(callback=writable, help="Write the trace with these predictions: run and predictor take it."),
    ] = None,
    folds: Annotated[
        int, typer.Option(min=2, help="Models: the requests of one part are told by a model of all others.")
    ] = FOLDS,
    top: Annotated[int, typer.Option(min=0, help="Guesses kept for each layer; 0: as many as are routed to.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of dealing the requests out.")] = 0,
    model: ModelOpt = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
    json: JsonOpt = None,
) -> None:
    """Fit a predictor to requests, and tell by request how well it foretells those that it has not seen."""
    from expert_residency.sim.studies.learning import create_predictor, cross_fit, foretold
    from expert_residency.traces import write_parquet

    asked = create_predictor(predictor)
    recorded = open_trace(trace, fmt, model, reading)
    told = cross_fit(recorded, asked, folds=folds, seed=seed, top=top)
    found = foretold(told, asked.depth)
    if out is not None:
        write_parquet(told, out)
    if json is not None:
        write_json(
            json,
            {"predictor": predictor, "depth": asked.depth, "folds": min(folds, len(found)), "seed": seed,
             "trace_sha256": recorded.content_hash, "requests": [vars(one) for one in found]},
        )  # fmt: skip
        if str(json) == "-":
            return
    _print(found, predictor, min(folds, len(found)))
    if out is not None:
        say(
            f"{out}: next, residency predictor {out} --hardware NAME --capacity SIZE, or run with --prefetch "
            f"gate-lookahead:depth={asked.depth}"
        )


def _print(found: list[Foretold], predictor: str, folds: int) -> None:
    shown = table(
        f"{predictor} on requests that it was not fitted to ({folds} folds)",
        ["request", "tokens", "foretold", "right", "rank quality"],
    )
    for one in found[:MOST]:
        shown.add_row(
            str(one.request), f"{one.tokens:,}", number(one.foretold), number(one.right), number(one.rank_quality)
        )
    if len(found) > MOST:
        shown.add_row("...", f"{len(found) - MOST:,} more", "", "", "")
    shown.add_row("mean", "", *(_mean([getattr(one, name) for one in found]) for name in _SHARES))
    shown.add_row("range", "", *(_range([getattr(one, name) for one in found]) for name in _SHARES))
    show(shown)
    say(
        "foretold: share of wanted experts that had been proposed; right: share of proposals that were wanted; "
        "residents count in both. rank quality: of two guesses for one layer, one wanted and one not, how often "
        "the wanted one comes first (0.5: no order)"
    )


_SHARES = ("foretold", "right", "rank_quality")


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return number(sum(known) / len(known)) if known else "n/a"


def _range(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{number(min(known))}..{number(max(known))}" if known else "n/a"
