"""Replay in compiled code: the same counts as `sim.runs.replay`, whole or in chunks."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import SimError
from expert_residency.policies.protocol import AdmissionPolicy, EvictionPolicy, Future, Pool
from expert_residency.sim.kernel.compiler.link import compile_loop, run_kernel
from expert_residency.sim.kernel.compiler.state import NARROW_MOST, Flat, Recorder, state_function
from expert_residency.sim.kernel.counts import loop
from expert_residency.sim.residency.laws import fault_of
from expert_residency.sim.residency.pool import fitting

MOST_STEPS = NARROW_MOST - 1
"""Steps of one chunk."""
IntArray = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class StepArrays:
    """Steps of a trace or of a part of it; see `loop.Steps`. Arrays are as the kernel wants them."""

    offsets: Any
    layers: Any
    passes: Any
    keys: Any
    rows: Any
    phase_of: Any
    request_of: Any
    first_pass: int = 0
    """Number of the pass that `passes` calls 0."""

    @classmethod
    def of(
        cls, offsets: IntArray, layers: IntArray, passes: IntArray, keys: IntArray, rows: IntArray,
        phase_of: IntArray, request_of: IntArray,
    ) -> StepArrays:  # fmt: skip
        """Without a copy where types fit. Keys are unsigned, so that compiled code need not ask their sign.

        Parameters
        ----------
        offsets
            (steps + 1,) first look-up of each step.
        layers
            (steps,) layer of each step.
        passes
            (steps,) pass of each step.
        keys
            (look-ups,) keys.
        rows
            (look-ups,) rows that want each.
        phase_of
            (passes,) phase of each pass.
        request_of
            (passes,) request of each pass.

        Returns
        -------
        StepArrays
            The arrays.
        """
        if keys.dtype == np.int32:
            keys = keys.view(np.uint32)
        given = (offsets, layers, passes, keys, rows, phase_of, request_of)
        kinds = (np.int64, np.int32, np.int32, np.uint32, np.int32, np.int8, np.int32)
        made: list[Any] = [np.ascontiguousarray(a, dtype=kind) for a, kind in zip(given, kinds, strict=True)]
        return cls(*made)

    def chunks(self, passes: int) -> Iterator[StepArrays]:
        """The same steps, so many passes at a time."""
        borders = [*range(0, len(self.phase_of), passes), len(self.phase_of)]
        cuts = np.searchsorted(self.passes, borders).tolist()
        for first, end in pairwise(cuts):
            lo, hi = self.offsets[first], self.offsets[end]
            yield replace(
                self,
                offsets=self.offsets[first : end + 1] - lo,
                layers=self.layers[first:end],
                passes=self.passes[first:end],
                keys=self.keys[lo:hi],
                rows=self.rows[lo:hi],
            )


class ReplayKernel:
    """One cache under one eviction and one admission policy.

    Parameters
    ----------
    pool, eviction, admission, future, overflow
        As for `sim.residency.pool.CachePool`.
    warmup_passes
        Passes whose look-ups are counted apart.
    lag_passes
        Passes after which what a periodic policy asked for is resident.
    """

    def __init__(
        self,
        pool: Pool,
        eviction: EvictionPolicy,
        admission: AdmissionPolicy,
        future: Future | None = None,
        *,
        overflow: bool = False,
        warmup_passes: int = 0,
        lag_passes: int = 1,
    ) -> None:
        self._policies = (type(eviction), type(admission))
        self._judged = (eviction, admission, None)
        self._warmup = warmup_passes
        self._recorder = recorder = Recorder(pool.keys)
        size_of = array("q", pool.size_of)
        self.pool = pool = pool._replace(scope_of=array("i", pool.scope_of), size_of=size_of)
        evict = eviction.start(pool, recorder, future if eviction.needs_future else None)
        admit = admission.start(pool, recorder)
        resident = recorder.ints(pool.keys, most=1)
        seen = recorder.ints(pool.keys, most=1)
        guard = recorder.ints(pool.keys, -1, most=MOST_STEPS)
        sizes, kinds = np.unique(np.frombuffer(size_of, dtype=np.int64), return_inverse=True)
        kind_of = array("h", kinds.astype(np.int16).tobytes())
        recorder.pack((resident, seen, guard, kind_of, pool.scope_of), evict, admit)
        self._evict, self._admit = Flat(evict, recorder), Flat(admit, recorder)
        self._guard = recorder.array(guard)
        self._let_in = _zeros(pool.keys)
        self.cache = loop.Cache(
            resident=recorder.array(resident),
            seen=recorder.array(seen),
            guard=self._guard,
            used=_zeros(pool.scopes),
            capacity=pool.capacity,
            scope_of=pool.scope_of,
            kind_of=kind_of,
            sizes=sizes.tolist(),
            misses=_zeros(pool.keys),
            let_in=self._let_in,
            roomy=min(pool.capacity) // max(1, int(sizes[-1])),
            members_may_leave=int(eviction.may_evict_members),
            overflow=int(overflow),
            nobody=-1,
        )
        self._between = loop.Between(
            periodic=int(admission.periodic),
            lag=lag_passes,
            pending=_zeros(pool.keys, np.int8),
            lands=_zeros(2),
            newcomers=_zeros(pool.keys),
            victims=_zeros(pool.keys),
        )
        self.counters = _zeros((loop.N_BUCKETS, loop.N_COUNTERS))
        """(buckets, counters): see `loop`."""
        self.totals = _zeros(loop.N_TOTALS)
        self._placed: Any = _zeros(0, np.int32)
        self._done = [0, 0]
        """Steps and look-ups."""

    def place(self, ranked: Sequence[int]) -> list[int]:
        """Fill empty room with keys in rank order, before anything is fed; returns those that fit."""
        chosen = fitting(self.pool, ranked, self.pool.capacity)
        self._placed = np.array(chosen[::-1], dtype=np.int32)
        return chosen

    def feed(self, steps: StepArrays) -> Any:
        """Run the next steps, whole passes; returns (look-ups,) 1 for a hit.

        A trace larger than memory is fed in parts: the kernel keeps only the cache.

        Raises
        ------
        SimError
            The policies cannot be compiled or raise something, or there are more than `MOST_STEPS` steps.
        PolicyFaultError
            A policy breaks its protocol.
        """
        if len(steps.layers) > MOST_STEPS:
            raise SimError(f"{len(steps.layers)} steps at once are too many: feed at most {MOST_STEPS} at a time")
        hits = _zeros(len(steps.keys), np.int8)
        self._let_in.fill(-1)
        self._guard.fill(-1)  # what was protected is not any more, and steps are counted from here
        view = loop.Steps(
            self._done[0], self._done[1], steps.first_pass, steps.offsets, steps.layers, steps.passes, steps.keys,
            steps.rows, hits, steps.phase_of, steps.request_of, self._warmup,
        )  # fmt: skip
        made = loop.Job(view, self.cache, self._between, self.counters.reshape(-1), self.totals, self._placed)
        job = Flat(made, self._recorder)
        kernel = _compiled(self._policies, _Layout.of(job), _Layout.of(self._evict), _Layout.of(self._admit))
        table = np.array(job.table + self._evict.table + self._admit.table, dtype=np.int64)
        names = " or ".join(policy.name for policy in self._policies)
        run_kernel(kernel, table.ctypes.data, lambda: f"policy {names}")
        if fault := int(self.totals[loop.FAULT]):
            raise fault_of(fault, self._judged, int(self.totals[loop.FAULT_KEY]), self.pool.experts)
        self._placed = self._placed[:0]
        self._done = [self._done[0] + len(steps.layers), self._done[1] + len(steps.keys)]
        return hits


def _zeros(shape: Any, kind: Any = np.int64) -> Any:
    return np.zeros(shape, dtype=kind)


@dataclass(frozen=True)
class _Layout:
    """What compiled code must know of a flattened state."""

    form: str
    length: int
    classes: tuple[tuple[str, type], ...]

    @classmethod
    def of(cls, flat: Flat) -> _Layout:
        return cls(flat.form, len(flat.table), tuple(flat.classes.items()))


@functools.cache
def _compiled(
    policies: tuple[type[EvictionPolicy], type[AdmissionPolicy]], job: _Layout, evict: _Layout, admit: _Layout
) -> Any:
    eviction, admission = policies
    from expert_residency.sim.kernel.compiler.views import fetch_ahead

    bound = {
        "fetch_ahead": fetch_ahead,
        "job_state": state_function(job.form, 0, dict(job.classes)),
        "evict_state": state_function(evict.form, job.length, dict(evict.classes)),
        "admit_state": state_function(admit.form, job.length + evict.length, dict(admit.classes)),
        "evict_learn": eviction.learn,
        "evict_insert": eviction.insert,
        "evict_remove": eviction.remove,
        "evict_victim": eviction.victim,
        "admit_learn": admission.learn,
        "admit_select": admission.select,
        "admit_accepts": admission.accepts,
        "admit_pass_done": admission.pass_done,
    }
    label = f"replay with {eviction.name} and {admission.name}|{policies}|{job}|{evict}|{admit}"
    return compile_loop(loop.replay_steps, bound, label)
