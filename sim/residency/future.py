"""What an oracle may know of a trace: the next use of every look-up, and what the prompt asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from expert_residency.policies.protocol import NEVER, Future, Ints, Predictions
from expert_residency.traces import Phase, RoutingTrace

T = TypeVar("T")


def kept_with(trace: RoutingTrace, name: str, make: Callable[[], T]) -> T:
    """What `make` makes of a trace, made once and kept as long as the trace, like its own cached properties.

    Parameters
    ----------
    trace
        What it is kept with.
    name
        By which it is found again.
    make
        Called once.

    Returns
    -------
    T
        What it made.
    """
    kept: dict[str, T] = trace.__dict__.setdefault("_kept", {})
    if name not in kept:
        kept[name] = make()
    return kept[name]


def make_future(trace: RoutingTrace) -> Future:
    """What an oracle may know, as plain lists."""
    return future_of(trace.keys.tolist(), trace.event_offsets.tolist(), prompt_rows(trace))


def recorded_predictions(trace: RoutingTrace) -> dict[int, Predictions] | None:
    """Predictions that the trace holds, with their scores, by look-ahead depth in layers; None if it has none."""
    return {
        depth: Predictions(offsets, experts, trace.prediction_scores.get(depth))
        for depth, (offsets, experts) in trace.predictions.items()
    } or None


def future_of(keys: list[int], offsets: list[int], prompt: list[int]) -> Future:
    """The future of any steps.

    Parameters
    ----------
    keys
        (look-ups,) keys.
    offsets
        (steps + 1,) first look-up of each step.
    prompt
        (keys,) rows of prefill passes that want each key.

    Returns
    -------
    Future
        What an oracle is given, as lists.
    """
    next_use = [0] * len(keys)
    first_use, counts = [NEVER] * len(prompt), [0] * len(prompt)
    link_uses(keys, offsets, next_use, first_use, counts)
    return Future(next_use, offsets, keys, counts, prompt, first_use)


def link_uses(keys: Ints, offsets: Ints, next_use: Ints, first_use: Ints, counts: Ints) -> None:
    """Fill in the next use of each look-up, and of each key (given as NEVER and 0) the first use and the count.

    Parameters
    ----------
    keys
        (look-ups,) keys.
    offsets
        (steps + 1,) first look-up of each step.
    next_use
        (look-ups,) written: next step that wants the same key.
    first_use
        (keys,) given as NEVER, written: first step that wants each key.
    counts
        (keys,) given as 0, written: steps that want each key.
    """
    for event in range(len(offsets) - 2, -1, -1):
        for i in range(offsets[event], offsets[event + 1]):
            key = keys[i]
            next_use[i] = first_use[key]
            first_use[key] = event
            counts[key] += 1


def prompt_rows(trace: RoutingTrace) -> list[int]:
    """Rows of prefill passes that want each key."""
    prefill = np.repeat(trace.event_phase == Phase.PREFILL, np.diff(trace.event_offsets))
    rows = np.bincount(
        trace.keys[prefill], weights=trace.rows_wanting[prefill], minlength=trace.geometry.n_experts
    )
    return [int(n) for n in rows]
