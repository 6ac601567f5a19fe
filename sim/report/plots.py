"""The charts of a report as files for a paper: SVG and PDF, one and two columns wide, and PNG to look at."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from expert_residency.errors import SimError
from expert_residency.files import atomic
from expert_residency.sim.report.charts import Figure, figures, library
from expert_residency.sim.report.data import report_rows
from expert_residency.sim.sweep.dataset import read_dataset

COLUMNS = {1: 241, 2: 504}
"""Width in points by columns: 3.35 and 7 inches, as two-column papers have them."""
PNG_SCALE = 2
_FONT, _TITLE, _LABEL = 7, 8, 150
"""Points of labels and titles, and the longest label."""
_WIDTH = re.compile(r'<svg[^>]*? width="([0-9.]+)"')


def write_plots(folder: str | Path, out: str | Path) -> list[Path]:
    """Write every chart of the sweep in `folder` to `out`.

    Each is `NAME-1col` and `NAME-2col`, as SVG and PDF, and `NAME.png`, the wide one. One file holds every group.

    Raises
    ------
    SimError
        No sweep, no cell with numbers, a folder that cannot be written, or altair is not installed.
    """
    rows = report_rows(read_dataset(folder))
    if rows.empty:
        raise SimError(f"{folder}: no cell of this sweep has numbers")
    out = Path(out)
    written = []
    library().data_transformers.disable_max_rows()
    try:
        out.mkdir(parents=True, exist_ok=True)
        for figure in figures(rows):
            for columns in COLUMNS:
                chart = fitted(figure, rows, columns)
                files = {out / f"{figure.key}-{columns}col.{kind}": kind for kind in ("svg", "pdf")}
                files |= {out / f"{figure.key}.png": "png"} if columns == max(COLUMNS) else {}
                for path, kind in files.items():
                    with atomic(path) as part:
                        chart.save(part, format=kind, **({"scale_factor": PNG_SCALE} if kind == "png" else {}))
                    written.append(path)
    except OSError as error:
        raise SimError(f"{out}: cannot be written ({error.strerror})") from None
    return written


def fitted(figure: Figure, rows: Any, columns: int) -> Any:
    """The chart as wide as `columns` columns of a paper, drawn first to learn what axes and legends take.

    Parameters
    ----------
    figure, rows
        The chart, and the rows of `report_rows`.
    columns
        1 or 2.

    Returns
    -------
    altair.ConcatChart
        With its data.
    """
    wanted = COLUMNS[columns]
    for legend in range(2 * columns, 0, -1):
        view = wanted // columns - 60
        for _ in range(2):
            view = max(
                40, view + int((wanted - _drawn_width(whole(figure, rows, columns, view, legend))) // columns)
            )
        chart = whole(figure, rows, columns, view, legend)
        if _drawn_width(chart) <= wanted:
            break
    return chart


def _drawn_width(chart: Any) -> float:
    drawn = io.StringIO()
    chart.save(drawn, format="svg")
    found = _WIDTH.search(drawn.getvalue())
    assert found is not None
    return float(found[1])


def whole(figure: Figure, rows: Any, columns: int, width: int, legend: int) -> Any:
    """The chart with its data, one panel for each trace, or machine and trace, named.

    Parameters
    ----------
    figure, rows
        The chart, and the rows of `report_rows`.
    columns
        Panels beside each other, as far as there are so many.
    width
        Of each panel, in points.
    legend
        Entries of a legend beside each other.

    Returns
    -------
    altair.ConcatChart
        In type of a paper's size.
    """
    alt = library()
    read = list(dict.fromkeys([*figure.columns, "oracle"]))
    shown = rows if figure.bounds else rows[~rows["oracle"]]
    panels = list(shown.groupby(figure.panels, sort=True))
    if len(panels) == 1:
        width = width * columns + (columns - 1) * 40
    charts = [
        figure.chart.properties(
            width=width, data=group[read],
            title=alt.TitleParams(str(name).split(" · "), fontSize=_FONT, anchor="start"),
        )
        for name, group in panels
    ]  # fmt: skip
    small = {"labelFontSize": _FONT, "titleFontSize": _FONT}
    return (
        alt.concat(*charts, columns=columns, title=alt.TitleParams(figure.title, fontSize=_TITLE), spacing=8)
        .configure_view(stroke=None)
        .configure_axis(**small, labelLimit=_LABEL if columns > 1 else _LABEL * 2 // 3)
        .configure_legend(**small, orient="bottom", columns=legend, labelLimit=72, symbolSize=30)
    )
