"""What a layer costs on a card with so many slots: bytes over effective rates, launches and waits.

The terms are those of the timed model (`docs/contracts.md`), taken event by event over the measured distances and
averaged: the dense part, the router's way to the host, then the larger of two branches, the card (hits, then
what comes over a link) and the CPU pool (what it computes from RAM, then what the drive delivers). Not in it:
contention of copies that fill slots, and experts whose copy is still under way. Those need a simulated run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from expert_residency.errors import SimError
from expert_residency.hwmodels.units import ns_for_bytes
from expert_residency.policies import create
from expert_residency.policies.admission.strata_adaptive import StrataAdaptive
from expert_residency.sim.choices.preset import MISS_MODES, EnginePreset
from expert_residency.sim.split.cards import Card, HostSide
from expert_residency.sim.split.curve import HitCurve
from expert_residency.sim.split.memory import HostMode
from expert_residency.sim.timed.costs import first_ns
from expert_residency.text import check_known
from expert_residency.traces import ModelGeometry

Floats = npt.NDArray[np.float64]
EXCHANGED = 0.1
"""Pairs that a periodic policy finds worth exchanging, of a pass's misses: 0.08 to 0.12 of them in simulated runs
of the adaptive tier with slots for 48 to 80 % of the experts; with fewer its limit binds."""


@dataclass(frozen=True)
class Store:
    """A card that only keeps experts for the others.

    Parameters
    ----------
    card
        The card.
    slots
        Experts of every layer that it keeps.
    p2p
        Whether they come peer to peer, or through host memory.
    """

    card: Card
    slots: int
    p2p: bool

    def copy_ns(self, to: Card, nbytes: int) -> tuple[int, float]:
        """(set-up, ns a copy of `nbytes`) to another card.

        Raises
        ------
        SimError
            If peer to peer is asked for and a profile has no figure for it.
        """
        if not self.p2p:
            return self.card.copy_t0_ns + to.copy_t0_ns, nbytes * 1000 / min(
                self.card.d2h_mb_per_s, to.h2d_mb_per_s
            )
        rate = min(self.card.p2p_mb_per_s, to.p2p_mb_per_s)
        if rate == 0:
            poor = self.card if self.card.p2p_mb_per_s == 0 else to
            raise SimError(f"the profile {poor.name} has no p2p_gb_per_s, so experts cannot come peer to peer")
        return max(self.card.p2p_ns, to.p2p_ns), nbytes * 1000 / rate


class LayerTimes:
    """Mean time of one layer of one pass, in ns, remembered by its arguments.

    Parameters
    ----------
    geometry, curve, host, preset
        What is asked, how it hits, of what host, under which engine.
    miss
        Who serves a miss: `cpu`, `fetch`, `hybrid` or `stream`.
    mode
        How the host holds experts; decides the rates.
    ram_bytes
        RAM that experts may take; what of it cannot be page-locked is slower.
    store
        A card that only keeps experts, or None.
    context_bytes
        What attention reads in each layer's share of a pass.
    """

    def __init__(
        self,
        geometry: ModelGeometry,
        curve: HitCurve,
        host: HostSide,
        preset: EnginePreset,
        miss: str,
        mode: HostMode,
        ram_bytes: int,
        store: Store | None = None,
        context_bytes: int = 0,
    ) -> None:
        check_known("miss mode", miss, MISS_MODES)
        if len(curve.distances) != geometry.n_layers or curve.experts != geometry.experts:
            raise SimError(
                f"the hit curve is of {len(curve.distances)} x {curve.experts} experts, {geometry.label} has "
                f"{geometry.n_layers} x {geometry.experts}"
            )
        self.geometry, self.curve, self.host, self.preset = geometry, curve, host, preset
        self.miss, self.store, self.context_bytes, self.mode = miss, store, context_bytes, mode
        held = geometry.all_expert_bytes if mode == "arena" else min(geometry.all_expert_bytes, max(ram_bytes, 0))
        self.pinned = 0.0 if mode == "mmap" else min(1.0, host.pin_limit_bytes / held) if held else 1.0
        """Share of RAM's experts that is page-locked."""
        locked = host.complement_mb_per_s if mode == "budget" else host.arena_mb_per_s
        rate = host.page_cache_mb_per_s if mode == "mmap" else self._mixed(locked, host.pageable_mb_per_s)
        self.cpu_mb_per_s = min(rate, host.dram_mb_per_s)
        self._known: dict[tuple[Card, int, int, int], int] = {}
        self._engines: dict[Card, EnginePreset] = {}

    def _mixed(self, locked: float, pageable: float) -> float:
        return 1.0 / (self.pinned / locked + (1.0 - self.pinned) / pageable)

    def layer_ns(self, card: Card, layer: int, slots: int, level: int) -> int:
        """Mean time of `layer` on `card`.

        Parameters
        ----------
        card
            The card that runs it.
        layer
            MoE layer, from 0.
        slots
            Experts of the layer in the card's cache.
        level
            Experts of the layer that are in VRAM or RAM; those beyond are read from the drive.

        Returns
        -------
        int
            Ns.
        """
        key = (card, layer, slots, min(level, self.geometry.experts))
        if key not in self._known:
            # Without the drive the search asks for nearly every size: all of them at once.
            every = level >= self.geometry.experts
            sizes = np.arange(self.geometry.experts + 1) if every else np.asarray([slots])
            mean = self._experts_ns(card, layer, sizes, level).mean(axis=0)
            for n, ns in zip(sizes.tolist(), mean.tolist(), strict=True):
                self._known[(card, layer, n, key[3])] = round(self.fixed_ns(card, layer) + ns)
        return self._known[key]

    def one_ns(self, card: Card, layer: int, slots: int, level: int) -> float:
        """What `layer_ns` rounds, for one size alone and without remembering it.

        Parameters
        ----------
        card, layer, slots, level
            As `layer_ns` takes them.

        Returns
        -------
        float
            Ns.
        """
        return self.fixed_ns(card, layer) + float(self.events_ns(card, layer, slots, level).mean())

    def events_ns(self, card: Card, layer: int, slots: int, level: int) -> Floats:
        """Time of each event of the curve from the plan to the join.

        Parameters
        ----------
        card, layer, slots, level
            As `layer_ns` takes them.

        Returns
        -------
        array (events,)
            Ns.
        """
        return self._experts_ns(card, layer, np.asarray([slots]), level)[:, 0]

    def fixed_ns(self, card: Card, layer: int) -> int:
        """What a layer costs whatever is resident: dense part, router, plan, join."""
        preset, geometry = self.preset, self.geometry
        dense = preset.dense_launch_ns(card.launch_ns, card.kernel_ns)
        read = ns_for_bytes(geometry.dense_bytes[layer], self._dense_mb_per_s(card))
        if geometry.expert_params and self.curve.rows > 1:
            params = geometry.dense_bytes[layer] * geometry.expert_params / geometry.expert_bytes[layer]
            read = max(read, round(2 * params * self.curve.rows / card.flop_per_ns))
        more_rows = round((self.curve.rows - 1) * self._engine(card).row_ns)
        sync = card.sync_ns if preset.syncs == "layer" else 0
        read += ns_for_bytes(self.context_bytes, card.attention_mb_per_s)
        return dense + read + more_rows + sync + preset.plan_ns + preset.combine_ns

    @property
    def overhead_ns(self) -> int:
        """What a pass costs beside its layers whatever card is last: sampling, bookkeeping."""
        return self.preset.pass_ns

    def exchange_ns(self, card: Card, missed: float) -> int:
        """What a pass waits for residents that a periodic policy exchanged, where the engine waits.

        Parameters
        ----------
        card
            Whose slots they go to.
        missed
            Distinct look-ups of a pass that no slot holds.

        Returns
        -------
        int
            Ns.
        """
        name = self.preset.policy.get("admission", "")
        policy = create("admission", name) if self.preset.adapt_waits and name else None
        if not isinstance(policy, StrataAdaptive):
            return 0
        pairs = min(policy.swaps / policy.every, EXCHANGED * missed)
        size = sum(self.geometry.expert_bytes) / self.geometry.n_layers
        ns = size * 1000 / card.h2d_mb_per_s
        if self.mode in ("resident", "budget"):  # the victim goes the other way first
            ns += size * 1000 / card.d2h_mb_per_s
        return round(pairs * ns)

    def head_ns(self, card: Card) -> int:
        """Output head and drafting on the last card."""
        drafts = round((self.curve.rows - 1) * self._engine(card).draft_ns)
        return ns_for_bytes(self.geometry.head_bytes, self._dense_mb_per_s(card)) + drafts

    def _engine(self, card: Card) -> EnginePreset:
        """The engine's times on a card."""
        if card.gpu is None:
            return self.preset
        if card not in self._engines:
            self._engines[card] = self.preset.on(card.gpu)
        return self._engines[card]

    def first_ns(self, card: Card) -> int:
        """Layers without experts, on the first card."""
        launches = self.preset.dense_launch_ns(card.launch_ns, card.kernel_ns)
        read = ns_for_bytes(self.geometry.dense_only_bytes, self._dense_mb_per_s(card))
        return first_ns(self.geometry, launches, read)

    def _dense_mb_per_s(self, card: Card) -> int:
        return card.h2d_mb_per_s if self.preset.streams_dense else card.dense_mb_per_s

    def _experts_ns(self, card: Card, layer: int, slots: npt.NDArray[np.int_], level: int) -> Floats:
        """(events, sizes) time from the plan to the join, for each of the cache sizes `slots`."""
        nbytes, size = self.geometry.expert_bytes[layer], self.curve.sizes[layer][:, None]
        near = slots + (self.store.slots if self.store else 0)
        missed = self.curve.beyond(layer, near).astype(np.float64)
        on_disk = self.curve.beyond(layer, np.maximum(level, near)).astype(np.float64)
        stored = self.curve.beyond(layer, slots) - missed
        hits = size - stored - missed
        each, group = self._gpu_ns(card, layer), round(self.preset.expert_launches.value * card.launch_ns)

        gpu = np.where(hits > 0, group + hits * each, 0.0)
        if self.store and self.store.slots:
            t0, copy = self.store.copy_ns(card, nbytes)
            gpu = np.where(stored > 0, np.maximum(gpu, t0 + stored * copy) + group + stored * each, gpu)
        fetched = self._fetched(card, missed)
        share_disk = np.divide(on_disk, missed, out=np.zeros_like(missed), where=missed > 0)
        disk = np.where(
            on_disk > 0, self.host.disk_latency_ns + on_disk * nbytes * 1000 / self.host.disk_mb_per_s, 0.0
        )
        rate = self._mixed(card.h2d_mb_per_s, card.h2d_pageable_mb_per_s)
        copy = max(nbytes * 1000 / rate, card.submit_ns)
        landed = np.maximum(card.copy_t0_ns + fetched * copy, np.where(share_disk > 0, disk + copy, 0.0))
        if self.preset.copy_unit == "layer":
            both = np.maximum(gpu, landed) + fetched * each + group
        else:
            both = np.maximum(gpu + fetched * each, landed + each) + group
        gpu = np.where(fetched > 0, both, gpu)

        own = missed - fetched
        cpu_each = self._cpu_ns(layer)
        dispatch = self.host.dispatch_ns + self.preset.cpu_layer_ns
        dispatch += card.sync_ns if self.preset.syncs == "cpu" else 0
        cpu = np.where(own > 0, dispatch + own * cpu_each, 0.0)
        cpu = np.where((own > 0) & (share_disk > 0), np.maximum(cpu, disk + cpu_each), cpu)
        return np.maximum(gpu, cpu) if self.preset.overlap else gpu + cpu

    def _fetched(self, card: Card, missed: Floats) -> Floats:
        """Misses of each event that go over the card's link (as the engine counts them)."""
        if self.miss == "cpu":
            return np.zeros_like(missed)
        if self.miss in ("fetch", "stream"):
            return missed
        most = int(missed.max(initial=0))
        table = np.asarray(
            [self.preset.fetched(n, card.h2d_mb_per_s, round(self.cpu_mb_per_s)) for n in range(most + 1)]
        )
        fetched = table[missed.astype(np.int64)].astype(np.float64)
        return np.floor(fetched * self.pinned) if self.preset.pcie_pinned_only else fetched

    def _rows_each(self, layer: int) -> float:
        return self.curve.rows * self.geometry.top_k / float(self.curve.sizes[layer].mean())

    def _gpu_ns(self, card: Card, layer: int) -> float:
        flop = 2 * self.geometry.expert_params * self._rows_each(layer) / card.flop_per_ns
        return max(self.geometry.expert_bytes[layer] * 1000 / card.expert_mb_per_s, flop)

    def _cpu_ns(self, layer: int) -> float:
        read = self.geometry.expert_bytes[layer] * 1000 / self.cpu_mb_per_s
        if not self.host.cpu_flop_per_ns:
            return read
        return max(read, 2 * self.geometry.expert_params * self._rows_each(layer) / self.host.cpu_flop_per_ns)
