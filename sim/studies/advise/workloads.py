"""Workloads that advice stands on: recorded traces, or generated ones of the model's style, with a warm cache.

A setting is run on few passes, and what a cold cache costs would be most of them. So the experts that begin on the
card are those that the passes before had used most, later uses weighing more (half after `HALF_LIFE` passes):
nothing that is still to come is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from expert_residency.errors import SimError
from expert_residency.sim.choices.synthetic import TOKENS
from expert_residency.sim.choices.trace import open_trace, routing_of
from expert_residency.traces import Phase, RoutingTrace, load_model
from expert_residency.traces.geometry import read_model
from expert_residency.traces.synthetic import generate, load_style

SEEDS = (1, 2, 3, 4)
PARTS = 4
"""Into how many a single recorded trace is cut, since its parts differ as workloads do."""
WARM, HALF_LIFE = 300, 64
"""Passes before those that are run."""


@dataclass(frozen=True)
class Workload:
    """What is run, and the keys of the experts used before, the most used first (none: the cache is cold)."""

    trace: RoutingTrace
    ranked: tuple[int, ...] = ()


def workloads(model: str, sources: Sequence[str], fmt: str | None, passes: int) -> tuple[Workload, ...]:
    """Workloads of a model's shape.

    Parameters
    ----------
    model
        NAME, NAME/QUANT or file.
    sources, fmt
        Recorded traces and their format; none: generated ones, with several seeds.
    passes
        Of each workload.

    Returns
    -------
    tuple of Workload
        The first is what is searched with.

    Raises
    ------
    SimError, TraceError
        What cannot be read, or has another shape.
    """
    if not sources:
        geometry, style = load_model(model), load_style(read_model(model).style)
        made = [generate(geometry, style, tokens=WARM + passes, seed=seed, weights=False) for seed in SEEDS]
        return tuple(after(trace, WARM, passes) for trace in made)
    found = [open_trace(source, fmt, model) for source in sources]
    if len(found) > 1:
        cut = tuple(after(trace, max(0, min(WARM, trace.n_passes - passes)), passes) for trace in found)
    else:
        (trace,) = found
        warm = max(0, min(WARM, trace.n_passes - passes))
        parts = max(1, min(PARTS, (trace.n_passes - warm) // passes))
        step = (trace.n_passes - warm) // parts
        cut = tuple(after(trace, warm + part * step, passes) for part in range(parts))
    if not (cut[0].trace.pass_phase != Phase.PREFILL).any():
        raise SimError(f"{sources[0]}: the {passes} passes that are run decode nothing; give more with --passes")
    return cut


def whole_workloads(
    model: str, sources: Sequence[str], fmt: str | None, passes: int | None
) -> tuple[Workload, ...]:
    """Workloads of an engine that moves nothing: no cache has to be warm, and the first is the one of `split`.

    Parameters
    ----------
    model
        NAME, NAME/QUANT or file.
    sources, fmt
        Recorded traces and their format; none: what `split` takes by default, then generated ones.
    passes
        The first so many of each; None for all.

    Returns
    -------
    tuple of Workload
        The first is what is searched with.

    Raises
    ------
    SimError, TraceError
        What cannot be read, or has another shape.
    """
    traces = [routing_of(model, source, fmt, passes=passes) for source in (*sources, *([] if sources else [None]))]
    if not sources:
        geometry, style = load_model(model), load_style(read_model(model).style)
        traces += [generate(geometry, style, tokens=TOKENS, seed=seed, weights=False) for seed in SEEDS[1:]]
    if len(sources) == 1:
        ends = [traces[0].n_passes * part // PARTS for part in range(PARTS + 1)]
        at = np.arange(traces[0].n_passes)
        parts = [(at >= a) & (at < b) for a, b in pairwise(ends)]
        decodes = traces[0].pass_phase != Phase.PREFILL
        traces += [traces[0].select_passes(part) for part in parts if (part & decodes).any()]
    return tuple(map(Workload, traces))


def after(trace: RoutingTrace, start: int, passes: int) -> Workload:
    """The passes from `start` on, and what those before them used.

    Parameters
    ----------
    trace
        The whole.
    start, passes
        First pass that is run, and how many.

    Returns
    -------
    Workload
        Cold where nothing was before.
    """
    at = np.arange(trace.n_passes)
    run = trace.select_passes((at >= start) & (at < start + passes)) if start or passes < trace.n_passes else trace
    event = np.repeat(np.arange(trace.n_events), np.diff(trace.event_offsets))
    age = start - trace.event_pass[event]
    before = age > 0
    if not before.any():
        return Workload(run)
    geometry = trace.geometry
    used = np.bincount(
        trace.keys[before],
        weights=0.5 ** (age[before] / HALF_LIFE),
        minlength=geometry.n_layers * geometry.experts,
    )
    order = np.argsort(-used, kind="stable")
    return Workload(run, tuple(order[used[order] > 0].tolist()))
