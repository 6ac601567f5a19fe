"""`residency tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import number, percent, say, show, table
from expert_residency.sim.cli.progress import Bar
from expert_residency.sim.cli.sweep import print_basis
from expert_residency.sim.cli.trust import show_trust, trust_of

FileArg = Annotated[Path, typer.Argument(metavar="TUNE.toml", help="Choices with {parameters}, and their ranges.")]
OutOpt = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the results, like a sweep's.")]
TrialsOpt = Annotated[int, typer.Option("--trials", min=1, help="Trials to have in the end.")]
ResumeOpt = Annotated[bool, typer.Option("--resume", help="Go on with what DIR holds.")]


@app.command("tune")
def tune_command(file: FileArg, out: OutOpt, trials: TrialsOpt = 50, resume: ResumeOpt = False) -> None:
    """Search for policy parameters with optuna: fewest ms a token, or the front of ms against VRAM."""
    from expert_residency.sim.studies.tune import tune

    try:
        with Bar("trials") as bar:
            result = tune(file, out, trials=trials, resume=resume, progress=bar.update)
    except KeyboardInterrupt:
        say(f"residency: interrupted; finished trials are in {out}, go on with --resume", err=True)
        raise SystemExit(130) from None
    columns = [
        "eviction",
        "prefetch",
        "admission",
        "machine",
        "cache GiB",
        "VRAM GiB",
        "ms/token",
        "tokens/s",
        "hit %",
    ]
    rows = table("Best trials; no other has as little VRAM and is as fast", columns, left=4)
    least = float("inf")
    for row in result.best(len(result.frame)).to_dict("records"):
        if row["vram_bytes"] < least:
            least = row["vram_bytes"]
            rows.add_row(
                *(str(row[name]) for name in ("eviction", "prefetch", "admission", "hardware")),
                number(row["capacity_bytes"] / 2**30), number(row["vram_bytes"] / 2**30),
                number(row["ms_per_token"]), number(row["tokens_per_s"]), percent(row["hit_rate"]),
            )  # fmt: skip
    show(rows)
    say(f"{len(result.frame)} different cells, {len(result.failed)} without numbers; {out}")
    for row in result.best(1).to_dict("records"):
        show_trust(trust_of(str(row["model"]), str(row["hardware"]).split("+"), str(row["engine"])))
    print_basis(result.frame)
    say(f"next: residency report {out} --out report.html")
