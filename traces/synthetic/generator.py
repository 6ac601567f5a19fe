"""Synthetic routing traces: requests, prefill, decode and verify passes drawn from the routing model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.synthetic.drafts import Drafting
from expert_residency.traces.synthetic.process import FloatArray, ModelBias, RequestProcess, stream
from expert_residency.traces.synthetic.style import RoutingStyle
from expert_residency.traces.trace import IntArray, Phase, RoutingTrace

GENERATOR_VERSION = 1
WEIGHT_STEP = 1.0 / 4096
_MOST_ROUTED = 1 << 30
"""Of a trace, which is made in memory."""
_ROUTING, _ACCEPTANCE, _LOOKAHEAD = 1, 2, 3  # words that keep the random streams apart


def generate(
    geometry: ModelGeometry,
    style: RoutingStyle,
    *,
    tokens: int,
    prompt_tokens: int = 0,
    requests: int = 1,
    seed: int = 0,
    draft_tokens: int = 0,
    acceptance: float = 0.7,
    draft_floor: float = 0.0,
    weights: bool = True,
    lookahead: Mapping[int, float] | None = None,
) -> RoutingTrace:
    """Routing trace of `requests` requests served one after the other.

    Each request is one prefill pass with `prompt_tokens` rows (if any), then passes that emit `tokens` tokens:
    decode passes of one row, or verify windows of 1 + `draft_tokens` rows.

    Parameters
    ----------
    geometry, style
        The model's shape, and how it routes.
    tokens, prompt_tokens, requests
        Sizes, per request. A prefill pass emits 1 token beside these.
    seed
        Which workload; requests draw from independent streams.
    draft_tokens, acceptance, draft_floor
        Drafts of a verify window, and the chance that a draft is accepted when those before it were. With a floor
        a window has as many as the drafter holds for that likely, none to `draft_tokens`. It emits the accepted
        drafts and one token more; the rows of rejected drafts are in the trace and leave no memory.
    weights
        Whether rows carry mixing weights (they add up to 1 within rounding to 1/4096).
    lookahead
        Recall by depth, e.g. `{1: 0.89, 2: 0.85}`: predictions made that many layers ahead. Each expert of a
        row is predicted with this chance; the rest of the k places go to the row's runners-up. The first
        `depth` layers have none.

    Returns
    -------
    RoutingTrace
        With `meta["synthetic"]` true. Equal arguments give equal arrays, whatever PYTHONHASHSEED.

    Raises
    ------
    TraceError
        A size, chance or depth out of range.
    """
    lookahead = dict(sorted((lookahead or {}).items()))
    _check(geometry, tokens, prompt_tokens, requests, seed, draft_tokens, lookahead)
    drafting = Drafting(draft_tokens, acceptance, draft_floor)
    bias = ModelBias(style, geometry.n_layers, geometry.experts)
    passes = _Passes(geometry.top_k, min(2 * geometry.top_k, geometry.experts) if lookahead else geometry.top_k)
    for request in range(requests):
        process = RequestProcess(style, bias, stream(seed, _ROUTING, request))
        chance = stream(seed, _ACCEPTANCE, request)
        position = prompt_tokens
        if prompt_tokens:
            passes.add(process, request, Phase.PREFILL, 0, prompt_tokens, kept=prompt_tokens, emits=1)
        while position < prompt_tokens + tokens:
            drafted, accepted = drafting.window(chance)
            emits = min(1 + accepted, prompt_tokens + tokens - position)
            phase = Phase.VERIFY if draft_tokens else Phase.DECODE
            passes.add(process, request, phase, position, 1 + drafted, kept=emits, emits=emits)
            position += emits
    meta = {
        "synthetic": True,
        "source": "synthetic routing generator",
        "generator_version": GENERATOR_VERSION,
        "style": style.model_dump(),
        "seed": seed,
    }
    return passes.trace(geometry, style.weight_temperature if weights else None, lookahead, seed, meta)


class _Passes:
    """Collects passes; each keeps (L, rows, n_best) experts and (L, rows, k) scores."""

    def __init__(self, top_k: int, n_best: int) -> None:
        self._k, self._n_best = top_k, n_best
        self._header: list[tuple[int, int, int]] = []
        self._best: list[IntArray] = []
        self._score: list[FloatArray] = []
        self._first_position: list[int] = []

    def add(
        self,
        process: RequestProcess,
        request: int,
        phase: Phase,
        position: int,
        rows: int,
        *,
        kept: int,
        emits: int,
    ) -> None:
        """Draw one pass of `rows` rows, of which the first `kept` stay in the request's memory."""
        best, score, after = [], [], process.state()
        for row in range(rows):
            experts, value = process.draw(self._n_best)
            process.use(experts[:, : self._k])
            best.append(experts)
            score.append(value[:, : self._k])
            if row + 1 == kept < rows:
                after = process.state()
        if kept < rows:
            process.rewind(after)
        self._header.append((request, int(phase), emits))
        self._best.append(np.stack(best, axis=1))
        self._score.append(np.stack(score, axis=1))
        self._first_position.append(position)

    def trace(
        self,
        geometry: ModelGeometry,
        temperature: float | None,
        lookahead: Mapping[int, float],
        seed: int,
        meta: dict[str, object],
    ) -> RoutingTrace:
        """Everything in the order pass, layer, row."""
        layers, k = geometry.n_layers, self._k
        header = np.asarray(self._header, dtype=np.int32)
        rows = np.asarray([best.shape[1] for best in self._best])
        n_rows = int(rows.sum()) * layers
        positions = [
            np.tile(np.arange(first, first + n), layers)
            for first, n in zip(self._first_position, rows.tolist(), strict=True)
        ]
        experts = np.concatenate([best[:, :, :k].reshape(-1) for best in self._best])
        weights = None
        if temperature is not None:
            weights = _weights(np.concatenate([s.reshape(-1, k) for s in self._score]), temperature).reshape(-1)
        return RoutingTrace(
            geometry=geometry,
            pass_request=header[:, 0],
            pass_phase=header[:, 1].astype(np.int8),
            pass_emits=header[:, 2],
            event_pass=np.repeat(np.arange(len(header), dtype=np.int32), layers),
            event_layer=np.tile(np.arange(layers, dtype=np.int16), len(header)),
            event_row_offsets=np.concatenate([[0], np.cumsum(np.repeat(rows, layers))]).astype(np.int64),
            row_position=np.concatenate(positions).astype(np.int32),
            row_offsets=np.arange(n_rows + 1, dtype=np.int64) * k,
            row_experts=experts.astype(np.int16),
            row_weights=weights,
            predictions={
                depth: _predict(self._best, k, depth, recall, stream(seed, _LOOKAHEAD, depth))
                for depth, recall in lookahead.items()
            },
            meta=meta,
        )


def _weights(score: FloatArray, temperature: float) -> npt.NDArray[np.float32]:
    """Softmax over each row of (R, k) descending scores, rounded so that files stay small."""
    weight = np.exp((score - score[:, :1]) / temperature)
    weight /= weight.sum(axis=1, keepdims=True)
    return (np.round(weight / WEIGHT_STEP) * WEIGHT_STEP).astype(np.float32)


def _predict(
    passes: list[IntArray], k: int, depth: int, recall: float, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """CSR over events of the distinct experts predicted for any row of the event, in order of first row."""
    parts: list[IntArray] = []
    for best in passes:
        layers, rows, n_best = best.shape
        kept = rng.random((layers, rows, k)) < recall
        spare = np.ones((layers, rows, n_best - k), dtype=bool)
        wanted = np.concatenate([kept, spare], axis=2)
        wanted &= np.cumsum(wanted, axis=2) <= k  # runners-up fill the places of the experts that were missed
        for layer in range(layers):
            found = best[layer][wanted[layer]] if layer >= depth else best[:0, 0, 0]
            _, first = np.unique(found, return_index=True)
            parts.append(found[np.sort(first)])
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return offsets, np.concatenate(parts).astype(np.int16)


def _check(
    geometry: ModelGeometry,
    tokens: int,
    prompt_tokens: int,
    requests: int,
    seed: int,
    draft_tokens: int,
    lookahead: Mapping[int, float],
) -> None:
    if geometry.experts > np.iinfo(np.int16).max:
        raise TraceError(
            f"a trace holds expert ids up to {np.iinfo(np.int16).max}, not {geometry.experts} experts"
        )
    sizes = {"tokens": tokens, "prompt tokens": prompt_tokens, "seed": seed}
    for what, value in sizes.items():
        if value < 0:
            raise TraceError(f"{what} must not be negative (found {value})")
    if requests < 1:
        raise TraceError(f"requests must be at least 1 (found {requests})")
    if tokens + prompt_tokens == 0:
        raise TraceError("a trace needs tokens or prompt tokens")
    rows = requests * (prompt_tokens + tokens * (1 + draft_tokens))
    if rows * geometry.n_layers * geometry.top_k > _MOST_ROUTED:
        raise TraceError(
            f"{rows:,} rows of {geometry.n_layers} layers are more than {_MOST_ROUTED:,} routed experts: fewer "
            "tokens or requests"
        )
    for depth, recall in lookahead.items():
        if not (1 <= depth < geometry.n_layers and 0.0 <= recall <= 1.0):
            raise TraceError(
                f"look-ahead needs a depth from 1 to {geometry.n_layers - 1} and a recall from 0 to 1 "
                f"(found {depth}: {recall})"
            )
