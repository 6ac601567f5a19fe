"""Predicted beside published rows for the documentation; `docs/build.py` puts the table into the page."""

from __future__ import annotations

import statistics

from expert_residency.sim.validation.published import Group, predict_published


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


def _median(group: Group, use: str) -> str:
    error = group.median_error(use)
    return "" if error is None else f"{100 * error:.1f} %"
