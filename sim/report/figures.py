"""Pictures that need matplotlib (extra `plot`), drawn without a display."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from expert_residency.errors import SimError
from expert_residency.files import save_figure
from expert_residency.sim.studies.bootstrap import LEVEL
from expert_residency.sim.studies.leaderboard.field import BASELINE
from expert_residency.sim.studies.predictor import Measured, PredictorStudy

if TYPE_CHECKING:
    from expert_residency.sim.studies.leaderboard import Board
    from expert_residency.sim.validation.cases import Case

AROUND = ((6, -3), (-3, 6), (-12, -3), (-3, -13), (6, 5))
"""Places of a label beside its point, so that close points stay readable."""
KIND_COLOURS = {"eviction": "C0", "admission": "C1", "prefetch": "C2", "placement": "C3"}


def draw_break_even(study: PredictorStudy, path: Path, title: str) -> None:
    """Speed over precision and recall of copies, with the line where prefetching breaks even.

    One column of panels a horizon, one row a rank quality. Cells stand where they were drawn. Predictors stand in
    the panel nearest to their rank quality and distance, where their copies' recall and precision are; those of
    one line are joined.

    Parameters
    ----------
    study
        Speeds over the grid.
    path
        Picture to write; the suffix says the format.
    title
        Above the picture.

    Raises
    ------
    SimError
        Without matplotlib, with a suffix that it cannot write, or with a grid of less than 2 x 2.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import TwoSlopeNorm
        from matplotlib.figure import Figure
    except ImportError:
        raise SimError("plots need matplotlib: pip install 'expert-residency[plot]'") from None
    recalls = sorted({cell.recall for cell in study.grid})
    precisions = sorted({cell.precision for cell in study.grid})
    windows = sorted({cell.window for cell in study.grid})
    ranks = sorted({cell.rank_quality for cell in study.grid})
    if min(len(recalls), len(precisions)) < 2:
        raise SimError("a plot needs at least two recalls and two precisions")
    speed = {(c.window, c.rank_quality, c.recall, c.precision): c.speedup for c in study.grid}
    low = min(math.floor(100 * min(speed.values())) / 100, 0.99)
    high = max(math.ceil(100 * max(speed.values())) / 100, 1.01)
    norm = TwoSlopeNorm(1.0, low, high)
    levels = np.concatenate([np.linspace(low, 1.0, 9), np.linspace(1.0, high, 9)[1:]])
    figure = Figure(figsize=(4.2 * len(windows) + 1.4, 3.6 * len(ranks) + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(ranks), len(windows), sharey=True, sharex=True, squeeze=False)
    panels = {(w, q): axes[i][j] for i, q in enumerate(ranks) for j, w in enumerate(windows)}
    for (window, rank), panel in panels.items():
        field = np.array([[speed[window, rank, r, p] for p in precisions] for r in recalls])
        panel.contourf(precisions, recalls, field, levels, cmap="RdBu", norm=norm)
        if field.min() < 1.0 < field.max():
            panel.contour(precisions, recalls, field, [1.0], colors="black", linewidths=2)
        panel.set_title(f"{window} layer{'s' if window > 1 else ''} ahead, rank quality {rank:g}", fontsize=9)
        panel.set_xlim(0, 1)
        panel.set_ylim(0, 1)
    figure.supxlabel("precision of copies", fontsize=9)
    figure.supylabel("recall of copies", fontsize=9)
    legend = []
    for number, (name, points) in enumerate(_lines(study).items(), 1):
        first = points[0]
        window = min(windows, key=lambda w: abs(w - (first.layers_ahead or 1)))
        rank = min(ranks, key=lambda q: abs(q - (0.5 if first.rank_quality is None else first.rank_quality)))
        panel = panels[window, rank]
        joined = sorted(points, key=lambda c: c.recall or 0.0)
        panel.plot([c.precision for c in joined], [c.recall for c in joined], ".-", color="black", linewidth=0.8)
        panel.plot(first.precision, first.recall, "o", color="black", markersize=5)
        panel.annotate(str(number), (first.precision, first.recall), AROUND[number % len(AROUND)],
                       textcoords="offset points", fontsize=8)  # fmt: skip
        legend.append(f"{number} {name} {first.speedup:.2f}x")
    colours = figure.colorbar(
        ScalarMappable(norm, "RdBu"), ax=list(axes.flat), label="speed against no prefetching"
    )
    colours.set_ticks([low, 1.0, high])
    under = "black line: break-even; blue: prefetching pays; dots: predictors, other thresholds joined"
    figure.suptitle(f"{title}\n{under}\n{', '.join(legend)}", fontsize=8)
    save_figure(figure, path, 130)


def _lines(study: PredictorStudy) -> dict[str, list[Measured]]:
    """Points of each predictor that have a place on the map, its own first."""
    found: dict[str, list[Measured]] = {}
    for one in study.measured:
        if one.recall is not None and one.precision is not None:
            found.setdefault(one.predictor, []).append(one)
    return found


def draw_validation(cases: Sequence[Case], path: Path) -> None:
    """Predicted against measured tokens a second, both logarithmic, with the line of no error and one of 15 %.

    Raises
    ------
    SimError
        Without matplotlib, with a suffix that it cannot write, or without a case.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise SimError("plots need matplotlib: pip install 'expert-residency[plot]'") from None
    if not cases:
        raise SimError("there is no case to plot")
    figure = Figure(figsize=(7.2, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    speeds = [speed for case in cases for speed in (case.predicted, case.measured)]
    ends = np.array([min(speeds) / 1.2, max(speeds) * 1.2])
    axes.fill_between(ends, ends / 1.15, ends * 1.15, color="0.9", label="within 15 %")
    axes.plot(ends, ends, color="0.4", linewidth=1)
    groups = list(dict.fromkeys((case.group, case.use) for case in cases))
    for number, (group, use) in enumerate(groups):
        members = [case for case in cases if (case.group, case.use) == (group, use)]
        axes.scatter(
            [case.measured for case in members], [case.predicted for case in members], s=18, alpha=0.7,
            marker="ov^sDP"[number % 6], color=f"C{number % 10}", linewidths=0,
            label=f"{group}, {use} ({len(members)})",
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axes.set_xlabel("measured tokens/s")
    axes.set_ylabel("predicted tokens/s")
    axes.legend(frameon=False, fontsize="small")
    save_figure(figure, path, 150)


def draw_leaderboard(board: Board, path: Path) -> None:
    """Speed of each policy over that of the baseline: everywhere with its interval, and by who serves a miss.

    Raises
    ------
    SimError
        Without matplotlib, or with a suffix that it cannot write.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise SimError("plots need matplotlib: pip install 'expert-residency[plot]'") from None
    rows = [*board.ranked, *board.bounds][::-1]
    figure = Figure(figsize=(7.2, 1.6 + 0.19 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, row in enumerate(rows):
        colour = "0.5" if row.rank is None else KIND_COLOURS[row.entrant.kind]
        if row.interval is not None:
            axes.plot(row.interval, (place, place), color=colour, linewidth=4, alpha=0.35, solid_capstyle="butt")
        axes.plot(row.ratio, place, "o", color=colour, markersize=5)
    for number, mode in enumerate(board.axes["miss"] if len(board.axes["miss"]) > 1 else ()):
        speeds = [row.by["miss"][mode] for row in rows]
        axes.scatter(speeds, range(len(rows)), marker="|x+1"[number % 4], s=22, color="black", linewidths=0.7,
                     label=f"misses {mode}", zorder=3)  # fmt: skip
    for kind in dict.fromkeys(row.entrant.kind for row in board.ranked):
        axes.plot([], [], "o", color=KIND_COLOURS[kind], label=f"decides {kind}")
    if board.bounds:
        axes.plot([], [], "o", color="0.5", label="sees the future")
        axes.axhline(len(board.bounds) - 0.5, color="0.7", linewidth=0.8)
    axes.axvline(1, color="0.4", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row.entrant.label for row in rows], fontsize=8)
    bars = f"; bars: {100 * LEVEL:g} % over models and requests" if board.ranked[0].interval else ""
    axes.set_xlabel(f"speed over that of {BASELINE.label}{bars}", fontsize=9)
    axes.set_title(board.words, fontsize=8)
    axes.set_ylim(-0.8, len(rows) - 0.2)
    figure.legend(frameon=False, fontsize="x-small", loc="outside lower center", ncols=4)
    save_figure(figure, path, 150)
