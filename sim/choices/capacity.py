"""How much room for experts: every way to say it, as one checked value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from expert_residency.errors import SimError
from expert_residency.traces import ModelGeometry

MOST_SLOTS = 1 << 20


@dataclass(frozen=True)
class Capacity:
    """Room for experts.

    Parameters
    ----------
    total_bytes
        Bytes of the one card.
    card_bytes
        Bytes of each card, on a machine of several.
    slots_per_layer
        Whole experts of every layer, whatever card it is on.
    layer_bytes
        Bytes of each layer, for scope `layer`.
    scope
        `global` (one pool a card) or `layer` (every layer has a quota of its own).
    quotas
        Under scope `layer`, how a card's bytes are shared out: `equal`, or a placement (`hindsight`, `prompt`,
        `profile:file=PATH`) whose ranking says how much each layer deserves (`sim.residency.quotas`).
    """

    total_bytes: int | None = None
    slots_per_layer: int | None = None
    scope: str = "global"
    card_bytes: tuple[int, ...] | None = None
    layer_bytes: tuple[int, ...] | None = None
    quotas: str = "equal"

    def __post_init__(self) -> None:
        ways = (self.total_bytes, self.slots_per_layer, self.card_bytes, self.layer_bytes)
        given = [x for x in ways if x is not None]
        if len(given) != 1:
            raise SimError(
                "give a capacity either in bytes (--capacity 4000MiB) or in slots (--slots-per-layer 32)"
            )
        if self.scope not in ("global", "layer"):
            raise SimError(f"unknown scope {self.scope!r} (known: global, layer)")
        if self.scope != "layer" and (self.layer_bytes is not None or self.quotas != "equal"):
            raise SimError("quotas of layers need --scope layer")
        if self.quotas != "equal" and self.slots_per_layer is not None:
            raise SimError("slots of each layer are given: there is nothing to share out by quotas")
        sizes = given[0] if isinstance(given[0], tuple) else (given[0],)
        if not all(type(size) is int for size in sizes):
            raise SimError(f"a capacity of {given[0]!r}: expected whole numbers")
        if not sizes:
            raise SimError("a list of capacities holds none")
        if min(sizes) < 0:
            raise SimError("a capacity cannot be negative")
        if (self.slots_per_layer or 0) > MOST_SLOTS:
            raise SimError(f"{self.slots_per_layer} slots a layer: no layer has more than {MOST_SLOTS:,} experts")

    def per_scope(self, geometry: ModelGeometry, layer_card: Sequence[int]) -> list[int]:
        """Bytes of each scope: of each card, or of each layer.

        Raises
        ------
        SimError
            If cards or layers do not match, or quotas are still a name.
        """
        cards = layer_card[-1] + 1
        if self.layer_bytes is not None:
            if len(self.layer_bytes) != geometry.n_layers:
                raise SimError(f"quotas of {len(self.layer_bytes)} layer(s) given for {geometry.n_layers}")
            return list(self.layer_bytes)
        if self.quotas != "equal":
            raise SimError(f"quotas by {self.quotas} are not worked out yet (sim.residency.quotas.share_out)")
        if self.slots_per_layer is not None:
            layers = [self.slots_per_layer * size for size in geometry.expert_bytes]
            room = [
                sum(size for size, c in zip(layers, layer_card, strict=True) if c == card) for card in range(cards)
            ]
        else:
            room = [self.total_bytes] if self.total_bytes is not None else list(self.card_bytes or ())
            if len(room) < cards:
                raise SimError(f"capacities of {len(room)} card(s) given for {cards}")
            layers = [room[card] // layer_card.count(card) for card in layer_card]
        return layers if self.scope == "layer" else room[:cards]


def check_capacity(capacity: object) -> None:
    """Refuse what is no `Capacity`, as a size in words is not.

    Raises
    ------
    SimError
        Saying how a capacity is made.
    """
    if not isinstance(capacity, Capacity):
        raise SimError(f"{capacity!r} is no capacity: expected Capacity(total_bytes=...) or (slots_per_layer=...)")
