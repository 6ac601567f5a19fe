"""Progress of long work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from expert_residency.text import visible


class Bar:
    """Progress on stderr: a bar in a terminal, nothing elsewhere."""

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.progress import TimeRemainingColumn as Left

        self._progress = Progress(
            TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("elapsed"), TimeElapsedColumn(),
            TextColumn("left"), Left(), console=Console(stderr=True), disable=quiet or not sys.stderr.isatty(),
        )  # fmt: skip
        self._task = self._progress.add_task(what, total=None)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, done: int, total: int) -> None:
        """So many are done."""
        self._progress.update(self._task, completed=done, total=total)


@contextmanager
def working(on: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done; yields what changes it. Nothing in it is markup."""
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(visible(on))) as status:
        yield lambda text: status.update(Text(visible(text)))
