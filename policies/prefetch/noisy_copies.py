"""The true experts of the next events, degraded: a predictor of any recall, precision and rank quality, of copies.

    parameters: recall r, precision p, auc a, decay d, nearest n, window w
    propose, when an event is done, for the event h = n, ..., w events ahead, nearest first:
      right: each true expert with probability r x d^(h-n), by a draw that it keeps as h shrinks
      wrong: for each right one that is not resident, (1 - p) / p wrong ones are owed; of what is owed a geometric
             number with a mean of one in 16 is paid: uniformly drawn experts that are neither wanted nor resident
      order: one after the other; that it is a right one has the odds a x (right ones left) to (1 - a) x (wrong
             ones left), so of two copies, one right and one wrong, the right one comes first with probability a
    with decay 1 an event that comes into sight again is proposed again, but then without wrong ones
    within_pass leaves out the events of the next pass, as a predictor does that has seen nothing of it yet

Experts that are resident cost no copy, so they are in neither rate: what a real predictor gets right is mostly
resident, and what it gets wrong is so more often than a random expert. Wrong ones are paid late because a
predictor errs also where it has nothing to find. In a layer that is mostly resident there may be too few
experts to err with; the debt stays.
Source: the noisy oracles of arXiv 2608.07911 and moe-speed-of-light, which fix precision to recall and count
residents; order by odds is Plackett's (1975); draws are MINSTD (Park and Miller 1988), seeded for each event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from expert_residency.errors import PolicyError
from expert_residency.policies.parameters import Ahead, Share, Within
from expert_residency.policies.prefetch.noisy_oracle import MODULUS, MULTIPLIER, event_seeds
from expert_residency.policies.protocol import (
    Allocator,
    Event,
    Floats,
    Future,
    Ints,
    Pool,
    PrefetchPolicy,
    require_future,
)

OWED = 16
"""Proposals over which a debt of wrong ones is paid, in the mean."""
TRIES = 8
"""Draws for each expert of a layer before a wrong one is given up."""


class NoisyCopiesState(NamedTuple):
    """The trace's look-ups, what is resident, a seed for each event, and room for one event."""

    keys: Sequence[int]
    offsets: Sequence[int]
    resident: Sequence[int]
    seeds: Ints
    chosen: Ints
    marks: Ints
    """(experts,) serial of the prediction that last took the expert."""
    serial: Ints
    done: Ints
    """Last event proposed so far."""
    owed: Floats
    """Wrong ones that are still to come."""
    recall: float
    precision: float
    auc: float
    decay: float
    nearest: int
    furthest: int
    layers: int
    experts: int
    within_pass: bool


def find_right(state: NoisyCopiesState, ahead: int, base: int, recall: float) -> tuple[int, int, int]:
    """Choose right ones; how many, how many of them are not resident, and the last draw.

    Parameters
    ----------
    state
        The predictor's; `chosen` and `marks` are written.
    ahead
        Running number of the event that is predicted.
    base
        First key of its layer.
    recall
        Share of its experts that are predicted, 0 to 1.

    Returns
    -------
    tuple
        Right ones, right ones that need a copy, and the last draw.
    """
    serial = state.serial[0]
    drawn = state.seeds[ahead]
    right = copies = 0
    for look_up in range(state.offsets[ahead], state.offsets[ahead + 1]):
        drawn = drawn * MULTIPLIER % MODULUS
        key = state.keys[look_up]
        state.marks[key - base] = serial
        if drawn < recall * MODULUS:
            state.chosen[right] = key
            right += 1
            copies += 1 - state.resident[key]
    return right, copies, drawn


def find_wrong(state: NoisyCopiesState, base: int, right: int, drawn: int) -> tuple[int, int]:
    """Choose as many wrong ones as are due, after the right ones; how many, and the last draw.

    Parameters
    ----------
    state
        The predictor's; `chosen`, `marks` and `owed` are written.
    base
        First key of the layer.
    right
        Right ones that are chosen already.
    drawn
        The draw before.

    Returns
    -------
    tuple
        Wrong ones, and the last draw.
    """
    due = state.owed[0] / OWED
    stop = MODULUS / (1.0 + due)
    wrong = 0
    while right + wrong < state.experts:
        drawn = drawn * MULTIPLIER % MODULUS
        if drawn < stop:
            break
        expert = -1
        for _ in range(TRIES * state.experts):
            drawn = drawn * MULTIPLIER % MODULUS
            drawn_expert = drawn % state.experts
            if state.marks[drawn_expert] != state.serial[0] and state.resident[base + drawn_expert] == 0:
                expert = drawn_expert
                break
        if expert < 0:
            break
        state.marks[expert] = state.serial[0]
        state.chosen[right + wrong] = base + expert
        wrong += 1
    state.owed[0] -= wrong
    return wrong, drawn


def predict(
    state: NoisyCopiesState,
    ahead: int,
    layer: int,
    recall: float,
    fresh: bool,
    keys: Ints,
    deadlines: Ints,
    n: int,
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
    fresh
        Whether wrong ones come with it.
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
    state.serial[0] += 1
    right, copies, drawn = find_right(state, ahead, base, recall)
    wrong = 0
    if fresh:
        state.owed[0] += copies * (1.0 - state.precision) / state.precision
        wrong, drawn = find_wrong(state, base, right, drawn)
    left_right, left_wrong = right, wrong
    while left_right + left_wrong > 0 and n < len(keys):
        drawn = drawn * MULTIPLIER % MODULUS
        odds = state.auc * left_right
        if left_wrong == 0 or drawn * (odds + (1.0 - state.auc) * left_wrong) < odds * MODULUS:
            keys[n] = state.chosen[right - left_right]
            left_right -= 1
        else:
            keys[n] = state.chosen[right + wrong - left_wrong]
            left_wrong -= 1
        deadlines[n] = ahead
        n += 1
    return n


@dataclass(frozen=True)
class NoisyCopies(PrefetchPolicy):
    """Noisy oracle whose recall, precision and rank quality are those of the copies that it makes."""

    name: ClassVar[str] = "noisy-copies"
    source: ClassVar[str] = "arXiv 2608.07911; harshithkantamneni/moe-speed-of-light"
    compiled: ClassVar[bool] = True
    needs_future: ClassVar[bool] = True
    at_layer: ClassVar[bool] = True

    recall: Share = 0.9
    precision: Annotated[float, Within(0.01, 1)] = 0.9
    auc: Share = 0.5
    decay: Share = 1.0
    nearest: Ahead = 1
    window: Ahead = 1
    within_pass: bool = False
    seed: int = 1

    def start(self, pool: Pool, alloc: Allocator, future: Future | None, predictions: Any) -> NoisyCopiesState:
        """A seed for each event, and no debt.

        Raises
        ------
        PolicyError
            Without a future, or with a window that ends before it begins.
        """
        future = require_future(future, f"policy {self.name}")
        if self.window < self.nearest:
            raise PolicyError(
                f"policy {self.name}: window is {self.window}, expected {self.nearest} (nearest) or more"
            )
        return NoisyCopiesState(
            future.keys, future.event_offsets, pool.resident if len(pool.resident) else alloc.ints(pool.keys),
            event_seeds(future, alloc, self.seed), alloc.ints(pool.experts), alloc.ints(pool.experts),
            alloc.ints(1), alloc.ints(1, -1), alloc.floats(1), float(self.recall), float(self.precision),
            float(self.auc), float(self.decay), self.nearest, self.window, pool.layers, pool.experts,
            self.within_pass,
        )  # fmt: skip

    @staticmethod
    def propose(state: NoisyCopiesState, event: Event, keys: Ints, deadlines: Ints) -> int:
        """Degraded sets of the events ahead, nearest first."""
        n = 0
        recall = state.recall
        seen = state.done[0]
        for distance in range(state.nearest, state.furthest + 1):
            ahead = event.number + distance
            if ahead >= len(state.offsets) - 1 or (state.within_pass and event.layer + distance >= state.layers):
                break
            fresh = ahead > seen or state.decay < 1.0
            if fresh or distance == state.nearest:
                layer = (event.layer + distance) % state.layers
                n = predict(state, ahead, layer, recall, fresh, keys, deadlines, n)
                state.done[0] = max(state.done[0], ahead)
            recall *= state.decay
        return n
