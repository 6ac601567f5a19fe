"""Every prediction of the shipped rows as a table, and what a change of the code does to it, row by row.

`python -m tests.predictions` predicts all rows that ship anew and prints those that moved against
`tests/golden/predictions.csv`, those that are worse first; `--update` writes the table. A row that is worse by
more than `WORSE` has its reason in the message of the commit that changes the table.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

TABLE = Path(__file__).parent / "golden" / "predictions.csv"
COLUMNS = ("group", "use", "name", "measured", "predicted")
MOVED = 0.005
"""Relative change of a prediction from which on it counts; less may be another platform's arithmetic."""
WORSE = 0.02
"""Growth of the absolute error that wants an explanation."""
Key = tuple[str, str, int]


@dataclass(frozen=True)
class Row:
    """One prediction."""

    use: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1


def predicted() -> dict[Key, Row]:
    """All rows but the live ones, whose runs are goldens of their own; rows of one name in their order."""
    from expert_residency.sim.validation.cases import llamacpp_cases, machine_cases, published_cases

    found: dict[Key, Row] = {}
    seen: Counter[tuple[str, str]] = Counter()
    machine = [case for case in machine_cases()[0] if case.group == "machine"]  # its parts are the same rows
    for case in [*published_cases()[0], *llamacpp_cases(), *machine]:
        place = case.group, case.name
        found[(*place, seen[place])] = Row(case.use, case.measured, float(f"{case.predicted:.5g}"))
        seen[place] += 1
    return found


def written(rows: Mapping[Key, Row]) -> str:
    """The table."""
    with StringIO() as text:
        table = csv.writer(text, lineterminator="\n")
        table.writerow(COLUMNS)
        for (group, name, _), row in rows.items():
            table.writerow([group, row.use, name, f"{row.measured:g}", f"{row.predicted:g}"])
        return text.getvalue()


def read(text: str) -> dict[Key, Row]:
    """A table that was written."""
    found: dict[Key, Row] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for row in csv.DictReader(StringIO(text)):
        place = row["group"], row["name"]
        found[(*place, seen[place])] = Row(row["use"], float(row["measured"]), float(row["predicted"]))
        seen[place] += 1
    return found


def changes(old: Mapping[Key, Row], new: Mapping[Key, Row]) -> list[str]:
    """One line a row that moved, came or went; those worse by more than `WORSE` first, and marked."""
    moved: list[tuple[float, str]] = []
    for key in dict.fromkeys([*old, *new]):
        name = f"{key[0]}: {key[1]}" + (f" ({key[2] + 1})" if key[2] else "")
        before, after = old.get(key), new.get(key)
        if before is None or after is None:
            moved.append((0.0, f"{'came' if before is None else 'went'}: {name}"))
        elif abs(after.predicted / before.predicted - 1) > MOVED or after.use != before.use:
            worse = abs(after.error) - abs(before.error)
            mark = "WORSE " if worse > WORSE else ""
            said = f"{100 * before.error:+.1f} % -> {100 * after.error:+.1f} %"
            moved.append((worse, f"{mark}{said}: {name}"))
    return [line for _, line in sorted(moved, key=lambda item: -item[0])]


def main(words: Sequence[str]) -> int:
    """Print what moved; 1 if anything did and the table was not updated."""
    new = predicted()
    old = read(TABLE.read_text("utf-8")) if TABLE.exists() else {}
    lines = changes(old, new)
    worse = sum(line.startswith("WORSE") for line in lines)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.write(f"{len(new)} predictions, {len(lines)} changed, {worse} worse by more than 2 points\n")
    if "--update" in words:
        TABLE.write_text(written(new), "utf-8")
        return 0
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
