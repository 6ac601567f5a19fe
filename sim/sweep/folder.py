"""Folders of results: new, empty or marked as ours, held by one process, as they were after a refused command."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from expert_residency.errors import FileError, SimError

MARK = ".residency-results"
"""File that says that all of `NAMES` in its folder was made by this program."""
CELLS, JOURNAL, PLAN, LOG, CACHE = "cells", "journal.jsonl", "plan.json", "log.jsonl", "cache"
SWEEP_FILE, TRIALS = "sweep.toml", "trials.log"
NAMES = (CELLS, JOURNAL, PLAN, LOG, CACHE, SWEEP_FILE, TRIALS)
_TEXT = "Results of `residency sweep` or `residency tune`; the program writes and replaces files here.\n"
_SHOWN = 3
_NO_WRITING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}


@dataclass
class Claim:
    """A folder that this process holds.

    Parameters
    ----------
    folder
        The folder.
    kept
        Whether there is something in it worth keeping: until then an error takes away whatever was made.
    """

    folder: Path
    kept: bool = False


@contextlib.contextmanager
def claim(folder: Path, *, resume: bool) -> Iterator[Claim]:
    """Hold a folder of results for this process.

    Raises
    ------
    SimError
        It holds what this program did not make, or results without `resume`, or another process writes to it.
    FileError
        It cannot be made or written.
    """
    _check(folder, resume)
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        marked = (folder / MARK).exists()
        lock = os.open(folder / MARK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        _take_away((), new_folders)
        raise FileError(f"cannot be written ({error.strerror})", path=folder) from None
    claimed = Claim(folder)
    try:
        _lock(lock, folder)
        before = _entries(folder)
        try:
            if not marked:
                os.write(lock, _TEXT.encode())
            yield claimed
        except BaseException:
            if not claimed.kept:
                _take_away((_entries(folder) - before) | (set() if marked else {folder / MARK}), new_folders)
            raise
    except OSError as error:
        if error.errno not in _NO_WRITING:
            raise
        said = f"cannot be written ({error.strerror})"
        safe = "; what is finished is safe, go on with --resume" if claimed.kept else ""
        raise FileError(said + safe, path=error.filename or folder) from None
    finally:
        os.close(lock)


def _check(folder: Path, resume: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise SimError(f"{folder}: is a file, results need a folder")
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise SimError(f"{folder}: cannot be read ({error.strerror})") from None
    if not names:
        return
    if MARK not in names:
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        hint = f" (if they are results of an earlier version: touch {folder / MARK})" if PLAN in names else ""
        raise SimError(f"{folder}: holds files that no sweep made ({shown}){hint}; name a new or an empty folder")
    links = [name for name in (MARK, *NAMES) if (folder / name).is_symlink()]
    if links:
        raise SimError(
            f"{folder / links[0]}: is a link, and results are written into their folder only; remove it"
        )
    if not resume and PLAN in names:
        raise SimError(f"{folder}: there are results here already; go on with --resume, or choose another folder")


def _lock(lock: int, folder: Path) -> None:
    with contextlib.suppress(ImportError):  # systems without it have no lock
        import fcntl

        with contextlib.suppress(FileNotFoundError):  # taken away by a process that was refused just now
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock), os.stat(folder / MARK)):
                    return
            except BlockingIOError:
                pass
        raise SimError(f"{folder}: another process is writing to these results")


def _entries(folder: Path) -> set[Path]:
    """What of ours is there, the traces of the cache one by one."""
    cache = folder / CACHE
    inner = cache.iterdir() if cache.is_dir() else ()
    return {path for name in NAMES if (path := folder / name).exists() or path.is_symlink()} | set(inner)


def _take_away(made: Iterable[Path], new_folders: Iterable[Path]) -> None:
    """Remove what was made; folders that led to it only while they are empty."""
    with contextlib.suppress(OSError):
        for path in made:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        for folder in new_folders:
            folder.rmdir()
