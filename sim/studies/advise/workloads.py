"""Workloads that advice stands on: recorded traces, or generated ones of the model's style."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from expert_residency.errors import SimError
from expert_residency.sim.choices.trace import TOKENS, open_trace
from expert_residency.traces import RoutingTrace, load_model
from expert_residency.traces.geometry import read_model
from expert_residency.traces.synthetic import generate, load_style

SEEDS = (1, 2, 3, 4)
PARTS = 4
"""Into how many a single recorded trace is cut, since its parts differ as workloads do."""


def workloads(model: str, sources: Sequence[str], fmt: str | None, passes: int) -> tuple[RoutingTrace, ...]:
    """Traces of a model's shape.

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
    tuple of RoutingTrace
        The first is what is searched with.

    Raises
    ------
    SimError, TraceError
        What cannot be read, or has another shape.
    """
    if not sources:
        geometry, style = load_model(model), load_style(read_model(model).style)
        tokens = max(TOKENS, passes)
        made = [generate(geometry, style, tokens=tokens, seed=seed, weights=False) for seed in SEEDS]
        return tuple(trace.select_passes(np.arange(trace.n_passes) < passes) for trace in made)
    found = [open_trace(source, fmt, model) for source in sources]
    if len(found) > 1:
        return tuple(trace.select_passes(np.arange(trace.n_passes) < passes) for trace in found)
    (trace,) = found
    parts = min(PARTS, trace.n_passes // passes)
    if parts < 1:
        return (trace,)
    starts = [part * (trace.n_passes // parts) for part in range(parts)]
    at = np.arange(trace.n_passes)
    cut = tuple(trace.select_passes((at >= start) & (at < start + passes)) for start in starts)
    if not any((part.pass_phase != 0).any() for part in cut[:1]):
        raise SimError(f"{sources[0]}: its first {passes} passes decode nothing; give more with --passes")
    return cut
