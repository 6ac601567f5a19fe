"""A machine of one or several cards: profiles put together, and which card runs which layer.

The host side (CPU, DRAM, RAM, disk) is the first card's profile; the others give their card and link only.
"""

from __future__ import annotations

from dataclasses import dataclass

from expert_residency.errors import SimError
from expert_residency.hwmodels.profile import HardwareProfile


@dataclass(frozen=True)
class Machine:
    """Cards in pipeline order.

    Parameters
    ----------
    cards
        One profile a card; `cards[0]` also gives the host.
    layer_card
        For each MoE layer (by index) the card that runs it: contiguous stages, ascending.
    p2p
        Whether a stage hands over peer to peer, or through mapped host memory.

    Raises
    ------
    SimError
        Stages that are not contiguous or name a card that is not there.
    """

    cards: tuple[HardwareProfile, ...]
    layer_card: tuple[int, ...]
    p2p: bool = False

    def __post_init__(self) -> None:
        if not self.cards:
            raise SimError("a machine needs at least one card")
        if list(self.layer_card) != sorted(self.layer_card) or not self.layer_card:
            raise SimError("layers must be split over the cards in contiguous stages")
        if self.layer_card[0] < 0 or self.layer_card[-1] >= len(self.cards):
            raise SimError(f"a layer is placed on card {self.layer_card[-1]} of {len(self.cards)}")

    @classmethod
    def single(cls, profile: HardwareProfile, n_layers: int) -> Machine:
        """Every layer on one card."""
        return cls((profile,), (0,) * n_layers)

    @classmethod
    def split(
        cls, profiles: tuple[HardwareProfile, ...], layers_each: tuple[int, ...], *, p2p: bool = False
    ) -> Machine:
        """`layers_each[c]` layers on card c, in order.

        Parameters
        ----------
        profiles
            One a card; the first one's host serves all.
        layers_each
            MoE layers of each card.
        p2p
            Whether cards hand over peer to peer.

        Returns
        -------
        Machine
            The machine.

        Raises
        ------
        SimError
            Other numbers of cards and stages.
        """
        if len(layers_each) != len(profiles):
            raise SimError(f"{len(layers_each)} stage sizes for {len(profiles)} cards")
        return cls(profiles, tuple(card for card, n in enumerate(layers_each) for _ in range(n)), p2p)

    @property
    def host(self) -> HardwareProfile:
        """Profile whose CPU, DRAM, RAM and disk the cards share."""
        return self.cards[0]

    @property
    def label(self) -> str:
        """`name` or `name+name`."""
        return "+".join(card.name for card in self.cards)
