"""`residency import`: any known trace format into the project's Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import FormatOpt, ModelOpt, writable


def parquet(path: Path) -> Path:
    """Callback: a file that can be written and says what it holds."""
    from expert_residency.errors import SimError

    writable(path)
    if path.suffix != ".parquet":
        raise SimError(f"{path}: an imported trace is Parquet, so its name ends in .parquet")
    return path


@app.command("import")
def import_trace(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Trace file, gzipped or not.")],
    out: Annotated[Path, typer.Argument(metavar="OUT.parquet", callback=parquet, help="File to write.")],
    fmt: FormatOpt = None,
    model: ModelOpt = None,
) -> None:
    """Convert a trace to Parquet, checking all of it."""
    from expert_residency.traces.inspect import convert

    trace = convert(source, out, format=fmt, model=model)
    typer.echo(
        f"{out}: {trace.geometry.label}, {trace.n_passes:,} passes, {trace.n_rows:,} rows, "
        f"{trace.n_lookups:,} look-ups, sha256 {trace.content_hash[:16]}"
    )
