"""`residency placement`: the experts that a range of tokens uses most, as a profile to start with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from expert_residency.sim.choices.trace import Reading, open_trace
from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import FormatOpt, KeptOpt, ModelOpt, TraceArg, say, writable
from expert_residency.sim.cli.reading import takes_reading


@app.command()
@takes_reading("join")
def placement(
    trace: TraceArg,
    slots: Annotated[int, typer.Option(min=1, help="Room in whole experts.")],
    out: Annotated[
        Path,
        typer.Option(
            callback=writable, help="STRP profile to write, for --expert-profile or placement strp:file=."
        ),
    ],
    first: Annotated[int, typer.Option(min=0, help="First token of the range (prompts do not count).")] = 0,
    tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of the range; to the end by default.")] = None,
    kept_only: KeptOpt = False,
    model: ModelOpt = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
) -> None:
    """Write the experts that a range of tokens uses most, as a profile that the engine Strata can start with."""
    from expert_residency.policies.placement.strp import StrpProfile, complete, write_strp
    from expert_residency.sim.studies.window import hindsight_rank

    recorded = open_trace(trace, fmt, model, reading)
    geometry = recorded.geometry
    ranked = hindsight_rank(recorded, first, tokens, kept_only=kept_only)
    order = complete(ranked, geometry.n_experts)
    write_strp(out, StrpProfile(geometry.n_layers, geometry.experts, min(slots, len(order)), order))
    say(f"{out}: {len(ranked):,} experts used, {min(slots, len(ranked)):,} of them in {slots:,} slots")
