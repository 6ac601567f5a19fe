"""Whether drafting pays: what a verify window costs against single tokens, and the acceptance that breaks even.

A window of T rows reads the union of its tokens' experts, does the dense part once, and pays for T - 1 drafts. If
each draft is accepted with chance a when those before it were, it emits 1 + a + ... + a^(T-1) tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from expert_residency.errors import SimError
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.traces import RoutingTrace
from expert_residency.traces.synthetic.drafts import SURE
from expert_residency.traces.windows import compose_windows


def emitted(rows: int, acceptance: float) -> float:
    """Tokens that a window of `rows` rows emits on average."""
    return sum(acceptance**i for i in range(rows))


_GRID = 4_000


def gated(rows: int, acceptance: float, floor: float) -> tuple[float, float]:
    """Windows of an engine that stops drafting at the first draft that it holds for less likely than a floor.

    A draft's confidence is taken for the chance that it is accepted.

    Parameters
    ----------
    rows
        Most rows of a window, drafts + 1.
    acceptance
        Of all drafts, without a floor.
    floor
        0 to 1.

    Returns
    -------
    (float, float)
        Rows and emitted tokens of a window, on average.
    """
    if not 0 < acceptance < 1 or floor <= 0:
        return float(rows), emitted(rows, acceptance)
    chance = (np.arange(_GRID) + 0.5) / _GRID
    weight = chance ** (SURE * acceptance / (1 - acceptance) - 1) * (1 - chance) ** (SURE - 1)
    kept = chance >= floor
    goes_on = float(weight[kept].sum() / weight.sum())
    both = float((weight * chance)[kept].sum() / weight.sum())
    return emitted(rows, goes_on), emitted(rows, both)


def acceptance_for(rows: int, tokens: float) -> float | None:
    """Acceptance with which a window emits so many tokens; None if it cannot."""
    if not 1 <= tokens <= rows:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if emitted(rows, middle) < tokens else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class WindowCost:
    """One window size."""

    rows: int
    ms: float
    """Of one window."""
    distinct: float
    """Experts of one window, over all layers."""
    break_even_tokens: float
    """Tokens that it has to emit to be as fast as single tokens."""
    break_even_acceptance: float | None
    """None: not even with every draft accepted."""

    def tokens_per_s(self, acceptance: float) -> float:
        """Speed at an acceptance."""
        return 1000 * emitted(self.rows, acceptance) / self.ms


def window_costs(trace: RoutingTrace, spec: RunSpec, rows: Sequence[int] = (2, 3, 4)) -> list[WindowCost]:
    """Windows of several sizes out of one decode trace, the single token first.

    Parameters
    ----------
    trace
        Single tokens.
    spec
        The choices.
    rows
        Sizes of windows in tokens.

    Returns
    -------
    list[WindowCost]
        Ms a window, and the acceptance at which it breaks even.

    Raises
    ------
    SimError, TraceError
        A trace that has windows already, or too few tokens.
    """
    found: list[WindowCost] = []
    for size in (1, *rows):
        composed = compose_windows(trace, size, 1)
        result = simulate(composed, spec)
        decode = result.pass_phase != 0
        n = int(decode.sum())
        if not n:
            raise SimError("the trace has no decode pass")
        ms = result.decode_ns / n / 1e6
        need = ms / found[0].ms if found else 1.0
        distinct = int(result.served_distinct[1:].sum()) / n
        found.append(WindowCost(size, ms, distinct, need, acceptance_for(size, need) if found else None))
    return found
