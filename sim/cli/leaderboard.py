"""`residency leaderboard`: all policies on one's traces and machines, ranked by time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from expert_residency.sim.choices.trace import Reading, open_trace
from expert_residency.sim.cli import app
from expert_residency.sim.cli.choices import Words, takes_words
from expert_residency.sim.cli.common import (
    FormatOpt,
    JsonOpt,
    picture,
    say,
    show,
    table,
    warn,
    writable,
    write_json,
)
from expert_residency.sim.cli.progress import Bar
from expert_residency.sim.cli.reading import takes_reading

if TYPE_CHECKING:
    from expert_residency.sim.studies.leaderboard import Board, Entrant, Row
    from expert_residency.traces import RoutingTrace

TracesArg = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TRACE[@MODEL]]...",
        help="Trace files, or bundled:NAME, each with the model whose sizes it takes; by default the recorded "
        "bundled ones.",
    ),
]
PolicyOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="POLICY",
        help="Who competes beside all registered policies: module:Class, also from this folder, or "
        "NAME:param=value; or repeat it.",
    ),
]
OnlyOpt = Annotated[bool, typer.Option("--only", help="Only the policies of --policy, and LRU.")]
PassesOpt = Annotated[
    int, typer.Option("--passes", min=0, help="First whole requests of each trace with so many passes; 0 for all.")
]
CellsOpt = Annotated[
    Path | None,
    typer.Option("--cells", metavar="DIR", help="Folder that keeps the runs; those there are not run again."),
]
WorkersOpt = Annotated[int | None, typer.Option("--workers", min=1, help="Local processes; all cores by default.")]
OutOpt = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE.md", callback=writable, help="Also write the page, as Markdown."),
]
PlotOpt = Annotated[
    Path | None,
    typer.Option(
        "--plot", callback=picture, help="Draw speeds and intervals into this PNG, SVG or PDF (extra: plot)."
    ),
]
RECORDED = ("bundled:tinymoe-prose", "bundled:tinymoe-code")
PASSES = 4_000
CHOSEN = ("hardware", "capacity", "miss", "engine", "host")


@app.command()
@takes_words(*CHOSEN, several=True)
@takes_reading("join", "requests", "phase", "partial")
def leaderboard(
    traces: TracesArg = None,
    policy: PolicyOpt = None,
    only: OnlyOpt = False,
    words: Words | None = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
    passes: PassesOpt = PASSES,
    cells: CellsOpt = None,
    workers: WorkersOpt = None,
    out: OutOpt = None,
    plot: PlotOpt = None,
    json: JsonOpt = None,
) -> None:
    """Rank all policies by time over traces, machines, caches and miss modes, and say what wins where.

    By default three machines, caches of 10, 25 and 50 % of all experts, and misses copied, computed by the
    processor, or shared between both; each of these options may be repeated. Policies of other packages compete as
    soon as they are installed, a class of your own by --policy.
    """
    from expert_residency.errors import SimError
    from expert_residency.sim.report.leaderboard import page
    from expert_residency.sim.studies.leaderboard import entrant_of, registered
    from expert_residency.sim.studies.leaderboard import leaderboard as rank

    if only and not policy:
        raise SimError("--only leaves nobody to rank: give --policy too")
    own = [entrant_of(word) for word in policy or ()]
    field = [*own, *([] if only else registered())]
    files = list(traces or RECORDED)
    read = _read(files, fmt, reading, passes or None)
    began = time.perf_counter()
    _say_slow(own)
    try:
        with Bar("runs", quiet=str(json) == "-") as bar:
            board = rank(read, field, words or {}, out=cells, workers=workers, progress=bar.update)
    except KeyboardInterrupt:
        kept_in = (
            "nothing is kept without --cells" if cells is None else f"finished runs are in {cells}: say it again"
        )
        say(f"residency: interrupted; {kept_in}", err=True)
        raise SystemExit(130) from None
    if json is not None:
        write_json(json, board.to_dict())
    if out is not None:
        from expert_residency.files import write_text

        named = {"policy": policy, "only": only, **(words or {}), "format": fmt}
        named |= {"passes": passes} if passes != PASSES else {}
        write_text(out, page(board, _command(files, named, reading)))
    if plot is not None:
        from expert_residency.sim.report.figures import draw_leaderboard

        draw_leaderboard(board, plot)
    if str(json) == "-":
        return
    _print(board)
    kept = len(board.result.frame) - board.result.ran
    say(f"{board.result.ran:,} runs in {time.perf_counter() - began:.0f} s"
        f"{f', {kept:,} were there' if kept else ''}{f'; {out}' if out else ''}")  # fmt: skip


def _read(
    words: Sequence[str], fmt: str | None, reading: Reading | None, passes: int | None
) -> dict[str, RoutingTrace]:
    """Traces by the shortest names that tell them apart: model, name of the file, or all that was typed."""
    from expert_residency.errors import SimError
    from expert_residency.sim.studies.leaderboard.runs import shortened

    if len(set(words)) < len(words):
        raise SimError("a trace is named twice")
    found = []
    for word in words:
        file, at, model = ("", "", "") if Path(word).exists() else word.rpartition("@")
        source, sizes = (file, model) if at and file and model else (word, None)
        found.append((word, shortened(open_trace(source, fmt, sizes, reading), passes)))
    models = [trace.geometry.label for _, trace in found]
    stems = [Path(word.removeprefix("bundled:")).name.partition("@")[0].split(".")[0] for word in words]
    names: dict[str, RoutingTrace] = {}
    for (word, trace), model, stem in zip(found, models, stems, strict=True):
        name = next(
            (n for n, all_ in ((model, models), (stem, stems)) if all_.count(n) == 1 and n not in names), word
        )
        names[name] = trace
    return names


def _say_slow(own: Sequence[Entrant]) -> None:
    slow = [entrant.label for entrant in own if not entrant.compiled]
    if slow:
        took = "not compiled, so the reference simulator runs it, which takes about 100 times as long"
        warn([f"{', '.join(slow)}: {took} (compiled = True, where it keeps to the subset: docs/plugins.md)"])


def _command(files: Sequence[str], options: Words, reading: Reading | None) -> str:
    """The command line, without the folders of the traces and where answers go."""
    split = [(word, "", "") if Path(word).exists() else word.partition("@") for word in files]
    parts = ["residency", "leaderboard", *(Path(file).name + at + model for file, at, model in split)]
    for name, given in options.items():
        parts += [
            part for value in _values(given) for part in (f"--{name}", *([] if value is True else [str(value)]))
        ]
    own = reading or Reading()
    parts += [part for name, value in own.options.items() for part in ("-o", f"{name}={value}")]
    parts += ["--top-k", str(own.top_k)] if own.top_k is not None else []
    return " ".join(parts)


def _values(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given] if given not in (None, False) else []


def _print(board: Board) -> None:
    from expert_residency.sim.report.leaderboard import PLACE_HEADS, place_cells, sentences, stands_on

    _rows("by speed, over all cases", board.ranked)
    if board.bounds:
        _rows("see the future: no candidates", board.bounds)
    shown = table("what wins where", PLACE_HEADS, left=2, also_names=("first",))
    words = {row.entrant.label: row.entrant.words for row in board.ranked}
    for place in board.places:
        where, first, *cells = place_cells(place)
        shown.add_row(where, words[first], *cells)
    show(shown)
    for sentence in sentences(board):
        say(sentence)
    if board.limit is not None:
        say(
            f"No schedule, whatever it knows, is more than {board.limit:.2f} times as fast as lru (bound on time)."
        )
    for line in stands_on(board):
        say(f"caveat: {line}")


def _rows(title: str, rows: Sequence[Row]) -> None:
    from expert_residency.sim.report.leaderboard import share, span, told
    from expert_residency.sim.studies.leaderboard import BASELINE

    shown = table(
        title, ["#", "policy", "decides", "x lru", "interval", "than lru", "faster/ slower", "headroom %"],
        left=3, also_names=("policy",),
    )  # fmt: skip
    for row in rows:
        shown.add_row(
            "" if row.rank is None else str(row.rank), row.entrant.words, row.entrant.kind, f"{row.ratio:.3f}",
            "" if row.entrant == BASELINE else span(row.interval), told(row), f"{row.faster}/{row.slower}",
            share(row.headroom),
        )  # fmt: skip
    show(shown)
