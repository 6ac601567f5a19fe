"""The files of `measured/`, one a machine: their schema, which one a row goes to, rows put behind those of one.

`python -m expert_residency.hwmodels.runs.machine_files > docs/measured-run.schema.json` makes the schema anew.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from importlib import resources
from io import StringIO
from pathlib import Path

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.runs import Line, MeasuredRun, load_measured_file, measured_files
from expert_residency.text import markdown

COLUMNS = tuple(MeasuredRun.model_fields)
_LONGEST = 60


def file_of(row: MeasuredRun) -> str:
    """Name of the machine's file: that of the shipped rows of the same cards and processor, or a new one."""
    parts = row.n_gpus, _plain(row.gpu), _plain(row.cpu)
    for name, rows in measured_files().items():
        if any((one.n_gpus, _plain(one.gpu), _plain(one.cpu)) == parts for one in rows):
            return name
    words = f"{row.n_gpus}x " * bool(row.n_gpus) + f"{row.gpu} {row.cpu.partition('(')[0]}"
    return f"{_plain(words)[:_LONGEST].strip('-') or 'machine'}.csv"


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def with_rows(folder: Path, name: str, lines: Sequence[Line[MeasuredRun]]) -> str:
    """Text of a machine's file with more rows behind those that are there.

    Parameters
    ----------
    folder
        Where the file is to be. One that is there keeps all of its text; else the shipped one's is taken.
    name
        Of the file.
    lines
        Rows of this machine; those that the file has are left out.

    Returns
    -------
    str
        What to write.

    Raises
    ------
    HardwareError
        The file in the folder is no table of measured runs, or has other columns.
    """
    path = folder / name
    if path.exists():
        there = [line.row for line in load_measured_file(path)]
        text = path.read_text("utf-8-sig")
    else:
        there = list(measured_files().get(name, ()))
        shipped = resources.files("expert_residency.hwmodels.runs") / "measured" / name
        text = shipped.read_text("utf-8") if there else ",".join(COLUMNS) + "\n"
    if (header := next(csv.reader(text.splitlines()))) != list(COLUMNS):
        raise HardwareError(f"columns {','.join(header)}, not {','.join(COLUMNS)}: nothing is added", path=path)
    with StringIO() as more:
        table = csv.DictWriter(more, COLUMNS, restval="", lineterminator="\n")
        table.writerows(line.cells for line in lines if line.row not in there)
        return text + "\n" * (not text.endswith("\n")) + more.getvalue()


def schema() -> str:
    """JSON schema of a row: what editors and other programs check it by."""
    return json.dumps(MeasuredRun.model_json_schema(), indent=1) + "\n"


def columns_table() -> str:
    """Every column, as a table of Markdown."""
    rows = [
        (f"`{name}`", "yes" if field.is_required() else "", " ".join((field.description or "").split()))
        for name, field in MeasuredRun.model_fields.items()
    ]
    return markdown(("column", "required", "what"), rows)


if __name__ == "__main__":
    import sys

    sys.stdout.write(schema())
