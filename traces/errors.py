"""The one error a user of this package can cause."""

from __future__ import annotations


class TraceError(ValueError):
    """Bad input: one sentence that names the file, the place, what was expected and what was found."""

    def __init__(self, message: str, *, path: object = None, place: str | None = None) -> None:
        where = f"{path}: " if path is not None else ""
        where += f"{place}: " if place else ""
        super().__init__(where + message)
