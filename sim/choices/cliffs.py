"""Cliffs: sizes beyond which an engine falls off, named before the run, and how far a setting is from each.

`vram`: more experts than VRAM leaves room for over-commit the card. `floor`: a global LRU smaller than a token's
look-ups hits nothing. `memory`: where the host's memory no longer holds what is read from it, experts are read
from the drive again and again. `workers`: more workers than the memory feeds gain nothing.

`memory` begins where the *first* expert has to be read again. An engine that copies experts of a mapped file into
VRAM leaves them in the page cache too, and reads the victim there when it is wanted again: memory must hold all
experts, not those alone that no card holds. Where nothing moves, what the cards hold leaves the page cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.units import GIB
from expert_residency.hwmodels.vram import VramBudget
from expert_residency.policies import create
from expert_residency.sim.choices.prefetch_rule import parse_insertion
from expert_residency.sim.choices.preset import EnginePreset, load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.choices.vram import run_budgets
from expert_residency.sim.choices.workers import enough_workers, pool_gb_per_s, workers_set
from expert_residency.text import parse_call
from expert_residency.traces import ModelGeometry

NEAR = 0.05
"""Of the size at which a cliff begins: a setting so near to it is warned of."""
ALL_OF_IT = 0.999
"""Of what no card holds, in a budget that is rounded: nothing is then left in the file."""
GAINED = 0.01
"""What workers beyond the memory's rate must gain in all to be no waste."""


@dataclass(frozen=True)
class Cliff:
    """One of them, and where the present setting stands.

    Parameters
    ----------
    kind
        `vram`, `floor`, `memory` or `workers`.
    at, now
        Where it begins, and the present setting: bytes, or workers.
    side
        On which side of `at` it falls.
    what, then
        What is counted, and what happens beyond.
    meant
        The setting follows the edge by design, as capacity `auto` does: it is at the edge, and not warned of.
    worse
        Whether what lies beyond is worse than the edge, or at least no better.
    """

    kind: Literal["vram", "floor", "memory", "workers"]
    at: float
    now: float
    side: Literal["above", "below"]
    what: str
    then: str
    meant: bool = False
    worse: bool = True

    @property
    def left(self) -> float:
        """How far the setting is from the edge; negative beyond it."""
        return self.at - self.now if self.side == "above" else self.now - self.at

    @property
    def past(self) -> bool:
        """Whether the setting lies beyond the edge."""
        return self.left < 0

    @property
    def warned(self) -> bool:
        """Whether to warn: beyond the edge or near it; of workers only beyond, for at it they still pay."""
        if self.meant or not self.worse:
            return False
        return self.past if self.kind == "workers" else self.left <= NEAR * self.at

    def _size(self, value: float) -> str:
        return f"{value:.0f}" if self.kind == "workers" else f"{value / GIB:.2f} GiB"

    @property
    def short(self) -> str:
        """Size and setting in a few words."""
        return f"{self.what} {self.side} {self._size(self.at)} ({self._size(self.now)} now)"

    @property
    def text(self) -> str:
        """A sentence."""
        far = f"{self._size(abs(self.left))} {'beyond' if self.past else 'from'} the edge"
        where = "at the edge" if not self.left else far
        edge = f"{self.what} {self.side} {self._size(self.at)}"
        return f"cliff, {edge} {self.then}: {self._size(self.now)} now, {where}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "kind": self.kind, "at": self.at, "now": self.now, "side": self.side, "left": self.left,
            "past": self.past, "warned": self.warned, "text": self.text,
        }  # fmt: skip


@dataclass(frozen=True)
class Standing:
    """A setting, as far as cliffs are concerned.

    Parameters
    ----------
    geometry, profiles, preset
        Model, machine (the first profile has the host) and engine.
    layers_each
        MoE layers of each card.
    cache_bytes, room_bytes
        Experts that the setting gives each card, and the most that it has room for; no `room_bytes` where the
        engine places whole layers.
    beside
        What the room is beside, in words.
    host, miss
        How the host holds the experts, and who serves a miss.
    moves
        Whether experts come and go; else what lies on a card stays there.
    lru
        Whether a global LRU admits every miss.
    empty
        Whether the cards begin empty: what no card holds is then everything.
    meant
        Whether the cache follows the room by itself.
    ram_bytes, kept_bytes
        Memory of the host, and what of it is not for experts: the profile's by default.
    """

    geometry: ModelGeometry
    profiles: tuple[HardwareProfile, ...]
    preset: EnginePreset
    layers_each: tuple[int, ...]
    cache_bytes: tuple[int, ...]
    room_bytes: tuple[int, ...] = ()
    beside: str = ""
    host: str = "arena"
    miss: str = "cpu"
    moves: bool = True
    lru: bool = False
    empty: bool = False
    meant: bool = False
    ram_bytes: int | None = None
    kept_bytes: int | None = None

    @property
    def held_bytes(self) -> int:
        """Experts on cards."""
        geometry, held, first = self.geometry, 0, 0
        for nbytes, n in zip(self.cache_bytes, self.layers_each, strict=True):
            held += min(nbytes, geometry.experts * sum(geometry.expert_bytes[first : first + n]))
            first += n
        return held


def cliffs(standing: Standing) -> list[Cliff]:
    """Cliffs that a setting can fall off, near or far."""
    return [*_vram(standing), *_floor(standing), *_memory(standing), *_workers(standing)]


def standing_of(
    spec: RunSpec, geometry: ModelGeometry, *, tokens: int = 1, profiles: Sequence[HardwareProfile] | None = None,
    preset: EnginePreset | None = None,
) -> Standing | None:  # fmt: skip
    """Where a run stands, before it is run.

    Parameters
    ----------
    spec
        Its choices.
    geometry
        The model.
    tokens
        Longest context that the trace reaches.
    profiles, preset
        Machine and engine instead of those that `spec` names.

    Returns
    -------
    Standing | None
        None of layers that do not add up; the run says why.

    Raises
    ------
    SimError, HardwareError
        A card or engine that is not known.
    """
    from expert_residency.hwmodels.registry import load_profile

    cards = tuple(profiles or map(load_profile, spec.hardware))
    spec = spec.settled(geometry, cards)
    capacity, preset = spec.capacity, preset or load_engine(spec.engine)
    each = spec.layers_each or (geometry.n_layers,) + (0,) * (len(cards) - 1)
    if sum(each) != geometry.n_layers or len(each) != len(cards) or min(each) < 0:
        return None
    layer_card = [card for card, n in enumerate(each) for _ in range(n)]
    cache = _cache_bytes(spec, geometry, each)
    worked_out = bool(capacity.assumes)
    budgets = run_budgets(
        geometry, cards, layer_card, tokens=tokens, kv_type=spec.kv_type, divided=preset.places == "layers",
        worked_out=worked_out,
    )  # fmt: skip
    room = tuple(
        nbytes if worked_out or card not in budgets else budgets[card].cache_bytes
        for card, nbytes in enumerate(cache)
    )
    begins = spec.placement or create("eviction", spec.eviction).default_placement
    return Standing(
        geometry, cards, preset, each, cache, room,
        "what capacity auto counts" if worked_out else _beside(budgets, tokens, spec.kv_type),
        host=spec.host, miss=spec.miss or preset.miss, empty=begins == "none",
        moves=spec.eviction != "static" and (spec.admission != "never" or spec.prefetch != "none"),
        lru=_lru(spec), meant=worked_out,
    )  # fmt: skip


def _lru(spec: RunSpec) -> bool:
    plain = (spec.eviction, spec.admission, spec.prefetch) == ("lru", "always", "none")
    return plain and spec.capacity.scope == "global"


def _cache_bytes(spec: RunSpec, geometry: ModelGeometry, each: Sequence[int]) -> tuple[int, ...]:
    """Bytes that experts take on each card, buffers of a staging ring included."""
    capacity, found, first = spec.capacity, [], 0
    ring = parse_insertion(spec.insertion).staging_slots
    given = capacity.card_bytes or (None if capacity.total_bytes is None else (capacity.total_bytes,))
    for card, n in enumerate(each):
        sizes, layers = geometry.expert_bytes[first : first + n], slice(first, first + n)
        if given is not None:
            nbytes = given[card] if card < len(given) else 0
        elif capacity.layer_bytes is not None:
            nbytes = sum(capacity.layer_bytes[layers])
        else:
            nbytes = (capacity.slots_per_layer or 0) * sum(sizes)
        found.append(nbytes + ring * max(sizes, default=0) if n else 0)
        first += n
    return tuple(found)


def _beside(budgets: dict[int, VramBudget], tokens: int, kv_type: str) -> str:
    context = any("KV" in line.name for budget in budgets.values() for line in budget.lines)
    said = f", a context of {tokens:,} tokens ({kv_type} KV)" if context else ""
    return f"dense weights{said} and the reserve"


def _vram(standing: Standing) -> Iterator[Cliff]:
    """Of the card that is nearest to it, where a card cannot hold all experts of its layers."""
    geometry, found, first = standing.geometry, list[Cliff](), 0
    for profile, room, now, n in zip(
        standing.profiles, standing.room_bytes, standing.cache_bytes, standing.layers_each, strict=False
    ):
        whole = geometry.experts * sum(geometry.expert_bytes[first : first + n])
        first += n
        if not n or room >= whole or _one_page_cache(standing):
            continue
        where = f" on {profile.name}" if len(standing.profiles) > 1 else ""
        apart = profile.has_card and not profile.one_memory
        what = f"experts in VRAM{where}" if apart else "experts"
        then = "over-commit the card" if apart else "push dense weights out of memory"
        found.append(
            Cliff("vram", room, now, "above", what, f"{then} beside {standing.beside}", meant=standing.meant)
        )
    yield from sorted(found, key=lambda cliff: cliff.left)[:1]


def _floor(standing: Standing) -> Iterator[Cliff]:
    """Of the card that is nearest to it."""
    geometry, found, first = standing.geometry, list[Cliff](), 0
    for now, n in zip(standing.cache_bytes, standing.layers_each, strict=True):
        sizes = geometry.expert_bytes[first : first + n]
        first += n
        if not standing.lru or not n:
            continue
        floor = geometry.top_k * sum(sizes) - (geometry.top_k - 1) * max(sizes)
        if floor < geometry.experts * sum(sizes):
            then = "hits nothing under a global LRU while tokens come one by one"
            found.append(Cliff("floor", floor, now, "below", "an expert cache", then))
    yield from sorted(found, key=lambda cliff: cliff.left / cliff.at)[:1]


def _memory(standing: Standing) -> Iterator[Cliff]:
    geometry, host = standing.geometry, standing.profiles[0]
    mode, words = parse_call(standing.host, "host")
    if _one_page_cache(standing):
        now, whole = host.gpu.vram_total_bytes, _in_pages(geometry, host)
        beside = now - standing.room_bytes[0]
        then = (
            f"does not hold {whole / GIB:.2f} GiB of experts beside {standing.beside} and the system: "
            "they are read from the drive again"
        )
        yield Cliff("memory", whole + beside, now, "below", "memory", then)
        return
    if mode == "flash" or host.one_memory or not host.has_card:
        return  # the drive serves every miss, or the cache itself is the memory
    rest = geometry.all_expert_bytes - standing.held_bytes
    budget = round(float(words.get("gib", 0)) * GIB) if mode == "budget" else 0
    locked = mode == "budget" and budget >= ALL_OF_IT * rest
    copied = mode == "arena" or (standing.empty if mode == "resident" else standing.moves and not locked)
    whole = _in_pages(geometry, host) if mode not in ("arena", "resident") else geometry.all_expert_bytes
    if not copied and standing.held_bytes >= geometry.all_expert_bytes:
        return
    need = whole + budget if copied else whole - standing.held_bytes
    now = host.ram.total_bytes if standing.ram_bytes is None else standing.ram_bytes
    kept = host.ram.os_reserve_bytes if standing.kept_bytes is None else standing.kept_bytes
    twice = ", locked ones twice" if copied and budget else ""
    what = f"{need / GIB:.2f} GiB of experts" + (twice if copied else " that no card holds")
    then = (
        "the engine's copy of them does not fit" if mode in ("arena", "resident")
        else "they, and what else is mapped, are read from the drive again"
    )  # fmt: skip
    then = f"does not hold {what} beside the {kept / GIB:.1f} GiB kept free: {then}"
    yield Cliff("memory", need + kept, now, "below", "memory", then)


def _one_page_cache(standing: Standing) -> bool:
    """Whether nothing is placed: a processor alone maps the file, and memory keeps what was used last."""
    return standing.host == "mmap" and not standing.moves and not standing.profiles[0].has_card


def _in_pages(geometry: ModelGeometry, host: HardwareProfile) -> int:
    """Bytes of all experts in the page cache."""
    page = host.disk.page_bytes.count
    return geometry.experts * sum(-(-size // page) * page for size in geometry.expert_bytes)


def _workers(standing: Standing) -> Iterator[Cliff]:
    if standing.miss not in ("cpu", "hybrid") or standing.held_bytes >= standing.geometry.all_expert_bytes:
        return
    profile, preset, family = standing.profiles[0], standing.preset, standing.geometry.quant_family
    enough, most = enough_workers(profile, preset, family)
    if enough == most:
        return
    now = workers_set(profile, preset)
    edge, here = (pool_gb_per_s(profile, preset, family, n) for n in (enough, now))
    gain = here / edge - 1
    then = f"are bound by memory's {edge:.0f} GB/s"
    if now > enough and gain < -GAINED:
        then = f"read less, {here:.0f} GB/s and not {edge:.0f}"
    elif now > enough and gain <= GAINED:
        then += " and gain nothing"
    elif now > enough:
        then = f"add less than a quarter of their share each, {100 * gain:.0f} % of the processor's rate in all"
    yield Cliff("workers", enough, now, "above", "workers", then, worse=gain <= GAINED)
