"""Pictures that need matplotlib (extra `plot`), drawn without a display."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from expert_residency.errors import SimError
from expert_residency.files import save_figure
from expert_residency.sim.studies.predictor import PredictorStudy

if TYPE_CHECKING:
    from expert_residency.sim.validation.cases import Case

AROUND = ((6, -3), (-3, 6), (-12, -3), (-3, -13), (6, 5))
"""Places of a label beside its point, so that close points stay readable."""


def draw_break_even(study: PredictorStudy, path: Path, title: str) -> None:
    """Speed over precision and recall, one panel a horizon, with the line where prefetching breaks even.

    Predictors that need no knowledge of the future stand in the panel of one layer.

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
    if min(len(recalls), len(precisions)) < 2:
        raise SimError("a plot needs at least two recalls and two precisions")
    speed = {(c.window, c.recall, c.precision): c.speedup for c in study.grid}
    low = min(math.floor(100 * min(speed.values())) / 100, 0.99)
    high = max(math.ceil(100 * max(speed.values())) / 100, 1.01)
    norm = TwoSlopeNorm(1.0, low, high)
    levels = np.concatenate([np.linspace(low, 1.0, 9), np.linspace(1.0, high, 9)[1:]])
    figure = Figure(figsize=(4.2 * len(windows) + 1.4, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(windows), sharey=True, squeeze=False)[0]
    for panel, window in zip(axes, windows, strict=True):
        field = np.array([[speed[window, r, p] for p in precisions] for r in recalls])
        panel.contourf(precisions, recalls, field, levels, cmap="RdBu", norm=norm)
        if field.min() < 1.0 < field.max():
            panel.contour(precisions, recalls, field, [1.0], colors="black", linewidths=2)
        panel.set_title(f"{window} layer{'s' if window > 1 else ''} ahead")
        panel.set_xlabel("precision")
        panel.set_xlim(0, 1)
        panel.set_ylim(0, 1)
    axes[0].set_ylabel("recall")
    known = [(c.right, c.foretold, c) for c in study.known if c.foretold is not None and c.right is not None]
    for number, (x, y, _) in enumerate(known, 1):
        axes[0].plot(x, y, "o", color="black", markersize=4)
        axes[0].annotate(
            str(number),
            (x, y),
            AROUND[number % len(AROUND)],
            textcoords="offset points",
            fontsize=8,
        )
    legend = ", ".join(f"{i} {c.prefetch} {c.speedup:.2f}x" for i, (_, _, c) in enumerate(known, 1))
    colours = figure.colorbar(ScalarMappable(norm, "RdBu"), ax=list(axes), label="speed against no prefetching")
    colours.set_ticks([low, 1.0, high])
    figure.suptitle(f"{title}\nblack line: break-even; blue: prefetching pays")
    figure.supxlabel(legend, fontsize=8)
    save_figure(figure, path, 130)


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
