"""Laws of prefetch policies, one function each."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from expert_residency.policies.protocol import Event, Lists, PrefetchPolicy
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.residency.future import make_future, recorded_predictions
from expert_residency.sim.residency.pool import make_pool
from expert_residency.sim.testing.cases import random_trace
from expert_residency.sim.testing.compiled import Arrays, as_arrays, jit
from expert_residency.sim.testing.compiling import check_compiles_prefetch
from expert_residency.sim.testing.shared import declared, instance
from expert_residency.sim.testing.strict import StrictLists, strict
from expert_residency.traces import RoutingTrace
from expert_residency.traces.trace import IntArray

SEEDS = range(4)
Proposals = list[list[tuple[int, int]]]


def predicted_trace(seed: int, **choices: Any) -> RoutingTrace:
    """A random trace that recorded predictions 1 and 2 layers ahead, right in part, none where none could be."""
    trace = random_trace(seed, **choices)
    rng = random.Random(seed)
    g = trace.geometry
    predictions: dict[int, tuple[IntArray, IntArray]] = {}
    for depth in (1, 2):
        offsets, experts = [0], []
        for e in range(trace.n_events):
            if trace.event_layer[e] >= depth:
                lo, hi = trace.event_offsets[e], trace.event_offsets[e + 1]
                members = [int(key) % g.experts for key in trace.keys[lo:hi]]
                experts += sorted({m if rng.random() < 0.8 else rng.randrange(g.experts) for m in members})
            offsets.append(len(experts))
        predictions[depth] = (np.asarray(offsets, dtype=np.int64), np.asarray(experts, dtype=np.int16))
    return dataclasses.replace(trace, predictions=predictions)


def proposals(
    policy: PrefetchPolicy, trace: RoutingTrace, *, arrays: bool = False, compiled: bool = False,
    as_strict: bool = False,
) -> Proposals:  # fmt: skip
    """(key, deadline) pairs that a policy proposes after each event, whenever it wants to be asked.

    Parameters
    ----------
    policy
        The prefetch policy.
    trace
        What it is shown.
    arrays
        Keep its state in numpy arrays.
    compiled
        Also compile its functions with numba.
    as_strict
        Keep it in lists that take no negative index.

    Returns
    -------
    Proposals
        One list an event.
    """
    pool = make_pool(trace.geometry, Capacity(slots_per_layer=trace.geometry.top_k))
    resident = [int(key % 3 == 0) for key in range(pool.keys)]
    pool = pool._replace(resident=list(resident))
    future = make_future(trace) if policy.needs_future else None
    alloc: Any = Arrays if arrays or compiled else StrictLists if as_strict else Lists
    dress: Any = as_arrays if arrays or compiled else strict if as_strict else lambda plain: plain
    pool, future = dress(pool), dress(future) if future is not None else None
    state = policy.start(pool, alloc, future, recorded_predictions(trace))
    keys, deadlines = alloc.ints(pool.keys), alloc.ints(pool.keys)
    learn: Any = jit(policy.learn) if compiled else policy.learn
    propose: Any = jit(policy.propose) if compiled else policy.propose
    offsets, members, rows = trace.event_offsets.tolist(), trace.keys.tolist(), trace.rows_wanting.tolist()
    found: Proposals = []
    for e in range(trace.n_events):
        lo, hi = offsets[e], offsets[e + 1]
        of_pass = int(trace.event_pass[e])
        event = Event(
            e, of_pass, int(trace.event_layer[e]), lo, members[lo:hi], rows[lo:hi], [0] * (hi - lo),
            int(trace.pass_phase[of_pass]), int(trace.pass_request[of_pass]),
        )  # fmt: skip
        event = dress(event)
        learn(state, event)
        n = propose(state, event, keys, deadlines)
        found.append([(int(keys[i]), int(deadlines[i])) for i in range(n)])
    assert list(pool.resident) == resident, f"{policy.name}: a prefetcher changes who is resident"
    return found


def check_declarations(policy: PrefetchPolicy) -> None:
    """Name, source and a docstring are there; parameters are a frozen dataclass's fields with defaults."""
    declared(policy, PrefetchPolicy)


def check_proposals(policy: PrefetchPolicy) -> None:
    """Keys are the model's, no key twice for one event, deadlines lie ahead, in the layer of the key."""
    for seed in SEEDS:
        trace = predicted_trace(seed)
        layers = trace.geometry.n_layers
        for number, asked in enumerate(proposals(policy, trace)):
            assert len(set(asked)) == len(asked), f"{policy.name}: a key is proposed twice for one event"
            for key, deadline in asked:
                assert 0 <= key < trace.geometry.n_experts, f"{policy.name}: key {key} is none of the model's"
                assert deadline > number, f"{policy.name}: a deadline is not ahead"
                assert deadline % layers == key // trace.geometry.experts, f"{policy.name}: wrong layer"


def check_same_twice(policy: PrefetchPolicy) -> None:
    """Two runs agree and leave the policy object as it was."""
    trace = predicted_trace(1)
    before = dataclasses.replace(policy)
    assert proposals(policy, trace) == proposals(policy, trace), f"{policy.name}: two runs differ"
    assert policy == before, f"{policy.name}: a run changed the policy object"


def check_causal(policy: PrefetchPolicy) -> None:
    """Unless it declares an oracle, a shorter trace gives the same beginning."""
    if policy.needs_future:
        return
    trace = predicted_trace(2)
    cut = trace.select_passes(np.arange(trace.n_passes) < trace.n_passes // 2)
    whole, short = proposals(policy, trace), proposals(policy, cut)
    known = cut.n_events
    for number, (a, b) in enumerate(zip(short, whole, strict=False)):
        seen = [pair for pair in b if pair[1] < known]
        assert [pair for pair in a if pair[1] < known] == seen, f"{policy.name}: event {number} knows what comes"


def check_runs_on_arrays(policy: PrefetchPolicy) -> None:
    """A policy that says it can be compiled gives the same on lists and on arrays."""
    if policy.compiled:
        for seed in SEEDS:
            trace = predicted_trace(seed, passes=30)
            plain = proposals(policy, trace)
            assert plain == proposals(policy, trace, arrays=True), f"{policy.name}: lists and arrays differ"


def check_keeps_promises(policy: PrefetchPolicy) -> None:
    """A policy that says it can be compiled counts no index from the end and keeps to the ranges it promised."""
    if policy.compiled:
        for seed in SEEDS:
            trace = predicted_trace(seed, passes=30)
            plain = proposals(policy, trace)
            assert plain == proposals(policy, trace, as_strict=True), f"{policy.name}: the kind of list matters"


PREFETCH_CHECKS: tuple[Callable[[PrefetchPolicy], None], ...] = (
    check_declarations,
    check_proposals,
    check_same_twice,
    check_causal,
    check_runs_on_arrays,
    check_keeps_promises,
    check_compiles_prefetch,
)


def check_prefetch(policy: PrefetchPolicy | type[PrefetchPolicy]) -> None:
    """Run every check on a policy, or on a class with its defaults.

    Raises
    ------
    AssertionError
        The first law that does not hold, with the policy's name.
    """
    policy = instance(policy, PrefetchPolicy)
    for check in PREFETCH_CHECKS:
        check(policy)
