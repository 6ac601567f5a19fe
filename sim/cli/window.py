"""`residency window`: what windows of tokens touch, and what a perfect look-ahead would copy."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from expert_residency.sim.choices.trace import Reading, open_trace
from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import (
    FormatOpt,
    JsonOpt,
    KeptOpt,
    ModelOpt,
    TraceArg,
    caution,
    number,
    show,
    table,
    write_json,
)
from expert_residency.sim.cli.reading import takes_reading


@app.command()
@takes_reading("join", "partial")
def window(
    trace: TraceArg,
    slots: Annotated[int | None, typer.Option(min=1, help="Room in whole experts: also count copies.")] = None,
    horizon: Annotated[
        list[int] | None, typer.Option(min=1, help="Tokens known ahead; repeat for several.")
    ] = None,
    link: Annotated[str | None, typer.Option(help="Profile whose link copies the experts, for times.")] = None,
    profile: Annotated[Path | None, typer.Option(help="STRP profile that fills the slots at the start.")] = None,
    kept_only: KeptOpt = False,
    model: ModelOpt = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
    json: JsonOpt = None,
) -> None:
    """Distinct experts of windows up to 64 tokens, and what a perfect look-ahead copies a token."""
    from expert_residency.errors import SimError
    from expert_residency.hwmodels.registry import load_profile
    from expert_residency.policies.placement.strp import read_strp
    from expert_residency.sim.choices.caveats import caveats, texts
    from expert_residency.sim.studies.window import lookahead_cost, window_unions

    if slots is None and (horizon or link or profile or kept_only):
        raise SimError("--horizon, --link, --profile and --kept-only are about copies, which need --slots")
    recorded = open_trace(trace, fmt, model, reading)
    unions = window_unions(recorded)
    start = read_strp(profile).ranked if profile else []
    costs = []
    if slots is not None:
        costs = [
            lookahead_cost(recorded, slots, h, start, kept_only=kept_only) for h in horizon or (1, 4, 16, 32, 64)
        ]
    card = load_profile(link) if link else None
    rate = card.link.h2d_mb_per_s if card else None
    known = texts(caveats(recorded, hardware=[card] if card else [], context_counted=True))
    if json is not None:
        data = [asdict(c) | {"ms_per_token": c.ms_per_token(rate) if rate else None} for c in costs]
        write_json(json, {"windows": [asdict(u) for u in unions], "lookahead": data, "caveats": known})
        if str(json) == "-":
            return
    shown = table("distinct experts of a window", ["tokens", "mean", "most", "of one token"], left=0)
    for u in unions:
        shown.add_row(str(u.tokens), number(u.mean, 1), number(u.most, 0), number(u.of_single))
    show(shown)
    if costs:
        title = f"perfect look-ahead, {slots:,} slots"
        copied = table(title, ["horizon", "copies a token", "MB a token", "ms a token"], left=0)
        for c in costs:
            ms = number(c.ms_per_token(rate)) if rate else "n/a"
            copied.add_row(str(c.horizon), number(c.copies_per_token, 1), number(c.bytes_per_token / 1e6, 1), ms)
        show(copied)
    caution(known)
