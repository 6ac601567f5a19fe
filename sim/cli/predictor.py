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

APART = 0.01
"""Of speed, from which on a predictor is said to lie beside the map."""

if TYPE_CHECKING:
    from expert_residency.sim.cli.tables import Sheet
    from expert_residency.sim.studies.predictor import PredictorStudy

RECALLS = "0.2,0.4,0.6,0.8,1"
PRECISIONS = "0.1,0.25,0.5,0.75,1"
WINDOWS = "1,4"
RANK_QUALITIES = "0.5,0.8"


@app.command()
@takes_reading()
@takes_words(*(name for name in ALL if name not in ("prefetch", "placement")), miss="fetch")
def predictor(
    trace: TraceArg,
    model: ModelOpt = None,
    words: Words | None = None,
    recalls: Annotated[str, typer.Option(help="Recalls of copies to try.")] = RECALLS,
    precisions: Annotated[str, typer.Option(help="Precisions of copies to try.")] = PRECISIONS,
    windows: Annotated[str, typer.Option(help="Horizons to try, in layers ahead.")] = WINDOWS,
    rank_qualities: Annotated[
        str, typer.Option(help="Rank qualities to try: 0.5 is no order, 1 right guesses first.")
    ] = RANK_QUALITIES,
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
    """How good a predictor must be: speed by recall, precision, rank quality and horizon, and real predictors."""
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
            windows=[int(w) for w in _numbers(windows, "--windows")],
            rank_qualities=_numbers(rank_qualities, "--rank-qualities"), decay=decay, passes=passes, seed=seed,
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
    """One table a horizon and rank quality, the predictors that exist, and what they find."""
    for window in sorted({cell.window for cell in found.grid}):
        for rank in sorted({cell.rank_quality for cell in found.grid}):
            show(_map(found, window, rank))
    show(_predictors(found))
    say(
        "recall and precision: of copies, as in run and score; rank: rank quality, of two copies for one event, "
        "one wanted and one not, how often the wanted one is asked for first; ahead: layers, and what they take "
        "without prefetching in ms; map: the speed of a noisy oracle that reaches the same recall and precision "
        "with the same rank quality and distance, mean and ends of three draws (- where none does, or for another "
        "threshold)"
    )
    for one in found.measured:
        if one.beside_map is not None and abs(one.beside_map) >= APART:
            side = "above the fastest" if one.beside_map > 0 else "below the slowest"
            say(
                f"{one.prefetch}: its own speed is {100 * abs(one.beside_map):.1f} points {side} draw of the map: "
                "recall, precision and rank quality do not tell all of its worth (what its copies displace, and "
                "when they land)"
            )
    room = found.room
    say(
        f"without prefetching the link carries {room.used_gb_per_s:.1f} of {room.link_gb_per_s:.1f} GB/s: "
        f"{room.left_bytes_per_token / 1e6:.1f} MB, {room.left_experts_per_token:.1f} experts, are left a token; "
        f"from layer to layer {room.layer_ms:.3f} ms; predicting costs {room.predict_ms_per_token:.2f} ms a token "
        "(--predict-us)"
    )
    say(
        f"without prefetching: {number(found.baseline.tokens_per_s)} tokens/s, "
        f"{found.baseline.prefetch.wanted:,} misses; noisy oracles see the future"
    )
    caution(found.baseline.caveats)
    if found.passes < found.of_passes:
        warn([f"only the last {found.passes} of {found.of_passes} passes were simulated (--passes)"])


def _map(found: PredictorStudy, window: int, rank: float) -> Sheet:
    """Speeds of one horizon and rank quality, with break-even and slope."""
    from expert_residency.sim.studies.predictor import break_even, recall_worth

    line, worth = break_even(found.grid), recall_worth(found.grid)
    cells = {
        (c.recall, c.precision): c for c in found.grid if c.window == window and c.rank_quality == rank
    }  # fmt: skip
    precisions = sorted({precision for _, precision in cells})
    shown = table(
        f"speed against no prefetching, {window} layer(s) ahead, rank quality {rank:g}",
        ["recall", *(f"precision {p:g}" for p in precisions), "pays from precision reached"],
    )
    for recall in sorted({recall for recall, _ in cells}):
        at = line[window, rank, recall]
        shown.add_row(
            f"{recall:g}", *(f"{cells[recall, p].speedup:.3f}x" for p in precisions),
            "never" if at is None
            else "any tried" if cells[recall, precisions[0]].speedup >= 1.0 else f"{at:.2f}",
        )  # fmt: skip
    slopes = [worth[window, rank, p] for p in precisions]
    if any(slope is not None for slope in slopes):
        shown.add_row(
            "a point", *("-" if slope is None else f"{slope:+.4f}" for slope in slopes), "ms a token saved"
        )
    return shown


def _predictors(found: PredictorStudy) -> Sheet:
    """Measured predictors, each with its line."""
    shown = table(
        "predictors on the same passes",
        ["predictor", "recall", "precision", "rank", "ahead", "copies", "speed", "map"],
    )  # fmt: skip
    for one in found.measured:
        ahead = "-" if one.layers_ahead is None else f"{one.layers_ahead:.0f}: {one.ahead_ms:.2f}"
        shown.add_row(
            one.prefetch, number(one.recall), number(one.precision), number(one.rank_quality), ahead,
            f"{one.copies:,}", f"{one.speedup:.3f}x",
            "-" if one.map_speedup is None else f"{one.map_speedup:.3f}x ({one.map_low:.2f}-{one.map_high:.2f})",
        )  # fmt: skip
    return shown
