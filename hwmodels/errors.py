"""The one error a user of this package can cause."""

from __future__ import annotations


class HardwareError(ValueError):
    """Bad profile, name, size or run table: one sentence that names the file, the field and the fix."""

    def __init__(self, message: str, *, path: object = None, place: str | None = None) -> None:
        where = f"{path}: " if path is not None else ""
        where += f"{place}: " if place else ""
        super().__init__(where + message)
