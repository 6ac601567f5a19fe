"""Prefetch policies, where their copies may go, and what they cost: laws, definitions, published recall."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import SimError
from expert_residency.hwmodels.quantity import FamilyRates, Quantity
from expert_residency.hwmodels.registry import load_profile
from expert_residency.policies import PolicyError, available, create
from expert_residency.policies.prefetch.oracle import Oracle
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.prefetch_rule import parse_insertion
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.studies import predictor as predicting
from expert_residency.sim.studies.bounds import time_ns
from expert_residency.sim.studies.predictor import quality
from expert_residency.sim.studies.score import ScoredRun
from expert_residency.sim.sweep.rows import result_row
from expert_residency.sim.testing import PREFETCH_CHECKS
from expert_residency.sim.testing.prefetch import check_proposals, predicted_trace, proposals
from expert_residency.sim.timed.channels import DEMAND, PREFETCH, Batch, CopyEngine, SharedNet
from expert_residency.sim.timed.engine.decisions import Decisions
from expert_residency.sim.timed.result import CAUSES, FATES, TIERS, PrefetchStats
from expert_residency.traces import ModelGeometry, Phase, TraceBuilder, read_trace

MB = 1_000_000
NAMES = [name for name in available("prefetch") if name != "none"]
RULES = ("free", "guarded", "guarded:events=1", "never-evict", "staging:slots=1", "staging:slots=4")


def trace_of(tokens, experts=8, top_k=2, nbytes=MB):
    """One decode pass a token; a token is a list of sets, one a layer."""
    layers = len(tokens[0])
    made = ModelGeometry(
        "tiny", tuple(range(layers)), experts, top_k, (nbytes,) * layers, (2 * MB,) * layers,
        hidden_size=64, quant_family="q4",
    )  # fmt: skip
    builder = TraceBuilder(made)
    for token in tokens:
        builder.begin_pass(Phase.DECODE)
        for layer, chosen in enumerate(token):
            builder.row(layer, chosen)
    return builder.build()


def drawn_trace(seed, tokens=14, layers=4, experts=8, top_k=2):
    import numpy as np

    draw = np.random.default_rng(seed)
    return trace_of(
        [[draw.permutation(experts)[:top_k].tolist() for _ in range(layers)] for _ in range(tokens)],
        experts, top_k,
    )  # fmt: skip


def spec(slots=4, **choices):
    return RunSpec(("rtx-5070-7900x",), Capacity(slots_per_layer=slots), miss="fetch", **choices)


# ---- the policies ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=check.__name__, marks=pytest.mark.slow if "compiles" in check.__name__ else ())
        for check in PREFETCH_CHECKS
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_laws(name, check):
    check(create("prefetch", name))


def test_the_laws_refuse_one_that_changes_who_is_resident():
    @dataclass(frozen=True)
    class Meddling(Oracle):
        """Gives an expert a slot by itself."""

        name: ClassVar[str] = "meddling"

        def start(self, pool, alloc, future, predictions):
            return pool

        @staticmethod
        def propose(state, event, keys, deadlines):
            state.resident[1] = 1
            return 0

    with pytest.raises(AssertionError, match="meddling: a prefetcher changes who is resident"):
        check_proposals(Meddling())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if create("prefetch", name).compiled])
def test_compiled_with_numba_they_propose_the_same(name):
    pytest.importorskip("numba")
    trace = predicted_trace(3, passes=24)
    policy = create("prefetch", name)
    assert proposals(policy, trace) == proposals(policy, trace, compiled=True)


@given(st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0]), st.sampled_from([0.3, 0.5, 0.8, 1.0]), st.integers(0, 10**6))
def test_the_noisy_oracle_has_the_recall_and_precision_that_were_asked_for(recall, precision, seed):
    trace = drawn_trace(seed, tokens=120, experts=32, top_k=4)
    policy = create("prefetch", f"noisy-oracle:recall={recall},precision={precision},seed={seed}")
    found_recall, found_precision, *_ = quality(trace, policy)
    # the first event of the trace cannot be predicted: 4 of 1920 experts
    assert found_recall == pytest.approx(recall, abs=0.045)
    if recall:
        assert found_precision == pytest.approx(precision, abs=0.045)


def test_recall_falls_with_distance_and_what_was_predicted_far_ahead_stays():
    trace = drawn_trace(1, tokens=200, experts=32, top_k=4)
    asked = proposals(create("prefetch", "noisy-oracle:recall=0.8,precision=1,decay=0.5,window=3"), trace)
    offsets, keys = trace.event_offsets.tolist(), trace.keys.tolist()
    right = [0, 0, 0]
    for e in range(3, trace.n_events):
        members = set(keys[offsets[e] : offsets[e + 1]])
        guesses = [{key for key, deadline in asked[e - h] if deadline == e} for h in (1, 2, 3)]
        assert guesses[2] <= guesses[1] <= guesses[0] <= members
        right = [n + len(guess) for n, guess in zip(right, guesses, strict=True)]
    wanted = 4 * (trace.n_events - 3)
    assert [n / wanted for n in right] == pytest.approx([0.8, 0.4, 0.2], abs=0.03)


def test_a_layer_without_enough_wrong_experts_is_said_to_be_more_precise():
    trace = drawn_trace(5, tokens=50, experts=8, top_k=4)
    recall, precision, *_ = quality(trace, create("prefetch", "noisy-oracle:recall=1,precision=0.1"))
    assert precision == pytest.approx(0.5)
    assert recall == pytest.approx(1.0, abs=0.01)


def test_transitions_and_company_are_learned():
    # Layer 1 follows layer 0: sets {0,1} -> {2,3}, {4,5} -> {6,7}; tokens alternate, so the last token misleads.
    tokens = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]] * 20
    trace = trace_of(tokens)
    late = {name: quality(trace, create("prefetch", name))[0] for name in NAMES if name != "gate-lookahead"}
    assert late["markov"] > 0.9
    assert late["activation-match"] > 0.45  # layer 0 of a token cannot be matched
    assert late["previous-token"] == 0.0
    assert late["co-activation"] == 0.0
    # Two sets of company that come alternately in halves: 0 with 1, 2 with 3 after a single one of them was seen.
    steady = trace_of([[[0, 1], [4, 5]]] * 10 + [[[2, 3], [6, 7]]] * 10)
    assert quality(steady, create("prefetch", "co-activation"))[0] > 0.85


def test_static_topk_proposes_the_most_used():
    trace = trace_of([[[0, 1], [0, 1]]] * 6 + [[[2, 3], [2, 3]]] * 5)
    asked = proposals(create("prefetch", "static-topk"), trace)
    assert {key for key, _ in asked[-1]} == {0, 1}
    assert {key for key, _ in proposals(create("prefetch", "static-topk:width=4"), trace)[-1]} == {0, 1, 2, 3}


def test_saturated_counts_fade():
    trace = trace_of([[[0, 1], [2, 3]]] * 40 + [[[0, 1], [6, 7]]] * 12)
    fast = proposals(create("prefetch", "markov:limit=16"), trace)
    slow = proposals(create("prefetch", "markov:limit=255"), trace)
    assert {key - 8 for key, _ in fast[-2]} == {6, 7}
    assert {key - 8 for key, _ in slow[-2]} == {2, 3}


def test_gate_lookahead_proposes_what_was_recorded_and_nothing_else():
    trace = predicted_trace(4)
    asked = proposals(create("prefetch", "gate-lookahead:depth=2"), trace)
    offsets, experts = trace.predictions[2]
    for e in range(2, trace.n_events):
        recorded = experts[offsets[e] : offsets[e + 1]].tolist()
        layer = int(trace.event_layer[e])
        assert asked[e - 2] == [(layer * trace.geometry.experts + x, e) for x in recorded]


def test_gate_lookahead_without_predictions_is_an_error_that_names_the_way_out():
    with pytest.raises(PolicyError, match=r"depth 1 .* no predictions; gate-lookahead-parametric"):
        simulate(drawn_trace(1), spec(prefetch="gate-lookahead"))


def test_the_parametric_gate_says_that_it_is_an_oracle_and_has_the_published_recall():
    policy = create("prefetch", "gate-lookahead-parametric:depth=3")
    assert policy.needs_future
    trace = drawn_trace(2, tokens=400, layers=8, experts=64, top_k=4)
    recall, precision, *_ = quality(trace, policy)
    # 88.6 % less 2 x 3.75, for the 5 of 8 layers that lie within the pass
    assert recall * 8 / 5 == pytest.approx(0.811, abs=0.02)
    assert precision == pytest.approx(0.811, abs=0.02)


@pytest.mark.parametrize(
    "text", ["noisy-oracle:recall=1.5", "noisy-oracle:precision=0", "noisy-oracle:window=0",
             "noisy-oracle:decay=-1", "gate-lookahead-parametric:depth=0", "activation-match:matches=0"]
)  # fmt: skip
def test_parameters_out_of_range_are_refused(text):
    with pytest.raises(PolicyError, match=text.split(":")[0]):
        simulate(drawn_trace(1), spec(prefetch=text))


@pytest.mark.shared
@pytest.mark.parametrize(("model", "published"), [("qwen", 0.380), ("gptoss", 0.179)])
def test_published_recall_of_the_last_token_on_recorded_traces(shared, model, published):
    """Decode overlap of neighbouring tokens, Helldez/BigMoeOnEdge; theirs leaves the first decode token out."""
    trace = read_trace(shared / f"traces/bigmoe-edge/{model}.route.csv")
    recall, *_ = quality(trace, create("prefetch", "previous-token"))
    assert recall == pytest.approx(published, abs=0.015)


# ---- one link, demands and prefetches ------------------------------------------------------------------


def link(priority_of_demand):
    """1 MB a ms; ten wrong 1 MB prefetches at t = 0, one 1 MB demand at t = 1 ms; (its end in ms, the engine)."""
    env = simpy.Environment()
    shared = SharedNet(env, [1_000_000])
    engine = CopyEngine(shared, (0,), 0, lambda deadline: False, "H2D")
    ends = []

    def ask(priority, log):
        engine.submit(Batch([0], [MB], [MB], 1000, priority, 10**9, env.now, lambda *_: log.append(env.now)))

    def process():
        for _ in range(10):
            ask(PREFETCH, [])
        yield env.timeout(1_000_000)
        ask(priority_of_demand, ends)

    env.process(process())
    env.run()
    return ends[0] / 1e6, engine


def test_a_wrong_prefetch_displaces_a_demand_on_a_plain_queue_and_hardly_on_one_with_classes():
    assert link(PREFETCH)[0] == 11.0
    ended, engine = link(DEMAND)
    assert 2.0 <= ended <= 3.0
    assert engine.blocked_ns <= 1_000_000
    assert engine.blocking_bytes == MB
    assert engine.blocked_ns == ended * 1e6 - 2_000_000


def test_a_prefetch_that_somebody_waits_for_does_no_harm():
    env = simpy.Environment()
    engine = CopyEngine(SharedNet(env, [1_000_000]), (0,), 0, lambda deadline: False, "H2D")
    first = Batch([0], [MB], [MB], 1000, PREFETCH, 10**9, 0, lambda *_: None)
    engine.submit(first)
    engine.promote(first, DEMAND)
    engine.submit(Batch([1], [MB], [MB], 1000, DEMAND, 10**9, 0, lambda *_: None))
    env.run()
    assert env.now == 2_000_000
    assert engine.blocked_ns == 0


# ---- insertion -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [("stagin", "did you mean staging"), ("staging:n=3", "known: slots"), ("staging:slots=x", "whole number"),
     ("staging:slots=0", "at least 1"), ("free:slots=3", "known: none"), ("guarded:events=-1", "whole number")],
)  # fmt: skip
def test_misspelt_rules_list_the_valid_ones(text, message):
    with pytest.raises(SimError, match=message):
        parse_insertion(text)


@given(
    st.integers(0, 10**6),
    st.sampled_from(RULES),
    st.sampled_from(["fetch", "cpu", "hybrid"]),
    st.integers(2, 5),
    st.sampled_from(["noisy-oracle:recall=0.7,precision=0.4", "previous-token", "oracle:window=4", "markov"]),
)
def test_accounts_balance_under_every_rule(seed, rule, miss, slots, prefetch):
    trace = drawn_trace(seed)
    result = simulate(trace, replace(spec(slots, prefetch=prefetch, insertion=rule), miss=miss))
    stats = result.prefetch
    assert (result.pass_causes.sum(axis=1) == result.pass_ns).all()
    assert int(result.served_distinct.sum()) == trace.n_lookups
    assert int(result.resident_end.sum()) <= slots * trace.geometry.n_layers
    unmoved = stats.cancelled
    assert stats.issued == stats.useful + stats.late + stats.wasted + stats.cancelled
    assert min(stats.cancelled, stats.refused, stats.polluted) >= 0
    if rule.startswith(("never", "staging")):
        assert stats.polluted == 0
    if miss == "fetch":
        # Every byte on the link was a miss served over it, or a prefetch: one may be under way at the end.
        asked = int(result.served_distinct[:, TIERS.index("pcie")].sum()) + stats.issued
        moved = sum(result.link_bytes[name] for name in ("h2d_demand", "h2d_adapt", "h2d_prefetch"))
        assert (asked - unmoved - 1) * MB <= moved <= (asked - unmoved) * MB


@given(st.integers(0, 10**6), st.integers(1, 5))
def test_bytes_copied_are_the_admitted_experts(seed, slots):
    result = simulate(drawn_trace(seed), spec(slots))
    assert result.link_bytes["h2d_demand"] == result.admitted_bytes
    streamed = simulate(drawn_trace(seed), replace(spec(slots), miss="stream"))
    assert streamed.link_bytes["h2d_demand"] == int(streamed.served_distinct[:, TIERS.index("pcie")].sum()) * MB


@given(st.integers(0, 10**6), st.sampled_from(RULES), st.sampled_from(["fetch", "cpu", "hybrid"]))
def test_an_expert_is_computed_as_resident_only_when_its_bytes_are_there(seed, rule, miss):
    trace = drawn_trace(seed)
    seen = []

    class Watched(Decisions):
        def decide(self, event, card, phase):
            slots = self.slots
            there = [k for k in event.keys if self.cache.resident[k] and slots.copy_of[k] is None]
            there += [k for k, batch in self.prefetcher.staged[card].items() if k in event.keys and batch.landed]
            plan = super().decide(event, card, phase)
            assert plan.hit_bytes == sum(slots.sizes[key] for key in there)
            seen.append(event.number)
            return plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("expert_residency.sim.timed.engine.walk.Decisions", Watched)
        simulate(trace, replace(spec(3, prefetch="noisy-oracle:recall=0.8,precision=0.5,window=3", insertion=rule),
                                miss=miss))  # fmt: skip
    assert seen == list(range(trace.n_events))


def test_never_evict_takes_only_free_room_and_guarded_spares_what_was_wanted_lately():
    trace = drawn_trace(3, tokens=30)
    wrong = "noisy-oracle:recall=0.1,precision=0.1"
    without = simulate(trace, spec(8, placement="none"))
    roomy = simulate(trace, spec(8, prefetch=wrong, insertion="never-evict"))
    assert without.evictions == roomy.evictions == 0
    free = simulate(trace, spec(3, prefetch=wrong))
    guarded = simulate(trace, spec(3, prefetch=wrong, insertion="guarded:events=8"))
    assert guarded.prefetch.polluted < free.prefetch.polluted
    assert guarded.prefetch.refused > free.prefetch.refused


def test_a_staged_expert_becomes_resident_without_another_copy_if_admission_lets_it_in():
    trace = drawn_trace(6, tokens=20)
    kept = simulate(trace, spec(8, prefetch="oracle:window=4", insertion="staging:slots=8"))
    stats = kept.prefetch
    moved = sum(kept.link_bytes[name] for name in ("h2d_demand", "h2d_prefetch"))
    assert kept.admitted_bytes == moved
    assert stats.useful > 0
    turned_away = simulate(
        trace, spec(8, prefetch="oracle:window=4", insertion="staging:slots=8", admission="never")
    )
    assert int(turned_away.resident_end.sum()) == 0
    assert turned_away.prefetch.useful + turned_away.prefetch.late > stats.useful + stats.late


def test_staging_buffers_come_on_top_of_the_capacity_and_must_fit():
    with pytest.raises(SimError, match="does not fit"):
        simulate(drawn_trace(1), spec(4, prefetch="oracle", insertion="staging:slots=20000"))


def test_a_budget_bounds_what_is_asked_for_in_a_pass():
    trace = drawn_trace(8, tokens=30)
    result = simulate(trace, spec(4, prefetch="oracle:window=4", prefetch_bytes=3 * MB))
    stats = result.prefetch
    assert stats.over_budget > 0
    assert stats.issued <= 3 * trace.n_passes
    assert simulate(trace, spec(4, prefetch="oracle:window=4", prefetch_bytes=0)).prefetch.issued == 0


def test_predicting_costs_what_it_is_said_to_cost():
    trace = drawn_trace(9)
    everything = spec(8, placement="hindsight", prefetch="previous-token")
    free, paid = simulate(trace, everything), simulate(trace, replace(everything, predict_us=7.0))
    assert paid.total_ns - free.total_ns == 7000 * trace.n_events
    sync = CAUSES.index("sync")
    assert int((paid.pass_causes - free.pass_causes)[:, sync].sum()) == 7000 * trace.n_events
    with pytest.raises(SimError, match="costs -1 us: expected 0 to"):
        simulate(trace, replace(everything, predict_us=-1.0))


def test_pollution_is_charged_once_for_each_displaced_expert():
    # Three slots: 0 and 1 are wanted by every token, wrong experts push in between.
    trace = trace_of([[[0, 1]]] * 40)
    wrong = "noisy-oracle:recall=0.5,precision=0.2,seed=4"
    result = simulate(trace, spec(3, prefetch=wrong))
    stats = result.prefetch
    assert simulate(trace, spec(3)).evictions == 0
    assert stats.polluted > 0
    assert stats.polluted_bytes == stats.polluted * MB
    assert stats.polluted <= result.evictions
    assert stats.harmful_bytes == stats.polluted_bytes + stats.blocking_bytes


# ---- bounds --------------------------------------------------------------------------------------------


def with_rates(profile, **gb_per_s):
    """The machine with other rates: `link`, `cpu`, `dram`; zero set-up of copies."""

    def quantity(value):
        return Quantity(value=value, kind="assumed", source="test")

    def rates(value):
        return FamilyRates(default=quantity(value))

    changed = {}
    if "link" in gb_per_s:
        changed["link"] = profile.link.model_copy(
            update={name: quantity(gb_per_s["link"]) for name in ("h2d_gb_per_s", "h2d_pageable_gb_per_s")}
            | {name: quantity(0.0) for name in ("copy_t0_us", "submit_us")}
        )
    if "cpu" in gb_per_s:
        sources = profile.cpu.expert_gb_per_s.model_copy(
            update={name: rates(gb_per_s["cpu"]) for name in ("pinned", "pageable", "page_cache")}
        )
        changed["cpu"] = profile.cpu.model_copy(update={"expert_gb_per_s": sources})
    if "dram" in gb_per_s:
        changed["dram"] = profile.dram.model_copy(
            update={name: quantity(gb_per_s["dram"]) for name in ("stream_gb_per_s", "theory_gb_per_s")}
        )
    return profile.model_copy(update=changed)


@given(st.integers(0, 10**6))
def test_perfect_prefetch_over_an_endless_link_into_endless_slots_is_compute_only(seed):
    """Equal to the run with everything resident, to the ns, but for the first event, which nobody can announce:
    it waits for its own copies, 1 ns each, and for nothing else."""
    trace = drawn_trace(seed)
    endless = with_rates(load_profile("rtx-5070-7900x"), link=1e6, dram=1e8)
    layerwise = load_engine("generic").model_copy(update={"copy_unit": "layer"})
    choices = {"profiles": [endless], "preset": layerwise}
    resident = simulate(trace, spec(8, placement="hindsight"), **choices)
    assert resident.shares()["vram"] == 1.0
    ahead = simulate(trace, spec(8, prefetch=f"oracle:window={trace.geometry.n_layers}"), **choices)
    assert ahead.pass_ns[1:].tolist() == resident.pass_ns[1:].tolist()
    wait = CAUSES.index("pcie_wait")
    assert int(ahead.pass_causes[0, wait]) == ahead.total_ns - resident.total_ns
    assert 0 < ahead.total_ns - resident.total_ns <= 2 * trace.geometry.top_k


@given(st.integers(0, 10**6), st.sampled_from(["fetch", "cpu"]), st.integers(0, 6),
       st.floats(1.0, 20.0), st.floats(1.0, 4.0))  # fmt: skip
def test_more_bandwidth_slots_or_cores_never_slow_a_fixed_schedule(seed, miss, slots, rate, factor):
    """A schedule is fixed where nobody decides by time or rate: a static set that never changes, no prefetch,
    every miss treated alike. (`hybrid` divides misses by rates, and its two halves share the DRAM: not fixed.)"""
    trace = drawn_trace(seed)
    fixed = replace(spec(slots, eviction="static", admission="never", placement="hindsight"), miss=miss)
    card = load_profile("tesla-p40")

    def time(slots=slots, **rates):
        made = with_rates(card, **({"link": rate, "cpu": rate, "dram": 60.0} | rates))
        return time_ns(simulate(trace, replace(fixed, capacity=Capacity(slots_per_layer=slots)), profiles=[made]))

    before = time()
    assert time(link=rate * factor) <= before
    assert time(cpu=rate * factor) <= before
    assert time(dram=60.0 * factor) <= before
    assert time(slots=slots + 1) <= before


def test_every_prefetcher_runs_in_time():
    drawn = predicted_trace(7)
    trace = replace(drawn, geometry=replace(drawn.geometry, quant_family="q4"))
    for name in NAMES:
        result = simulate(trace, RunSpec(("tesla-p40",), Capacity(slots_per_layer=3), miss="fetch", prefetch=name))
        assert int(result.served_distinct.sum()) == trace.n_lookups


def new_experts(passes=40, layers=4, experts=200):
    """Every expert is wanted once, so that nothing is ever hit on its own."""
    sizes = (1_000_000,) * layers
    geometry = ModelGeometry(
        "new", tuple(range(layers)), experts, 2, sizes, sizes, quant_family="q4", head_bytes=1
    )
    builder = TraceBuilder(geometry)
    for number in range(passes):
        builder.begin_pass(Phase.DECODE)
        for layer in range(layers):
            builder.row(layer, [2 * number, 2 * number + 1])
    return builder.build()


@pytest.mark.parametrize("simulator", ["reference", "kernel"])
def test_what_wrong_prefetches_read_is_wasted_and_demands_go_first_on_the_drive(simulator):
    """The drive was one queue: four wrong reads of five went first, and the report said wasted 0 B."""
    trace = new_experts()
    base = RunSpec(("rtx-5070-7600",), Capacity(slots_per_layer=50), miss="fetch", host="flash")
    quiet = simulate(trace, base, simulator=simulator)
    right = simulate(
        trace, replace(base, prefetch="noisy-oracle:recall=1,precision=1,window=1"), simulator=simulator
    )
    wrong = simulate(
        trace, replace(base, prefetch="noisy-oracle:recall=1,precision=0.2,window=1"), simulator=simulator
    )
    assert right.total_ns < quiet.total_ns
    assert wrong.total_ns < 1.2 * quiet.total_ns
    stats, found = wrong.prefetch, wrong.prefetch.channels()
    assert 0.15 < stats.precision < 0.35
    assert stats.recall > 0.95
    assert stats.wasted_bytes == found["link"]["wasted_bytes"] + found["drive"]["wasted_bytes"] > 0
    assert stats.blocking_bytes > 0
    assert stats.harmful_bytes >= stats.blocking_bytes
    # What the drive read beyond what events wanted was for wrong prefetches; some of it is under way at the end.
    each = quiet.link_bytes["disk"] // trace.n_lookups
    surplus = wrong.link_bytes["disk"] - quiet.link_bytes["disk"]
    assert 0 <= found["drive"]["wasted_bytes"] - surplus <= 2 * each
    assert right.prefetch.precision == 1.0
    assert right.prefetch.wasted_bytes == 0
    assert right.link_bytes["disk"] == quiet.link_bytes["disk"]


def test_run_score_and_predictor_say_the_same(monkeypatch):
    """Precision, recall and wasted bytes have one definition."""
    trace = new_experts(passes=12, experts=24)
    spec = RunSpec(
        ("rtx-5070-7600",), Capacity(slots_per_layer=8), miss="fetch", host="flash", prefetch="static-topk"
    )
    result = simulate(trace, spec)
    stats = result.prefetch
    scored = ScoredRun.of(result)
    assert scored.prefetch["wasted"] == stats.wasted_bytes == result.to_dict()["prefetch"]["wasted_bytes"]
    row = result_row(result)
    assert (row["prefetch_wasted_bytes"], row["prefetch_cancelled"]) == (stats.wasted_bytes, stats.cancelled)
    assert (row["prefetch_precision"], row["prefetch_recall"]) == (stats.precision, stats.recall)
    ran = {}

    def watched(trace, spec, **kwargs):
        ran[spec.prefetch] = found = simulate(trace, spec, **kwargs)
        return found

    monkeypatch.setattr("expert_residency.sim.studies.predictor.runs.simulate", watched)
    found = predicting.study(trace, replace(spec, prefetch="none"), recalls=[1.0], precisions=[0.5], windows=[1])
    for one in (*found.measured, *found.grid):
        stats = ran[one.prefetch].prefetch
        assert (one.copies, one.wasted_bytes, one.harmful_bytes) == (
            stats.issued, stats.wasted_bytes, stats.harmful_bytes
        )  # fmt: skip
    assert sum(one.copies for one in found.measured) > 0
    for one in found.measured:
        stats = ran[one.prefetch].prefetch
        assert (one.recall, one.precision) == (stats.recall, stats.precision)


def test_a_read_that_a_demand_joined_is_late_and_not_wasted_too():
    """A staged copy is dropped after a demand has joined its read: one read, one fate."""
    stats = PrefetchStats()
    stats.ask(10)
    stats.ask_drive(10)
    stats.late_read(10)
    stats.cancelled_copy(10, 0, 7)  # the read's account is closed
    drive = stats.channels()["drive"]
    assert {name: drive[name] for name in FATES} == {"useful": 0, "late": 1, "wasted": 0, "cancelled": 0}
    assert drive["issued_bytes"] == sum(drive[f"{name}_bytes"] for name in FATES)
    assert min(drive.values()) == 0
