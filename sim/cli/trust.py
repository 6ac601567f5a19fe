"""The trust line under an answer: nearest measured runs, how far off the model is there, what nobody compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from expert_residency.sim.cli.common import number, percent, say, show, table

if TYPE_CHECKING:
    from expert_residency.sim.validation.nearest import Trust


def trust_of(label: str, hardware: Sequence[str], engine: str) -> Trust:
    """What stands behind an answer about a model on machines by name or file."""
    from expert_residency.hwmodels.registry import load_profile
    from expert_residency.sim.validation.nearest import trust

    return trust(label, [load_profile(name) for name in hardware], engine)


def show_trust(found: Trust) -> None:
    """Print it."""
    if found.nearest:
        shown = table(
            "nearest measured runs, and what validate predicts of them with nothing fitted",
            ["measured", "alike in", "runs", "tokens/s", ("model off %", "off %"), "held out"],
            left=2,
            also_text=("held out",),
        )
        for run, alike in found.nearest:
            low, high = min(run.tok_s), max(run.tok_s)
            cards = f"{run.cards}x " if run.cards > 1 else ""
            shown.add_row(
                f"{run.engine}, {cards}{run.card or 'no card'}, {run.processor or 'processor not named'}: "
                f"{run.model} {run.quantization}, {run.knobs}".rstrip(", "), ", ".join(alike), str(len(run.tok_s)),
                number(low, 1) if low == high else f"{number(low, 1)}-{number(high, 1)}",
                percent(run.off, 1), "-" if run.off is None else "yes" if run.held_out else "no",
            )  # fmt: skip
        show(shown)
    if found.never:
        say(f"no prediction was ever held against a measured run of: {'; '.join(found.never)}")
