"""Times of compute on a machine for one model, in integer ns, tabled once a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from expert_residency.hwmodels.profile import ExpertSource
from expert_residency.hwmodels.units import ns_for_bytes
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.timed import rules
from expert_residency.sim.timed.host import SOURCES
from expert_residency.sim.timed.host.weights import IN_MEMORY, MappedWeights
from expert_residency.sim.timed.machine import Machine
from expert_residency.traces import ModelGeometry


def first_ns(geometry: ModelGeometry, launches_ns: int, read_ns: int) -> int:
    """Layers without experts, before the first that has them.

    Parameters
    ----------
    geometry
        The model.
    launches_ns
        Launches of one layer.
    read_ns
        Reading their weights.

    Returns
    -------
    int
        Ns.
    """
    without = max(0, geometry.total_layers - geometry.n_layers)
    if without >= geometry.n_layers:  # blocks are a mixer or experts: those beside experts are counted with them
        without -= geometry.n_layers
    return without * launches_ns + read_ns


@dataclass(frozen=True)
class Costs:
    """Tables over layers (L) and cards (C).

    Parameters
    ----------
    dense_ns : (L,)
        Mixer and dense part of one row, launches included.
    dense_flop : (L,)
        Operations of one row of it, 0 if the model's weights are not counted.
    flop_per_ns, expert_mb_per_s, expert_launch_ns, sync_ns : (C,)
        Of each card.
    points : (C + 1,)
        First of each card's measured groups of experts in the next two; a card may have none.
    point_bytes, point_ns : (points,)
        Bytes of each group, ascending within a card, and its time.
    expert_flop
        Operations of one row through one expert, 0 if unknown.
    cpu_ns : (sources, L), cpu_mb_per_s : (sources,)
        One expert on the CPU pool by source.
    cpu_flop_per_ns
        Of the pool, from its data sheet where the profile gives none.
    head_ns, first_ns
        After the last layer; layers without experts before the first.
    """

    dense_ns: list[int]
    dense_flop: list[int]
    flop_per_ns: list[int]
    expert_mb_per_s: list[int]
    expert_launch_ns: list[int]
    points: list[int]
    point_bytes: list[int]
    point_ns: list[int]
    sync_ns: list[int]
    expert_flop: int
    cpu_ns: list[list[int]]
    cpu_mb_per_s: list[int]
    cpu_flop_per_ns: int
    dispatch_ns: int
    head_ns: int
    first_ns: int
    row_bytes: int
    machine: Machine

    @classmethod
    def of(
        cls,
        geometry: ModelGeometry,
        machine: Machine,
        preset: EnginePreset,
        cpu_sources: Sequence[ExpertSource] = SOURCES,
        weights: MappedWeights = IN_MEMORY,
    ) -> Costs:
        """Tables for one model on one machine under one engine; the pool reads by `cpu_sources` of the profile.

        Parameters
        ----------
        geometry
            The model.
        machine
            The cards, and which has which layer.
        preset
            The engine's fixed times.
        cpu_sources
            Memory that each source of the host plan is priced as.
        weights
            What of the weights beside experts is read from the drive in every pass, at the rate of its read-ahead.

        Returns
        -------
        Costs
            Tables in ns, bytes and MB/s.
        """
        family = geometry.quant_family
        cards = machine.cards
        dense_rate = [
            card.link.h2d_mb_per_s if preset.streams_dense else card.gpu.dense_gb_per_s.mb_per_s(family)
            for card in cards
        ]
        launch = [card.gpu.launch_ns for card in cards]
        beside = [preset.dense_launch_ns(card.gpu.launch_ns, card.gpu.kernel_ns) for card in cards]
        bits = 8 * geometry.expert_bytes[0] / geometry.expert_params if geometry.expert_params else 0.0
        cpu = machine.host.cpu
        rates = [cpu.expert_mb_per_s(source, family) for source in cpu_sources]
        if preset.cpu_core_gb_per_s is not None:
            most = round(cpu.most_gb_per_s(preset.cpu_core_gb_per_s.value) * 1000)
            rates = [min(rate, most) for rate in rates]
        last = machine.layer_card[-1]
        again = machine.host.disk.read_ahead_mb_per_s

        def read(nbytes: int, card: int) -> int:
            missing = weights.missing_of(nbytes)
            return ns_for_bytes(nbytes, dense_rate[card]) + (ns_for_bytes(missing, again) if missing else 0)

        groups = [card.gpu.group_points for card in cards]
        sync = [card.gpu.sync_ns for card in cards]
        seldom = preset.syncs == "cpu"  # the ids go to the host only where it computes
        return cls(
            dense_ns=[
                beside[card] + read(nbytes, card)
                for nbytes, card in zip(geometry.dense_bytes, machine.layer_card, strict=True)
            ],
            dense_flop=[int(2 * 8 * nbytes / bits) if bits else 0 for nbytes in geometry.dense_bytes],
            flop_per_ns=[card.gpu.compute_flop_per_ns for card in cards],
            expert_mb_per_s=[card.gpu.expert_gb_per_s.mb_per_s(family) for card in cards],
            expert_launch_ns=[round(preset.expert_launches.value * ns) for ns in launch],
            points=[0, *accumulate(map(len, groups))],
            point_bytes=[nbytes for points in groups for nbytes, _ in points],
            point_ns=[ns for points in groups for _, ns in points],
            sync_ns=[0] * len(cards) if seldom else sync,
            expert_flop=2 * geometry.expert_params,
            cpu_ns=[[ns_for_bytes(nbytes, rate) for nbytes in geometry.expert_bytes] for rate in rates],
            cpu_mb_per_s=rates,
            cpu_flop_per_ns=round(cpu.arithmetic.value),
            dispatch_ns=cpu.dispatch_ns + preset.cpu_layer_ns + (max(sync) if seldom else 0),
            head_ns=read(geometry.head_bytes, last) if geometry.head_bytes else 0,
            first_ns=first_ns(
                geometry, beside[0], read(geometry.dense_only_bytes, 0) if geometry.dense_only_bytes else 0
            ),
            row_bytes=geometry.token_handoff_bytes,
            machine=machine,
        )

    def dense(self, layer: int, card: int, rows: int) -> int:
        """Dense part of a layer: bytes or, with many rows, arithmetic.

        Parameters
        ----------
        layer
            MoE layer, from 0.
        card
            The card that has it.
        rows
            Rows of the event.

        Returns
        -------
        int
            Ns.
        """
        return rules.dense_ns(self.dense_ns[layer], rows, self.dense_flop[layer], self.flop_per_ns[card])

    def experts(self, card: int, nbytes: int, rows: int) -> int:
        """One group of experts on a card: launches and the larger of bytes and arithmetic, or as measured.

        Parameters
        ----------
        card
            The card.
        nbytes
            Bytes of the group.
        rows
            (token, expert) pairs that it serves.

        Returns
        -------
        int
            Ns.
        """
        rate, first, end = self.expert_mb_per_s[card], self.points[card], self.points[card + 1]
        return rules.group_ns(
            nbytes, rows, self.expert_launch_ns[card], rate, self.expert_flop, self.flop_per_ns[card],
            rules.measured_ns(nbytes, self.point_bytes, self.point_ns, first, end, rate),
        )  # fmt: skip

    def cpu(self, source: int, layer: int, rows: int) -> int:
        """One expert on the CPU pool.

        Parameters
        ----------
        source
            Memory that the expert lies in.
        layer
            MoE layer, from 0.
        rows
            Rows that want it.

        Returns
        -------
        int
            Ns.
        """
        return rules.pool_ns(self.cpu_ns[source][layer], rows, self.expert_flop, self.cpu_flop_per_ns)

    def handoff(self, card: int, rows: int) -> int:
        """Rows from `card - 1` to `card`, at the slower of the two links.

        Raises
        ------
        HardwareError
            Peer to peer, and a profile has no figure for it.
        """
        nbytes, p2p = rows * self.row_bytes, self.machine.p2p
        links = [self.machine.cards[number].link for number in (card - 1, card)]
        figures = [(x.p2p_ns, x.p2p_mb_per_s) if p2p else (x.handoff_ns, x.handoff_mb_per_s) for x in links]
        return max(rules.handoff_ns(nbytes, fixed_ns, rate) for fixed_ns, rate in figures)
