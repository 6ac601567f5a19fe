"""The true experts of the next events, degraded: how good must a predictor be?

    for each of the next `window` events, h = 1, 2, ... events ahead, nearest first:
      right: each true expert with probability recall x decay^(h-1), by a draw that it keeps as h shrinks,
             so that what was predicted far ahead is still predicted nearby
      wrong: so many others, uniformly drawn, that right / (right + wrong) = precision
      right and wrong ones come in mixed order
    with decay 1 an event is proposed when it comes into sight and once more when it is next, as by `oracle`

`recall` and `precision` are shares of the experts proposed for the next event, resident ones included; in a
small model at low precision the layer may not have enough wrong experts, and precision is then higher.
`noisy-copies` counts copies instead, as every command does, and also has the order of its guesses as a parameter.
Source: the noisy oracles of arXiv 2608.07911 and moe-speed-of-light fix precision to recall; draws are MINSTD
(Park and Miller 1988), seeded for each event, so that they do not depend on what else happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from expert_residency.policies.parameters import Ahead, Share, Within
from expert_residency.policies.protocol import (
    Allocator,
    Event,
    Future,
    Ints,
    Pool,
    PrefetchPolicy,
    require_future,
)

MODULUS = 2147483647
SEED_MULTIPLIER = 16807
"""Steps from one event's seed to the next."""
MULTIPLIER = 48271
"""Steps within an event."""


class NoisyOracleState(NamedTuple):
    """The trace's look-ups, a seed for each event, and room for one event."""

    keys: Sequence[int]
    offsets: Sequence[int]
    seeds: Ints
    chosen: Ints
    marks: Ints
    """(experts,) serial of the prediction that last took the expert."""
    serial: Ints
    done: Ints
    """Last event proposed so far."""
    recall: float
    precision: float
    decay: float
    nearest: int
    furthest: int
    layers: int
    experts: int
    within_pass: bool


def event_seeds(future: Future, alloc: Allocator, seed: int) -> Ints:
    """Where each event's draws begin, so that they do not depend on what else happens.

    Parameters
    ----------
    future
        Look-ups of the whole trace.
    alloc
        Makes the sequence.
    seed
        Of all draws.

    Returns
    -------
    Ints
        (events,) numbers of MINSTD.
    """
    seeds = alloc.ints(len(future.event_offsets) - 1)
    drawn = seed % (MODULUS - 1) + 1
    for event in range(len(seeds)):
        drawn = drawn * SEED_MULTIPLIER % MODULUS
        seeds[event] = drawn
    return seeds


def start_noisy(
    pool: Pool, alloc: Allocator, future: Future, *, recall: float, precision: float, decay: float, nearest: int,
    furthest: int, within_pass: bool, seed: int,
) -> NoisyOracleState:  # fmt: skip
    """State of a predictor of the events `nearest` to `furthest` ahead, perhaps of the same pass only.

    Parameters
    ----------
    pool
        Sizes of the cache.
    alloc
        Makes the sequences of the state.
    future
        Look-ups of the whole trace.
    recall
        Share of an event's experts that are predicted, 0 to 1.
    precision
        Share of right ones among the predicted, above 0 to 1.
    decay
        Factor of the recall for each event further ahead.
    nearest, furthest
        Distance in events, from 1.
    within_pass
        Whether events of the next pass are left out.
    seed
        Of the draws.

    Returns
    -------
    NoisyOracleState
        The state of `propose_noisy`.
    """
    return NoisyOracleState(
        future.keys, future.event_offsets, event_seeds(future, alloc, seed), alloc.ints(pool.experts),
        alloc.ints(pool.experts), alloc.ints(1), alloc.ints(1, -1), recall, precision, decay, nearest, furthest,
        pool.layers, pool.experts, within_pass,
    )  # fmt: skip


def predict(
    state: NoisyOracleState, ahead: int, layer: int, recall: float, keys: Ints, deadlines: Ints, n: int
) -> int:
    """Append a degraded set of event `ahead` (of `layer`) after the first `n` keys; the new count.

    Parameters
    ----------
    state
        The predictor's.
    ahead
        Running number of the event that is predicted.
    layer
        Its layer, from 0.
    recall
        Share of its experts that are predicted, 0 to 1.
    keys
        (pool.keys,) written from `n` on.
    deadlines
        (pool.keys,) written likewise.
    n
        Keys that are written already.

    Returns
    -------
    int
        Keys written afterwards.
    """
    base = layer * state.experts
    lo, hi = state.offsets[ahead], state.offsets[ahead + 1]
    state.serial[0] += 1
    serial = state.serial[0]
    drawn = state.seeds[ahead] * MULTIPLIER % MODULUS
    luck = drawn
    right = 0
    for look_up in range(lo, hi):
        drawn = drawn * MULTIPLIER % MODULUS
        state.marks[state.keys[look_up] - base] = serial
        if drawn < recall * MODULUS:
            state.chosen[right] = state.keys[look_up]
            right += 1
    due = right * (1.0 - state.precision) / state.precision
    wrong = int(due)
    if luck < (due - wrong) * MODULUS:
        wrong += 1
    wrong = min(wrong, state.experts - (hi - lo))
    for i in range(right, right + wrong):
        while True:
            drawn = drawn * MULTIPLIER % MODULUS
            expert = drawn % state.experts
            if state.marks[expert] != serial:
                break
        state.marks[expert] = serial
        state.chosen[i] = base + expert
    left_right, left = right, right + wrong
    while left > 0 and n < len(keys):
        drawn = drawn * MULTIPLIER % MODULUS
        if drawn % left < left_right:
            keys[n] = state.chosen[right - left_right]
            left_right -= 1
        else:
            keys[n] = state.chosen[right + left - left_right - 1]
        deadlines[n] = ahead
        left -= 1
        n += 1
    return n


def propose_noisy(state: NoisyOracleState, event: Event, keys: Ints, deadlines: Ints) -> int:
    """Degraded sets of the events ahead, nearest first.

    Parameters
    ----------
    state
        What `start_noisy` made.
    event
        The event at which it is asked.
    keys
        (pool.keys,) written: predicted experts, nearest event first.
    deadlines
        (pool.keys,) written: running number of the event that each is predicted for.

    Returns
    -------
    int
        How many were written.
    """
    n = 0
    recall = state.recall
    fresh = state.done[0] + 1
    for distance in range(state.nearest, state.furthest + 1):
        ahead = event.number + distance
        if ahead >= len(state.offsets) - 1 or (state.within_pass and event.layer + distance >= state.layers):
            break
        if distance == state.nearest or ahead >= fresh or state.decay < 1.0:
            n = predict(state, ahead, (event.layer + distance) % state.layers, recall, keys, deadlines, n)
            state.done[0] = max(state.done[0], ahead)
        recall *= state.decay
    return n


@dataclass(frozen=True)
class NoisyOracle(PrefetchPolicy):
    """True experts of the next events, some missed and wrong ones added."""

    name: ClassVar[str] = "noisy-oracle"
    source: ClassVar[str] = "arXiv 2608.07911; harshithkantamneni/moe-speed-of-light"
    compiled: ClassVar[bool] = True
    needs_future: ClassVar[bool] = True
    at_layer: ClassVar[bool] = True

    recall: Share = 0.9
    precision: Annotated[float, Within(0.01, 1)] = 0.9
    decay: Share = 1.0
    window: Ahead = 1
    seed: int = 1

    def start(self, pool: Pool, alloc: Allocator, future: Future | None, predictions: Any) -> NoisyOracleState:
        """A seed for each event.

        Raises
        ------
        PolicyError
            Without a future.
        """
        future = require_future(future, f"policy {self.name}")
        return start_noisy(
            pool, alloc, future, recall=self.recall, precision=self.precision, decay=self.decay, nearest=1,
            furthest=self.window, within_pass=False, seed=self.seed,
        )  # fmt: skip

    @staticmethod
    def propose(state: NoisyOracleState, event: Event, keys: Ints, deadlines: Ints) -> int:
        """Degraded sets of the events ahead, nearest first."""
        return propose_noisy(state, event, keys, deadlines)
