"""The journal of a sweep: one line a finished cell, written by the main process alone.

It is what a sweep can lose nothing of: a line counts once its newline is on the disk. A torn last line (the
process was killed, the disk was full) is cut off when the journal is opened again.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from expert_residency.errors import SimError
from expert_residency.sim.sweep.rows import Row


class Journal:
    """Results of finished cells by id; a context manager, in a folder that is claimed.

    Parameters
    ----------
    path
        File to continue or begin.

    Raises
    ------
    SimError
        It cannot be opened, or a line in its middle is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise SimError(f"{path}: cannot be written ({error.strerror})") from None
        try:
            self.rows, self._size = read_journal(path)
            os.ftruncate(self._file, self._size)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def append(self, cell_id: str, row: Row) -> None:
        """Record a finished cell; on return it is on the disk.

        Raises
        ------
        SimError
            If it cannot be written; the journal is then as it was before.
        """
        line = _plain({"cell_id": cell_id, "row": row, "sha256": _digest(cell_id, row)}) + b"\n"
        try:
            written = os.write(self._file, line)
            if written < len(line):
                os.write(self._file, line[written:])  # raises the reason for the short write
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise SimError(
                f"{self.path}: cannot be written ({error.strerror}); {len(self.rows)} finished cells are safe, "
                "make room and go on with --resume"
            ) from None
        self._size += len(line)
        self.rows[cell_id] = row


def read_journal(path: Path) -> tuple[dict[str, Row], int]:
    """Rows by cell id, and the bytes up to the last whole line; later lines of a cell replace earlier ones."""
    rows: dict[str, Row] = {}
    size = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                entry = json.loads(line)
                if entry["sha256"] != _digest(entry["cell_id"], entry["row"]):
                    raise ValueError
                rows[entry["cell_id"]] = entry["row"]
            except (ValueError, KeyError, TypeError, RecursionError):
                raise SimError(f"{path}: line {number} is damaged; remove it to run its cell again") from None
            size += len(line)
    return rows, size


def _digest(cell_id: str, row: Row) -> str:
    """What tells a line as it was written from one that was edited or damaged."""
    return hashlib.sha256(_plain([cell_id, row])).hexdigest()[:16]


def _plain(data: Any) -> bytes:
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode()
