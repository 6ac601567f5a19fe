"""How many of a layer's look-ups a cache of n slots misses, measured by replay on a trace.

An LRU of n slots holds the n most recently used experts whatever n is (Mattson et al. 1970), so one replay
gives every size: a look-up hits iff fewer than n experts were used since. The distances are kept event by
event, because the time of an event is not linear in its misses. The same distances say what lower tiers hold if
each keeps the experts that are warmest beyond those above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from expert_residency.errors import SimError
from expert_residency.traces import Phase, RoutingTrace

WARM_SHARE = 0.25
"""Share of the decode passes that only warms the cache up."""


@dataclass(frozen=True)
class HitCurve:
    """LRU stack distances of decode and verify events, layer by layer.

    Parameters
    ----------
    distances : one (events, widest event) int array a layer
        Experts used more recently than each look-up's, ascending in each event, padded with -1.
    sizes : one (events,) int array a layer
        Distinct experts of each event.
    rows : float
        Rows of an event, on average.
    tokens_a_pass : float
        Tokens that a pass emits, on average.
    passes, experts
        Passes measured, after the warm-up; experts of a layer.
    synthetic
        Whether the trace was generated.
    """

    distances: tuple[npt.NDArray[np.int32], ...]
    sizes: tuple[npt.NDArray[np.int64], ...]
    rows: float
    tokens_a_pass: float
    passes: int
    experts: int
    synthetic: bool

    @classmethod
    def measure(cls, trace: RoutingTrace, warm_share: float = WARM_SHARE) -> HitCurve:
        """Curve of `trace`; its prompts and the first `warm_share` of its decode passes warm the cache up.

        The cache starts full of experts in the order of their numbers, since what a profile would put there is
        not known; with room for all, everything hits.

        Raises
        ------
        SimError
            A trace without decode passes.
        """
        geometry = trace.geometry
        decode = np.flatnonzero(trace.pass_phase != Phase.PREFILL)
        if len(decode) == 0:
            raise SimError("the trace has no decode pass, so it says nothing about tokens a second")
        counted = np.zeros(trace.n_passes, dtype=bool)
        counted[decode[int(len(decode) * warm_share) :]] = True
        offsets, keys = trace.event_offsets, trace.keys
        distances, sizes = [], []
        for layer in range(geometry.n_layers):
            stamp = -np.arange(1, geometry.experts + 1, dtype=np.int64)
            clock, found = 0, []
            for event in np.flatnonzero(trace.event_layer == layer).tolist():
                experts = keys[offsets[event] : offsets[event + 1]] - layer * geometry.experts
                if counted[trace.event_pass[event]]:
                    found.append(np.sort((stamp[None, :] > stamp[experts][:, None]).sum(axis=1)))
                stamp[experts] = np.arange(clock, clock + len(experts))
                clock += len(experts)
            if not found:
                raise SimError(f"layer {geometry.layer_ids[layer]} has no decode events after the warm-up")
            table = np.full((len(found), max(map(len, found))), -1, dtype=np.int32)
            for row, one in enumerate(found):
                table[row, : len(one)] = one
            distances.append(table)
            sizes.append(np.asarray([len(one) for one in found], dtype=np.int64))
        return cls(
            distances=tuple(distances),
            sizes=tuple(sizes),
            rows=float(trace.event_rows[counted[trace.event_pass]].mean()),
            tokens_a_pass=float(trace.pass_emits[counted].mean()),
            passes=int(counted.sum()),
            experts=geometry.experts,
            synthetic=trace.synthetic,
        )

    @cached_property
    def _beyond(self) -> tuple[npt.NDArray[np.int16], ...]:
        """One (events, experts + 1) table a layer: look-ups that the n warmest experts do not hold."""
        tables = []
        for distances in self.distances:
            counts = np.zeros((len(distances), self.experts + 1), dtype=np.int16)
            event, place = np.nonzero(distances >= 0)
            np.add.at(counts, (event, distances[event, place]), 1)
            tables.append(np.ascontiguousarray(counts[:, ::-1].cumsum(axis=1, dtype=np.int16)[:, ::-1]))
        return tuple(tables)

    def beyond(self, layer: int, slots: npt.ArrayLike) -> npt.NDArray[np.int16]:
        """(events, ...) look-ups of each event that the `slots` warmest experts do not hold."""
        return self._beyond[layer][:, np.minimum(slots, self.experts)]

    def hit_rate(self, layer: int, slots: int) -> float:
        """Share of the layer's distinct look-ups that hit with `slots` slots."""
        return 1.0 - float(self.beyond(layer, slots).sum() / self.sizes[layer].sum())
