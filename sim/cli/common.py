"""What commands share: options, reading a trace, JSON and tables out."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from expert_residency.files import check_output, check_picture, write_text
from expert_residency.sim.cli.tables import table as table
from expert_residency.text import visible

if TYPE_CHECKING:
    from expert_residency.sim.choices.cliffs import Cliff


def writable(path: Path | None) -> Path | None:
    """Callback of what names a file to write: refused before the work if it cannot be."""
    if path is not None and str(path) != "-":
        check_output(path)
    return path


def picture(path: Path | None) -> Path | None:
    """Callback of what names a picture to draw."""
    if path is not None:
        check_picture(path)
    return path


def given(context: typer.Context, *apart: str, among: Collection[str] | None = None) -> list[str]:
    """Options that the command line gives, as they are written there, but for the parameters named.

    Parameters
    ----------
    context
        Of the command.
    apart
        Parameters that do not count.
    among
        The only ones that do.

    Returns
    -------
    list[str]
        Options in the order of the help.
    """
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in apart
        and (among is None or parameter.name in among)
        and parameter.name is not None
        and (source := context.get_parameter_source(parameter.name)) is not None
        and source.name == "COMMANDLINE"
    ]


MODEL_FORMS = "NAME, NAME/QUANT, FILE.toml, FILE.gguf, or a folder or config.json of Hugging Face"
TraceArg = Annotated[
    str, typer.Argument(metavar="TRACE", help="Trace file of any known format, a 'pattern*', or bundled:NAME.")
]
FormatOpt = Annotated[str | None, typer.Option("--format", help="Trace format; sniffed by default.")]
ModelOpt = Annotated[
    str | None,
    typer.Option("--model", help=f"Model: {MODEL_FORMS}; its byte sizes replace those of the trace."),
]
JsonOpt = Annotated[
    Path | None,
    typer.Option("--json", callback=writable, help="Also write the full result as JSON ('-': to stdout only)."),
]
KeptOpt = Annotated[
    bool, typer.Option("--kept-only", help="Of a verify window only the row of the accepted token.")
]
SimulatorOpt = Annotated[
    str,
    typer.Option(
        "--simulator",
        help="auto, reference or kernel (compiled); the numbers are the same, and it says which ran.",
    ),
]
PIPE_WIDTH = 160
SEES_FUTURE = "* sees the future: an oracle, not a candidate"
FILLED = "filled before the first look-up: may lie above the bounds, which start empty"


def dump_json(data: Any) -> str:
    """JSON without NaN or Infinity, keys in a fixed order."""
    return json.dumps(data, indent=1, allow_nan=False, sort_keys=False) + "\n"


def write_json(path: Path, data: Any) -> None:
    """Write aside and rename; `-` goes to stdout."""
    text = dump_json(data)
    if str(path) == "-":
        say(text, nl=False)
        return
    write_text(path, text)


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text as it is to be read: the one way from names that files give to a terminal."""
    typer.echo(visible(text), err=err, nl=nl)


def percent(value: float | None, digits: int = 2) -> str:
    """`12.34`, or `n/a`."""
    return "n/a" if value is None else f"{100 * value:.{digits}f}"


def number(value: float | None, digits: int = 2) -> str:
    """`12.34`, or `n/a`."""
    return "n/a" if value is None else f"{value:,.{digits}f}"


def show(*parts: Any) -> None:
    """Print rich renderables; into a file or pipe at a width that needs no wrapping."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    for part in parts:
        console.print(part)


def caution(lines: list[str]) -> None:
    """Caveats, after the tables and before warnings: what the numbers stand on."""
    for line in lines:
        say(f"caveat: {line.partition(': ')[2]}")


def say_cliffs(edges: Sequence[Cliff]) -> None:
    """Sizes beyond which the engine falls off, which the setting is far from; the near ones are caveats."""
    if far := [edge.short for edge in edges if not edge.warned]:
        say(f"cliffs: {'; '.join(far)}")


def warn(lines: list[str]) -> None:
    """Warnings, after the tables."""
    for line in lines:
        say(f"warning: {line}")
