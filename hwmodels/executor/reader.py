"""A thread that reads experts from a file: the copy engine of an engine without a card.

All reads of a run are known before it begins, so the thread runs one compiled loop without the interpreter: it
looks how many have been asked for, reads the next one, says that it has landed. It never sleeps, and who waits
does not either: on a virtual machine a thread that sleeps is woken some 50 to 300 us later, and nobody can say
which. Both give their core away (`sched_yield`) if anybody else wants it.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.executor.files import ExpertFile

Jobs = npt.NDArray[np.int64]
"""(N, 3): file offset, address to read to, bytes; in the order in which they will be asked for."""
_ASKED, _LANDED, _STOP, _FAILED = 0, 8, 16, 24
"""Places of the shared numbers, a cache line apart."""


class Reader:
    """One thread that reads expert after expert from a file into slots.

    Parameters
    ----------
    file
        Read through the page cache.
    jobs
        Of the whole run.
    """

    def __init__(self, file: ExpertFile, jobs: Jobs) -> None:
        self._file, self._jobs = file, jobs
        self._shared = np.zeros(32, dtype=np.int64)
        work, self._wait = _loops()
        self._thread = threading.Thread(
            target=work, args=(file.fd, jobs, self._shared), name="expert-reader", daemon=True
        )
        self._thread.start()

    def ask(self, count: int) -> int:
        """Ask for the next `count` reads; returns the number of the last one, for `wait`."""
        asked = int(self._shared[_ASKED]) + count
        self._shared[_ASKED] = asked
        return asked

    def landed(self, number: int) -> bool:
        """Whether the first `number` reads have landed."""
        return bool(self._shared[_LANDED] >= number)

    def wait(self, number: int) -> None:
        """Until the first `number` reads have landed.

        Raises
        ------
        HardwareError
            If the file ends too early, or cannot be read.
        """
        if not self._wait(self._shared, number):
            at = int(self._jobs[int(self._shared[_LANDED]), 0])
            raise HardwareError(f"the expert at byte {at} cannot be read", path=self._file.path)

    def close(self) -> None:
        """End the thread when what was asked for is read."""
        self._shared[_STOP] = 1
        self._thread.join()


@functools.cache
def _loops() -> tuple[Callable[..., None], Callable[..., bool]]:
    """Compile the thread's loop, and the loop of who waits."""
    from numba import njit

    libc: Any = ctypes.CDLL(None)
    pread, give_way = libc.pread, libc.sched_yield
    pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
    pread.restype = ctypes.c_ssize_t
    give_way.argtypes = ()
    give_way.restype = ctypes.c_int

    @njit(nogil=True)
    def work(fd: Any, jobs: Any, shared: Any) -> None:
        number = 0
        while True:
            while number == shared[_ASKED]:
                if shared[_STOP]:
                    return
                give_way()  # a call that the compiler cannot see into, so the numbers are read anew
            offset, address, left = jobs[number]
            while left > 0:
                got = pread(fd, address, left, offset)
                if got <= 0:
                    shared[_FAILED] = 1
                    return
                offset += got
                address += got
                left -= got
            number += 1
            shared[_LANDED] = number

    @njit(nogil=True)
    def landed(shared: Any, number: Any) -> bool:
        while shared[_LANDED] < number:
            if shared[_FAILED]:
                return False
            give_way()
        return True

    done = np.zeros(32, dtype=np.int64)
    done[_STOP] = 1
    work(0, np.zeros((0, 3), dtype=np.int64), done)
    landed(done, 0)  # compiled now, not while a clock runs
    return work, landed
