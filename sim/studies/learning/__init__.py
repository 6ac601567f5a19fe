"""Predictors that learn from recorded requests, evaluated on requests that they have not learned from.

One file a predictor: a subclass of `Predictor`, registered in the entry-point group `expert_residency.predictor`
or handed over as an object. `cross_fit` splits a trace by request, fits on some requests and predicts the others,
and gives the trace back with those predictions and their scores: from there they are `--prefetch gate-lookahead`,
stand on the map of `residency predictor`, and are timed like anybody's.
"""

from expert_residency.sim.studies.learning.evaluate import (
    ByRequest,
    Foretold,
    by_request,
    check_causal,
    cross_fit,
    foretold,
)
from expert_residency.sim.studies.learning.predictor import Predictor, create_predictor, predictors
from expert_residency.sim.studies.learning.request import Request, requests_of

__all__ = [
    "ByRequest",
    "Foretold",
    "Predictor",
    "Request",
    "by_request",
    "check_causal",
    "create_predictor",
    "cross_fit",
    "foretold",
    "predictors",
    "requests_of",
]
