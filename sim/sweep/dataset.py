"""The Parquet dataset of a sweep: `cells/part-00000.parquet` holds cells 0 to 99, and so on.

A part is written atomically when its last cell is done, and its content depends on its cells
alone: the same sweep gives the same bytes whoever ran it, in whatever order, and however often it was killed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from expert_residency.errors import FileError, SimError
from expert_residency.files import atomic
from expert_residency.sim.sweep.cells import Cell
from expert_residency.sim.sweep.folder import CELLS, JOURNAL
from expert_residency.sim.sweep.journal import read_journal
from expert_residency.sim.sweep.rows import Row, cell_row, schema

if TYPE_CHECKING:
    import pandas as pd

PART_CELLS = 100
_PART = re.compile(r"part-\d{5,}\.parquet")


class Dataset:
    """Writes the parts below one folder.

    Parameters
    ----------
    folder
        Of the sweep.
    cells
        Its plan.
    rows
        Results of finished cells by id; grows as the sweep goes on.
    """

    def __init__(self, folder: Path, cells: Sequence[Cell], rows: dict[str, Row]) -> None:
        self.folder = folder / CELLS
        self.cells = cells
        self.rows = rows
        self.folder.mkdir(exist_ok=True)
        blocks = -(-len(cells) // PART_CELLS)
        self._missing = [sum(c.cell_id not in rows for c in self._block(part)) for part in range(blocks)]
        for path in self.folder.iterdir():
            if _PART.fullmatch(path.name) and path.is_file():
                path.unlink()
        for part, missing in enumerate(self._missing):
            if not missing:
                self._write(part)

    def add(self, cell: Cell) -> None:
        """A cell is done and in `rows`; writes its part if it was the last one."""
        part = cell.number // PART_CELLS
        self._missing[part] -= 1
        if not self._missing[part]:
            self._write(part)

    def _block(self, part: int) -> Sequence[Cell]:
        return self.cells[part * PART_CELLS : (part + 1) * PART_CELLS]

    def _write(self, part: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.folder / f"part-{part:05}.parquet"
        table = pa.Table.from_pylist([cell_row(c, self.rows[c.cell_id]) for c in self._block(part)], schema())
        try:
            with atomic(path) as part_file:
                pq.write_table(table, part_file, compression="zstd", write_page_checksum=True)
        except FileError as error:
            raise FileError(
                f"{error}; every finished cell is safe in {JOURNAL}, make room and go on with --resume"
            ) from None


def read_dataset(folder: str | Path) -> pd.DataFrame:
    """The rows of a sweep folder, finished or not, in the sweep's order.

    Raises
    ------
    SimError
        If the folder holds no sweep, or one without a finished cell.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = Path(folder)
    if not (folder / JOURNAL).is_file() and not (folder / CELLS).is_dir():
        raise SimError(f"{folder}: no sweep here (run `residency sweep ... --out {folder}` first)")
    parts = sorted((folder / CELLS).glob("part-*.parquet"))
    tables = []
    for part in parts:
        try:
            tables.append(pq.read_table(part, page_checksum_verification=True))
        except (pa.ArrowException, OSError) as error:
            raise SimError(f"{part}: cannot be read ({error}); remove it, its rows are in {JOURNAL}") from None
    try:  # columns that an older version did not write come out null
        table = pa.concat_tables([schema().empty_table(), *tables], promote_options="default")
    except pa.ArrowInvalid as error:
        raise SimError(f"{folder}: columns of another version of this program ({error}); run it again") from None
    rest = _journalled(folder, set(table["cell_id"].to_pylist()))
    if rest:
        table = pa.concat_tables([table, pa.Table.from_pylist(rest, schema())]).sort_by("cell")
    if not table.num_rows:
        raise SimError(f"{folder}: no cell of this sweep has finished yet")
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _journalled(folder: Path, written: set[str]) -> list[Row]:
    """Whole rows of cells that are finished but in no part yet."""
    from expert_residency.sim.sweep.plan import read_plan

    path = folder / JOURNAL
    if not path.is_file():
        return []
    rows, _ = read_journal(path)
    return [
        cell_row(c, rows[c.cell_id])
        for c in read_plan(folder).cells
        if c.cell_id in rows and c.cell_id not in written
    ]
