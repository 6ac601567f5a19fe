"""One logistic regression a layer, or with `hidden` units a small network: what follows the router's last choices.

    inputs:  of a token when layer l - depth is done: the router weights of its experts there, which experts it
             wanted in the layer before that, and which ones layer l wanted in the last token of the pass before;
             the router's input of layer l - depth too where hidden states are at hand
    fit:     for each layer l, cross entropy of every expert of layer l, wanted or not (Adam, scikit-learn)
    scores:  the probability that an expert is wanted

Source: learned predictors of one layer ahead as of ProMoE and AdapMoE, in their smallest form.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from expert_residency.errors import PolicyError
from expert_residency.policies.parameters import Within
from expert_residency.sim.studies.learning.predictor import Predictor, Scores
from expert_residency.sim.studies.learning.request import Request
from expert_residency.sim.studies.learning.transitions import weights_of

BATCH = 64
"""Tokens of one step."""


@dataclass(frozen=True)
class Logistic(Predictor):
    """A logistic regression (or small network) a layer on the last choices of the router."""

    name: ClassVar[str] = "logistic"
    source: ClassVar[str] = "ProMoE; AdapMoE"

    hidden: Annotated[int, Within(0, 4096)] = 0
    """Units of one layer between; 0 is logistic regression."""
    epochs: Annotated[int, Within(1, 10_000)] = 30
    seed: int = 0

    def fit(self, requests: Sequence[Request]) -> dict[int, Any]:
        """A model for each predicted layer.

        Raises
        ------
        PolicyError
            Without scikit-learn.
        """
        try:
            from sklearn.exceptions import ConvergenceWarning
            from sklearn.neural_network import MLPClassifier
            from threadpoolctl import threadpool_limits
        except ImportError:
            raise PolicyError(
                "predictor logistic needs scikit-learn: pip install 'expert-residency[learn]'"
            ) from None
        found = {}
        for layer in range(self.depth, requests[0].n_layers):
            asked = np.concatenate([self._inputs(request, layer)[~request.prompt] for request in requests])
            told = np.concatenate([request.wanted(layer)[~request.prompt] for request in requests])
            sizes = (self.hidden,) if self.hidden else ()
            model = MLPClassifier(
                sizes, max_iter=self.epochs, batch_size=min(BATCH, len(asked)), learning_rate_init=0.01,
                random_state=self.seed,
            )  # fmt: skip
            with warnings.catch_warnings(), threadpool_limits(1):  # threads cost such small products tenfold
                warnings.simplefilter("ignore", ConvergenceWarning)  # so many epochs are meant
                found[layer] = model.fit(asked, told)
        return found

    def scores(self, model: dict[int, Any], request: Request) -> Scores:
        """Probabilities."""
        found = np.full((request.n_tokens, request.n_layers, request.n_experts), -np.inf, dtype=np.float32)
        for layer, one in model.items():
            found[:, layer] = one.predict_proba(self._inputs(request, layer))
        return found

    def _inputs(self, request: Request, layer: int) -> npt.NDArray[np.float32]:
        """(T, inputs) of what is known of each token when layer `layer - depth` is done."""
        now = layer - self.depth
        top_k = request.experts.shape[2]
        parts = [weights_of(request, now) * top_k, request.wanted(layer, request.before)]
        if now:
            parts.append(request.wanted(now - 1))
        if request.hidden is not None:
            parts.append(np.asarray(request.hidden[:, now], dtype=np.float32))
        return np.concatenate(parts, axis=1)
