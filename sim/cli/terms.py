"""Terms of a token's time on the screen, for every command that derives one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from expert_residency.sim.cli.common import number, percent, say, show, table

if TYPE_CHECKING:
    from expert_residency.sim.studies.explain import Term


def show_terms(terms: Sequence[Term]) -> None:
    """What each constant costs, then where each was read."""
    if not terms:
        return
    shown = table(
        "one token's time by constant, on the critical path",
        ["constant", "ms", "%", "number", "kind"], also_text=("kind",),
    )  # fmt: skip
    for term in terms:
        shown.add_row(term.constant, number(term.ms, 3), percent(term.share, 1), term.number, term.kind)
    total = sum(term.ms for term in terms), sum(term.share for term in terms)
    shown.add_row("total", number(total[0], 3), percent(total[1], 1), "", "")
    show(shown)
    for term in terms:
        if term.source:
            say(f"{term.constant}: {term.source}")
