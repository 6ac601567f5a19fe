"""Predicted beside published rows for the documentation; `docs/build.py` puts the table into the page."""

from __future__ import annotations

import re
import statistics
from collections import Counter

from expert_residency.sim.validation.published import Group, predict_published


def published_table() -> str:
    """A summary by machine, every row, and what the others lack."""
    groups, left = predict_published()
    rows = [(g, row) for g in groups for row in g.rows]
    unseen = [abs(row.error) for _, row in rows if not row.seen_by]
    lines = ["| machine | rows | a constant saw them | median error | fitted on half of them | fit | unseen |"]
    lines.append("|---" * 7 + "|")
    for g in groups:
        fitted = ", ".join(f"{knob} x {factor:.2f}" for knob, factor in g.fitted.items())
        seen = "; ".join(dict.fromkeys(f"`{one.where}` {one.constant}" for row in g.rows for one in row.seen_by))
        errors = _median(g), _median(g, "fit"), _median(g, "unseen")
        lines.append(f"| {g.name} | {len(g.rows)} | {seen} | {errors[0]} | {fitted} | {errors[1]} | {errors[2]} |")
    seen_errors = [abs(row.error) for _, row in rows if row.seen_by]
    summary = (
        f"Median absolute error of the {len(unseen)} rows that no constant saw, nothing fitted: "
        f"**{100 * statistics.median(unseen):.1f} %**; of the {len(seen_errors)} whose report made a constant: "
        f"{100 * statistics.median(seen_errors):.1f} %."
    )
    lines += [
        "",
        summary,
        "",
        "| machine | held out | quantization | hits % | rows | CPU | PCIe | tok/s | predicted | error | fitted |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for g, row in rows:
        window, run = row.window, row.window.run
        hits = "" if run.hit_rate_pct is None else f"{run.hit_rate_pct.middle:.1f}"
        fit = "" if row.fitted_error is None else f"{100 * row.fitted_error:+.1f} % ({run.use})"
        lines.append(
            f"| {g.name} | {'no' if row.seen_by else 'yes'} | {run.quant} | {hits} | {window.rows:.2f} "
            f"| {window.cpu:.0f} | {window.pcie:.0f} | {run.tok_s:.1f} | {row.tok_s:.1f} "
            f"| {100 * row.error:+.1f} % | {fit} |"
        )
    kinds = Counter(re.sub(r" of (cards|RTX|Tesla|.*with).*| \(.*", "", one.reason) for one in left)
    lacking = ", ".join(f"{kind} ({n})" for kind, n in kinds.most_common())
    return "\n".join([*lines, "", f"{len(left)} rows cannot be predicted: {lacking}."])


def _median(group: Group, use: str | None = None) -> str:
    error = group.median_error(use)
    return "" if error is None else f"{100 * error:.1f} %"
