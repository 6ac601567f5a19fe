"""Errors of the shipped live runs for the documentation; `docs/build.py` puts the table into the page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from expert_residency.sim.validation.cases import Case, live_cases, load_bounds, summarize


def live_table(cases: Sequence[Case]) -> str:
    """A line a group, then a line a kind of variant of one row with each group's median, worst and bias in %."""
    lines = ["| group | variants | median | worst | bias | pairs over 10 % apart put in the wrong order |"]
    lines.append("|---|---|---|---|---|---|")
    for one in summarize(cases, load_bounds()):
        figures = f"{100 * one.median:.1f} % | {100 * one.worst:.1f} % | {100 * one.bias:+.1f} %"
        lines.append(f"| {one.group} | {one.cases} | {figures} | {one.wrong} of {one.pairs:,} |")
    cases = [case for case in cases if " rows" not in case.name]
    groups = list(dict.fromkeys(case.group for case in cases))
    lines += ["", f"| kind of variant | {' | '.join(groups)} |", "|---" * (1 + len(groups)) + "|"]
    for kind in dict.fromkeys(case.kind for case in cases):
        cells = []
        for group in groups:
            errors = [100 * case.error for case in cases if (case.group, case.kind) == (group, kind)]
            cells.append(_cell(errors) if errors else "")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(errors: Sequence[float]) -> str:
    sizes = [abs(error) for error in errors]
    bias = statistics.fmean(errors)
    return f"{len(errors)}: {statistics.median(sizes):.1f}, {max(sizes):.1f}, {bias:+.1f}"


def shipped_table() -> str:
    """The table of the shipped runs."""
    return live_table(live_cases())
