"""Files that appear whole under their names: written aside, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expert_residency.sim.errors import SimError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = ("png", "svg", "pdf")


def check_output(path: str | os.PathLike[str]) -> None:
    """See that a file of this name can be written, before the work that it is to hold.

    Raises
    ------
    SimError
        It is a folder, or its folder is not there.
    """
    path = Path(path)
    if path.is_dir():
        raise SimError(f"{path}: cannot be written (it is a folder)")
    if not path.parent.is_dir():
        raise SimError(f"{path}: cannot be written (there is no folder {path.parent})")


@contextmanager
def aside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Name of a file to write in the place of `path`: renamed to it at the end, removed if that is not reached.

    Raises
    ------
    SimError
        The file cannot be written.
    """
    path = Path(path)
    check_output(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        raise SimError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        part.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file whole.

    Raises
    ------
    SimError
        As `aside`.
    """
    with aside(path) as part:
        part.write_text(text, encoding="utf-8")


def check_picture(path: str | os.PathLike[str]) -> None:
    """`check_output` for a picture, whose suffix says its format.

    Raises
    ------
    SimError
        As `check_output`, or for another suffix.
    """
    path = Path(path)
    check_output(path)
    if path.suffix.lstrip(".").lower() not in PICTURES:
        raise SimError(f"{path}: a picture's name ends in {', '.join(f'.{kind}' for kind in PICTURES)}")


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int, **options: Any) -> None:
    """Write a figure of matplotlib.

    Raises
    ------
    SimError
        As `check_picture` and `aside`.
    """
    path = Path(path)
    check_picture(path)
    with aside(path) as part:
        figure.savefig(part, dpi=dpi, format=path.suffix.lstrip(".").lower(), **options)
