"""The HTML file of a report: data, charts and the libraries that draw them, all in one."""

from __future__ import annotations

import html
import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expert_residency.errors import SimError
from expert_residency.files import write_text
from expert_residency.sim.report.across import DRAWS
from expert_residency.sim.report.charts import BARS, figures
from expert_residency.sim.report.data import (
    BASELINE,
    FILTERS,
    NUMBERS,
    columnar,
    facts,
    filters,
    regime_warnings,
    report_rows,
    row_caveats,
    without_numbers,
)
from expert_residency.sim.report.words import MEANINGS
from expert_residency.sim.studies.bootstrap import FEWEST, LEVEL
from expert_residency.sim.sweep.dataset import read_dataset
from expert_residency.sim.sweep.folder import PLAN
from expert_residency.sim.sweep.plan import read_plan
from expert_residency.text import inert_json, inert_script

if TYPE_CHECKING:
    import pandas as pd


def write_report(folder: str | Path, out: str | Path) -> Path:
    """Write the report of the sweep in `folder`, finished or not.

    Raises
    ------
    SimError
        No sweep, no cell with numbers, a file that cannot be written, or altair is not installed.
    """
    folder, out = Path(folder), Path(out)
    name = read_plan(folder).name if (folder / PLAN).is_file() else ""
    text = render(read_dataset(folder), name or folder.name)
    write_text(out, text)
    return out


def render(frame: pd.DataFrame, name: str) -> str:
    """The page as text.

    Raises
    ------
    SimError
        If no cell has numbers; the first reason is given.
    """
    rows = report_rows(frame)
    if rows.empty:
        raise SimError(f"no cell of this sweep has numbers; the first reason: {frame['reason'].iloc[0]}")
    drawn = figures(rows)
    columns = dict.fromkeys(
        ["policy", "label", "short", "group", "work", "oracle", "binds", "seeds", *NUMBERS, *FILTERS]
    )
    several = rows["work"].nunique() > 1
    columns |= {"blocks": None} if several else {}
    columns |= dict.fromkeys(column for figure in drawn for column in figure.columns)
    data: dict[str, Any] = {
        "rows": columnar(rows, list(columns)),
        "filters": filters(rows),
        "baseline": " + ".join(BASELINE[key] for key in ("eviction", "prefetch")),
        "bars": BARS,
        "words": MEANINGS,
        "draws": {"count": DRAWS, "fewest": FEWEST, "level": LEVEL},
        "charts": [
            {
                "key": f.key,
                "spec": _spec(f.chart),
                "columns": f.columns,
                "panels": f.panels,
                "bounds": f.bounds,
            }
            for f in drawn
        ],
    }
    import vl_convert

    parts = {
        "title": html.escape(name),
        "style": _file("style.css"),
        "libraries": inert_script(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")),
        "script": _file("app.js"),
        "data": inert_json(json.dumps(data, allow_nan=False, separators=(",", ":"))),
        "figures": "\n".join(
            f'<section class="chart" id="{f.key}"><h2>{html.escape(f.title)}</h2><p>{html.escape(f.caption)}</p>'
            '<div class="plots"></div></section>'
            for f in drawn
        ),
        "warnings": _cases("What the numbers stand on", row_caveats(frame))
        + _cases("What to know before believing it", regime_warnings(frame)),
        "without": _cases("Cells without numbers", without_numbers(frame)),
        "facts": "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in facts(frame, name)),
    }
    page = _file("page.html")
    before, *pieces = page.split("{{")
    return before + "".join(parts[key] + rest for key, rest in (piece.split("}}", 1) for piece in pieces))


def _spec(chart: Any) -> dict[str, Any]:
    """The chart as Vega-Lite that fills its box and reads the data set `rows`."""
    spec: dict[str, Any] = chart.to_dict(validate=True)
    for key in ("config", "datasets"):
        spec.pop(key, None)
    for layer in spec.get("layer", ()):
        layer.pop("data", None)
    return spec | {
        "width": "container",
        "data": {"name": "rows"},
        "autosize": {"type": "fit-x", "contains": "padding"},
    }


def _cases(heading: str, cases: list[dict[str, Any]]) -> str:
    if not cases:
        return ""
    items = "".join(
        f"<li>{html.escape(case['text'])} <span class='quiet'>{case['count']} cells: {case['cells']}</span></li>"
        for case in cases
    )
    return f"<section><h2>{html.escape(heading)}</h2><ul class='cases'>{items}</ul></section>"


def _file(name: str) -> str:
    return resources.files("expert_residency.sim.report").joinpath(name).read_text(encoding="utf-8")
