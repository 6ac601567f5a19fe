"""What a look-ahead over tokens would have to bring: distinct experts of windows, and copies a token.

No time passes here; copies become ms at a link rate. A *token* is one row of a pass that is no prefill. The
perfect look-ahead knows the experts of the next `horizon` tokens and nothing beyond: for a copy it evicts those it
knows no use of, longest unused first, and then the resident whose next use is farthest.
Source of the questions: Niko1221/Strata PR #3265; of the policy: Belady with a window of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import SimError
from expert_residency.traces import Phase, RoutingTrace

Ints = npt.NDArray[np.integer[Any]]
NOT_YET = -(1 << 30)


@dataclass(frozen=True)
class WindowUnion:
    """Distinct experts of a window of `tokens` tokens over all layers, on average and at most."""

    tokens: int
    mean: float
    most: int
    of_single: float
    """Mean over that of one token."""


@dataclass(frozen=True)
class LookaheadCost:
    """What a perfect look-ahead of `horizon` tokens copies."""

    horizon: int
    copies_per_token: float
    bytes_per_token: float

    def ms_per_token(self, link_mb_per_s: int) -> float:
        """Time of the copies on a link, queued one behind the other."""
        return self.bytes_per_token / link_mb_per_s / 1e3


def token_keys(trace: RoutingTrace, *, kept_only: bool = False) -> list[Ints]:
    """Keys of each token over all layers, in order of passes and rows.

    Parameters
    ----------
    trace
        Any trace with passes that are no prefill.
    kept_only
        The first row of a verify window alone: what is certainly kept.

    Raises
    ------
    SimError
        If there is no such pass.
    """
    rows = np.arange(trace.n_rows)
    row_event = np.repeat(np.arange(trace.n_events), trace.event_rows)
    row_pass, within = trace.event_pass[row_event], rows - trace.event_row_offsets[row_event]
    chosen = (trace.pass_phase != Phase.PREFILL)[row_pass] & ((within == 0) | (not kept_only))
    if not chosen.any():
        raise SimError("the trace has prompts only: there is no token to look ahead to")
    widest = int(within.max()) + 1
    token = row_pass[chosen].astype(np.int64) * widest + within[chosen]
    per_row = np.diff(trace.row_offsets)[chosen]
    entry_row = np.repeat(rows[chosen], per_row)
    first = np.repeat(np.cumsum(per_row) - per_row, per_row)
    entries = trace.row_offsets[:-1][entry_row] + np.arange(len(entry_row)) - first
    layer = trace.event_layer[row_event[entry_row]].astype(np.int64)
    keys = layer * trace.geometry.experts + trace.row_experts[entries]
    order = np.argsort(np.repeat(token, per_row), kind="stable")
    _, starts = np.unique(np.sort(np.repeat(token, per_row)), return_index=True)
    return np.split(keys[order], starts[1:])


def window_unions(trace: RoutingTrace, sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)) -> list[WindowUnion]:
    """Distinct experts in windows of successive tokens, for each size that the trace has room for."""
    tokens = token_keys(trace)
    found: list[WindowUnion] = []
    for size in sizes:
        counts = [
            len(np.unique(np.concatenate(tokens[at : at + size]))) for at in range(0, len(tokens) - size + 1, size)
        ]
        if counts:
            mean = float(np.mean(counts))
            found.append(WindowUnion(size, mean, max(counts), mean / found[0].mean if found else 1.0))
    return found


def lookahead_cost(
    trace: RoutingTrace, slots: int, horizon: int, start: Sequence[int] = (), *, kept_only: bool = False
) -> LookaheadCost:
    """Copies of a perfect look-ahead.

    Parameters
    ----------
    trace, slots
        What is asked for, and room in whole experts.
    horizon
        Tokens known in advance, 1 or more (the current one counts).
    start
        Residents at the start, hottest first; what does not fit is left out. The first fill of free room counts.
    kept_only
        See `token_keys`.

    Returns
    -------
    LookaheadCost
        Copies, bytes and tokens.

    Raises
    ------
    SimError
        A horizon below 1, or fewer slots than a token uses.
    """
    if horizon < 1:
        raise SimError(f"a look-ahead of {horizon} tokens sees nothing")
    tokens = [np.unique(keys) for keys in token_keys(trace, kept_only=kept_only)]
    most = max(len(keys) for keys in tokens)
    if slots < most:
        raise SimError(f"{slots} slots are fewer than the {most} experts of one token")
    n_keys = trace.geometry.n_experts
    size_of = np.repeat(np.asarray(trace.geometry.expert_bytes), trace.geometry.experts)
    resident = np.zeros(n_keys, dtype=bool)
    resident[list(start[:slots])] = True
    last_use = np.full(n_keys, NOT_YET, dtype=np.int64)
    uses: list[list[int]] = [[] for _ in range(n_keys)]
    for t in range(len(tokens) - 1, -1, -1):
        for key in tokens[t].tolist():
            uses[key].append(t)
    next_use = np.array([found[-1] if found else 1 << 30 for found in uses], dtype=np.int64)
    copies, moved = 0, 0
    for t, keys in enumerate(tokens):
        for key in keys.tolist():
            uses[key].pop()
            next_use[key] = uses[key][-1] if uses[key] else 1 << 30
        last_use[keys] = t
        wanted = keys[~resident[keys]]
        short = int(resident.sum()) + len(wanted) - slots
        if short > 0:
            known = next_use < t + horizon
            rank = np.where(known, next_use, t + horizon + np.minimum(t - last_use, 1 << 29))
            rank[~resident] = -1
            rank[keys] = -1
            resident[np.argsort(-rank, kind="stable")[:short]] = False  # of equal ones the lower key leaves
        resident[wanted] = True
        copies += len(wanted)
        moved += int(size_of[wanted].sum())
    return LookaheadCost(horizon, copies / len(tokens), moved / len(tokens))


def hindsight_rank(
    trace: RoutingTrace, first: int = 0, tokens: int | None = None, *, kept_only: bool = False
) -> list[int]:
    """Keys by uses over a range of tokens, most first; ties: lower key. Those that are not used are left out.

    Parameters
    ----------
    trace
        The trace.
    first
        First token that counts, from 0.
    tokens
        How many count; all if None.
    kept_only
        See `token_keys`.

    Returns
    -------
    list[int]
        Keys.

    Raises
    ------
    SimError
        No token there.
    """
    return ranked_by(uses(trace, first, tokens, kept_only=kept_only))


def uses(
    trace: RoutingTrace, first: int = 0, tokens: int | None = None, *, kept_only: bool = False
) -> npt.NDArray[np.int64]:
    """Uses of each key over a range of tokens; takes and raises as `hindsight_rank`.

    Parameters
    ----------
    trace, first, tokens, kept_only
        As for `hindsight_rank`.

    Returns
    -------
    numpy.ndarray
        (keys,) counts.

    Raises
    ------
    SimError
        No token there.
    """
    chosen = token_keys(trace, kept_only=kept_only)[first : None if tokens is None else first + tokens]
    if not chosen:
        raise SimError(f"the trace has no token from number {first} on")
    return np.bincount(np.concatenate(chosen), minlength=trace.geometry.n_experts)


def ranked_by(counts: npt.NDArray[Any]) -> list[int]:
    """Keys by falling count; ties: lower key. Those without any are left out."""
    ranked = np.lexsort((np.arange(len(counts)), -counts))
    return [int(key) for key in ranked[: int((counts > 0).sum())]]
