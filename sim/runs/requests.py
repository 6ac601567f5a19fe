"""Requests by themselves: results of each, and runs in which each one starts cold.

`cold="trace"` is one cache from the first pass to the last, as a server has it. `cold="request"` empties it before
every request (back to the initial placement, and the page cache to its start), as a program has it that is started
anew for each; its result is the sum of runs of single requests, and what a policy learned is forgotten too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from expert_residency.text import check_known
from expert_residency.traces import RoutingTrace

if TYPE_CHECKING:
    from expert_residency.sim.runs.counts import Counters, ReplayResult
    from expert_residency.sim.timed.result import RunResult

COLDS = ("trace", "request")
Result = TypeVar("Result")


def apart(trace: RoutingTrace, cold: str) -> list[tuple[npt.NDArray[np.bool_], RoutingTrace]]:
    """Passes (P,) and trace of each request that starts cold; none where one run goes through all.

    Raises
    ------
    SimError
        A word that is no way to start.
    """
    check_known("cold", cold, COLDS)
    numbers = list(dict.fromkeys(trace.pass_request.tolist()))
    if cold == "trace" or len(numbers) < 2:
        return []
    chosen = [trace.pass_request == number for number in numbers]
    return [(passes, trace.select_passes(passes)) for passes in chosen]


def lookup_passes(trace: RoutingTrace) -> npt.NDArray[np.integer[Any]]:
    """(U,) pass of each look-up."""
    return np.asarray(np.repeat(trace.event_pass, np.diff(trace.event_offsets)))


def summed(parts: Sequence[Counters]) -> Counters:
    """Counters of several runs together."""
    from expert_residency.sim.runs.counts import Counters

    return Counters(**{f.name: sum(getattr(p, f.name) for p in parts) for f in dataclasses.fields(Counters)})


def summed_phases(parts: Sequence[dict[str, Counters]]) -> dict[str, Counters]:
    """Counters by phase of several runs together."""
    names = dict.fromkeys(name for part in parts for name in part)
    order = [name for name in ("all", "prefill", "decode", "verify") if name in names]
    return {name: summed([part[name] for part in parts if name in part]) for name in order}


def joined_replay(
    trace: RoutingTrace, parts: Sequence[tuple[npt.NDArray[np.bool_], ReplayResult]]
) -> ReplayResult:
    """One result of the replays of single requests, each with its passes (P,)."""
    results = [result for _, result in parts]
    hits = np.zeros(trace.n_lookups, dtype=np.uint8)
    of_pass = lookup_passes(trace)
    for passes, result in parts:
        hits[passes[of_pass]] = result.hits
    return dataclasses.replace(
        results[0],
        phases=summed_phases([result.phases for result in results]),
        warm=summed([result.warm for result in results]),
        evictions=sum(result.evictions for result in results),
        admitted_bytes=sum(result.admitted_bytes for result in results),
        waves=sum(result.waves for result in results),
        hits=hits,
        warnings=list(dict.fromkeys(text for result in results for text in result.warnings)),
    )


def joined_run(
    trace: RoutingTrace, parts: Sequence[tuple[npt.NDArray[np.bool_], RunResult]], manifest: dict[str, Any]
) -> RunResult:
    """One result of the timed runs of single requests, each with its passes (P,).

    Parameters
    ----------
    trace
        All of it.
    parts
        Passes and result of each request.
    manifest
        Of the whole.

    Returns
    -------
    RunResult
        Times of passes in the trace's order; copies before the clock, like look-ups and bytes, are sums.
    """
    results = [result for _, result in parts]
    first = results[0]
    ns = np.zeros(trace.n_passes, dtype=np.int64)
    causes = np.zeros((trace.n_passes, first.pass_causes.shape[1]), dtype=np.int64)
    for passes, result in parts:
        ns[passes], causes[passes] = result.pass_ns, result.pass_causes
    stats = type(first.prefetch)(
        **{f.name: sum(getattr(r.prefetch, f.name) for r in results) for f in dataclasses.fields(first.prefetch)}
    )
    links = dict.fromkeys(link for result in results for link in result.link_bytes)
    return dataclasses.replace(
        results[-1],
        manifest=manifest,
        pass_ns=ns,
        pass_causes=causes,
        pass_phase=np.asarray(trace.pass_phase),
        pass_emits=np.asarray(trace.pass_emits),
        pass_request=np.asarray(trace.pass_request),
        served_distinct=np.sum([result.served_distinct for result in results], axis=0),
        served_routed=np.sum([result.served_routed for result in results], axis=0),
        link_bytes={link: sum(result.link_bytes.get(link, 0) for result in results) for link in links},
        prefetch=stats,
        warnings=list(dict.fromkeys(text for result in results for text in result.warnings)),
        **{
            name: sum(getattr(result, name) for result in results)
            for name in ("evictions", "admitted_bytes", "waves", "start_bytes", "load_ns")
        },
    )


def hits_by_request(trace: RoutingTrace, result: ReplayResult) -> list[dict[str, Any]]:
    """Look-ups and hits of each request, in the order in which requests begin."""
    of_pass = lookup_passes(trace)
    hit = result.hits.astype(bool)
    found = []
    for number in dict.fromkeys(trace.pass_request.tolist()):
        passes = trace.pass_request == number
        own = passes[of_pass]
        distinct, hits = int(own.sum()), int((own & hit).sum())
        routed, routed_hits = (int(trace.rows_wanting[mask].sum()) for mask in (own, own & hit))
        found.append({
            "request": number, "passes": int(passes.sum()), "distinct": distinct, "distinct_hits": hits,
            "hit_rate_distinct": hits / distinct, "routed": routed, "routed_hits": routed_hits,
            "hit_rate_routed": routed_hits / routed,
        })  # fmt: skip
    return found


def one_by_one(
    parts: Sequence[tuple[npt.NDArray[np.bool_], RoutingTrace]],
    run: Callable[[RoutingTrace, int], Result],
) -> list[tuple[npt.NDArray[np.bool_], Result]]:
    """Run each request; `run` is also told how many passes are done before it."""
    found, done = [], 0
    for passes, part in parts:
        found.append((passes, run(part, done)))
        done += part.n_passes
    return found
