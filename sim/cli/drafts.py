"""`residency drafts`: what verify windows cost, and the acceptance from which drafting pays."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from expert_residency.sim.choices.trace import Reading, open_trace
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
    show,
    table,
    warn,
    write_json,
)
from expert_residency.sim.cli.reading import takes_reading

ACCEPTANCES = (0.5, 0.7, 0.9)


@app.command()
@takes_reading()
@takes_words()
def drafts(
    trace: TraceArg,
    rows: Annotated[
        list[int] | None,
        typer.Option("--rows", min=2, help="Rows of a verify window, drafts + 1; repeat. 2, 3 and 4 by default."),
    ] = None,
    acceptance: Annotated[
        list[float] | None,
        typer.Option(
            "--acceptance", min=0, max=1, help="Chance that a draft is accepted; repeat. 0.5, 0.7, 0.9 by default."
        ),
    ] = None,
    model: ModelOpt = None,
    words: Words | None = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
    json: JsonOpt = None,
) -> None:
    """Set verify windows of a decode trace against single tokens: ms, experts, and when drafting pays."""
    from expert_residency.hwmodels.registry import load_profile
    from expert_residency.sim.choices.caveats import caveats, texts
    from expert_residency.sim.choices.spec import make_spec
    from expert_residency.sim.studies.drafts import window_costs

    spec = make_spec(words or {})
    recorded = open_trace(trace, fmt, model, reading)
    spec = spec.settled(recorded.geometry)
    costs = window_costs(recorded, spec, sorted(set(rows or (2, 3, 4))))
    known = caveats(recorded, hardware=[load_profile(name) for name in spec.hardware], spec=spec)
    rates = tuple(sorted(set(acceptance or ACCEPTANCES)))
    if json is not None:
        speeds = [{f"{rate:g}": cost.tokens_per_s(rate) for rate in rates} for cost in costs]
        data = [asdict(cost) | {"tokens_per_s_by_acceptance": by} for cost, by in zip(costs, speeds, strict=True)]
        head = {"trace_sha256": recorded.content_hash, "spec": spec.to_dict(), "caveats": texts(known)}
        write_json(json, head | {"windows": data})
        if str(json) == "-":
            return
    shown = table(
        f"{recorded.geometry.label} on {' + '.join(spec.hardware)}, {spec.eviction}: verify windows, cost of the "
        "drafts not in it",
        [
            "rows", "ms", "experts", "pays from tokens", "pays from acceptance %",
            *(f"tok/s at {percent(rate, 0)} %" for rate in rates),
        ],
        left=0,
    )  # fmt: skip
    for cost in costs:
        single = cost.rows == 1
        needed = cost.break_even_acceptance
        pays = "-" if single else "never" if needed is None else percent(needed, 1)
        shown.add_row(
            str(cost.rows), number(cost.ms, 3), number(cost.distinct, 1),
            "-" if single else number(cost.break_even_tokens), pays,
            *(number(cost.tokens_per_s(rate)) for rate in rates),
        )  # fmt: skip
    show(shown)
    caution(texts(known))
    warn(["windows are put together from a trace of single tokens"])
