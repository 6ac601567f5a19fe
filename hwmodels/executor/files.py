"""An expert file on a disk: written once, read with and without the page cache.

Cold means that the kernel was asked to drop the file's pages (`posix_fadvise`, after writing them out and with no
mapping left), which Linux does for clean pages; `resident_share` checks it.
"""

from __future__ import annotations

import gc
import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.executor.experts import random_weights

PAGE = mmap.PAGESIZE
_BLOCK = 1 << 26


class ExpertFile:
    """A file of bfloat16 weights.

    Parameters
    ----------
    path
        Created (or made anew if its size differs) with random weights.
    nbytes
        Its size.

    Raises
    ------
    HardwareError
        If it cannot be written, for instance for want of room.
    """

    def __init__(self, path: str | os.PathLike[str], nbytes: int) -> None:
        self.path = Path(path)
        self.nbytes = nbytes
        try:
            if not self.path.is_file() or self.path.stat().st_size != nbytes:
                self._write()
            self.fd = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise HardwareError(f"the expert file cannot be written ({error.strerror})", path=path) from None
        self._map: mmap.mmap | None = None

    def _write(self) -> None:
        block = random_weights(min(_BLOCK, self.nbytes)).view(np.uint8)
        with self.path.open("wb") as file:
            for start in range(0, self.nbytes, len(block)):
                file.write(block[: self.nbytes - start].data)
            file.flush()
            os.fsync(file.fileno())

    def __enter__(self) -> ExpertFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap and close; the file stays."""
        self._unmap()
        os.close(self.fd)

    def read(self, offset: int, into: npt.NDArray[np.uint8]) -> None:
        """Read whole: `len(into)` bytes at `offset`, through the page cache."""
        done = 0
        while done < len(into):
            got = os.preadv(self.fd, [into[done:].data], offset + done)
            if got <= 0:
                raise HardwareError(f"cut off at byte {offset + done}", path=self.path)
            done += got

    def mapped(self, *, populate: bool = False) -> npt.NDArray[np.uint16]:
        """The file as weights through one shared read-only mapping, with all of its pages in it if asked for."""
        if self._map is None:
            flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if populate else 0)
            self._map = mmap.mmap(self.fd, self.nbytes, flags=flags, prot=mmap.PROT_READ)
        return np.frombuffer(self._map, dtype=np.uint16)

    def drop(self) -> None:
        """Make the page cache forget the file; arrays made by `mapped` must be gone by then."""
        self._unmap()
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def warm(self) -> None:
        """Bring the whole file into the page cache."""
        block = np.empty(min(_BLOCK, self.nbytes), dtype=np.uint8)
        for start in range(0, self.nbytes, len(block)):
            self.read(start, block[: self.nbytes - start])

    def random_access(self) -> None:
        """Tell the kernel not to read ahead."""
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)

    def _unmap(self) -> None:
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:  # arrays in a reference cycle
                gc.collect()
                self._map.close()
            self._map = None

    def resident_share(self) -> float:
        """Share of the file's pages in the page cache."""
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        pages = -(-self.nbytes // PAGE)
        found = np.empty(pages, dtype=np.uint8)
        with mmap.mmap(self.fd, self.nbytes, prot=mmap.PROT_READ) as view:
            array: Any = np.frombuffer(view, dtype=np.uint8)
            code = libc.mincore(
                ctypes.c_void_p(array.ctypes.data),
                ctypes.c_size_t(self.nbytes),
                ctypes.c_void_p(found.ctypes.data),
            )
            del array
        if code:
            raise HardwareError("the kernel does not say which pages are in memory", path=self.path)
        return float((found & 1).mean())


class DirectReader:
    """Reads past the page cache (`O_DIRECT`), where the file system allows it."""

    def __init__(self, path: str | os.PathLike[str], largest: int) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self._buffer = mmap.mmap(-1, -(-largest // PAGE) * PAGE)

    def read(self, offset: int, nbytes: int) -> None:
        """Read `nbytes` at `offset`, both rounded out to pages, into a buffer of its own."""
        start = offset // PAGE * PAGE
        span = -(-(offset + nbytes - start) // PAGE) * PAGE
        with memoryview(self._buffer) as view:
            os.preadv(self.fd, [view[: min(span, len(view))]], start)

    def close(self) -> None:
        """Close."""
        os.close(self.fd)
        self._buffer.close()
