"""What the planner is asked and what it finds: problem, stages, placement, shortfall. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from expert_residency.hwmodels.vram import VramBudget
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.split.cards import Card, HostSide
from expert_residency.sim.split.cost import Store
from expert_residency.sim.split.curve import HitCurve
from expert_residency.sim.split.memory import HEADROOM_BYTES, HostMode, Needs, RamNeed


@dataclass(frozen=True)
class Stage:
    """One card's part of a placement.

    Parameters
    ----------
    card, first, end
        The card and its layers, as indices.
    budget
        Memory beside experts, line by line.
    slots
        Experts kept of each layer.
    expert_bytes
        Bytes of them.
    ns
        Time of the stage in a mean pass.
    """

    card: Card
    first: int
    end: int
    budget: VramBudget
    slots: tuple[int, ...]
    expert_bytes: int
    ns: int


@dataclass(frozen=True)
class Placement:
    """A split that fits, with its predicted pass.

    Parameters
    ----------
    stages
        In pipeline order.
    ram
        RAM that it takes.
    handoffs_ns
        Between the stages.
    overhead_ns
        Sampling and bookkeeping at the end of a pass.
    tokens_a_pass
        Tokens that a pass emits.
    hit_rate, ram_rate
        Share of distinct look-ups found in the card's own cache, and elsewhere in memory (RAM or a store card).
    level
        Experts of every layer that are in memory; the rest is on the drive.
    """

    stages: tuple[Stage, ...]
    ram: RamNeed
    handoffs_ns: tuple[int, ...]
    overhead_ns: int
    tokens_a_pass: float
    hit_rate: float
    ram_rate: float
    level: int
    store: Store | None = None

    @property
    def pass_ns(self) -> int:
        """Time of a mean pass."""
        return sum(stage.ns for stage in self.stages) + sum(self.handoffs_ns) + self.overhead_ns

    @property
    def tokens_per_s(self) -> float:
        """Predicted decoding speed."""
        return self.tokens_a_pass * 1e9 / self.pass_ns

    @property
    def layers_each(self) -> tuple[int, ...]:
        """Layers of each stage."""
        return tuple(stage.end - stage.first for stage in self.stages)

    @property
    def slots(self) -> int:
        """Experts in VRAM."""
        return sum(sum(stage.slots) for stage in self.stages)

    @property
    def vram_expert_bytes(self) -> int:
        """Bytes of them."""
        return sum(stage.expert_bytes for stage in self.stages)


@dataclass(frozen=True)
class Shortfall:
    """Why nothing fits: the limit that is missed by least.

    Parameters
    ----------
    limit
        `VRAM` or `RAM`.
    short_bytes
        By how much.
    budget
        Of the card that is too small, for `VRAM`.
    ram
        Need of the placement that came closest, for `RAM`.
    """

    limit: str
    short_bytes: int
    budget: VramBudget | None = None
    ram: RamNeed | None = None


@dataclass(frozen=True)
class Problem:
    """What is to be placed where.

    Parameters
    ----------
    needs, cards, host
        Model and context; every card is used; what the cards share.
    curve, preset, miss, mode
        How it hits, under which engine, who serves a miss, how the host holds experts.
    headroom_bytes
        RAM kept free of experts.
    p2p
        Hand over peer to peer.
    store
        A card that only keeps experts.
    """

    needs: Needs
    cards: tuple[Card, ...]
    host: HostSide
    curve: HitCurve
    preset: EnginePreset
    miss: str = "cpu"
    mode: HostMode = "arena"
    headroom_bytes: int = HEADROOM_BYTES
    p2p: bool = False
    store: Card | None = None

    @property
    def room_bytes(self) -> int:
        """RAM that experts may take."""
        return self.host.ram_bytes - self.headroom_bytes - self.needs.streamed_kv_bytes
