"""Statistics of a routing trace, by name: what a generator is fitted to and judged by.

A name is `statistic` or `statistic@n`. All look at the decode and verify passes only, and are means over
requests and layers (weighted by look-ups):

=====================  ==================================================================================
overlap@n              share of a row's experts that the row n before it (same request, same layer) used
reuse@n                share of a row's experts that at least one of the n rows before it used
union@n                distinct experts in n consecutive rows
distinct               distinct experts of one request and layer
entropy                entropy of expert use in one request and layer, divided by ln(experts)
top_share@n            share of look-ups on the n most used experts of one request and layer, in hindsight
pooled_entropy         the same two over all requests of the trace together
pooled_top_share@n
event_size             distinct experts of one event
static@n               share of distinct look-ups on the n experts of the layer that all requests want most
all_texts@n            share of look-ups on the n (layer, expert) pairs that all requests together want most
other_texts@n          the same, pairs chosen for each request by what all *other* requests want
other_text@n           the same, chosen by the one request before it (the last one, for the first)
arrival@n              the same, the first n pairs to arrive in the requests before it
lru@n                  hit rate over distinct look-ups of an LRU with n slots a layer, empty at each request
lru_carried@n          the same, kept from one request to the next, empty at the first
=====================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.trace import IntArray, Phase, RoutingTrace, ragged_take

BoolArray = npt.NDArray[np.bool_]
NEVER = np.iinfo(np.int32).max


def default_statistics(experts: int, top_k: int) -> list[str]:
    """A set that suits a geometry: lags 1 to 16, usual shares, and an LRU curve from k to all experts."""
    slots = sorted(
        {min(experts, n) for n in (top_k, 2 * top_k, experts // 8, experts // 4, experts // 2)} | {experts}
    )
    tops = sorted({max(1, experts // n) for n in (16, 8, 4, 2)})
    return [
        *(f"overlap@{lag}" for lag in (1, 2, 4, 8, 16)),
        "distinct", "entropy", "pooled_entropy", "event_size",
        *(f"{scope}top_share@{n}" for scope in ("", "pooled_") for n in tops),
        *(f"lru@{n}" for n in slots if n >= top_k),
    ]  # fmt: skip


def measure(
    trace: RoutingTrace, names: Iterable[str] | None = None, *, layer: int | None = None
) -> dict[str, float]:
    """Statistics `names` of the trace (`default_statistics` if None), of one MoE layer or of all.

    Parameters
    ----------
    trace
        The trace.
    names
        Statistics, as `overlap@1` or `lru@16`; the default ones if None.
    layer
        Index of one MoE layer; all if None.

    Returns
    -------
    dict[str, float]
        Value of each, by name.

    Raises
    ------
    TraceError
        An unknown statistic (the known ones are listed), or a trace too short for it.
    """
    geometry = trace.geometry
    wanted = list(names if names is not None else default_statistics(geometry.experts, geometry.top_k))
    parsed = [_parse(name) for name in wanted]
    layers = range(geometry.n_layers) if layer is None else [layer]
    usage = [_usage(trace, index) for index in layers]
    distances: dict[bool, list[IntArray]] = {}
    out: dict[str, float] = {}
    for name, (statistic, n) in zip(wanted, parsed, strict=True):
        if statistic in ("lru", "lru_carried"):
            carried = statistic == "lru_carried"
            if carried not in distances:
                distances[carried] = [lru_distances(trace, index, carried=carried) for index in layers]
            out[name] = float(np.mean(np.concatenate(distances[carried]) < n))
        elif statistic == "event_size":
            sizes = np.diff(trace.event_offsets)
            out[name] = float(sizes[_generation(trace) & np.isin(trace.event_layer, layers)].mean())
        elif statistic in _OF_PAIRS:
            out[name] = _OF_PAIRS[statistic](usage, n)
        elif statistic == "static":
            out[name] = float(np.mean([_static_share(trace, index, n) for index in layers]))
        else:
            scope, function = _STATISTICS[statistic]
            blocks = [b for per_layer in usage for b in ([np.concatenate(per_layer)] if scope else per_layer)]
            values = [
                function(block, n) for block in blocks if len(block) > (n if statistic in _LOOKS_BACK else 0)
            ]
            if not values:
                raise TraceError(f"no request is long enough for statistic {name}")
            out[name] = float(np.mean(values))
    return out


def lru_curve(trace: RoutingTrace, slots: Sequence[int], *, carried: bool = False) -> npt.NDArray[np.float64]:
    """Hit rate over distinct look-ups of decode and verify events, for each number of slots a layer.

    Parameters
    ----------
    trace
        The trace.
    slots
        (n,) slots of a layer.
    carried
        Whether the cache outlives a request.

    Returns
    -------
    npt.NDArray[np.float64]
        (n,) hit rates, 0 to 1.
    """
    pooled = np.concatenate([lru_distances(trace, i, carried=carried) for i in range(trace.geometry.n_layers)])
    return np.array([np.mean(pooled < n) for n in slots])


def lru_distances(trace: RoutingTrace, layer: int, *, carried: bool = False) -> IntArray:
    """For each look-up of the layer, how many experts were used more recently: it hits iff slots exceed that.

    Event-atomic: distances are taken against the state before the event, then its experts become the most
    recent, in the trace's order. (An LRU of n slots holds the n most recent experts whatever n is, Mattson et
    al. 1970, so one pass gives the whole curve.) `NEVER` at first touches.

    Parameters
    ----------
    trace
        The trace.
    layer
        Index of the MoE layer.
    carried
        Whether the cache outlives a request.

    Returns
    -------
    IntArray
        (look-ups of the layer,) distances in experts.
    """
    chosen = np.flatnonzero(_generation(trace) & (trace.event_layer == layer))
    offsets, keys = trace.event_offsets, trace.keys
    stamp = np.full(trace.geometry.experts, -1, dtype=np.int64)
    request, clock, out = -1, 0, []
    for event in chosen.tolist():
        now = int(trace.pass_request[trace.event_pass[event]])
        if now != request and not carried:
            stamp[:] = -1
        request = now
        experts = keys[offsets[event] : offsets[event + 1]] - layer * trace.geometry.experts
        seen = stamp[experts]
        out.append(np.where(seen < 0, NEVER, (stamp[None, :] > seen[:, None]).sum(axis=1)))
        stamp[experts] = np.arange(clock, clock + len(experts))
        clock += len(experts)
    return np.concatenate(out) if out else np.zeros(0, dtype=np.int64)


def _static_share(trace: RoutingTrace, layer: int, n: int) -> float:
    wanted = np.repeat(_generation(trace) & (trace.event_layer == layer), np.diff(trace.event_offsets))
    counts = np.sort(np.bincount(trace.keys[wanted]))[::-1]
    return float(counts[:n].sum() / counts.sum())


def _generation(trace: RoutingTrace) -> BoolArray:
    """(E,) events of decode and verify passes."""
    return np.asarray(trace.event_phase != Phase.PREFILL)


def _usage(trace: RoutingTrace, layer: int) -> list[BoolArray]:
    """For each request, (rows, experts): which expert each row used."""
    events = np.flatnonzero(_generation(trace) & (trace.event_layer == layer))
    if len(events) == 0:
        raise TraceError("the trace has no decode or verify pass to measure")
    blocks = []
    request = trace.pass_request[trace.event_pass[events]]
    for one in np.unique(request):
        rows = ragged_take(trace.event_row_offsets, events[request == one])
        row_of_entry = np.repeat(np.arange(len(rows)), np.diff(trace.row_offsets)[rows])
        block = np.zeros((len(rows), trace.geometry.experts), dtype=bool)
        block[row_of_entry, trace.row_experts[ragged_take(trace.row_offsets, rows)]] = True
        blocks.append(block)
    return blocks


def _overlap(block: BoolArray, lag: int) -> float:
    return float((block[lag:] & block[:-lag]).sum() / block[lag:].sum())


def _reuse(block: BoolArray, rows: int) -> float:
    recent = np.zeros_like(block[rows:])
    for lag in range(1, rows + 1):
        recent |= block[rows - lag : len(block) - lag]
    return float((block[rows:] & recent).sum() / block[rows:].sum())


def _union(block: BoolArray, rows: int) -> float:
    windows = [block[i : i + rows].any(axis=0).sum() for i in range(0, len(block) - rows + 1, rows)]
    return float(np.mean(windows)) if windows else float(block.any(axis=0).sum())


def _distinct(block: BoolArray, _: int) -> float:
    return float(block.any(axis=0).sum())


def _entropy(block: BoolArray, _: int) -> float:
    share = block.sum(axis=0) / block.sum()
    used = share[share > 0]
    return float(-(used * np.log(used)).sum() / np.log(block.shape[1]))


def _top_share(block: BoolArray, n: int) -> float:
    counts = np.sort(block.sum(axis=0))[::-1]
    return float(counts[:n].sum() / counts.sum())


def _pairs(usage: list[list[BoolArray]]) -> npt.NDArray[np.int64]:
    """(requests, layers x experts) look-ups of each pair."""
    return np.stack([
        np.concatenate([per_layer[request].sum(axis=0) for per_layer in usage])
        for request in range(len(usage[0]))
    ])  # fmt: skip


def _on_chosen(
    usage: list[list[BoolArray]], n: int, chosen: Callable[[npt.NDArray[np.int64], int], npt.NDArray[np.int64]]
) -> float:
    """Mean over requests of the share of look-ups on the n pairs that score highest in `chosen`."""
    counts = _pairs(usage)
    shares = []
    for request, own in enumerate(counts):
        best = np.argsort(-chosen(counts, request), kind="stable")[:n]
        shares.append(own[best].sum() / own.sum())
    return float(np.mean(shares))


def _all_texts(usage: list[list[BoolArray]], n: int) -> float:
    return _on_chosen(usage, n, lambda counts, _: counts.sum(axis=0))


def _other_texts(usage: list[list[BoolArray]], n: int) -> float:
    _several(usage)
    return _on_chosen(usage, n, lambda counts, request: counts.sum(axis=0) - counts[request])


def _other_text(usage: list[list[BoolArray]], n: int) -> float:
    _several(usage)
    return _on_chosen(usage, n, lambda counts, request: counts[request - 1])


def _several(usage: list[list[BoolArray]]) -> None:
    if len(usage[0]) < 2:
        raise TraceError("what other texts want needs two requests or more")


def _arrival(usage: list[list[BoolArray]], n: int) -> float:
    """Pairs of a request arrive by row, then layer, then number; with few of them all requests before it count."""
    _several(usage)
    requests = len(usage[0])
    rows = [
        np.stack([per_layer[request] for per_layer in usage], axis=1).reshape(len(usage[0][request]), -1)
        for request in range(requests)
    ]

    def order(_: npt.NDArray[np.int64], request: int) -> npt.NDArray[np.int64]:
        before = np.concatenate([rows[(request - step) % requests] for step in range(1, requests)])
        return np.where(before.any(axis=0), -before.argmax(axis=0), -len(before))

    return _on_chosen(usage, n, order)


_OF_PAIRS: dict[str, Callable[[list[list[BoolArray]], int], float]] = {
    "all_texts": _all_texts,
    "other_texts": _other_texts,
    "other_text": _other_text,
    "arrival": _arrival,
}
_STATISTICS: dict[str, tuple[bool, Callable[[BoolArray, int], float]]] = {
    "overlap": (False, _overlap),
    "reuse": (False, _reuse),
    "union": (False, _union),
    "distinct": (False, _distinct),
    "entropy": (False, _entropy),
    "top_share": (False, _top_share),
    "pooled_entropy": (True, _entropy),
    "pooled_top_share": (True, _top_share),
}
_LOOKS_BACK = {"overlap", "reuse"}
_NEEDS_N = {"overlap", "reuse", "union", "top_share", "pooled_top_share", "static", "lru", "lru_carried"}
_NEEDS_N |= set(_OF_PAIRS)
_KNOWN = (*_STATISTICS, *_OF_PAIRS, "event_size", "static", "lru", "lru_carried")


def _parse(name: str) -> tuple[str, int]:
    statistic, _, tail = name.partition("@")
    needs: Any = statistic in _NEEDS_N
    if statistic not in _KNOWN:
        raise TraceError(f"unknown statistic {name!r} (known: {', '.join(_KNOWN)})")
    if needs != bool(tail) or (tail and not (tail.isdigit() and int(tail) > 0)):
        raise TraceError(f"statistic {name!r} takes {'@ and a positive number' if needs else 'no number'}")
    return statistic, int(tail or 0)
