"""Policies behind one C function each, so that the loop is compiled once and a policy by itself."""

# ruff: noqa: TC004  (names of the seam are there at run time, but not by import)

from __future__ import annotations

from typing import TYPE_CHECKING

from expert_residency.policies.protocol import Event
from expert_residency.sim.kernel.timed.tables import (
    ACCEPTS,
    E_END,
    E_FIRST,
    E_LAYER,
    E_NUMBER,
    E_PASS,
    E_PHASE,
    E_REQUEST,
    INSERT,
    PASS_DONE,
    PROPOSE,
    REMOVE,
    SELECT,
    VICTIM,
    Asked,
)

if TYPE_CHECKING:
    from expert_residency.sim.kernel.timed.seam import (
        asked_state,
        policy_accepts,
        policy_insert,
        policy_learn,
        policy_pass_done,
        policy_propose,
        policy_remove,
        policy_select,
        policy_state,
        policy_victim,
    )


def event_of(asked: Asked) -> Event:
    """The event in hand."""
    e = asked.event
    lo, hi = e[E_FIRST], e[E_END]
    return Event(
        e[E_NUMBER], e[E_PASS], e[E_LAYER], lo, asked.keys[lo:hi], asked.rows[lo:hi], asked.hits[0 : hi - lo],
        e[E_PHASE], e[E_REQUEST],
    )  # fmt: skip


def evict(table: int, what: int, a: int, b: int, c: int) -> int:
    """`EvictionPolicy`.

    Parameters
    ----------
    table
        Address of what is asked and of the state.
    what
        Number of the method.
    a, b, c
        Its arguments.

    Returns
    -------
    int
        Its result, or 0.
    """
    asked, state = asked_state(table), policy_state(table)
    if what == VICTIM:
        return policy_victim(state, a, b, asked.guard, c)
    if what == INSERT:
        policy_insert(state, a)
    elif what == REMOVE:
        policy_remove(state, a)
    else:
        policy_learn(state, event_of(asked))
    return 0


def admit(table: int, what: int, a: int, b: int, c: int) -> int:
    """`AdmissionPolicy`.

    Parameters
    ----------
    table
        Address of what is asked and of the state.
    what
        Number of the method.
    a, b, c
        Its arguments.

    Returns
    -------
    int
        Its result, or 0.
    """
    asked, state = asked_state(table), policy_state(table)
    if what == ACCEPTS:
        return int(policy_accepts(state, a, b))
    if what == SELECT:
        return policy_select(state, event_of(asked), asked.misses, a)
    if what == PASS_DONE:
        return policy_pass_done(state, a, asked.resident, asked.wanted, asked.others)
    policy_learn(state, event_of(asked))
    return 0


def ahead(table: int, what: int, a: int, b: int, c: int) -> int:
    """`PrefetchPolicy`.

    Parameters
    ----------
    table
        Address of what is asked and of the state.
    what
        Number of the method.
    a, b, c
        Its arguments.

    Returns
    -------
    int
        Its result, or 0.
    """
    asked, state = asked_state(table), policy_state(table)
    if what == PROPOSE:
        return policy_propose(state, event_of(asked), asked.wanted, asked.others)
    policy_learn(state, event_of(asked))
    return 0
