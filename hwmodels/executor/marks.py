"""Points in a stream of the card, through the driver's own entry points.

A mark is an event without timing. Torch's wrappers of the same calls cost the host about as much as launching a
graph, which a loop that blocks once a layer pays several times.
"""

from __future__ import annotations

import ctypes

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.executor.copies import entry_point

NO_TIMING = 2
"""`CU_EVENT_DISABLE_TIMING`."""


class Marks:
    """As many marks as are asked for, by number.

    Raises
    ------
    HardwareError
        If the driver lacks a call or refuses one.
    """

    def __init__(self) -> None:
        self._create = entry_point("cuEventCreate", "ps")
        self._record = entry_point("cuEventRecord", "pp")
        self._wait = entry_point("cuStreamWaitEvent", "pps")
        self._block = entry_point("cuEventSynchronize", "p")
        self._query = entry_point("cuEventQuery", "p")
        self._handles: list[int] = []

    def reserve(self, count: int) -> None:
        """Make marks until there are `count`; they are kept for later runs."""
        while len(self._handles) < count:
            handle = ctypes.c_uint64(0)
            _check(self._create(ctypes.addressof(handle), NO_TIMING))
            self._handles.append(handle.value)

    def set(self, number: int, stream: int) -> None:
        """Put a mark behind what a stream (its handle) has been given so far."""
        _check(self._record(self._handles[number], stream))

    def hold(self, stream: int, number: int) -> None:
        """Let a stream go on only when a mark has been reached."""
        _check(self._wait(stream, self._handles[number], 0))

    def block(self, number: int) -> None:
        """Let the host wait until a mark has been reached."""
        _check(self._block(self._handles[number]))

    def reached(self, number: int) -> bool:
        """Whether a mark has been reached."""
        return self._query(self._handles[number]) == 0


def _check(code: int) -> None:
    if code:
        raise HardwareError(f"the driver refused an event (error {code})")
