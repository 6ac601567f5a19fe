"""Weights beside experts in a mapped file: what memory does not hold of them is read again in every pass."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MappedWeights:
    """How much of the weights beside experts memory holds.

    Parameters
    ----------
    nbytes
        All of them.
    room_bytes
        Memory that system, expert cache, context and buffers leave.
    """

    nbytes: int = 0
    room_bytes: int = 0

    @property
    def missing_bytes(self) -> int:
        """What every pass reads again, at the least: an order of use that repeats is what a kernel keeps worst."""
        return max(0, self.nbytes - max(0, self.room_bytes))

    def missing_of(self, nbytes: int) -> int:
        """Of some of the weights; all of them have the same share in memory."""
        return -(-nbytes * self.missing_bytes // self.nbytes) if self.nbytes else 0


IN_MEMORY = MappedWeights()
"""Of an engine that loads them."""
