"""A thread that reads experts from a file: the copy engine of an engine without a card."""

from __future__ import annotations

import queue
import threading

import numpy as np
import numpy.typing as npt

from hwmodels.live.files import ExpertFile

Job = tuple[int, npt.NDArray[np.uint8]]
"""File offset and the memory to read into."""


class Reader:
    """One thread that reads expert after expert from a file into slots, in the order asked for."""

    def __init__(self, file: ExpertFile) -> None:
        self._file = file
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._landed = 0
        self._asked = 0
        self._lock = threading.Condition()
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="expert-reader", daemon=True)
        self._thread.start()

    def ask(self, job: Job) -> int:
        """Queue a read; returns its number, for `wait`."""
        self._asked += 1
        self._jobs.put(job)
        return self._asked

    def wait(self, number: int) -> None:
        """Until read `number`, and so all before it, has landed."""
        with self._lock:
            self._lock.wait_for(lambda: self._landed >= number or self._failed is not None)
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """End the thread when all is read."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._file.read(*job)
            except Exception as error:
                self._failed = error
            with self._lock:
                self._landed += 1
                self._lock.notify_all()
