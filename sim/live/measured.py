"""What a live run measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass
class Measured:
    """Times of one live run; P passes.

    Parameters
    ----------
    pass_ns : (P,)
        Host clock, from the first launch of a pass to its token on the host.
    card_ns : (P,)
        The same by the card's own events; 0 without a card.
    known_ns, cpu_ns, wait_ns : (P,)
        Host time spent waiting for the router, in CPU experts, and waiting for reads (no card only).
    """

    pass_ns: IntArray
    card_ns: IntArray
    known_ns: IntArray
    cpu_ns: IntArray
    wait_ns: IntArray

    @classmethod
    def empty(cls, passes: int) -> Measured:
        """All zero."""
        zeros = [np.zeros(passes, dtype=np.int64) for _ in range(5)]
        return cls(zeros[0], zeros[1], zeros[2], zeros[3], zeros[4])
