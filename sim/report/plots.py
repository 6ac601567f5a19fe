"""The charts of a report as PNG and SVG files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from expert_residency.errors import SimError
from expert_residency.files import atomic
from expert_residency.sim.report.charts import Figure, figures, library
from expert_residency.sim.report.data import report_rows
from expert_residency.sim.sweep.dataset import read_dataset

WIDTH, SCALE = 620, 2


def write_plots(folder: str | Path, out: str | Path) -> list[Path]:
    """Write every chart of the sweep in `folder` to `out`, as PNG and as SVG.

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
            chart = _whole(figure, rows)
            for kind in ("png", "svg"):
                path = out / f"{figure.key}.{kind}"
                with atomic(path) as part:
                    chart.save(part, format=kind, **({"scale_factor": SCALE} if kind == "png" else {}))
                written.append(path)
    except OSError as error:
        raise SimError(f"{out}: cannot be written ({error.strerror})") from None
    return written


def _whole(figure: Figure, rows: Any) -> Any:
    """The chart with its data, one panel for each trace, or machine and trace, named."""
    alt = library()
    columns = list(dict.fromkeys([*figure.columns, "oracle"]))
    shown = rows if figure.bounds else rows[~rows["oracle"]]
    panels = list(shown.groupby(figure.panels, sort=True))
    width = WIDTH if len(panels) == 1 else WIDTH // 2
    charts = [figure.chart.properties(width=width, data=group[columns], title=str(name)) for name, group in panels]
    return alt.concat(*charts, columns=2, title=figure.title).configure_view(stroke=None)
