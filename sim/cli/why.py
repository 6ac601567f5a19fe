"""`residency why`: what a slow token waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from expert_residency.sim.choices.trace import Reading
from expert_residency.sim.cli import app
from expert_residency.sim.cli.choices import Words, takes_words
from expert_residency.sim.cli.common import (
    FormatOpt,
    JsonOpt,
    ModelOpt,
    TraceArg,
    caution,
    number,
    percent,
    say,
    show,
    table,
    write_json,
)
from expert_residency.sim.cli.reading import ColdOpt, takes_reading

if TYPE_CHECKING:
    from expert_residency.sim.studies.why import Why

MOST = 10
"""Lines of a table; JSON has all."""


@app.command()
@takes_words()
@takes_reading()
def why(
    trace: TraceArg,
    pass_: Annotated[
        int | None,
        typer.Option(
            "--pass", min=0, help="Number of the pass, from 0; by default the slowest that is no prefill."
        ),
    ] = None,
    model: ModelOpt = None,
    words: Words | None = None,
    passes: Annotated[int | None, typer.Option(min=1, help="Only the first so many passes.")] = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
    cold: ColdOpt = "trace",
    json: JsonOpt = None,
) -> None:
    """Say what a pass waited for, beside the median pass: its time in parts, what was missed and why."""
    from expert_residency.sim.choices.scenario import build_scenario, open_scenario_trace
    from expert_residency.sim.studies.why import explain

    own = {
        "trace": trace, "model": model, "format": fmt, "passes": passes, "cold": cold,
        "reading": None if reading is None else reading.to_table(),
    }  # fmt: skip
    chosen = build_scenario({key: value for key, value in own.items() if value is not None} | (words or {}))
    found = explain(open_scenario_trace(chosen), chosen.spec, pass_, cold=cold)
    if json is not None:
        write_json(json, found.to_dict())
        if str(json) == "-":
            return
    for sentence in found.sentences:
        say(sentence)
    _print(found)
    caution(found.result.caveats)


def _print(found: Why) -> None:
    """The parts, then the longest waits and the missed experts."""
    where = table("where the time goes", ["part", "ms", "%", "median ms"])
    for part, ns, usual in found.parts:
        share = percent(ns / found.page.ns, 1)
        where.add_row(part, number(ns / 1e6, 3), share, number(usual / 1e6, 3))
    where.add_row("total", number(found.page.ns / 1e6, 3), "100.0", number(found.beside.ns / 1e6, 3))
    show(where)
    waits, missed = found.waits, found.page.missed
    if waits:
        shown = table(_of(len(waits), "waits"), ["expert", "ms", "for", "what stood before its copy"], left=4)
        for one in waits[:MOST]:
            shown.add_row(found.name(one.key), number(one.ns / 1e6, 3), one.part, found.queue(one))
        show(shown)
    if missed:
        shown = table(
            _of(len(missed), "missed experts"), ["expert", "computed by", "why it was not there"], left=3
        )
        longest = {one.key: at for at, one in enumerate(waits)}
        for gone in sorted(missed, key=lambda one: longest.get(one.key, len(waits)))[:MOST]:
            shown.add_row(found.name(gone.key), found.served(gone), found.reason(gone))
        show(shown)


def _of(n: int, what: str) -> str:
    return f"{n} {what}" if n <= MOST else f"the first {MOST} of {n} {what}, longest wait first"
