"""The future of a trace on arrays, for oracles in the kernel: made once, shared by all runs."""

# ruff: noqa: TC004  (names of the seam are there at run time, but not by import)

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from expert_residency.policies.protocol import NEVER, Future, Ints
from expert_residency.sim.kernel.compiler.link import compile_loop
from expert_residency.sim.kernel.compiler.state import Flat, Recorder, state_function
from expert_residency.sim.kernel.counts.replay import StepArrays
from expert_residency.sim.residency.future import link_uses

if TYPE_CHECKING:
    from expert_residency.sim.kernel.counts.seam import job_state


class Uses(NamedTuple):
    """Arguments of `link_uses`."""

    keys: Ints
    offsets: Ints
    next_use: Ints
    first_use: Ints
    counts: Ints


def fill_in(table: Ints) -> None:
    """`link_uses` on a table."""
    uses = job_state(table)
    link_uses(uses.keys, uses.offsets, uses.next_use, uses.first_use, uses.counts)


def future_arrays(steps: StepArrays, prompt: list[int]) -> Future:
    """What an oracle may know of these steps; `prompt` as in `Future`."""
    next_use: Any = np.empty(len(steps.keys), dtype=np.int64)
    first_use: Any = np.full(len(prompt), NEVER, dtype=np.int64)
    counts: Any = np.zeros(len(prompt), dtype=np.int64)
    flat = Flat(Uses(steps.keys, steps.offsets, next_use, first_use, counts), Recorder(len(prompt)))
    _compiled(flat.form)(np.array(flat.table, dtype=np.int64).ctypes.data)
    return Future(next_use, steps.offsets, steps.keys, counts, prompt, first_use)


@functools.cache
def _compiled(form: str) -> Any:
    return compile_loop(fill_in, {"job_state": state_function(form, 0, {"Uses": Uses})}, f"next uses|{form}")
