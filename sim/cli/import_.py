"""`residency import`: any known trace format into the project's Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from expert_residency.sim.choices.trace import Reading, open_trace
from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import FormatOpt, ModelOpt, say, writable
from expert_residency.sim.cli.reading import takes_reading


def parquet(path: Path) -> Path:
    """Callback: a file that can be written and says what it holds."""
    from expert_residency.errors import SimError

    writable(path)
    if path.suffix != ".parquet":
        raise SimError(f"{path}: an imported trace is Parquet, so its name ends in .parquet")
    return path


class _TwoKindsOfFiles(TyperCommand):
    """The command, where one word alone is a trace and OUT is missing, not the other way round."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from expert_residency.errors import SimError

        words: dict[str, Any] = self.make_parser(ctx).parse_args(list(args))[0]
        only = words.get("out")
        if isinstance(only, str) and not words.get("sources") and not words.get("help"):
            raise SimError(f"OUT.parquet is missing, the file to write: residency import {only} OUT.parquet")
        return super().parse_args(ctx, args)


@app.command("import", cls=_TwoKindsOfFiles)
@takes_reading()
def import_trace(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SRC...", help="Trace file, gzipped or not; or several, or a 'pattern*'."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT.parquet", callback=parquet, help="File to write.")],
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD=COLUMN,...",
            help="Read any table: request=req,pass=step,layer=l,experts=e0..e5,weights=w0..w5,phase=kind.",
        ),
    ] = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
    model: ModelOpt = None,
) -> None:
    """Convert traces to one Parquet file, checking all of them."""
    from dataclasses import replace

    from expert_residency.traces import write_parquet

    reading = reading or Reading()
    if columns is not None:
        reading = replace(reading, options={**reading.options, "columns": columns})
    trace = open_trace(sources, fmt, model, reading)
    write_parquet(trace, out)
    requests = len(set(trace.pass_request.tolist()))
    say(
        f"{out}: {trace.geometry.label}, {requests:,} request{'s' if requests > 1 else ''}, {trace.n_passes:,} "
        f"passes, {trace.n_rows:,} rows, {trace.n_lookups:,} look-ups, sha256 {trace.content_hash[:16]}"
    )
    for note in trace.meta.get("notes", []):
        say(f"note: {note}")
