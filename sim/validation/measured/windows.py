"""Verify windows of a row: rows, tokens, and which share of its look-ups the card serves, by text and engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from expert_residency.hwmodels.units import GIB
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.timed.attention import kv_bytes
from expert_residency.sim.validation.measured.hits import hit_share
from expert_residency.sim.validation.measured.knobs import Knobs
from expert_residency.sim.validation.measured.questions import ON_CARD_GIB, Question
from expert_residency.traces import ModelGeometry

PRUNED = {"qwen3.8-flash-next-coder": 0.5}
"""Models that are others with a part of their experts, and which part."""
_DRAFT_GIB, _CONTEXT_GIB = 0.8, 0.4
_ROWS = (0.0, 1.0, 2.0, 3.0, 4.0)
_UNION = (0.0, 1.0, 1.75, 2.4, 3.05)
"""Distinct experts of a window of so many rows, in those of one row (Niko1221/Strata)."""
_REFERENCE_FLOOR = 0.5
_MOST = 0.97


@dataclass(frozen=True)
class Windows:
    """Of one row.

    Parameters
    ----------
    hits
        Share of look-ups that the card serves.
    simulated
        The same as simulated, whether or not the row gives hits.
    tokens, rows
        Of a window.
    once
        Distinct experts a look-up.
    """

    hits: float
    simulated: float
    tokens: float
    rows: float
    once: float

    @property
    def distinct(self) -> float:
        """Distinct experts of a window in those of one row."""
        return self.rows * self.once

    def events(self, top_k: int) -> list[tuple[tuple[int, int], float]]:
        """((look-ups, misses), weight) of a layer's events: two whole sizes about the mean, misses binomial."""
        mean, found = self.distinct * top_k, []
        low = math.floor(mean)
        for size, weight in ((low, low + 1 - mean), (low + 1, mean - low)):
            if weight > 0 and size > 0:
                found += [((size, missed), weight * chance) for missed, chance in _binomial(size, 1 - self.hits)]
        return found


def _binomial(n: int, p: float) -> list[tuple[int, float]]:
    if p <= 0:
        return [(0, 1.0)]
    if p >= 1:
        return [(n, 1.0)]
    made = [(m, math.comb(n, m) * p**m * (1 - p) ** (n - m)) for m in range(n + 1)]
    kept = [one for one in made if one[1] > 1e-6]
    whole = sum(chance for _, chance in kept)
    return [(m, chance / whole) for m, chance in kept]


def windows_of(
    knobs: Knobs, geometry: ModelGeometry, preset: EnginePreset, link_mb_per_s: int, generated: float,
    values: Mapping[str, float],
) -> Windows:  # fmt: skip
    """What a row's windows are.

    Parameters
    ----------
    knobs, geometry, preset
        The row.
    link_mb_per_s
        Of its card; 0 where nothing goes over it.
    generated
        Share of look-ups that the card serves on generated routing.
    values
        Constants by name.

    Returns
    -------
    Windows
        Of the row.
    """
    go_on = min(values["drafts go on"] ** math.sqrt(knobs.floor / _REFERENCE_FLOOR), _MOST)
    accepted = min(values["drafts accepted"] / values["drafts go on"] * go_on, _MOST)
    drafts = max(knobs.window - 1, 0)
    offered, tokens = _chain(go_on, drafts), 1 + _chain(accepted, drafts)
    rows = 1 + (offered if knobs.tokens is None else (knobs.tokens - 1) * offered / max(tokens - 1, 1e-9))
    tokens = tokens if knobs.tokens is None else knobs.tokens
    once = float(np.interp(rows, _ROWS, _UNION)) / rows
    simulated = 1.0
    if generated < 1:
        held = min(max(generated, 0.01), 0.995)
        odds = held / (1 - held)
        if not knobs.own_profile:  # what a profile of other texts loses on real ones beside generated ones
            odds = values["hits odds"] * odds ** values["hits slope"]
        odds *= values["first odds"] if knobs.first else 1.0
        simulated = odds / (1 + odds)
    missed = 1 - simulated
    if knobs.hit_pct is not None:
        missed = _missed(knobs.hit_pct / 100, rows * once * geometry.top_k, preset, link_mb_per_s)
    return Windows(1 - missed, simulated, tokens, rows, once)


def _chain(chance: float, most: int) -> float:
    """Expected length of a chain of at most so many that goes on with a chance."""
    return sum(chance**n for n in range(1, most + 1))


def _missed(hits: float, distinct: float, preset: EnginePreset, link_mb_per_s: int) -> float:
    """Misses of all look-ups, where the engine's hit rate leaves out what went over the link."""
    if hits >= 1:
        return 0.0
    missed = 1 - hits
    for _ in range(3):
        found = _binomial(max(1, round(distinct)), missed)
        mean = sum(m * chance for m, chance in found)
        over = sum(preset.fetched(m, link_mb_per_s, 1) * chance for m, chance in found) if link_mb_per_s else 0.0
        missed = 1 / (1 + hits * (1 - over / max(mean, 1e-9)) / (1 - hits))
    return missed


def generated_share(asked: Question) -> float:
    """What the card of a row serves on generated routing."""
    share, own = _slots_share(asked), asked.knobs.own_profile
    kept = PRUNED.get(asked.geometry.name)
    if kept is None:
        return hit_share(share, own)
    return hit_share(share * kept, own) / hit_share(kept, own)  # what was cut is what is seldom wanted


def _slots_share(asked: Question) -> float:
    """Share of experts that has a slot; where no number is printed, what the card has room for."""
    geometry, knobs, machine = asked.geometry, asked.knobs, asked.machine
    if knobs.slots:
        return min(1.0, knobs.slots / geometry.n_experts)
    dense = sum(geometry.dense_bytes) + geometry.dense_only_bytes + geometry.head_bytes
    context = int(kv_bytes(geometry, np.array([knobs.depth]), "int8")[0]) * geometry.n_layers
    room = machine.cards * (machine.card.vram_gib - ON_CARD_GIB) * GIB
    room -= dense + context + (_DRAFT_GIB + _CONTEXT_GIB) * GIB
    return min(1.0, max(0.0, room / geometry.all_expert_bytes))
