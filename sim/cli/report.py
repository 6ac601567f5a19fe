"""`residency report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import say, writable

FolderArg = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a sweep, finished or not.")]
OutOpt = Annotated[
    Path, typer.Option("--out", callback=writable, help="HTML file; it needs no network and no other file.")
]
PlotsOpt = Annotated[
    Path | None,
    typer.Option(
        "--plots", metavar="DIR", help="Also write the charts, one and two columns wide: SVG, PDF and PNG."
    ),
]


@app.command("report")
def report_command(folder: FolderArg, out: OutOpt = Path("report.html"), plots: PlotsOpt = None) -> None:
    """One picture of a sweep: ranking, time by cause, capacity, hit rates, Pareto front, warnings, manifest."""
    from expert_residency.sim.report import write_plots, write_report

    path = write_report(folder, out)
    say(f"{path}: {path.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if plots is not None:
        for file in write_plots(folder, plots):
            say(str(file))
