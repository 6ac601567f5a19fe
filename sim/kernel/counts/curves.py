"""LRU at every capacity: depths of all look-ups in one compiled pass."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.sim.kernel.compiler.link import compile_loop
from expert_residency.sim.kernel.compiler.state import Flat, Recorder, state_function
from expert_residency.sim.kernel.counts import stack
from expert_residency.sim.kernel.counts.loop import N_PHASES
from expert_residency.sim.kernel.counts.replay import StepArrays


@dataclass(frozen=True)
class Depths:
    """Look-ups by how many keys of their scope were wanted since their last use, summed up from the least.

    Parameters
    ----------
    distinct, routed : (phases, scopes, slots from 0 on)
        Hits of an LRU with so many slots.
    first_uses : (phases, scopes)
        Look-ups of keys that were never wanted before.
    routed_total : (phases,)
        Rows that want experts.
    largest_event : (scopes,)
        Fewer slots than that are not answered.
    """

    distinct: npt.NDArray[np.int64]
    routed: npt.NDArray[np.int64]
    first_uses: npt.NDArray[np.int64]
    routed_total: npt.NDArray[np.int64]
    largest_event: npt.NDArray[np.int64]

    def hits(self, slots: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(phases, scopes) distinct and routed hits with `slots` (scopes,) slots, which must fit every event."""
        at = np.minimum(slots, self.distinct.shape[2] - 1)
        scopes = np.arange(len(at))
        return self.distinct[:, scopes, at], self.routed[:, scopes, at]


def lru_depths(steps: StepArrays, scope_of: npt.NDArray[np.int64], scopes: int) -> Depths:
    """Depths of all look-ups of an LRU a scope; `scope_of` (keys,).

    Parameters
    ----------
    steps
        Look-ups in steps.
    scope_of
        (keys,) scope of each key.
    scopes
        How many there are.

    Returns
    -------
    Depths
        Depth of each look-up in experts.
    """
    members = np.bincount(scope_of, minlength=scopes)
    first = steps.keys[steps.offsets[:-1]]
    largest = np.zeros(scopes, dtype=np.int64)
    np.maximum.at(largest, scope_of[first], np.diff(steps.offsets))
    # Twice the keys: renumbering then costs a constant for each use.
    span = 1 << np.ceil(np.log2(2 * members + largest + 2)).astype(np.int64)
    base: Any = np.concatenate([[0], np.cumsum(span + 1)[:-1]])
    depths = int(members.max()) + 1
    cells = int((span + 1).sum())
    shape = (N_PHASES, scopes, depths)
    distinct: Any = np.zeros(shape, dtype=np.int64)
    routed: Any = np.zeros(shape, dtype=np.int64)
    trees = stack.Trees(
        base, span, _full(cells, 0), _full(cells, -1), _full(scopes, 0), _full(scopes, 0), _full(len(scope_of), 0)
    )  # fmt: skip
    keys_scope: Any = scope_of
    job = stack.StackJob(
        steps.offsets, steps.passes, steps.keys, steps.rows, steps.phase_of, keys_scope, trees,
        distinct.reshape(-1), routed.reshape(-1), scopes, depths,
    )  # fmt: skip
    flat = Flat(job, Recorder(len(scope_of)))
    _compiled(flat.form)(np.array(flat.table, dtype=np.int64).ctypes.data)
    return Depths(_hits(distinct), _hits(routed), distinct[:, :, -1].copy(), routed.sum(axis=(1, 2)), largest)


def _hits(by_depth: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(phases, scopes, slots) from (phases, scopes, depths), in place: depth d hits with d + 1 slots."""
    by_depth = np.roll(by_depth, 1, axis=2)
    by_depth[:, :, 0] = 0
    return np.cumsum(by_depth, axis=2, out=by_depth)


def _full(n: int, value: int) -> Any:
    return np.full(n, value, dtype=np.int64)


@functools.cache
def _compiled(form: str) -> Any:
    classes = {"StackJob": stack.StackJob, "Trees": stack.Trees}
    return compile_loop(
        stack.count_depths, {"job_state": state_function(form, 0, classes)}, f"stack depths|{form}"
    )
