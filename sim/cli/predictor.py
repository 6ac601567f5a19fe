"""`residency predictor`: how good must a predictor be before prefetching pays?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from expert_residency.sim.choices.trace import Reading, open_trace
from expert_residency.sim.cli import app
from expert_residency.sim.cli.choices import ALL, Words, takes_words
from expert_residency.sim.cli.common import (
    FormatOpt,
    JsonOpt,
    ModelOpt,
    TraceArg,
    caution,
    number,
    picture,
    say,
    show,
    table,
    warn,
    write_json,
)
from expert_residency.sim.cli.reading import takes_reading

if TYPE_CHECKING:
    from expert_residency.sim.studies.predictor import PredictorStudy

RECALLS = "0.2,0.4,0.6,0.8,1"
PRECISIONS = "0.1,0.25,0.5,0.75,1"
WINDOWS = "1,2,4"


@app.command()
@takes_reading()
@takes_words(*(name for name in ALL if name not in ("prefetch", "placement")), miss="fetch")
def predictor(
    trace: TraceArg,
    model: ModelOpt = None,
    words: Words | None = None,
    recalls: Annotated[str, typer.Option(help="Recalls to try.")] = RECALLS,
    precisions: Annotated[str, typer.Option(help="Precisions to try.")] = PRECISIONS,
    windows: Annotated[str, typer.Option(help="Horizons to try, in layers ahead.")] = WINDOWS,
    decay: Annotated[float, typer.Option(help="Recall h layers ahead is recall x decay^(h-1).")] = 1.0,
    passes: Annotated[int, typer.Option(min=1, help="Passes to simulate, the last of the trace.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the noisy oracle.")] = 1,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; as many as cores by default.")] = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
    plot: Annotated[
        Path | None, typer.Option(callback=picture, help="Draw the break-even line into a picture (extra: plot).")
    ] = None,
    json: JsonOpt = None,
) -> None:
    """Sweep recall, precision and horizon of a noisy oracle, and find where prefetching stops paying."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from expert_residency.sim.choices.spec import make_spec
    from expert_residency.sim.studies.predictor import study

    spec = make_spec(words or {})
    recorded = open_trace(trace, fmt, model, reading)
    quiet = str(json) == "-"
    with Progress(
        TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeRemainingColumn(),
        transient=True, disable=quiet,
    ) as bar:  # fmt: skip
        task = bar.add_task("run", total=None)
        found = study(
            recorded, spec,
            recalls=_numbers(recalls, "--recalls"), precisions=_numbers(precisions, "--precisions"),
            windows=[int(w) for w in _numbers(windows, "--windows")], decay=decay, passes=passes, seed=seed,
            workers=workers or os.cpu_count() or 1,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip
    if json is not None:
        write_json(json, found.to_dict())
    if plot is not None:
        from expert_residency.sim.report.figures import draw_break_even

        draw_break_even(
            found,
            plot,
            f"{recorded.geometry.label} on {' + '.join(spec.hardware)}, {spec.eviction}, miss {spec.miss}",
        )
    if not quiet:
        _print(found)
        if plot is not None:
            say(f"plot: {plot}")


def _numbers(text: str, option: str) -> list[float]:
    """Comma-separated numbers."""
    from expert_residency.errors import SimError

    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found:
        raise SimError(f"{option} is {text!r}, expected numbers separated by commas")
    return found


def _print(found: PredictorStudy) -> None:
    """One table a horizon, the break-even line, and the predictors that exist."""
    from expert_residency.sim.studies.predictor import break_even

    line = break_even(found.grid)
    precisions = sorted({cell.precision for cell in found.grid})
    for window in sorted({cell.window for cell in found.grid}):
        shown = table(
            f"speed against no prefetching, {window} layer(s) ahead",
            ["recall", *(f"precision {p:g}" for p in precisions), "pays from precision"],
        )
        cells = {(c.recall, c.precision): c for c in found.grid if c.window == window}
        for recall in sorted({recall for recall, _ in cells}):
            at = line[window, recall]
            shown.add_row(
                f"{recall:g}", *(f"{cells[recall, p].speedup:.3f}x" for p in precisions),
                "never" if at is None else f"{at:.2f}" if at > precisions[0] else f"any (from {at:g})",
            )  # fmt: skip
        show(shown)
    shown = table("predictors without knowledge of the future, on the same passes, 1 layer ahead",
                  ["predictor", "foretold", "right", "recall", "precision", "copies", "wasted MB", "speed"]
                  )  # fmt: skip
    for cell in found.known:
        shown.add_row(
            cell.prefetch, number(cell.foretold), number(cell.right), number(cell.recall), number(cell.precision),
            f"{cell.copies:,}", number(cell.wasted_bytes / 1e6, 1), f"{cell.speedup:.3f}x",
        )  # fmt: skip
    show(shown)
    say(
        "foretold and right: of proposals, as recall and precision of the grid; recall and precision: of copies, "
        "as in run and score"
    )
    say(
        f"without prefetching: {number(found.baseline.tokens_per_s)} tokens/s, "
        f"{found.baseline.prefetch.wanted:,} misses; noisy oracles see the future"
    )
    caution(found.baseline.caveats)
    if found.passes < found.of_passes:
        warn([f"only the last {found.passes} of {found.of_passes} passes were simulated (--passes)"])
