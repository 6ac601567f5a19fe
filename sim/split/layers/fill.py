"""Which tensors of some layers a card holds: the fastest filling of every size, exactly.

Layers are taken one by one; of all fillings with the same or more bytes on the card only the fastest is kept
(Pareto front of bytes against time). Sizes of a model are few, so a front has a few hundred points. Beyond `MOST`
points bytes are rounded up to a grain: every filling stays possible, and the last grain a layer may be lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

MOST = 4_096
Ints = npt.NDArray[np.int64]


@dataclass
class Front:
    """Fillings of some layers: bytes on the card ascending, time descending.

    Parameters
    ----------
    nbytes, ns : (points,)
        Of each filling.
    before, state : (points,)
        The filling of one layer fewer that it goes on from, and what the last layer has on the card.
    """

    nbytes: Ints
    ns: Ints
    before: Ints = field(repr=False)
    state: Ints = field(repr=False)
    exact: bool = True

    @classmethod
    def empty(cls) -> Front:
        """No layer."""
        zero = np.zeros(1, dtype=np.int64)
        return cls(zero, zero, zero, zero)

    def with_layer(self, nbytes: Ints, ns: Ints, grain: int, *, every: bool = False) -> Front:
        """Go on with a layer of these states.

        Parameters
        ----------
        nbytes, ns : (states,)
            Bytes on the card and time of each state of the layer.
        grain
            To which bytes are rounded up if there are too many fillings.
        every
            Keep the fastest filling of every size, also if one with less on the card is faster.

        Returns
        -------
        Front
            Fillings of one layer more.
        """
        total = (self.nbytes[:, None] + nbytes[None, :]).ravel()
        exact = self.exact and len(total) <= MOST * len(nbytes)
        if not exact:
            total = -(-total // grain) * grain
        time = (self.ns[:, None] + ns[None, :]).ravel()
        order = np.lexsort((time, total))
        least = np.minimum.accumulate(time[order])
        rising = least[1:] < least[:-1]
        if every:
            rising = np.diff(total[order]) > 0
        keep = np.concatenate([[True], rising])
        kept = order[keep]
        return Front(total[kept], time[kept], kept // len(nbytes), kept % len(nbytes), exact)

    def within(self, room: int) -> int:
        """How many fillings take `room` bytes at most; the last is the fastest, unless every size is kept."""
        return int(np.searchsorted(self.nbytes, room, side="right"))
