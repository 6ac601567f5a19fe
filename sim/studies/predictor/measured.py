"""Predictors that are measured beside the map: recorded and built-in ones, each with its line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from expert_residency.traces import RoutingTrace

KNOWN = ("previous-token", "static-topk", "markov", "co-activation", "activation-match")
"""Causal predictors that are measured beside the grid."""


@dataclass(frozen=True)
class Measured:
    """A predictor with the quality that it reaches; None where undefined.

    Parameters
    ----------
    prefetch, predictor
        Its words, and those of the predictor of whose line it is a point: the same, with another threshold.
    recorded
        Whether its predictions are the trace's.
    recall, precision
        Of its copies, as `PrefetchStats` defines them for every command.
    rank_quality
        Area under the curve of its guesses' order: of two copies that would be made for one event, one of them
        wanted and one not, how often the wanted one is asked for first.
    foretold, right
        Of its proposals, resident experts included: share of wanted experts that had been proposed for their
        event, and share of proposals that were wanted then.
    layers_ahead, ahead_ms
        How far before its event a guess is made, and how long that is without prefetching.
    speedup, map_speedup
        Its own, and that of a noisy oracle which reaches the same recall and precision, over three draws of it;
        None where that was not looked for, or is out of the oracle's reach.
    map_low, map_high
        Slowest and fastest of these draws.
    """

    prefetch: str
    predictor: str
    recorded: bool
    recall: float | None
    precision: float | None
    rank_quality: float | None
    foretold: float | None
    right: float | None
    layers_ahead: float | None
    ahead_ms: float | None
    speedup: float
    map_speedup: float | None
    map_low: float | None
    map_high: float | None
    copies: int
    harmful_bytes: int
    wasted_bytes: int

    @property
    def beside_map(self) -> float | None:
        """By how much its own speed is above the fastest draw or below the slowest; 0 between them."""
        if self.map_low is None or self.map_high is None:
            return None
        return max(self.speedup - self.map_high, 0.0) + min(self.speedup - self.map_low, 0.0)


class Point(NamedTuple):
    """A predictor to be measured."""

    prefetch: str
    predictor: str
    recorded: bool


def lines(trace: RoutingTrace) -> list[Point]:
    """Every predictor that the trace recorded and every built-in one, each followed by its line.

    A line sweeps the threshold over the quartiles of the scores; without scores, or for a built-in predictor, the
    number of guesses for an event.
    """
    found = []
    k = trace.geometry.top_k
    for depth, (offsets, experts) in sorted(trace.predictions.items()):
        if not len(experts):
            continue
        name = f"gate-lookahead:depth={depth}"
        scores = trace.prediction_scores.get(depth)
        if scores is not None:
            cuts = sorted({float(f"{cut:.4g}") for cut in np.quantile(scores, (0.25, 0.5, 0.75))})
            more = [f"{name},threshold={cut:.4g}" for cut in cuts]
        else:
            most = int(np.diff(offsets).max())
            more = [f"{name},top={top}" for top in sorted({max(1, most // 4), max(1, most // 2)}) if top < most]
        found += [Point(words, name, True) for words in (name, *more)]
    for name in KNOWN:
        widths = sorted({max(1, k // 2), min(2 * k, trace.geometry.experts)} - {k})
        more = [f"{name}:width={width}" for width in widths] if name != "previous-token" else []
        found += [Point(words, name, False) for words in (name, *more)]
    return found
