"""Cache capacity: one language for every entrance, and the checked value that it becomes.

`4000MiB`, `4GB`
    Bytes, with a unit.
`25%`
    Of the bytes of all experts; on several cards, of each card's own layers.
`32/layer`
    Whole experts of every layer.
`auto`, `auto:context=65536,kv=int8,draft=false`
    What a card's VRAM leaves beside dense weights, context and the engine's reserve (`sim.choices.vram`);
    `auto:percent=25` is a quarter of that.
`16GiB+16GiB`, or a list where the format has lists
    One size, or one share, a card.

`global` is one pool a card, `layer` an equal quota for every layer (none more than all its experts, while another
lacks some), `layer:PLACEMENT` quotas by a ranking.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from expert_residency.errors import SimError
from expert_residency.hwmodels.units import parse_size
from expert_residency.text import check_known, parse_call

if TYPE_CHECKING:
    from expert_residency.traces import ModelGeometry

MOST_SLOTS = 1 << 20
WAYS = (
    "4000MiB, 25% (of all experts), 32/layer (whole experts of every layer), auto (what VRAM leaves) or "
    "16GiB+16GiB (one size a card)"
)
NO_MACHINE = (
    "capacity auto is what the VRAM of a machine leaves, and no machine is named here: give bytes (4000MiB), a "
    "share (25%) or slots (32/layer)"
)
_PLUS = re.compile(r"(?<![eE])\+")
_SLOTS = re.compile(r"(\d+(?:_\d+)*)\s*/\s*layer")


@dataclass(frozen=True)
class Auto:
    """What `auto` counts beside experts and dense weights.

    Parameters
    ----------
    context
        Tokens that the context can hold.
    kv
        Storage of a KV cell; empty: as the run has it.
    kv_resident
        Cells a layer kept on the card, the rest streamed; 0 keeps all.
    draft
        With the draft layer, its head and its KV, where the model has one.
    session
        Bytes of the context on each card, for models whose context is not known.
    reserve
        Bytes kept free, instead of the profile's reserve.
    percent
        Of what is left, for experts.
    """

    context: int = 4096
    kv: str = ""
    kv_resident: int = 0
    draft: bool = True
    session: int | None = None
    reserve: int | None = None
    percent: int = 100

    @classmethod
    def of(cls, words: str | Mapping[str, Any]) -> Auto:
        """From words, `auto:context=65536,kv=int8`, or from a table of the parameters.

        Raises
        ------
        SimError
            An unknown parameter, or a value of the wrong kind.
        """
        if isinstance(words, str):
            words = {key: _plain(value) for key, value in parse_call(words, "capacity")[1].items()}
        known: dict[str, Any] = {field.name: field.default for field in fields(cls)}
        chosen: dict[str, Any] = {}
        for key, value in words.items():
            check_known("capacity auto: parameter", key, known)
            default = known[key]
            if default is None:
                chosen[key] = parse_size(value)
            elif type(value) is type(default) and (isinstance(value, str) or value >= 0):
                chosen[key] = value
            else:
                wanted = {int: "a whole number", bool: "true or false", str: "a name"}[type(default)]
                raise SimError(f"capacity auto: {key} is {value!r}, expected {wanted}")
        if not 1 <= chosen.get("percent", 100) <= 100:
            raise SimError(f"capacity auto: percent is {chosen['percent']}, expected 1 to 100")
        return cls(**chosen)


def _plain(text: str) -> Any:
    """A parameter in words as TOML would have it."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"\d+(?:_\d+)*", text) else text


@dataclass(frozen=True)
class Capacity:
    """Cache capacity: bytes or slots, in one of these ways; `Capacity.of` reads it in words.

    Parameters
    ----------
    total_bytes
        Bytes of the one card.
    slots_per_layer
        Whole experts of every layer, whatever card it is on.
    scope
        `global` (one pool a card) or `layer` (every layer has a quota of its own).
    card_bytes
        Bytes of each card, on a machine of several.
    layer_bytes
        Bytes of each layer, for scope `layer`.
    quotas
        Under scope `layer`, how a card's bytes are shared out: `equal`, or a placement (`hindsight`, `prompt`,
        `profile:file=PATH`) whose ranking says how much each layer deserves (`sim.residency.quotas`).
    share
        Share of the bytes of all experts, 0 to 1: one for every card, or one a card, of its own layers.
    auto
        What VRAM leaves beside this.
    assumes
        What bytes that were worked out stand on, in a sentence.
    """

    total_bytes: int | None = None
    slots_per_layer: int | None = None
    scope: str = "global"
    card_bytes: tuple[int, ...] | None = None
    layer_bytes: tuple[int, ...] | None = None
    quotas: str = "equal"
    share: tuple[float, ...] | None = None
    auto: Auto | None = None
    assumes: str = ""

    def __post_init__(self) -> None:
        ways = (
            self.total_bytes, self.slots_per_layer, self.card_bytes, self.layer_bytes, self.share, self.auto
        )  # fmt: skip
        given = [x for x in ways if x is not None]
        if len(given) != 1:
            raise SimError(f"{'no capacity' if not given else 'more than one capacity'} given: give one of {WAYS}")
        if self.scope not in ("global", "layer"):
            raise SimError(f"unknown scope {self.scope!r} (known: global, layer, layer:PLACEMENT)")
        if self.scope != "layer" and (self.layer_bytes is not None or self.quotas != "equal"):
            raise SimError("quotas of layers need scope layer")
        if self.quotas != "equal" and self.slots_per_layer is not None:
            raise SimError("slots of each layer are given: there is nothing to share out by quotas")
        if self.share is not None or self.auto is not None:
            return
        sizes: tuple[Any, ...] = given[0] if isinstance(given[0], tuple) else (given[0],)
        if not all(type(size) is int for size in sizes):
            raise SimError(f"a capacity of {given[0]!r}: expected whole numbers")
        if not sizes:
            raise SimError("a list of capacities holds none")
        if min(sizes) < 0:
            raise SimError("a capacity cannot be negative")
        if (self.slots_per_layer or 0) > MOST_SLOTS:
            raise SimError(f"{self.slots_per_layer} slots a layer: no layer has more than {MOST_SLOTS:,} experts")

    @classmethod
    def of(cls, words: Capacity | str | Sequence[str], scope: str | None = None) -> Capacity:
        """A capacity in words, as every entrance takes it.

        Parameters
        ----------
        words
            `4000MiB`, `25%`, `32/layer`, `auto`, `16GiB+16GiB`, or a list with one size or share a card.
        scope
            `global`, `layer` or `layer:PLACEMENT`; that of `words`, or `global`, by default.

        Raises
        ------
        SimError, HardwareError
            What cannot be read, saying how a capacity is written.
        """
        made = words if isinstance(words, Capacity) else _read(words)
        if scope is None:
            return made
        if not isinstance(scope, str):
            raise SimError(f"scope is {scope!r}, expected global, layer or layer:PLACEMENT")
        name, _, quotas = scope.partition(":")
        return replace(made, scope=name, quotas=quotas or "equal")

    @property
    def scope_words(self) -> str:
        """Scope as it is written: `layer:prompt` where quotas are not equal."""
        return self.scope if self.quotas == "equal" else f"{self.scope}:{self.quotas}"

    def to_dict(self) -> dict[str, Any]:
        """Plain form; what bytes stand on only where they were worked out."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}
        plain["auto"] = None if self.auto is None else vars(self.auto)
        return {k: v for k, v in plain.items() if v or k not in ("share", "auto", "assumes")}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Capacity:
        """What `to_dict` wrote."""
        data: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
        if data.get("auto") is not None:
            data["auto"] = Auto(**data["auto"])
        return cls(**data)

    def settled(self, geometry: ModelGeometry, layers_each: Sequence[int] | None = None) -> Capacity:
        """The same with a share as bytes of each card; unchanged where bytes or slots are given already.

        Parameters
        ----------
        geometry
            Whose experts.
        layers_each
            MoE layers of each card; all on one by default.

        Raises
        ------
        SimError
            Shares of more or fewer cards, or `auto`, which needs a machine.
        """
        if self.auto is not None:
            raise SimError(NO_MACHINE)
        if self.share is None:
            return self
        each = layers_each or (geometry.n_layers,)
        shares = self.share * (len(each) if len(self.share) == 1 else 1)
        if len(shares) != len(each):
            raise SimError(f"capacities of {len(shares)} card(s) given for {len(each)}")
        firsts = [sum(each[:card]) for card in range(len(each))]
        whole = [
            geometry.experts * sum(geometry.expert_bytes[a : a + n]) for a, n in zip(firsts, each, strict=True)
        ]
        return self.in_bytes([int(share * nbytes) for share, nbytes in zip(shares, whole, strict=True)])

    def of_one_cache(self, geometry: ModelGeometry) -> Capacity:
        """Settled for a cache of no particular machine: what a replay counts.

        Raises
        ------
        SimError
            `auto`, or sizes of several cards.
        """
        made = self.settled(geometry)
        if len(made.card_bytes or ()) > 1:
            raise SimError(f"capacities of {len(made.card_bytes or ())} card(s) given for 1")
        return made

    def in_bytes(self, room: Sequence[int], assumes: str = "") -> Capacity:
        """The same scope with bytes of each card."""
        one = room[0] if len(room) == 1 else None
        return replace(
            self, share=None, auto=None, total_bytes=one, card_bytes=None if one is not None else tuple(room),
            assumes=assumes,
        )  # fmt: skip

    def per_scope(self, geometry: ModelGeometry, layer_card: Sequence[int]) -> list[int]:
        """Bytes of each scope: of each card, or of each layer.

        Raises
        ------
        SimError
            If cards or layers do not match, or quotas are still a name.
        """
        cards = layer_card[-1] + 1
        if self.share is not None or self.auto is not None:
            each = [layer_card.count(card) for card in range(cards)]
            return self.settled(geometry, each).per_scope(geometry, layer_card)
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
            whole = [geometry.experts * size for size in geometry.expert_bytes]
            layers = [0] * len(whole)
            for card in range(cards):
                own = [layer for layer, c in enumerate(layer_card) if c == card]
                for layer, share in zip(own, equal_shares(room[card], [whole[i] for i in own]), strict=True):
                    layers[layer] = share
        return layers if self.scope == "layer" else room[:cards]


def equal_shares(room: int, most: Sequence[int]) -> list[int]:
    """Room shared out equally, to none more than it can use while another lacks some.

    Parameters
    ----------
    room
        Bytes.
    most
        (layers,) bytes that each can use; what is beyond all of them is shared out equally too.
    """
    if (beyond := room - sum(most)) >= 0:
        return [one + beyond // len(most) for one in most]
    left, shares = list(range(len(most))), list(most)
    while small := [i for i in left if most[i] < room // len(left)]:
        room -= sum(most[i] for i in small)
        left = [i for i in left if i not in small]
    for i in left:
        shares[i] = room // len(left)
    return shares


def _read(words: str | Sequence[str]) -> Capacity:
    several = _PLUS.split(words) if isinstance(words, str) else words
    parts: list[Any] = list(several) if isinstance(several, list | tuple) else [several]
    parts = [part.strip() if isinstance(part, str) else part for part in parts]
    if len(parts) == 1 and isinstance(parts[0], str):
        if parts[0].partition(":")[0] == "auto":
            return Capacity(auto=Auto.of(parts[0]))
        if slots := _SLOTS.fullmatch(parts[0]):
            return Capacity(slots_per_layer=int(slots[1]))
    shares = [isinstance(part, str) and part.endswith("%") for part in parts]
    if parts and all(shares):
        return Capacity(share=tuple(map(_share, parts)))
    if any(shares) or any(str(part).partition(":")[0] == "auto" or "/" in str(part) for part in parts):
        raise SimError(f"cannot read the capacity {words!r}; write {WAYS}")
    sizes = [parse_size(part) for part in parts]
    return Capacity(total_bytes=sizes[0]) if len(sizes) == 1 else Capacity(card_bytes=tuple(sizes))


def _share(text: str) -> float:
    try:
        share = float(text[:-1]) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise SimError(f"capacity {text!r}: expected a share from 0% to 100%")
    return share
