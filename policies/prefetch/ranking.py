"""What prefetchers share: the best experts of a layer by score.

Only scalar indexing and arithmetic, so that the kernel compiles it as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from expert_residency.policies.protocol import Ints


def best_of_layer(
    score: Sequence[int], at: int, layer: int, experts: int, width: int, deadline: int, keys: Ints, deadlines: Ints
) -> int:
    """Write the `width` experts of `layer` with the highest positive score, best first; how many.

    `score[at : at + experts]` belongs to the layer; ties go to the lower expert.

    Parameters
    ----------
    score
        What decides; positive ones count.
    at
        Index of the layer's first expert in `score`.
    layer
        Layer, from 0.
    experts
        Experts of a layer.
    width
        Most experts to write.
    deadline
        Running number of the event that wants them.
    keys
        Written from the front.
    deadlines
        Written likewise.

    Returns
    -------
    int
        How many were written.
    """
    n = 0
    for expert in range(experts):
        value = score[at + expert]
        if value <= 0 or (n == width and value <= score[at + keys[n - 1]]):
            continue
        if n < width:
            n += 1
        i = n - 1
        while i > 0 and score[at + keys[i - 1]] < value:
            keys[i] = keys[i - 1]
            i -= 1
        keys[i] = expert
    for i in range(n):
        keys[i] += layer * experts
        deadlines[i] = deadline
    return n
