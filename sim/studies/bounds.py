"""What a run is held against: the bound on time, the optimum in misses, and the regime that it ran in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from expert_residency.errors import SimError
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.policies import create
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.prefetch_rule import parse_insertion
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.residency.pool import make_pool
from expert_residency.sim.residency.quotas import share_out
from expert_residency.sim.runs.optimum import check_bound
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.runs.time_bound import time_bound
from expert_residency.sim.studies.score import Score, ScoredRun, score
from expert_residency.sim.timed.result import RunResult
from expert_residency.traces import Phase, RoutingTrace
from expert_residency.traces.inspect import describe


def perfect_prefetch(
    trace: RoutingTrace, spec: RunSpec, *, profiles: Sequence[HardwareProfile] | None = None
) -> RunResult:
    """The fastest of three runs that know the future, on the same link and slots as `spec`.

    Evicts by `belady`, admits every miss, and prefetches the true sets of the next 1 layer, the next 4, or one
    whole token (the oracle's window in events). How far ahead is best depends on the machine: too short and
    copies come late, too long and they push out what is needed sooner. It is the fastest schedule known, no bound
    (`sim.runs.time_bound` is one): where a miss costs less than a copy (fast CPU), a causal run may beat it.

    Parameters
    ----------
    trace
        The trace.
    spec
        Machine, capacity and costs; its policies are replaced.
    profiles
        Cards to use instead of those that `spec.hardware` names.

    Returns
    -------
    RunResult
        The fastest of them.
    """
    runs = [
        simulate(trace, replace(perfect_spec(spec), prefetch=f"oracle:window={window}"), profiles=profiles)
        for window in sorted({1, 4, trace.geometry.n_layers})
    ]
    return min(runs, key=time_ns)


def perfect_spec(spec: RunSpec) -> RunSpec:
    """`spec` with an oracle's eviction and free choice; the window is still to be set."""
    return replace(
        spec, eviction="belady", admission="always", placement=None, prefetch="oracle", insertion="free",
        prefetch_bytes=None, predict_us=0.0,
    )  # fmt: skip


def baseline_spec(spec: RunSpec) -> RunSpec:
    """`spec` with LRU, every miss admitted, a cold start and no prefetch."""
    return replace(
        spec, eviction="lru", admission="always", placement=None, prefetch="none", insertion="free",
        prefetch_bytes=None, predict_us=0.0,
    )  # fmt: skip


def time_ns(result: RunResult) -> int:
    """Time that runs are ranked by: of all passes but prefills, or of all where there is nothing else."""
    return result.decode_ns or result.total_ns


def assess(trace: RoutingTrace, runs: Sequence[ScoredRun]) -> list[Score]:
    """Score runs of one trace with everything that the trace can tell.

    For each case the bound on time is found, and the baseline simulated where it is not among the runs (it then
    appears among the scores); each run gets its gap in misses and its regime.

    Raises
    ------
    SimError
        If a run is of another trace, or its machine or engine has changed since.
    """
    bounds: dict[str, int] = {}
    known = list(runs)
    for run in runs:
        if run.case in bounds:
            continue
        if json.loads(run.case)["trace_sha256"] != trace.content_hash:
            raise SimError(f"{run.name}: the run is of another trace (or of another number of its passes)")
        spec = RunSpec.from_dict(run.spec)
        base = ScoredRun.of(simulate(trace, baseline_spec(spec)), "baseline, simulated now")
        if base.case != run.case:
            raise SimError(f"{run.name}: the machine or the engine has changed since this run")
        if not any(other.is_baseline and other.case == run.case for other in runs):
            known.append(base)
        rules = [str(other.spec.get("insertion", "free")) for other in runs if other.case == run.case]
        slots = max(parse_insertion(rule).staging_slots for rule in rules)
        bounds[run.case] = time_bound(trace, spec, staging_slots=slots).time_ns
    scores = score(known, bounds)
    gaps: dict[tuple[str, ...], dict[str, int]] = {}
    for made in scores:
        spec = RunSpec.from_dict(made.run.spec)
        single = len(spec.hardware) == 1
        if single:
            key = (made.run.case, spec.eviction, spec.admission, str(spec.placement))
            if key not in gaps:
                gaps[key] = miss_gap(trace, spec.capacity, spec.eviction, spec.admission, spec.placement).to_dict()
            made.gap = gaps[key]
        cards = spec.layers_each or (trace.geometry.n_layers,)
        layer_card = [card for card, n in enumerate(cards) for _ in range(n)]
        room = sum(make_pool(trace.geometry, share_out(trace, spec.capacity, layer_card), layer_card).capacity)
        regime = Regime.of(trace, room)
        made.regime = regime.to_dict()
        made.warnings += regime.warnings(spec.capacity.scope)
        if (
            regime.cycles < 1
            and spec.capacity.scope == "global"
            and made.run.is_baseline
            and not made.run.hit_rate
        ):
            made.warnings.append("a global LRU hits exactly 0 % in such a cache")
    return scores


@dataclass(frozen=True)
class MissGap:
    """Misses of three replays without time, on the same slots and from the same start.

    Prefills count too: the optimum is one over the whole trace, and would not be one over a part of it.

    Parameters
    ----------
    lookups
        Distinct experts over all events.
    policy
        Of the run's own eviction and admission policies.
    belady
        Of the optimum that must admit every miss.
    minimum
        Of the optimum that may turn misses away.
    """

    lookups: int
    policy: int
    belady: int
    minimum: int

    @property
    def admission_share(self) -> int:
        """Misses that only turning experts away would avoid: `belady` - `minimum`."""
        return self.belady - self.minimum

    @property
    def victim_share(self) -> int:
        """Misses from choosing other victims than the optimum: `policy` - `belady`.

        Negative for a policy that turns misses away better than forced admission allows.
        """
        return self.policy - self.belady

    def to_dict(self) -> dict[str, int]:
        """Plain form with both shares."""
        return vars(self) | {"admission_share": self.admission_share, "victim_share": self.victim_share}


def miss_gap(
    trace: RoutingTrace, capacity: Capacity, eviction: str, admission: str = "always", placement: str | None = None
) -> MissGap:
    """Gap of a policy to the optimum in misses, split into its two parts.

    Parameters
    ----------
    trace
        The trace.
    capacity
        Cache capacity of one card.
    eviction, admission, placement
        Policy specs; the placement is the eviction policy's own if None.

    Returns
    -------
    MissGap
        Misses of the policy and of both bounds.

    Raises
    ------
    SimError
        For capacities of several cards.
    """
    if capacity.card_bytes is not None and len(capacity.card_bytes) > 1:
        raise SimError("the gap in misses is worked out for one card only")
    if capacity.card_bytes is not None:
        capacity = replace(capacity, card_bytes=None, total_bytes=capacity.card_bytes[0])
    start = placement or create("eviction", eviction).default_placement
    missed = []
    for who, gate in ((eviction, admission), ("belady", "always"), ("min", "always")):
        hits = replay(trace, who, capacity, admission=gate, placement=start).hits
        missed.append(int((hits == 0).sum()))
    check_bound(trace, capacity, {eviction: missed[0], "min": missed[2]}, admission=admission, placement=start)
    return MissGap(trace.n_lookups, *missed)


@dataclass(frozen=True)
class Regime:
    """Where a run lies: the figures without which two results cannot be compared.

    Parameters
    ----------
    slots_per_layer
        Experts that fit, spread evenly over the layers.
    slots_over_k
        The same over top-k: below 1 a single token does not fit.
    cycles
        Capacity over the bytes that one token touches; below 1 a global LRU hits nothing.
    cached_share
        Capacity over the bytes of all experts.
    union_mean
        Distinct experts of an event outside prefill, mean over events.
    union_over_slots
        The same over `slots_per_layer`.
    overlap
        Share of a layer's experts that its next decode token wants again, mean over layers.
    """

    slots_per_layer: float
    slots_over_k: float
    cycles: float
    cached_share: float
    union_mean: float | None
    union_over_slots: float | None
    overlap: float | None

    @classmethod
    def of(cls, trace: RoutingTrace, capacity_bytes: int) -> Regime:
        """Regime of a trace in a cache of so many bytes."""
        geometry = trace.geometry
        slots = capacity_bytes / sum(geometry.expert_bytes)
        found = describe(trace)
        decode = trace.event_phase != Phase.PREFILL
        sizes = trace.event_offsets[1:] - trace.event_offsets[:-1]
        union = float(sizes[decode].mean()) if decode.any() else None
        return cls(
            slots, slots / geometry.top_k, capacity_bytes / geometry.token_cycle_bytes,
            capacity_bytes / geometry.all_expert_bytes, union, union / slots if union and slots else None,
            found["overlap"]["lag_1"],
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return dict(vars(self))

    def warnings(self, scope: str) -> list[str]:
        """What this regime makes of any comparison."""
        found = []
        if scope == "global" and self.cycles < 1:
            found.append("the cache is smaller than what one token touches")
        if self.cached_share >= 1:
            found.append("every expert fits: eviction policies cannot differ")
        if self.union_over_slots is not None and self.union_over_slots > 1:
            found.append("an event wants more experts than a layer's share of the slots")
        return found
