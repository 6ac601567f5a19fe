"""The kernel's own source run as plain Python, on lists that refuse an index out of range."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from expert_residency.policies.protocol import Event
from expert_residency.sim.kernel.compiler.link import Linker
from expert_residency.sim.kernel.compiler.state import Recorder
from expert_residency.sim.kernel.timed import tables as t
from expert_residency.sim.kernel.timed.layout import SLOT, run_table
from expert_residency.sim.kernel.timed.walk import run_passes
from expert_residency.sim.runs.simulate import prepare
from expert_residency.sim.testing.strict import Strict, StrictLists


def checked(group: Any) -> Any:
    """A group of tables with strict lists."""
    if isinstance(group, tuple):
        return type(group)(*map(checked, group))
    return Strict(group.tolist()) if isinstance(group, np.ndarray) else group


class Interpreter(Linker):
    """Links functions as they are."""

    def __init__(self, bound: dict[str, Any]) -> None:
        super().__init__(bound)
        self._njit = lambda **_: lambda function: function


def interpret(trace, spec, **machine) -> t.RunTables:
    """Tables of one run after its end."""
    ready = prepare(trace, spec, alloc=StrictLists(), **machine)
    chosen, cache = ready.policies, ready.cache
    prefetch = chosen.prefetch
    ahead = prefetch.start(cache.pool, StrictLists(), chosen.future, trace.predictions or None)
    lines = Recorder(cache.pool.keys).line_up((), SLOT.itemsize)
    run = checked(
        run_table(
            trace,
            ready.machine,
            ready.preset,
            cache,
            chosen,
            ready.miss,
            ready.host_plan,
            ready.page_cache,
            lines,
            ready.context,
        )
    )
    run = run._replace(calls=run.calls._replace(evict_code=1, admit_code=2, ahead_code=3))
    run.v[t.TO_PASS] = trace.n_passes
    slots, calls, evict, admit = run.slots, run.calls, cache.state, cache.admission_state

    def event() -> Event:
        e = calls.event
        lo, hi = e[t.E_FIRST], e[t.E_END]
        return Event(
            e[t.E_NUMBER], e[t.E_PASS], e[t.E_LAYER], lo, run.trace.keys[lo:hi], run.trace.rows[lo:hi],
            run.plan.hits[0 : hi - lo], e[t.E_PHASE], e[t.E_REQUEST],
        )  # fmt: skip

    def ask(code: int, _: int, what: int, a: int, b: int, c: int) -> int:
        if code == 1 and what == t.VICTIM:
            return chosen.eviction.victim(evict, a, b, slots.guard, c)
        if code == 1 and what in (t.INSERT, t.REMOVE):
            return (chosen.eviction.insert if what == t.INSERT else chosen.eviction.remove)(evict, a) or 0
        if code == 2 and what == t.SELECT:
            return chosen.admission.select(admit, event(), calls.misses, a)
        if code == 2 and what == t.ACCEPTS:
            return int(chosen.admission.accepts(admit, a, b))
        if code == 2 and what == t.PASS_DONE:
            return chosen.admission.pass_done(admit, a, slots.resident, run.swaps.newcomers, run.swaps.victims)
        if code == 3 and what == t.PROPOSE:
            return prefetch.propose(ahead, event(), run.ahead.keys, run.ahead.deadlines)
        policy, state = ((), (chosen.eviction, evict), (chosen.admission, admit), (prefetch, ahead))[code]
        policy.learn(state, event())
        return 0

    bound = {
        "run_at": partial(lambda _: run),
        "call": partial(ask),
        "fetch_line": partial(int),
    }  # no functions, which would be copied
    Interpreter(bound).copy(run_passes)(0)
    return run
