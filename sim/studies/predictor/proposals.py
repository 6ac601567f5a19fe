"""What a predictor's proposals are worth, before any time is looked at."""

from __future__ import annotations

from typing import NamedTuple

from expert_residency.policies import Event, PrefetchPolicy, create
from expert_residency.policies.protocol import Lists
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.residency.future import make_future, recorded_predictions
from expert_residency.sim.residency.pool import CachePool, make_pool
from expert_residency.sim.runs.simulate import prepare
from expert_residency.traces import Phase, RoutingTrace


class Quality(NamedTuple):
    """A predictor's proposals on a trace; None where undefined. Words as of `Measured`."""

    foretold: float | None
    right: float | None
    rank_quality: float | None
    layers_ahead: float | None
    within_pass: bool
    """Whether it never predicts an event of the next pass."""


def quality_of(trace: RoutingTrace, spec: RunSpec, prefetch: str) -> Quality:
    """Quality of a predictor by its words, in the cache of a run.

    Parameters
    ----------
    trace, spec
        The run, without prefetching.
    prefetch
        The predictor.

    Returns
    -------
    Quality
        Its proposals' quality.
    """
    return quality(trace, create("prefetch", prefetch), prepare(trace, spec).cache)


def quality(trace: RoutingTrace, policy: PrefetchPolicy, cache: CachePool | None = None) -> Quality:
    """What a predictor's proposals foretold, how many were right, and how well they are ordered.

    Counted over distinct experts of events, prefill passes apart: the share of wanted experts that had been
    proposed for their event, and the share of proposals that were wanted at their deadline. The order is judged
    among those that would be copied: not resident when they were proposed.

    Parameters
    ----------
    trace
        What it is shown.
    policy
        The predictor.
    cache
        Decides who is resident, without prefetching; is changed. None: nobody is.

    Returns
    -------
    Quality
        Its proposals' quality.
    """
    pool = cache.pool if cache is not None else make_pool(
        trace.geometry, Capacity(slots_per_layer=trace.geometry.experts)
    )  # fmt: skip
    resident = cache.resident if cache is not None else [0] * pool.keys
    future = make_future(trace) if policy.needs_future else None
    state = policy.start(pool._replace(resident=resident), Lists, future, recorded_predictions(trace))
    keys, deadlines = Lists.ints(pool.keys), Lists.ints(pool.keys)
    offsets, all_keys, rows = trace.event_offsets.tolist(), trace.keys.tolist(), trace.rows_wanting.tolist()
    layers, of_pass = trace.event_layer.tolist(), trace.event_pass.tolist()
    tally = _Tally(of_pass)
    for e in range(trace.n_events):
        members = all_keys[offsets[e] : offsets[e + 1]]
        if trace.event_phase[e] != Phase.PREFILL:
            tally.count(e, members)
        hits = cache.lookup(e, members) if cache is not None else [0] * len(members)
        event = Event(
            e, of_pass[e], layers[e], offsets[e], members, rows[offsets[e] : offsets[e + 1]], hits,
            int(trace.event_phase[e]), int(trace.pass_request[of_pass[e]]),
        )  # fmt: skip
        if cache is not None:
            for position in cache.learn(event):
                cache.admit(members[position], e)
        policy.learn(state, event)
        for i in range(policy.propose(state, event, keys, deadlines)):
            tally.propose(e, deadlines[i], keys[i], copied=not resident[keys[i]])
    return tally.quality()


class _Tally:
    """Proposals held against what came."""

    def __init__(self, of_pass: list[int]) -> None:
        self.of_pass = of_pass
        self.guessed: dict[int, dict[int, bool]] = {}
        """By event its proposed keys, in order, and whether a copy would be made."""
        self.right = self.wanted = self.asked = self.proposed = self.ahead = self.across = 0
        self.pairs = self.won = 0

    def propose(self, now: int, event: int, key: int, *, copied: bool) -> None:
        """A key is proposed for an event that is to come."""
        self.guessed.setdefault(event, {}).setdefault(key, copied)
        self.proposed += 1
        self.ahead += event - now
        self.across += event < len(self.of_pass) and self.of_pass[event] != self.of_pass[now]

    def count(self, event: int, members: list[int]) -> None:
        """The event has come."""
        guess, wanted = self.guessed.pop(event, {}), set(members)
        self.right += len(wanted & guess.keys())
        self.wanted += len(members)
        self.asked += len(guess)
        before = wrong = 0
        for key, copied in guess.items():
            if copied and key in wanted:
                before += 1
            elif copied:
                wrong += 1
                self.won += before
        self.pairs += before * wrong

    def quality(self) -> Quality:
        """The sums as shares."""

        def share(part: int, whole: int) -> float | None:
            return part / whole if whole else None

        return Quality(share(self.right, self.wanted), share(self.right, self.asked), share(self.won, self.pairs),
                       share(self.ahead, self.proposed), self.proposed > 0 and not self.across)  # fmt: skip
