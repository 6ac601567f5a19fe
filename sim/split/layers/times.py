"""Layer times of a plan: those of a run, and reads of the drive where memory does not hold what the CPU reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from expert_residency.sim.runs.layer_sums import CAUSES, THIRDS, LayerSums, Parts
from expert_residency.sim.split.curve import HitCurve


class LayerCosts(LayerSums):
    """Times of the layers of all counted passes of a trace, with estimated reads of the drive."""

    @cached_property
    def _curve(self) -> HitCurve:
        return HitCurve.measure(self.trace)

    def drive_ns(self, thirds: Sequence[int], host_layers: int, wanted_bytes: int, room_bytes: int) -> int:
        """Estimated reads of a mapped file of which the page cache holds only the experts used last.

        Parameters
        ----------
        thirds, host_layers
            Of each MoE layer, what lies on its card; layers before `host_layers` are the CPU's.
        wanted_bytes, room_bytes
            What the host reads of the model, and the lesser memory for it; every layer keeps the same share.

        Returns
        -------
        int
            Ns of all passes, on top of computing.
        """
        geometry, disk = self.geometry, self.host.disk
        rate = disk.read_ahead_mb_per_s  # the pool touches pages of a mapped file, one fault after the other
        level = geometry.experts * room_bytes // wanted_bytes
        total = 0.0
        for layer, on_card in enumerate(thirds):
            part = THIRDS if layer < host_layers else THIRDS - on_card
            if part:
                missing = self._curve.beyond(layer, level).astype(np.int64)
                nbytes = missing * geometry.expert_bytes[layer] * part // THIRDS
                ns = np.where(missing > 0, disk.latency_ns + nbytes * 1000 / rate, 0.0)
                total += float(ns.mean()) * sum(self._events[layer].values())
        return round(total)


__all__ = ["CAUSES", "THIRDS", "LayerCosts", "Parts"]
