"""Time of a token from terms and constants, for many rows at once.

Where nothing moves a token is a sum. A verify window of an engine with slots is the longer of card and processor,
beside mixers, rows and drafts; what the link brings is computed by the card after the residents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from expert_residency.sim.validation.measured.arrays import BoolArray, FloatArray, IntArray
from expert_residency.sim.validation.measured.constants import ARCHITECTURES, FAMILIES, INDEX, SIMDS, group
from expert_residency.sim.validation.measured.terms import Terms

MOST_STAGED = 16
"""Experts of a layer that an engine reads over the link in one window (Strata)."""
_ROWS = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
_UNION = np.array([0.0, 1.0, 1.75, 2.4, 3.05])
"""Distinct experts of a window of so many rows, in those of one row (Niko1221/Strata)."""
_COUNTS = np.arange(31.0)
_LOG_FACTORIALS = np.array([math.lgamma(n + 1) for n in range(31)])
_REFERENCE_TFLOPS = 44.0
"""Of the card on which the time of a row was measured."""
_REFERENCE_GB_PER_S = 672.0
"""Of the card on which the time of a draft was measured."""
_REFERENCE_FLOOR = 0.5
_FULL_LINK_GB_PER_S = 20.0
_OF_WINDOWS = np.array(
    [INDEX[name] for name in
     ("drafts go on", "drafts accepted", "hits odds", "hits slope", "first odds", "link share of misses")]
)  # fmt: skip
"""Constants that windows depend on."""
_KEPT = 8
_HALF = 3.0
"""Exponent with which memory and cores limit a pool together: at equal limits 0.79 of either."""


@dataclass(frozen=True)
class Windows:
    """Rows, tokens and shares of verify windows.

    Parameters
    ----------
    hits : (rows,)
        Share of look-ups that the card serves.
    simulated : (rows,)
        The same as simulated, with the constants on it, whether or not a row gives hits.
    tokens, rows : (rows,)
        Of a window.
    """

    hits: FloatArray
    simulated: FloatArray
    tokens: FloatArray
    rows: FloatArray


class Formula:
    """The rows in arrays.

    Parameters
    ----------
    terms
        One a row.
    """

    def __init__(self, terms: Sequence[Terms]) -> None:
        def numbers(name: str) -> FloatArray:
            return np.array([float(getattr(one, name)) for one in terms])

        def whether(name: str) -> BoolArray:
            return np.array([bool(getattr(one, name)) for one in terms], dtype=np.bool_)

        def members(name: str, of: tuple[str, ...]) -> IntArray:
            return np.array([of.index(getattr(one, name)) for one in terms], dtype=np.int64)

        self._known: dict[tuple[float, ...], tuple[Windows, FloatArray, FloatArray, FloatArray]] = {}
        self.architecture, self.family = members("architecture", ARCHITECTURES), members("family", FAMILIES)
        self.simd = members("simd", SIMDS)
        self.windows = whether("windows")
        self.strata = np.array([one.engine == "strata" for one in terms], dtype=np.bool_)
        self.mapped, self.one_node, self.virtual = whether("mapped"), whether("one_node"), whether("virtual")
        self.complement, self.first = whether("complement"), whether("first")
        self.link_known = whether("link_known")
        self.card, self.tflops, self.cards = numbers("card_gb_per_s"), numbers("tflops"), numbers("cards")
        self.ram, self.pool, self.sockets = numbers("ram_gb_per_s"), numbers("pool"), numbers("sockets")
        self.link = numbers("link_gb_per_s")
        self.dense, self.context, self.expert = numbers("dense_gb"), numbers("context_gb"), numbers("expert_gb")
        self.on_card, self.on_cpu, self.on_link = numbers("on_card"), numbers("on_cpu"), numbers("on_link")
        self.layers, self.cpu_layers, self.blocks = numbers("layers"), numbers("cpu_layers"), numbers("blocks")
        self.top_k, self.most_rows, self.floor = numbers("top_k"), numbers("rows"), numbers("floor")
        self.tokens, self.hits, self.generated = numbers("tokens"), numbers("hits"), numbers("generated_hits")
        self.share = numbers("share")

    def ms(self, values: FloatArray) -> tuple[FloatArray, Windows]:
        """Milliseconds a token of every row, and what its windows are (of engines without slots: nothing).

        Parameters
        ----------
        values : (constants,)
            In the order of `constants.NAMES`.
        """

        def one(name: str) -> float:
            return float(values[INDEX[name]])

        rate = self.card * one("card share") * values[group("card share", ARCHITECTURES)][self.architecture]
        expert_rate = rate * values[group("card experts", FAMILIES)][self.family]
        attention = rate * one("attention share") / one("card share")
        slower = values[group("slower", ARCHITECTURES)][self.architecture]
        pool = self._pool(values)
        link = self.link * np.where(self.link_known, 1.0, 0.95) * one("link share")
        several = np.where(self.cards > 1, one("several cards ms"), 0.0)
        block = np.where(self.on_link > 0, one("copied block us"), one("block us") * slower)
        hosted = (self.blocks == 0) & ~self.windows  # all of it is the processor's
        reads = np.where(hosted, pool, rate)
        whole = 1000 * (
            self.dense / reads
            + self.context / np.where(hosted, pool, attention)
            + self.expert * (self.on_card / expert_rate + self.on_cpu / pool + self.on_link / link)
        )
        whole += (self.blocks * block + self.cpu_layers * one("split us")) / 1000 + several + one("pass ms")
        windows, over_link, over_cpu, once = self._windows(values)
        distinct = windows.rows * once * self.expert
        card = (1 - over_cpu) * distinct / expert_rate + over_link * distinct / link
        host = over_cpu * distinct / pool + np.where(over_cpu > 0, self.layers * one("window host us") / 1e6, 0.0)
        own = values[group("window slower", ARCHITECTURES)][self.architecture]
        base = one("window layer us") * slower * own + np.where(self.virtual, one("virtual us"), 0.0)
        row = one("window row us") * (_REFERENCE_TFLOPS / self.tflops) ** one("row by arithmetic")
        draft = one("draft ms") * np.sqrt(_REFERENCE_GB_PER_S / self.card)
        window = 1000 * (self.dense / rate + self.context / attention + np.maximum(card, host))
        window += self.layers * (base + (windows.rows - 1) * row) / 1000
        window += (windows.rows - 1) * draft + one("pass ms")
        return np.where(self.windows, window / windows.tokens, whole), windows

    def _pool(self, values: FloatArray) -> FloatArray:
        """GB/s at which processors read experts: memory and cores limit it together."""
        memory = self.ram * values[INDEX["memory share"]] * values[group("memory", SIMDS)][self.simd]
        memory = np.where(self.sockets > 1, memory * values[INDEX["second socket"]], memory)
        core = values[INDEX["core GB/s"]] * values[group("core", FAMILIES)][self.family]
        cores = self.pool * np.where(self.strata, core * values[INDEX["core of strata"]], core)
        rate = (memory**-_HALF + cores**-_HALF) ** (-1 / _HALF)
        rate = np.where(self.mapped, rate * values[INDEX["mapped"]], rate)
        rate = np.where(self.complement, rate * values[INDEX["complement"]], rate)
        return np.asarray(np.where(self.one_node, rate * values[INDEX["one node"]], rate))

    def _windows(self, values: FloatArray) -> tuple[Windows, FloatArray, FloatArray, FloatArray]:
        """As `_made_windows`; a fit mostly asks for the same again, with another rate."""
        key = tuple(values[_OF_WINDOWS].tolist())
        if key not in self._known:
            if len(self._known) > _KEPT:
                self._known.clear()
            self._known[key] = self._made_windows(values)
        return self._known[key]

    def _made_windows(self, values: FloatArray) -> tuple[Windows, FloatArray, FloatArray, FloatArray]:
        """Windows, shares of look-ups over the link and on the CPU, and distinct experts a look-up."""
        go_on = values[INDEX["drafts go on"]] ** np.sqrt(self.floor / _REFERENCE_FLOOR)
        accepted = np.minimum(values[INDEX["drafts accepted"]] / values[INDEX["drafts go on"]] * go_on, 0.97)
        go_on = np.minimum(go_on, 0.97)
        drafts = np.maximum(self.most_rows - 1, 0)
        offered, tokens = _chain(go_on, drafts), 1 + _chain(accepted, drafts)
        given = ~np.isnan(self.tokens)
        rows = 1 + np.where(given, (self.tokens - 1) * offered / np.maximum(tokens - 1, 1e-9), offered)
        tokens = np.where(given, self.tokens, tokens)
        once = np.interp(rows, _ROWS, _UNION) / rows
        distinct = rows * once * self.top_k
        generated = np.clip(self.generated, 0.01, 0.995)
        odds = values[INDEX["hits odds"]] * (generated / (1 - generated)) ** values[INDEX["hits slope"]]
        odds = odds * np.where(self.first, values[INDEX["first odds"]], 1.0)
        simulated = np.where(self.generated >= 1, 1.0, odds / (1 + odds))
        full = np.minimum(1.0, self.link / _FULL_LINK_GB_PER_S)
        asked = np.where(np.isnan(self.share), values[INDEX["link share of misses"]] * full, self.share)
        missed = np.where(np.isnan(self.hits), 1 - simulated, self._missed(asked, distinct))
        taken = _staged(missed * distinct, asked)
        windows = Windows(1 - missed, simulated, tokens, rows)
        return windows, missed * taken, missed * (1 - taken), once

    def _missed(self, asked: FloatArray, distinct: FloatArray) -> FloatArray:
        """Misses of all look-ups, where the engine's hit rate leaves out what went over the link."""
        hits = np.nan_to_num(self.hits, nan=0.5)
        missed = 1 - hits
        for _ in range(3):
            taken = _staged(missed * distinct, asked)
            missed = np.where(hits >= 1, 0.0, 1 / (1 + hits * (1 - taken) / np.maximum(1 - hits, 1e-9)))
        return np.asarray(missed)


def _chain(chance: FloatArray, most: FloatArray) -> FloatArray:
    """Expected length of a chain of at most so many that goes on with a chance."""
    return np.asarray((chance - chance ** (most + 1)) / (1 - chance))


def _staged(missed: FloatArray, share: FloatArray) -> FloatArray:
    """Part of a layer's misses that goes over the link: the floor of the share, misses being Poisson."""
    mean = np.clip(missed, 1e-6, 24.0)[:, None]
    chance = np.exp(_COUNTS * np.log(mean) - mean - _LOG_FACTORIALS)
    taken = np.minimum(np.floor(_COUNTS * share[:, None] + 1e-9), MOST_STAGED)
    return np.asarray((chance * taken).sum(axis=1) / mean[:, 0])
