"""Files that appear whole under their names or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expert_residency.errors import FileError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = ("png", "svg", "pdf")


def check_output(path: str | os.PathLike[str]) -> None:
    """See that a file of this name can be written, before the work that it is to hold.

    Raises
    ------
    FileError
        It is a folder, its folder is not there, or nothing can be written there.
    """
    target = _target(path)
    if target.is_dir():
        raise FileError("cannot be written (it is a folder)", path=path)
    if not target.parent.is_dir():
        raise FileError(f"cannot be written (there is no folder {target.parent})", path=path)
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        what = "it" if target.exists() else f"the folder {target.parent}"
        raise FileError(f"cannot be written ({what} is read-only, or belongs to somebody else)", path=path)


def _target(path: str | os.PathLike[str]) -> Path:
    """What a link leads to, or the path itself."""
    return Path(os.path.realpath(path) if os.path.islink(path) else path)


def _replaceable(target: Path) -> bool:
    """Whether another file may take its place: not a pipe, a device, a mounted file, or one in a closed folder."""
    if not target.exists():
        return True
    return target.is_file() and not os.path.ismount(target) and os.access(target.parent, os.W_OK)


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Name of a file to write instead of `path`, which takes its place at the end; removed if that is not reached.

    A link is followed, a file's mode stays. What cannot be replaced (a pipe, a device, a mounted file, a file in a
    folder where nothing can be made) is written to.

    Raises
    ------
    FileError
        The file cannot be written.
    """
    check_output(path)
    target = _target(path)
    try:
        if not _replaceable(target):
            with tempfile.TemporaryDirectory() as folder:
                part = Path(folder, target.name)
                yield part
                with part.open("rb") as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
            return
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            yield part
            with part.open("r+b") as file:
                os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"cannot be written ({error.strerror or error})", path=path) from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file whole.

    Raises
    ------
    FileError
        As `atomic`.
    """
    with atomic(path) as part:
        part.write_text(text, encoding="utf-8")


def check_picture(path: str | os.PathLike[str]) -> None:
    """`check_output` for a picture, whose suffix says its format.

    Raises
    ------
    FileError
        As `check_output`, or for another suffix.
    """
    path = Path(path)
    check_output(path)
    if path.suffix.lstrip(".").lower() not in PICTURES:
        raise FileError(f"a picture's name ends in {', '.join(f'.{kind}' for kind in PICTURES)}", path=path)


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int, **options: Any) -> None:
    """Write a figure of matplotlib.

    Parameters
    ----------
    figure
        A matplotlib figure.
    path
        Picture to write; the suffix says the format.
    dpi
        Dots an inch.
    options
        Of matplotlib's `savefig`.

    Raises
    ------
    FileError
        As `check_picture` and `atomic`.
    """
    path = Path(path)
    check_picture(path)
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if "$" in text.get_text() and "\\math" not in text.get_text():
            text.set_parse_math(False)  # a name, not a formula
    with atomic(path) as part, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a name that the font cannot write has a box
        figure.savefig(part, dpi=dpi, format=path.suffix.lstrip(".").lower(), **options)
