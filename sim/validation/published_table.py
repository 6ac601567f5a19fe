"""Predicted beside published rows for the documentation:
`python -m expert_residency.sim.published_table docs/published.md`.
"""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path

from expert_residency.sim.validation.published import Group, predict_published

_BLOCK = re.compile(r"(<!-- made by sim\.published_table -->\n).*?(<!-- end -->)", re.DOTALL)


def published_table() -> str:
    """A summary by machine, and every row."""
    groups = predict_published()
    unseen = [abs(row.error) for g in groups for row in g.rows if row.window.run.use == "unseen"]
    lines = ["| machine | rows | fitted on its first half | median error fit | unseen |", "|---|---|---|---|---|"]
    for g in groups:
        fitted = ", ".join(f"{knob} x {factor:.2f}" for knob, factor in g.fitted.items())
        lines.append(f"| {g.name} | {len(g.rows)} | {fitted} | {_median(g, 'fit')} | {_median(g, 'unseen')} |")
    lines += [
        "",
        f"Median absolute error of the {len(unseen)} unseen rows: **{100 * statistics.median(unseen):.1f} %**.",
        "",
        "| machine | use | quantization | hits % | rows | CPU | PCIe | tok/s | unfitted | predicted | error |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for g in groups:
        for row in g.rows:
            window, run = row.window, row.window.run
            hits = "" if run.hit_rate_pct is None else f"{run.hit_rate_pct.middle:.1f}"
            raw = "" if row.unfitted_tok_s is None else f"{row.unfitted_tok_s:.1f}"
            lines.append(
                f"| {g.name} | {run.use} | {run.quant} | {hits} | {window.rows:.2f} | {window.cpu:.0f} "
                f"| {window.pcie:.0f} | {run.tok_s:.1f} | {raw} | {row.tok_s:.1f} | {100 * row.error:+.1f} % |"
            )
    return "\n".join(lines)


def fill(text: str) -> str:
    """Text with its marked table made anew."""
    return _BLOCK.sub(lambda found: f"{found[1]}{published_table()}\n{found[2]}", text)


def _median(group: Group, use: str) -> str:
    error = group.median_error(use)
    return "" if error is None else f"{100 * error:.1f} %"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(fill(page.read_text("utf-8")), "utf-8")
