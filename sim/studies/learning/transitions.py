"""From layer to layer by a table that other requests filled: the best of the published tables.

    fit:    for each layer l: table[e, f] = times that a token which wanted e in layer l - depth wanted f in l
    scores: of f: the sum over the token's experts e of weight(e) x (table[e, f] + prior x share(f)) over
            (the row's sum + prior), share(f) the part of layer l's routing that f has; weights are the router's,
            or equal where the trace has none

Published, filled online: 1.7 to 2.9 points of hits behind gate look-ahead (OLMoE); `markov` is that one.
Source: JustVugg/colibri, "phase 2" transition table; there with saturating counts of one byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt

from expert_residency.policies.parameters import Within
from expert_residency.sim.studies.learning.predictor import Predictor, Scores
from expert_residency.sim.studies.learning.request import Request

Tables = dict[int, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Transitions(Predictor):
    """Which experts used to follow the current ones, in other requests."""

    name: ClassVar[str] = "transitions"
    source: ClassVar[str] = "JustVugg/colibri"

    prior: Annotated[float, Within(0.01, 1e6)] = 8.0
    """Times that an expert counts as having been followed by the layer's usual ones."""

    def fit(self, requests: Sequence[Request]) -> Tables:
        """Probabilities (E, E) of each predicted layer."""
        found = {}
        for layer in range(self.depth, requests[0].n_layers):
            counts = sum(
                request.wanted(layer - self.depth).T @ request.wanted(layer) for request in requests
            )  # fmt: skip
            table = np.asarray(counts, dtype=np.float32)
            share = sum(request.wanted(layer).sum(axis=0) for request in requests)
            share = np.asarray(share, dtype=np.float32) / max(1.0, float(np.sum(share)))
            total = table.sum(axis=1, keepdims=True)
            found[layer] = (table + self.prior * share) / (total + self.prior)
        return found

    def scores(self, model: Tables, request: Request) -> Scores:
        """Weighted mean of the rows of the token's experts."""
        found = np.full((request.n_tokens, request.n_layers, request.n_experts), -np.inf, dtype=np.float32)
        for layer, table in model.items():
            weights = weights_of(request, layer - self.depth)
            found[:, layer] = weights @ table
        return found


def weights_of(request: Request, layer: int) -> npt.NDArray[np.float32]:
    """(T, E) router weights of a layer's experts, adding up to 1 a token; equal ones where the trace has none."""
    found = request.wanted(layer)
    if request.weights is not None:
        plain = found
        found = np.zeros((request.n_tokens, request.n_experts + 1), dtype=np.float32)
        place = request.experts[:, layer].astype(np.int64) % (request.n_experts + 1)
        np.put_along_axis(found, place, request.weights[:, layer], axis=1)
        found = found[:, : request.n_experts]
        empty = found.sum(axis=1) <= 0
        found[empty] = plain[empty]
    return np.asarray(found / np.maximum(found.sum(axis=1, keepdims=True), 1e-9), dtype=np.float32)
