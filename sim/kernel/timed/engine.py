"""The timed kernel from Python: compiled once, run as `sim.timed.engine.SimPyEngine` would, with the
same integers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import CompileError, SimError
from expert_residency.policies.protocol import AdmissionPolicy, PrefetchPolicy
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.kernel.choice import timed_marker
from expert_residency.sim.kernel.compiler.groups import (
    Group,
    Spec,
    Table,
    call,
    fetch_line,
    group_at,
    has_raised,
    kinds_of,
    marked,
)
from expert_residency.sim.kernel.compiler.link import compile_loop, run_kernel
from expert_residency.sim.kernel.compiler.state import Flat, Recorder, state_function
from expert_residency.sim.kernel.timed import policy_calls
from expert_residency.sim.kernel.timed import tables as t
from expert_residency.sim.kernel.timed.host import ACTIVE, INACTIVE
from expert_residency.sim.kernel.timed.layout import SLOT, run_table
from expert_residency.sim.kernel.timed.walk import run_passes
from expert_residency.sim.residency.future import recorded_predictions
from expert_residency.sim.residency.laws import fault_of
from expert_residency.sim.residency.pool import CachePool
from expert_residency.sim.timed.attention import NO_DEPTH, Context
from expert_residency.sim.timed.host import HostPlan
from expert_residency.sim.timed.machine import Machine
from expert_residency.sim.timed.page_cache import PageCache
from expert_residency.sim.timed.result import CAUSES, PHASES, TIERS, PrefetchStats, RunResult
from expert_residency.traces import RoutingTrace

if TYPE_CHECKING:
    from expert_residency.policies.protocol import Policy
    from expert_residency.sim.timed.engine import Policies

PROGRESS_PASSES = 64
"""Passes between two reports of progress."""
CALLBACK = "int64(int64, int64, int64, int64, int64)"


class TimedKernel:
    """One run.

    Parameters
    ----------
    trace, machine, preset, cache, policies, miss, host_plan, page_cache, progress, context
        As for `sim.timed.engine.SimPyEngine`.
    recorder
        Allocator that the states of `cache` came from.
    """

    def __init__(
        self,
        trace: RoutingTrace,
        machine: Machine,
        preset: EnginePreset,
        cache: CachePool,
        policies: Policies,
        miss: str,
        host_plan: HostPlan,
        page_cache: PageCache | None,
        recorder: Recorder,
        progress: Callable[[int], None] | None = None,
        *,
        context: Context = NO_DEPTH,
    ) -> None:
        self.trace = trace
        self._judged = (cache.eviction, cache.admission, policies.prefetch)
        self._host_plan = host_plan
        self._page_cache = page_cache
        self._progress = progress
        prefetch = policies.prefetch
        future = policies.future if prefetch.needs_future else None
        seen = cache.pool._replace(resident=cache.resident)
        state = prefetch.start(seen, recorder, future, recorded_predictions(trace))
        lines = recorder.line_up(cache.state, SLOT.itemsize)
        made = run_table(trace, machine, preset, cache, policies, miss, host_plan, page_cache, lines, context)
        recorder.stands_for(cache.resident, made.slots.resident)
        asked = t.Asked(
            made.calls.event, made.trace.keys, made.trace.rows, made.plan.hits, made.slots.resident,
            made.slots.guard, made.calls.misses, made.swaps.newcomers, made.swaps.victims,
        )  # fmt: skip
        proposing = asked._replace(wanted=made.ahead.keys, others=made.ahead.deadlines)
        evict = _Called(policy_calls.evict, cache.eviction, asked, cache.state, recorder)
        apart = evict.columns_outside(lines)
        recorder.pack(cache.admission_state)
        recorder.pack(state)
        admit = _Called(policy_calls.admit, cache.admission, asked, cache.admission_state, recorder)
        ahead = _Called(policy_calls.ahead, prefetch, proposing, state, recorder)
        self._kept = (evict, admit, ahead)
        admission = type(cache.admission)
        calls = made.calls._replace(
            evict_code=evict.code,
            evict_table=evict.address,
            evict_records=min((int(column.ctypes.data) for column in apart), default=0),
            evict_width=max((column.strides[0] for column in apart), default=0),
            admit_code=admit.code,
            admit_table=admit.address,
            admit_learns=int(admission.learn is not AdmissionPolicy.learn),
            admit_asks=int(admission.accepts is not AdmissionPolicy.accepts),
            ahead_code=ahead.code,
            ahead_table=ahead.address,
            ahead_learns=int(type(prefetch).learn is not PrefetchPolicy.learn),
        )
        self.tables = made._replace(calls=calls)

    def run(self) -> None:
        """Simulate every pass.

        Raises
        ------
        SimError
            Swaps alone are possible, and admission lets misses in.
        PolicyError, CompileError
            A policy raised something, or broke its protocol (`PolicyFaultError`).
        """
        table = Table(self.tables)
        kernel = _walk(table.spec)
        with contextlib.suppress(OSError):
            timed_marker().touch()
        v, passes = self.tables.v, self.trace.n_passes
        step = passes if self._progress is None else PROGRESS_PASSES
        for end in [*range(step, passes, step), passes]:
            v[t.TO_PASS] = end
            run_kernel(kernel, table.address, self._who_raised)
            if v[t.STATUS] == t.SWAPS_ONLY:
                raise SimError(self._host_plan.swaps_only)
            if v[t.STATUS] == t.POLICY_BROKE:
                raise fault_of(int(v[t.FAULT]), self._judged, int(v[t.FAULT_KEY]), self.trace.geometry.experts)
            if v[t.STATUS] != t.OK:
                raise CompileError(f"the kernel ran out of room (status {v[t.STATUS]}); the reference runs this")
            if self._progress is not None:
                self._progress(end)
        if self._page_cache is not None:
            self._return_pages(self._page_cache)

    def result(self, manifest: dict[str, Any], start_bytes: int) -> RunResult:
        """What was found."""
        found, v, engines = self.tables.found, self.tables.v, self.tables.engines
        cards = len(engines.current) // 2
        landed = np.asarray(engines.nbytes).reshape(2, cards, 3).sum(axis=1)
        stats = PrefetchStats(pages=self.tables.rules.insertion == t.PAGES)
        for i, name in enumerate(t.STATS):
            setattr(stats, name, int(found.stats[i]))
        stats.blocked_ns = int(sum(engines.blocked_ns[:cards]) + v[t.DRIVE_BLOCKED_NS])
        stats.blocking_bytes = int(sum(engines.blocking_bytes[:cards]) + v[t.DRIVE_BLOCKING_BYTES])
        tiers = (len(PHASES), len(TIERS))
        return RunResult(
            manifest=manifest,
            pass_ns=np.asarray(found.pass_ns),
            pass_causes=np.asarray(found.causes).reshape(-1, len(CAUSES)),
            pass_phase=np.asarray(self.trace.pass_phase, dtype=np.int8),
            pass_emits=np.asarray(self.trace.pass_emits, dtype=np.int32),
            pass_request=np.asarray(self.trace.pass_request, dtype=np.int64),
            served_distinct=np.asarray(found.distinct).reshape(tiers),
            served_routed=np.asarray(found.routed).reshape(tiers),
            link_bytes={
                "h2d_demand": int(landed[0, 0]),
                "h2d_adapt": int(landed[0, 1]),
                "h2d_prefetch": int(landed[0, 2]),
                "d2h": int(landed[1].sum()),
                "disk": int(v[t.DISK_BYTES]),
                "cpu": int(v[t.CPU_BYTES]),
            },
            prefetch=stats,
            evictions=int(v[t.EVICTIONS]),
            admitted_bytes=int(v[t.ADMITTED_BYTES]),
            waves=int(v[t.WAVES]),
            start_bytes=start_bytes,
            gpu_bytes=int(v[t.GPU_BYTES]),
            resident_end=np.array(self.tables.slots.resident, dtype=np.uint8),
        )

    def _who_raised(self) -> str:
        return " and ".join(called.title for called in self._kept if called.has_raised)

    def _return_pages(self, cache: PageCache) -> None:
        """Leave the page cache as the run left it."""
        held, pages = self.tables.host.lists, self.tables.host.pages
        for which, side in ((INACTIVE, cache.inactive), (ACTIVE, cache.active)):
            side.clear()
            end = len(held.home) + which
            key = int(held.next[end])
            while key != end:
                side[key] = int(pages[key])
                key = int(held.next[key])
        cache.active_pages = int(self.tables.v[t.ACTIVE_PAGES])
        cache.inactive_pages = int(self.tables.v[t.INACTIVE_PAGES])


class _Called:
    """One policy, compiled, and the table that its code is given."""

    def __init__(self, code: Any, policy: Policy, asked: t.Asked, state: Any, recorder: Recorder) -> None:
        seen, own = Flat(asked, recorder), Flat(state, recorder)
        self._kept = (seen, own)
        self._table = marked(seen.table + own.table)
        self.title = f"policy {policy.name}"
        self.address = int(self._table.ctypes.data)
        kind: Any = type(policy)
        self.code = _policy(code, kind, seen.form, len(seen.table), own.form, tuple(own.classes.items())).address

    def columns_outside(self, lines: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
        """Columns of the state that lie in records of their own."""
        return [
            column
            for column in self._kept[1].arrays
            if column.strides[0] > column.itemsize and not np.may_share_memory(column, lines)
        ]

    @property
    def has_raised(self) -> bool:
        """Whether the policy raised something."""
        return has_raised(self._table)


@functools.cache
def _policy(
    code: Any, policy: type[Any], asked: str, asked_words: int, state: str, classes: tuple[tuple[str, type], ...]
) -> Any:
    bound = {
        "asked_state": state_function(asked, 0, {"Asked": t.Asked}),
        "policy_state": state_function(state, asked_words, dict(classes)),
    }
    for name in ("learn", "insert", "remove", "victim", "select", "accepts", "pass_done", "propose"):
        if hasattr(policy, name):
            bound[f"policy_{name}"] = getattr(policy, name)
    label = f"timed {policy.name}|{policy.__module__}.{policy.__qualname__}|{asked}|{state}"
    return compile_loop(code, bound, label, CALLBACK, callback=True)


@functools.cache
def _walk(spec: Spec) -> Any:
    group = Group(spec)
    kinds = kinds_of({"RunTables": group, "Links": group.fields["engines"][1].fields["queues"][1]})
    bound = {"run_at": group_at(group), "call": call, "fetch_line": fetch_line}
    return compile_loop(run_passes, bound, f"timed walk|{spec}", kinds=kinds)
