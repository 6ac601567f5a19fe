"""How llama.cpp gives layers to devices: `-ngl` and `-ts`, to the layer.

There are `n_layer + 1` places, the output behind the last layer. The last `ngl` of them go to cards, all if `ngl`
is larger; place i of `act` goes to the first card whose cumulative share is above i / act, in single precision.
What stands before them, and an output beyond them, is the CPU's.
Source: ggml-org/llama.cpp, `llama_model::load_tensors`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from expert_residency.errors import SimError

HOST = -1
ALL = 999
"""What people write for every layer."""


def devices(layers: int, cards: int, shares: Sequence[float], ngl: int = ALL) -> tuple[list[int], int]:
    """Card of every layer, and of the output.

    Parameters
    ----------
    layers
        Layers of the model, those without experts among them.
    cards
        How many there are.
    shares
        Of the cards, as in `-ts`; they need not add up to anything.
    ngl
        Layers that go to cards.

    Returns
    -------
    (list[int], int)
        Number of the card, or `HOST`, of each layer; and of the output.

    Raises
    ------
    SimError
        Shares of more cards than there are, none above 0, a negative number.
    """
    if len(shares) > cards:
        raise SimError(f"-ts {','.join(f'{s:g}' for s in shares)} names {len(shares)} cards, there are {cards}")
    if min(shares, default=0) < 0 or not sum(shares) > 0:
        raise SimError(f"-ts {','.join(f'{s:g}' for s in shares)}: expected shares, at least one above 0")
    if ngl < 0:
        raise SimError(f"-ngl {ngl}: expected a number of layers")
    sums = np.cumsum(np.asarray([*shares, *[0.0] * (cards - len(shares))], dtype=np.float32), dtype=np.float32)
    sums /= sums[-1]
    start, act = max(layers - ngl, 0), min(ngl, layers + 1)

    def place(i: int) -> int:
        if i < start or i - start >= act:
            return HOST
        return int(np.searchsorted(sums, np.float32(i - start) / np.float32(act), side="right"))

    return [place(i) for i in range(layers)], place(layers)


def shares_for(layers_each: Sequence[int], *, output: bool) -> tuple[int, ...]:
    """`-ts` with which each card gets so many layers: the output counts as one more of the last card."""
    return (*layers_each[:-1], layers_each[-1] + output)
