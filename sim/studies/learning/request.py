"""One request as a predictor sees it: arrays by token and layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces import RoutingTrace
from expert_residency.traces.trace import IntArray, ragged_take

NONE = -1
"""In place of an expert that a row does not have, or of a layer that a token does not reach."""


@dataclass(frozen=True)
class Request:
    """A request's routing; T tokens in the order of their passes, L layers, k experts a row at most, E of a layer.

    When an event (pass p, layer l) is done, a causal predictor may use of this: every array of tokens of passes
    before p; of tokens of p their ids, and experts, weights and hidden states of layers up to l.

    Parameters
    ----------
    number
        Of the request in its trace.
    n_experts
        E.
    experts : (T, L, k)
        Best first, -1 where there is none.
    weights : (T, L, k) or None
        Mixing weights, 0 where there is no expert; None where the trace has none.
    pass_of : (T,)
        Pass of each token, from 0 within the request.
    before : (T,)
        Last token of the pass before a token's, -1 in the first pass.
    prompt : (T,) bool
        Whether the token's pass is a prefill: these are not predicted.
    tokens : (T,) or None
        Token ids, where the caller has them.
    hidden : (T, L, H) or None
        Inputs of the layers' routers, where the caller has them.
    """

    number: int
    n_experts: int
    experts: npt.NDArray[np.int16]
    weights: npt.NDArray[np.float32] | None
    pass_of: IntArray
    before: IntArray
    prompt: npt.NDArray[np.bool_]
    tokens: IntArray | None = None
    hidden: npt.NDArray[Any] | None = None

    @property
    def n_tokens(self) -> int:
        """T."""
        return len(self.experts)

    @property
    def n_layers(self) -> int:
        """L."""
        return int(self.experts.shape[1])

    def wanted(self, layer: int, at: IntArray | None = None) -> npt.NDArray[np.float32]:
        """Which experts tokens want in a layer, as 0 and 1; a token -1 wants none.

        Parameters
        ----------
        layer
            Index of the layer.
        at : (n,) or None
            Tokens; all of them by default.

        Returns
        -------
        array
            (n, E).
        """
        chosen = self.experts[:, layer] if at is None else self.experts[at, layer]
        found = np.zeros((len(chosen), self.n_experts + 1), dtype=np.float32)
        np.put_along_axis(found, chosen.astype(np.int64) % (self.n_experts + 1), 1.0, axis=1)  # -1 is the last
        found = found[:, : self.n_experts]
        if at is not None:
            found[np.asarray(at) < 0] = 0.0
        return found


def requests_of(
    trace: RoutingTrace, *, tokens: IntArray | None = None, hidden: npt.NDArray[Any] | None = None
) -> list[Request]:
    """Requests of a trace, in the order of their numbers.

    Parameters
    ----------
    trace
        The trace.
    tokens : (tokens of the trace,) or None
        Token ids in the order of passes and rows.
    hidden : (tokens of the trace, L, H) or None
        Inputs of routers, in the same order.

    Returns
    -------
    list of Request
        One each.

    Raises
    ------
    TraceError
        Token ids or hidden states of another number of tokens or layers.
    """
    experts, weights, token_pass = _by_token(trace)
    n = len(token_pass)
    if tokens is not None and len(tokens) != n:
        raise TraceError(f"{len(tokens)} token ids for {n} tokens of the trace")
    if hidden is not None and hidden.shape[:2] != experts.shape[:2]:
        raise TraceError(f"hidden states of shape {hidden.shape} for {n} tokens and {experts.shape[1]} layers")
    found = []
    for number in np.unique(trace.pass_request):
        own = np.flatnonzero(trace.pass_request[token_pass] == number)
        pass_of = np.unique(token_pass[own], return_inverse=True)[1].reshape(-1)
        last = np.append(np.flatnonzero(np.diff(pass_of)), len(own) - 1)
        found.append(
            Request(
                number=int(number),
                n_experts=trace.geometry.experts,
                experts=experts[own],
                weights=None if weights is None else weights[own],
                pass_of=pass_of,
                before=np.where(pass_of > 0, last[pass_of - 1], -1),
                prompt=trace.pass_phase[token_pass[own]] == 0,
                tokens=None if tokens is None else tokens[own],
                hidden=None if hidden is None else hidden[own],
            )
        )
    return found


def _by_token(
    trace: RoutingTrace,
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.float32] | None, IntArray]:
    """Experts and weights (tokens, L, k), and the pass of each token.

    A layer with fewer rows than others of its pass has the last tokens' rows, as engines gather them.
    """
    rows_of_pass = np.zeros(trace.n_passes, dtype=np.int64)
    np.maximum.at(rows_of_pass, trace.event_pass, trace.event_rows)
    first = np.concatenate([[0], np.cumsum(rows_of_pass)])
    counts = np.diff(trace.row_offsets)
    k = int(counts.max())
    row_event = np.repeat(np.arange(trace.n_events), trace.event_rows)
    within = np.arange(trace.n_rows) - trace.event_row_offsets[row_event]
    row_pass = trace.event_pass[row_event]
    token = first[row_pass] + rows_of_pass[row_pass] - trace.event_rows[row_event] + within
    flat = ragged_take(trace.row_offsets, np.arange(trace.n_rows))
    row = np.repeat(np.arange(trace.n_rows), counts)
    place = (token[row], trace.event_layer[row_event[row]], np.arange(len(row)) - trace.row_offsets[row])
    shape = (int(first[-1]), trace.geometry.n_layers, k)
    experts = np.full(shape, NONE, dtype=np.int16)
    experts[place] = trace.row_experts[flat]
    weights = None
    if trace.row_weights is not None:
        weights = np.zeros(shape, dtype=np.float32)
        weights[place] = np.nan_to_num(trace.row_weights[flat])
    return experts, weights, np.repeat(np.arange(trace.n_passes), rows_of_pass)
