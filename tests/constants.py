"""The constants of the machine group by all shipped rows, and what of them ships.

`python -m tests.constants` fits them anew about those that ship and prints what moves; `--update` writes the
machines' (`hwmodels/parts/priors.csv`). Engines' stand in presets and texts' in
`sim/validation/measured/constants.py`, beside their sources: they are printed, to be entered there. Fit again
until nothing moves.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from expert_residency.sim.validation.measured.constants import CONSTANTS
from expert_residency.sim.validation.measured.group import constants_of
from expert_residency.sim.validation.measured.questions import questions

TABLE = Path(__file__).parent.parent / "hwmodels" / "parts" / "priors.csv"
MOVED = 0.01


def moved() -> dict[str, tuple[float, float]]:
    """Constants that all rows together want otherwise: as shipped, and as fitted."""
    now = constants_of(questions()[0])
    both = {one.name: (one.value, now[one.name]) for one in CONSTANTS}
    return {name: (old, new) for name, (old, new) in both.items() if abs(new / old - 1) > MOVED}


def main(words: Sequence[str]) -> int:
    """Print what moves; 1 if anything did and was not written."""
    found, owners = moved(), {one.name: one.owner for one in CONSTANTS}
    for name, (old, new) in found.items():
        sys.stdout.write(f"{owners[name]}: {name} {old:.4g} -> {new:.4g}\n")
    if "--update" in words:
        rows = list(csv.reader(TABLE.read_text("utf-8").splitlines()))
        for row in rows[1:]:
            if row[0] in found:
                row[1] = f"{found[row[0]][1]:.4g}"
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
        return 0
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
