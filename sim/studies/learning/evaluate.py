"""Fit on some requests, predict the others; what comes of it, request by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import PolicyError, SimError
from expert_residency.policies import create
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.studies.learning.predictor import Predictor, Scores, create_predictor
from expert_residency.sim.studies.learning.request import Request, requests_of
from expert_residency.sim.studies.predictor import quality
from expert_residency.traces import Phase, RoutingTrace
from expert_residency.traces.trace import IntArray, csr_offsets

FOLDS = 5


def cross_fit(
    trace: RoutingTrace,
    predictor: Predictor | str,
    *,
    folds: int = FOLDS,
    seed: int = 0,
    top: int = 0,
    tokens: IntArray | None = None,
    hidden: npt.NDArray[Any] | None = None,
) -> RoutingTrace:
    """The trace with a learned predictor's predictions, each request's by a model that has not seen it.

    Requests are dealt out to folds at random; those of one fold are predicted by a model that was fitted to all
    others. Prefill passes are not predicted.

    Parameters
    ----------
    trace
        Of two requests or more. Predictions of the same depth that it had are replaced.
    predictor
        The predictor, or words for a registered one.
    folds
        Models that are fitted; as many as requests at most.
    seed
        Of the dealing out.
    top
        Guesses kept for each event; the model's top-k by default.
    tokens, hidden
        As of `requests_of`: what the predictor may see besides the routing.

    Returns
    -------
    RoutingTrace
        With predictions of the predictor's depth and their scores, in the order of these.

    Raises
    ------
    SimError
        A trace of a single request, or fewer than two folds.
    PolicyError
        A predictor that is unknown, gives scores of another shape, or uses what it cannot have seen.
    """
    asked = create_predictor(predictor) if isinstance(predictor, str) else predictor
    requests = requests_of(trace, tokens=tokens, hidden=hidden)
    if len(requests) < 2:
        raise SimError(
            "the trace has a single request: a predictor would be evaluated on what it was fitted to; "
            "join traces (--join) or record more"
        )
    if folds < 2:
        raise SimError(f"{folds} folds: expected 2 or more, so that something is left to be fitted to")
    folds = min(folds, len(requests))
    order = np.random.default_rng(seed).permutation(len(requests))
    scored: dict[int, Scores] = {}
    for fold in np.array_split(order, folds):
        model = asked.fit([request for i, request in enumerate(requests) if i not in fold])
        for place, i in enumerate(fold.tolist()):
            scored[i] = _scores(asked, model, requests[i])
            if place == 0:
                check_causal(asked, model, requests[i])
    depth = asked.depth
    whole = _by_event(trace, requests, [scored[i] for i in range(len(requests))], depth)
    offsets, experts, values = _best(whole, top or trace.geometry.top_k)
    said = f"predictions {depth} layer(s) ahead: {asked.name}, fitted to other requests ({folds} folds)"
    return replace(
        trace,
        predictions=trace.predictions | {depth: (offsets, experts)},
        prediction_scores=trace.prediction_scores | {depth: values},
        meta=trace.meta | {"notes": [*trace.meta.get("notes", []), said]},
    )


def _scores(predictor: Predictor, model: Any, request: Request) -> Scores:
    found = np.asarray(predictor.scores(model, request), dtype=np.float32)
    shape = (request.n_tokens, request.n_layers, request.n_experts)
    if found.shape != shape:
        raise PolicyError(f"predictor {predictor.name}: scores have the shape {found.shape}, expected {shape}")
    if np.isnan(found[:, predictor.depth :]).any():
        raise PolicyError(f"predictor {predictor.name}: a score is no number; -inf is no prediction")
    return found


def check_causal(predictor: Predictor, model: Any, request: Request, *, cuts: int = 4) -> None:
    """Change all that is not known when an event is done: what it says of events up to then + depth must stay.

    Parameters
    ----------
    predictor, model
        A predictor and what it has fitted.
    request
        Any request.
    cuts
        Events at which it is tried.

    Raises
    ------
    PolicyError
        The first event at which it knows what comes.
    """
    plain = _scores(predictor, model, request)
    layers = request.n_layers
    passes = int(request.pass_of[-1]) + 1
    draw = np.random.default_rng(1)
    for cut in range(cuts):
        now = passes * (cut + 1) // (cuts + 2), int(draw.integers(layers))
        later_pass = request.pass_of > now[0]
        unknown = later_pass[:, None] | ((request.pass_of == now[0])[:, None] & (np.arange(layers) > now[1]))
        changed = _scores(predictor, model, _changed(request, unknown, later_pass))
        known = np.ones_like(unknown)
        known[later_pass] = False
        known[request.pass_of == now[0], now[1] + predictor.depth + 1 :] = False
        known[:, : predictor.depth] = False
        if not np.allclose(plain[known], changed[known], rtol=1e-5, atol=1e-6):  # products may be summed anew
            raise PolicyError(
                f"predictor {predictor.name} is not causal: when layer {now[1]} of pass {now[0]} of request "
                f"{request.number} is done it knows what comes after"
            )


def _changed(request: Request, unknown: npt.NDArray[np.bool_], later: npt.NDArray[np.bool_]) -> Request:
    """The request with other experts, weights and hidden states where unknown, and other tokens later."""
    experts = request.experts.copy()
    there = unknown[:, :, None] & (experts >= 0)
    experts[there] = (experts[there] + request.n_experts // 2 + 1) % request.n_experts
    weights, tokens, hidden = request.weights, request.tokens, request.hidden
    if weights is not None:
        weights = np.where(unknown[:, :, None], weights[:, :, ::-1] / 2, weights)
    if tokens is not None:
        tokens = np.where(later, tokens + 1, tokens)
    if hidden is not None:
        hidden = np.where(unknown[:, :, None], -hidden, hidden)
    return replace(request, experts=experts, weights=weights, tokens=tokens, hidden=hidden)


def _by_event(
    trace: RoutingTrace, requests: Sequence[Request], scored: Sequence[Scores], depth: int
) -> npt.NDArray[np.float32]:
    """(events, E): the highest score over an event's tokens; -inf where nothing is predicted.

    Parameters
    ----------
    trace
        The trace.
    requests, scored
        Its requests with their scores.
    depth
        Layers ahead; the first ones are not predicted.

    Returns
    -------
    array
        (events, E) scores.
    """
    found = np.full((trace.n_events, trace.geometry.experts), -np.inf, dtype=np.float32)
    event_of = np.full((trace.n_passes, trace.geometry.n_layers), -1)
    event_of[trace.event_pass, trace.event_layer] = np.arange(trace.n_events)
    for request, scores in zip(requests, scored, strict=True):
        passes = np.flatnonzero(trace.pass_request == request.number)
        for t in np.flatnonzero(~request.prompt):
            events = event_of[passes[request.pass_of[t]], depth:]
            there = events >= 0
            found[events[there]] = np.maximum(found[events[there]], scores[t, depth:][there])
    return found


def _best(scores: npt.NDArray[np.float32], top: int) -> tuple[IntArray, IntArray, npt.NDArray[np.float32]]:
    """Offsets, experts and scores of the best of each event, by falling score, ties to the lower expert."""
    top = min(top, scores.shape[1])
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    best = np.take_along_axis(scores, order, axis=1)
    kept = np.isfinite(best)
    return csr_offsets(kept.sum(axis=1)), order[kept].astype(np.int16), best[kept]


@dataclass(frozen=True)
class Foretold:
    """What the predictions of a trace foretell of one request, whoever is resident and on whatever machine.

    Parameters
    ----------
    request, tokens
        Its number, and tokens that it emits outside of prompts.
    foretold, right, rank_quality
        As of `residency predictor`; None where undefined.
    """

    request: int
    tokens: int
    foretold: float | None
    right: float | None
    rank_quality: float | None


def foretold(trace: RoutingTrace, depth: int) -> list[Foretold]:
    """How well a trace's predictions of a depth foretell it, request by request, in their order."""
    policy = create("prefetch", f"gate-lookahead:depth={depth}")
    found = []
    for number in np.unique(trace.pass_request):
        part = trace.select_passes(trace.pass_request == number)
        tokens = int(part.pass_emits[part.pass_phase != Phase.PREFILL].sum())
        judged = quality(part, policy)
        found.append(Foretold(int(number), tokens, judged.foretold, judged.right, judged.rank_quality))
    return found


@dataclass(frozen=True)
class ByRequest:
    """A predictor on one request; the cache is cold at its start.

    Parameters
    ----------
    request
        Its number.
    foretold, rank_quality
        As of `residency predictor`.
    recall, precision
        Of copies.
    speedup
        Over no prefetching.
    """

    request: int
    foretold: float | None
    rank_quality: float | None
    recall: float | None
    precision: float | None
    speedup: float


def by_request(trace: RoutingTrace, spec: RunSpec) -> list[ByRequest]:
    """What a prefetcher is worth, request by request.

    Parameters
    ----------
    trace
        With the predictions that `spec.prefetch` uses.
    spec
        Machine, capacity and policies.

    Returns
    -------
    list of ByRequest
        In the order of the requests.
    """
    found = []
    policy = create("prefetch", spec.prefetch)
    numbers = np.unique(trace.pass_request)
    for number in numbers:
        part = trace.select_passes(trace.pass_request == number)
        own, quiet = (
            simulate(part, replace(spec, prefetch=words), runs=2 * len(numbers))
            for words in (spec.prefetch, "none")
        )
        decode = part.pass_phase != Phase.PREFILL
        judged = quality(part, policy)
        found.append(
            ByRequest(
                int(number), judged.foretold, judged.rank_quality, own.prefetch.recall, own.prefetch.precision,
                float(quiet.pass_ns[decode].sum() / own.pass_ns[decode].sum()),
            )
        )  # fmt: skip
    return found
