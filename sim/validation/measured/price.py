"""A measured row priced by the product: its machine put together from parts, its engine's preset, their own sums.

Engines that move nothing go through `sim.runs.layer_sums`, those with slots through the layer times of
`sim.split.cost`, as a user's `split` does. No shipped profile is used, so that no figure of the row's own machine
comes in: the rules of data sheets alone make the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from expert_residency.hwmodels.parts.compose import machine
from expert_residency.hwmodels.parts.rules import CODEBOOKS, OLD_CORES, Rules, architecture_of, priors
from expert_residency.hwmodels.profile import HardwareProfile, parse_profile
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.registry import PROFILES
from expert_residency.hwmodels.units import GIB
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.runs.layer_sums import THIRDS, LayerSums, Parts
from expert_residency.sim.split.cards import Card, HostSide, handoff_ns
from expert_residency.sim.split.cost import LayerTimes
from expert_residency.sim.split.curve import HitCurve
from expert_residency.sim.split.memory import HEADROOM_BYTES, HostMode
from expert_residency.sim.timed.attention import Context, kv_bytes
from expert_residency.sim.validation.llamacpp import one_token
from expert_residency.sim.validation.measured.constants import CONSTANTS, owner_of, preset_of
from expert_residency.sim.validation.measured.questions import ON_CARD_GIB, Question, weight_bytes
from expert_residency.sim.validation.measured.windows import Windows, generated_share, windows_of
from expert_residency.traces import ModelGeometry, RoutingTrace

CARD = "card"
Values = Mapping[str, float]


@dataclass(frozen=True)
class Price:
    """What the product says of a row.

    Parameters
    ----------
    ms
        Of a token.
    windows
        What its windows are; None where nothing moves.
    """

    ms: float
    windows: Windows | None = None


@lru_cache(maxsize=512)
def _machine(words: str, numbers: tuple[float, ...]) -> HardwareProfile:
    """A machine from parts by these numbers of the rules, without any shipped profile."""
    rules = Rules(dict(zip(priors(), numbers, strict=True)))
    tables = PROFILES.over(PROFILES.read("_generic", as_base=True), machine(words, {}, rules))
    return parse_profile(tables, f"machine {words}")


class Priced:
    """One row, ready to be priced with any constants.

    Parameters
    ----------
    asked
        The row.
    """

    def __init__(self, asked: Question) -> None:
        self.asked, self.geometry, self.knobs = asked, asked.geometry, asked.knobs

    def __call__(self, values: Values) -> Price:
        """Its time.

        Parameters
        ----------
        values
            Every constant by name.

        Returns
        -------
        Price
            Ms a token.
        """
        profile, preset = self.profile(values), preset_of(self.knobs.engine, values)
        if self.knobs.where == "slots":
            return self._slots(values, profile, preset)
        if self.knobs.where == "link":
            every = [((self.geometry.top_k, self.geometry.top_k), 1.0)]
            return Price(self._pass_ms(profile, preset, (1.0, 1.0), every, "stream", "arena"))
        return Price(self._sums(profile, preset).ns / 1e6)

    def profile(self, values: Values) -> HardwareProfile:
        """The row's machine: its words, and the link's rate where the row prints it."""
        rig, words = self.asked.machine, self.asked.machine.words
        workers = self.knobs.workers or rig.workers
        if workers and "workers=" not in words and rig.cpu is not None:
            words += f"{',' if ':' in words else ':'}workers={workers}"
        found = _machine(words, tuple(values[name] for name in priors()))
        if not rig.link_probed:
            return found
        said = Quantity(value=rig.link_gb_per_s * values["link share"], kind="measured", source="the row's probe")
        slower = said.model_copy(update={"value": said.value / 1.21})
        moved = {"h2d_gb_per_s": said, "d2h_gb_per_s": said, "h2d_pageable_gb_per_s": slower}
        return found.model_copy(update={"link": found.link.model_copy(update=moved)})

    @cached_property
    def used(self) -> tuple[int, ...]:
        """Numbers of the constants that its price may depend on."""
        rig, family = self.asked.machine, self.geometry.quant_family
        arch = architecture_of(rig.card.arch)
        own = {"card share", f"card share {arch}", "card experts", "launch us", f"launch {arch}", "sibling"}
        own |= {"memory share", f"memory {rig.cpu.simd if rig.cpu else 'avx2'}", "core GB/s"}
        own |= {"core old"} if rig.cpu and rig.cpu.arch in OLD_CORES else set()
        own |= {"core codebook"} if family in CODEBOOKS else set()
        own |= {"mapped"} if self.knobs.mapped else set()
        own |= {"complement"} if self.knobs.complement else set()
        own |= {"second socket"} if rig.sockets > 1 else set()
        own |= {"wsl2 us"} if "wsl2" in rig.words else set()
        own |= {"link share"} if self.knobs.where in ("slots", "link") or self.knobs.dense else set()
        moves = self.knobs.where == "slots"
        return tuple(
            number
            for number, one in enumerate(CONSTANTS)
            if one.name in own
            or (one.owner == "engine" and one.name.partition(":")[0] == owner_of(self.knobs.engine))
            or (one.owner == "text" and moves)
        )

    # ---- engines that move nothing -------------------------------------------------------------

    def _sums(self, profile: HardwareProfile, preset: EnginePreset) -> Parts:
        knobs, geometry = self.knobs, self.geometry
        context = Context(knobs.depth, preset.kv_type)
        sums = LayerSums(self._token, {CARD: profile}, profile, preset, context=context)
        if knobs.where == "cpu":
            return sum((sums.on_host(0) for _ in range(geometry.n_layers)), start=sums.ends(CARD, None))
        on_cpu, cards = self._cpu_layers, self.asked.machine.cards
        total = sums.ends(CARD, CARD)
        for layer in range(geometry.n_layers):
            total += sums.layer(CARD, layer, 0 if layer < on_cpu else THIRDS)
        return sum((sums.handoff(CARD, CARD) for _ in range(cards - 1)), start=total)

    @cached_property
    def _token(self) -> RoutingTrace:
        return one_token(self.geometry)

    @cached_property
    def _cpu_layers(self) -> int:
        """Layers whose experts the CPU computes."""
        geometry, knobs, rig = self.geometry, self.knobs, self.asked.machine
        layers = geometry.n_layers
        if knobs.where == "layers":
            return min(layers, max(0, knobs.layers_on_cpu - ((geometry.total_layers or layers) - layers)))
        if knobs.where != "fit" or rig.card.shared:
            return 0
        room = rig.cards * (rig.card.vram_gib - ON_CARD_GIB) * GIB
        context = int(kv_bytes(geometry, np.array([knobs.depth]), "fp16")[0]) * layers
        over = weight_bytes(geometry) + context - room
        return min(layers, max(0, math.ceil(over / (geometry.all_expert_bytes / layers))))

    # ---- engines with slots --------------------------------------------------------------------

    @cached_property
    def _one_layer(self) -> ModelGeometry:
        """The model with one mean layer: an average of layers costs what the layers do."""
        geometry = self.geometry
        n, total = geometry.n_layers, geometry.total_layers or geometry.n_layers
        return replace(
            geometry, layer_ids=(0,), expert_bytes=(round(sum(geometry.expert_bytes) / n),),
            dense_bytes=(round(sum(geometry.dense_bytes) / n),), total_layers=total - n + 1,
        )  # fmt: skip

    def _slots(self, values: Values, profile: HardwareProfile, preset: EnginePreset) -> Price:
        knobs = self.knobs
        if knobs.pcie_share is not None:
            share = Quantity(value=knobs.pcie_share, kind="measured", source="the row's flags")
            preset = preset.model_copy(update={"pcie_share": share, "pcie_full_gb_per_s": None})
        mode: HostMode = "mmap" if knobs.mapped else "budget" if knobs.complement else "arena"
        link = 0 if mode == "mmap" else profile.link.h2d_mb_per_s
        found = windows_of(knobs, self.geometry, preset, link, self._generated, values)
        chances = found.events(self.geometry.top_k)
        ms = self._pass_ms(profile, preset, (found.rows, found.tokens), chances, "hybrid", mode)
        return Price(ms / found.tokens, found)

    def _pass_ms(
        self, profile: HardwareProfile, preset: EnginePreset, windows: tuple[float, float],
        chances: Sequence[tuple[tuple[int, int], float]], miss: str, mode: HostMode,
    ) -> float:  # fmt: skip
        events = [event for event, _ in chances]
        weights = np.array([weight for _, weight in chances])
        curve = _curve(self._one_layer, events, *windows)
        geometry, one, cards = self.geometry, self._one_layer, self.asked.machine.cards
        card, host = Card.of(profile, geometry.quant_family), HostSide.of(profile, geometry.quant_family)
        context = int(kv_bytes(geometry, np.array([self.knobs.depth]), preset.kv_type)[0])
        room = host.ram_bytes - HEADROOM_BYTES
        times = LayerTimes(one, curve, host, preset, miss, mode, room, context_bytes=context)
        slots = 1 if miss == "hybrid" else 0
        layer = times.fixed_ns(card, 0) + float(weights @ times.events_ns(card, 0, slots, one.experts))
        missed = sum(weight * m for weight, (_, m) in zip(weights, events, strict=True)) * geometry.n_layers
        ends = times.first_ns(card) + times.head_ns(card) + times.overhead_ns
        ends += times.exchange_ns(card, missed) if miss == "hybrid" else 0
        handoff = handoff_ns(card, card, round(curve.rows * geometry.token_handoff_bytes), p2p=False)
        return (geometry.n_layers * layer + ends + (cards - 1) * handoff) / 1e6

    @cached_property
    def _generated(self) -> float:
        return generated_share(self.asked)


def _curve(geometry: ModelGeometry, events: list[tuple[int, int]], rows: float, tokens: float) -> HitCurve:
    """Events of so many look-ups, so many of which miss."""
    widest = max(size for size, _ in events)
    distances = np.full((len(events), max(1, widest)), -1, dtype=np.int32)
    for number, (size, missed) in enumerate(events):
        distances[number, : size - missed] = 0
        distances[number, size - missed : size] = geometry.experts - 1
    sizes = np.array([size for size, _ in events], dtype=np.int64)
    return HitCurve((distances,), (sizes,), rows, tokens, 1, geometry.experts, synthetic=True)
