"""Errors of the shipped live runs for the documentation:
`python -m expert_residency.sim.live.table docs/live.md`.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from expert_residency.sim.validation.cases import Case, live_cases, load_bounds, summarize

_BLOCK = re.compile(r"(<!-- made by sim\.live\.table -->\n).*?(<!-- end -->)", re.DOTALL)


def live_table(cases: Sequence[Case]) -> str:
    """A line a group, then a line a kind of variant with the figures of every group: median, worst, bias in %."""
    lines = ["| group | variants | median | worst | bias | pairs over 10 % apart put in the wrong order |"]
    lines.append("|---|---|---|---|---|---|")
    for one in summarize(cases, load_bounds()):
        figures = f"{100 * one.median:.1f} % | {100 * one.worst:.1f} % | {100 * one.bias:+.1f} %"
        lines.append(f"| {one.group} | {one.cases} | {figures} | {one.wrong} of {one.pairs:,} |")
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


def fill(text: str) -> str:
    """Text with its marked table made anew."""
    return _BLOCK.sub(lambda found: f"{found[1]}{live_table(live_cases())}\n{found[2]}", text)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(fill(page.read_text("utf-8")), "utf-8")
