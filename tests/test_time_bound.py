"""The bound on time: no run beats it, and it is the best of all schedules of tiny traces where that is said."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from expert_residency.errors import PolicyFaultError, UserError
from expert_residency.hwmodels.profile import CpuSources, HardwareProfile
from expert_residency.hwmodels.quantity import FamilyRates
from expert_residency.hwmodels.registry import load_profile
from expert_residency.policies import available
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.residency.kept import Uses, least_missed
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.runs.time_bound import LIMITS, time_bound
from expert_residency.sim.studies.bounds import perfect_prefetch
from expert_residency.sim.testing.cases import random_trace
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace, TraceBuilder
from expert_residency.traces.bundled import load

from .every_schedule import fastest
from .tiny_runs import Tiny, compiled, tiny_runs, whole

MB = 1_000_000
RUNS = tiny_runs(compiled("eviction"), compiled("admission"))
DRAWN = settings(deadline=None, suppress_health_check=list(HealthCheck))


def large(seed: int, **choices: int) -> RoutingTrace:
    """A random trace whose experts take time."""
    trace = random_trace(seed, uniform=True, **choices)
    n = trace.geometry.n_layers
    return replace(trace, geometry=replace(trace.geometry, expert_bytes=(2 * MB,) * n, dense_bytes=(MB,) * n))


def never_beaten(tiny: Tiny) -> None:
    machine = {"profiles": tiny.profiles, "preset": tiny.preset}
    try:
        result = simulate(tiny.trace, tiny.spec, simulator="reference", **machine)
    except UserError:
        assume(False)
        return
    bound = time_bound(tiny.trace, tiny.spec, **machine)
    bound.check(result, "a drawn run")
    assert 0 < bound.total_ns <= result.total_ns
    assert bound.decode_ns <= result.decode_ns
    assert (bound.pass_ns <= result.pass_ns).all()
    assert bound.total_ns >= int(bound.pass_ns.sum())
    assert max(bound.limits.values()) <= bound.time_ns


@settings(DRAWN, max_examples=100)
@given(RUNS)
def test_no_drawn_run_is_faster(tiny):
    never_beaten(tiny)


@pytest.mark.slow
@settings(DRAWN, max_examples=2000)
@given(RUNS)
def test_no_run_of_two_thousand_is_faster(tiny):
    never_beaten(tiny)


@pytest.mark.parametrize("miss", ["fetch", "cpu", "hybrid", "stream"])
@pytest.mark.parametrize("hardware", ["rtx-5060ti-5700x3d", "tesla-p40"])
def test_no_oracle_is_faster_on_a_recorded_trace_and_the_best_one_is_near(miss, hardware):
    trace = load("tinymoe-prose")
    trace = trace.select_passes(np.arange(trace.n_passes) < 40)
    spec = RunSpec((hardware,), Capacity(trace.geometry.all_expert_bytes // 2), miss=miss)
    bound = time_bound(trace, spec)
    perfect = perfect_prefetch(trace, spec)
    oracles = [simulate(trace, replace(spec, eviction=name)) for name in ("min", "belady", "static")]
    for result in (perfect, *oracles):
        bound.check(result, "an oracle")
    nearest = min(result.decode_ns for result in (perfect, *oracles))
    assert bound.decode_ns > 0.85 * nearest


def test_a_run_that_is_faster_is_refused():
    trace = large(3)
    spec = RunSpec(("tesla-p40",), Capacity(slots_per_layer=3), miss="fetch")
    bound, result = time_bound(trace, spec), simulate(trace, spec)
    bound.check(result, "lru")
    for at, what in (
        (-1, "all passes|pass "),
        (int(np.argmax(trace.pass_phase != Phase.PREFILL)), "decoding|pass "),
    ):
        faster = replace(result, pass_ns=result.pass_ns.copy())
        faster.pass_ns[at] = 0
        with pytest.raises(PolicyFaultError, match=rf"^lru: ({what}).* where no schedule can take less"):
            bound.check(faster, "lru")


def test_requests_that_start_cold_are_bounded_one_by_one():
    trace = large(5)
    spec = RunSpec(("tesla-p40",), Capacity(slots_per_layer=3), miss="fetch")
    apart = time_bound(trace, spec, cold="request")
    apart.check(simulate(trace, spec, cold="request"), "lru")
    assert apart.pass_ns.tolist() == time_bound(trace, spec).pass_ns.tolist()


@pytest.mark.parametrize("miss", ["fetch", "cpu", "hybrid"])
def test_room_can_only_lower_it(miss):
    trace = large(8, experts=9)
    found = [
        time_bound(trace, RunSpec(("tesla-p40",), Capacity(slots_per_layer=n), miss=miss)).total_ns
        for n in range(10)
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_what_it_leaves_out_is_said():
    trace = large(1)
    spec = RunSpec(("tesla-p40",), Capacity(slots_per_layer=3), miss="cpu")
    assert time_bound(trace, replace(spec, miss="fetch")).left_out == ()
    assert any("fill slots" in text for text in time_bound(trace, spec).left_out)
    swaps = replace(spec, host="budget:gib=0.1", admission="never", eviction="static")
    assert any("swaps change" in text for text in time_bound(trace, swaps).left_out)
    assert set(time_bound(trace, spec).limits) == set(LIMITS)


# ---- what must be missed ---------------------------------------------------------------------------


def fewest_bytes(events: list[tuple[int, ...]], sizes: list[int], room: int) -> int:
    """By trying all sets of residents, whoever is there at the start."""
    keys = range(len(sizes))
    sets = [frozenset(c) for n in range(len(sizes) + 1) for c in combinations(keys, n)]
    sets = [s for s in sets if sum(sizes[k] for k in s) <= room]
    cost = dict.fromkeys(sets, 0)
    for event in events:
        served = {s: cost[s] + sum(sizes[k] for k in event if k not in s) for s in sets}
        cost = {s: min(served[before] for before in sets if s <= before | set(event)) for s in sets}
    return min(cost.values())


@given(st.integers(0, 10_000), st.booleans())
def test_least_missed_is_the_least_of_all_choices_for_equal_sizes_and_less_for_others(seed, equal):
    rng = random.Random(seed)
    sizes = [6] * 2 if equal else rng.choices([4, 6, 9], k=2)
    geometry = ModelGeometry("tiny", (0, 1), 3, 1, tuple(sizes), (1, 1))
    builder = TraceBuilder(geometry)
    for _ in range(rng.randrange(1, 8)):
        builder.begin_pass(Phase.VERIFY)
        rows = rng.choice([1, 1, 2])
        for layer in (0, 1):
            for expert in rng.sample(range(3), rows):
                builder.row(layer, [expert])
    trace = builder.build()
    room = rng.randrange(0, 30)
    room -= room % 6 if equal else 0
    offsets = trace.event_offsets.tolist()
    events = [tuple(trace.keys[a:b].tolist()) for a, b in pairwise(offsets)]
    uses = Uses.of(trace, [0, 0])
    first = rng.randrange(len(events))
    (found,) = least_missed(uses, [room], first, len(events))
    least = fewest_bytes(events[first:], [sizes[k // 3] for k in range(6)], room)
    assert found == least if equal else found <= least


# ---- every schedule --------------------------------------------------------------------------------


def machine(link: float, cpu: float) -> HardwareProfile:
    card = load_profile("tesla-p40")
    fast, rate = FamilyRates(default=whole(100.0)), FamilyRates(default=whole(cpu))
    changed = {
        "link": {"h2d_gb_per_s": link, "copy_t0_us": 1.0, "submit_us": 0.0},
        "gpu": {
            "expert_gb_per_s": fast, "dense_gb_per_s": fast, "launch_us": 1.0, "sync_us": 1.0,
            "group_us_by_bytes": {},
        },
        "cpu": {"expert_gb_per_s": CpuSources(pinned=rate, pageable=rate, page_cache=rate), "dispatch_us": 1.0},
        "dram": {"stream_gb_per_s": 1000.0},
    }  # fmt: skip
    return card.model_copy(
        update={
            part: getattr(card, part).model_copy(
                update={k: whole(v) if isinstance(v, float) else v for k, v in values.items()}
            )
            for part, values in changed.items()
        }
    )


def tiny_case(rng: random.Random, **fixed: object) -> dict[str, object]:
    experts = rng.choice([2, 3])
    layers = rng.choice([1, 1, 2])
    top_k = 2 if experts == 3 and rng.random() < 0.3 else 1
    geometry = ModelGeometry(
        "tiny", tuple(range(layers)), experts, top_k, (MB,) * layers,
        (rng.choice([MB // 10, MB, 5 * MB]),) * layers, hidden_size=64, quant_family="q4",
    )  # fmt: skip
    builder = TraceBuilder(geometry)
    for _ in range(rng.choice([2, 3]) if layers == 1 else rng.choice([1, 2])):
        builder.begin_pass(Phase.DECODE)
        for layer in range(layers):
            builder.row(layer, rng.sample(range(experts), top_k))
    slots, scope = rng.choice([0, 1, 2]), rng.choice(["global", "layer"])
    case = {
        "trace": builder.build(), "miss": rng.choice(["fetch", "cpu", "stream"]), "slots": slots, "scope": scope,
        "link": rng.choice([1.0, 10.0]), "cpu": rng.choice([2.0, 20.0]), "fill": rng.random() < 0.5,
    }  # fmt: skip
    return case | fixed


def least_and_bound(case: dict[str, object], most: int) -> tuple[int, int] | None:
    trace = case["trace"]
    assert isinstance(trace, RoutingTrace)
    room = Capacity(slots_per_layer=case["slots"], scope=case["scope"])
    spec = RunSpec(("tesla-p40",), room, miss=case["miss"])
    profiles = (machine(case["link"], case["cpu"]),)
    preset = load_engine("generic").model_copy(update={"fill": case["fill"]})
    found = fastest(trace, spec, profiles, preset, most)
    return found and (found[0], time_bound(trace, spec, profiles=profiles, preset=preset).total_ns)


def test_it_is_the_best_of_all_schedules_where_the_card_has_no_room():
    tried = 0
    for seed in range(24):
        if found := least_and_bound(tiny_case(random.Random(seed), slots=0), 300):
            tried += 1
            assert found[0] == found[1]
    assert tried >= 8


def test_it_is_the_best_of_all_schedules_where_everything_fits():
    tried = 0
    for seed in range(12):
        case = tiny_case(random.Random(seed))
        case["slots"] = case["trace"].geometry.experts
        if found := least_and_bound(case, 1500):
            tried += 1
            assert found[0] == found[1]
    assert tried >= 4


def ratios(seeds: range, most: int) -> list[float]:
    found = [least_and_bound(tiny_case(random.Random(seed)), most) for seed in seeds]
    return [bound / least for least, bound in filter(None, found)]


def test_no_schedule_of_tiny_traces_beats_it_and_it_is_near_the_best():
    found = ratios(range(100, 130), 400)
    assert len(found) > 10
    assert max(found) <= 1
    assert np.mean(found) > 0.93


def between(case: dict[str, object]) -> bool:
    """Whether the card holds some experts of a layer and not all: only there may the bound lie under the best."""
    return 0 < case["slots"] < case["trace"].geometry.experts


@pytest.mark.slow
def test_it_is_the_best_of_all_schedules_of_many_tiny_traces_unless_some_experts_fit_and_others_do_not():
    cases = [tiny_case(random.Random(seed)) for seed in range(1000, 1150)]
    tried = [(case, found) for case in cases if (found := least_and_bound(case, 3000))]
    outside = [bound / least for case, (least, bound) in tried if not between(case)]
    within = [bound / least for case, (least, bound) in tried if between(case)]
    assert len(outside) >= 50
    assert set(outside) == {1}
    assert len(within) >= 50
    assert max(within) <= 1
    assert np.mean([ratio == 1 for ratio in within]) > 0.8
    assert min(within) > 0.6


def test_every_built_in_eviction_policy_stays_above_it():
    trace = large(11, passes=20)
    spec = RunSpec(("tesla-p40",), Capacity(slots_per_layer=3), miss="hybrid")
    bound = time_bound(trace, spec)
    for name in available("eviction"):
        bound.check(simulate(trace, replace(spec, eviction=name), simulator="reference"), name)
