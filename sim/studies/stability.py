"""When does the order of policies stop changing? Parts of a long trace ranked beside the whole of it.

A ranking is by hit rate over distinct look-ups. Of each size so many parts are drawn: whole requests, or the first
tokens of each. Counted are the pairs of policies that are apart on the whole trace and come out in
its order, and what the policy that is best on the part loses on the whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from expert_residency.errors import SimError
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.runs.basis import Basis
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.runs.steps import Steps
from expert_residency.traces import RoutingTrace

APART = 0.005
"""Policies whose hit rates on the whole trace are nearer than this are not ordered."""


@dataclass(frozen=True)
class Part:
    """One size of part, over its draws.

    Parameters
    ----------
    requests, tokens_each
        Requests of a part; first tokens of each, None for all.
    tokens
        Tokens generated, mean over draws.
    in_order, worst
        Share of the pairs of policies in the order of the whole trace: mean over draws and capacities, and least.
    lost
        Hit rate lost on the whole trace by its best policy being taken from the part: mean, 0 to 1.
    """

    requests: int
    tokens_each: int | None
    tokens: float
    in_order: float
    worst: float
    lost: float


def part_of(trace: RoutingTrace, requests: Iterable[int], tokens_each: int | None) -> RoutingTrace:
    """Passes of some requests.

    Parameters
    ----------
    trace
        The whole.
    requests
        Which.
    tokens_each
        First passes of each; None for all.

    Returns
    -------
    RoutingTrace
        The part.
    """
    chosen = np.isin(trace.pass_request, list(requests))
    if tokens_each is not None:
        seen = np.zeros(trace.n_passes, dtype=np.int64)
        for name in np.unique(trace.pass_request[chosen]):
            own = trace.pass_request == name
            seen[own] = np.arange(int(own.sum()))
        chosen &= seen < tokens_each
    return trace.select_passes(chosen)


def stability(
    trace: RoutingTrace,
    policies: Sequence[str],
    shares: Sequence[float],
    sizes: Sequence[tuple[int, int | None]],
    *,
    draws: int = 10,
    seed: int = 1,
    simulator: str = "auto",
) -> list[Part]:
    """Parts of a trace ranked beside the whole of it.

    Parameters
    ----------
    trace
        Many requests.
    policies
        Eviction policies, two or more.
    shares
        Cache capacities, as shares of all experts.
    sizes
        (requests, first tokens of each or None for all) of the parts.
    draws
        Parts of each size; requests of a part differ.
    seed
        Of the draws.
    simulator
        As for `replay`.

    Returns
    -------
    list of Part
        One for each size.

    Raises
    ------
    SimError
        A size of more requests than there are, or no two policies that are apart.
    """
    names = np.unique(trace.pass_request)
    if most := [n for n, _ in sizes if n > len(names)]:
        raise SimError(f"a part of {most[0]} requests cannot be drawn from {len(names)}")

    def rates(part: RoutingTrace) -> list[dict[str, float]]:
        steps, whole = Steps.of(part), part.geometry.all_expert_bytes
        return [
            {
                policy: replay(
                    part, policy, Capacity(total_bytes=int(share * whole)), steps=steps, simulator=simulator
                ).phases["all"].hit_rate
                or 0.0
                for policy in policies
            }
            for share in shares
        ]  # fmt: skip

    full = rates(trace)
    pairs = [
        [(a, b) for a, b in itertools.permutations(policies, 2) if rate[a] > rate[b] + APART] for rate in full
    ]
    if not all(pairs):
        raise SimError("at one of the capacities no two policies are apart, so there is no order to find")
    rng = np.random.default_rng(seed)
    found = []
    for requests, tokens_each in sizes:
        tokens, kept, lost = [], [], []
        for _ in range(draws):
            part = part_of(trace, rng.choice(names, requests, replace=False).tolist(), tokens_each)
            tokens.append(Basis.of(part).tokens)
            for there, here, apart in zip(rates(part), full, pairs, strict=True):
                kept.append(sum(there[a] > there[b] for a, b in apart) / len(apart))
                lost.append(max(here.values()) - here[max(there, key=lambda policy: there[policy])])
        found.append(
            Part(
                requests, tokens_each, float(np.mean(tokens)), float(np.mean(kept)), min(kept),
                float(np.mean(lost)),
            )
        )  # fmt: skip
    return found
