"""The timed engine: conservation, bounds, order, and agreement with the replay."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expert_residency.errors import SimError
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import MISS_MODES, load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.testing import cases
from expert_residency.sim.timed.costs import Costs
from expert_residency.sim.timed.machine import Machine
from expert_residency.sim.timed.result import CAUSES, TIERS
from expert_residency.traces import ModelGeometry, Phase, TraceBuilder, load_model, read_trace

MACHINES = ("rtx-5070", "rtx-5060ti", "tesla-p40")


def geometry(layers=3, experts=6, top_k=2, nbytes=1_000_000):
    return ModelGeometry(
        "tiny",
        tuple(range(layers)),
        experts,
        top_k,
        (nbytes,) * layers,
        (2_000_000,) * layers,
        hidden_size=64,
        quant_family="q4",
    )


def trace_of(tokens, made=None):
    """One decode pass a token; a token is a list of sets, one a layer."""
    builder = TraceBuilder(made or geometry(len(tokens[0])))
    for token in tokens:
        builder.begin_pass(Phase.DECODE)
        for layer, experts in enumerate(token):
            builder.row(layer, experts)
    return builder.build()


def random_trace(seed, tokens=12, layers=3, experts=6, top_k=2):
    draw = np.random.default_rng(seed)
    return trace_of(
        [[draw.permutation(experts)[:top_k].tolist() for _ in range(layers)] for _ in range(tokens)],
        geometry(layers, experts, top_k),
    )


def check_laws(trace, result):
    """What every run must satisfy, whatever its choices."""
    assert (result.pass_causes.sum(axis=1) == result.pass_ns).all()
    assert (result.pass_causes >= 0).all()
    assert (result.pass_ns > 0).all()
    assert int(result.served_distinct.sum()) == trace.n_lookups
    assert int(result.served_routed.sum()) == trace.n_routed
    for phase in ("prefill", "decode", "verify"):
        shares = [share for share in result.shares(phase).values() if share is not None]
        assert not shares or sum(shares) == pytest.approx(1.0)
    text = json.dumps(result.to_dict(passes=True), allow_nan=False)
    assert "NaN" not in text


def link_bounds_ns(result, hardware):
    """Least time that each link needs for the bytes that it moved."""
    card = load_profile(hardware)
    moved = result.link_bytes
    h2d = moved["h2d_demand"] + moved["h2d_adapt"] + moved["h2d_prefetch"]
    rates = [card.cpu.expert_gb_per_s.rates(s).mb_per_s("q4") for s in ("pinned", "pageable", "page_cache")]
    return {
        "h2d": h2d * 1000 // card.link.h2d_mb_per_s,
        "cpu": moved["cpu"] * 1000 // max(rates),
        "disk": moved["disk"] * 1000 // card.disk.seq_mb_per_s,
        "dram": (h2d + moved["cpu"]) * 1000 // card.dram.shared_mb_per_s,
    }


@pytest.mark.shared
@pytest.mark.parametrize("miss", MISS_MODES)
@pytest.mark.parametrize("hardware", MACHINES)
def test_every_machine_and_miss_mode_on_a_recorded_trace(shared, hardware, miss):
    trace = read_trace(shared / "traces/bigmoe-edge/qwen.route.csv")
    result = simulate(trace, RunSpec((hardware,), Capacity(total_bytes=4000 << 20), miss=miss))
    check_laws(trace, result)
    for link, least in link_bounds_ns(result, hardware).items():
        assert result.total_ns >= least, link
    if miss == "fetch":
        counted = replay(trace, "lru", Capacity(total_bytes=4000 << 20)).phases["decode"]
        assert int(result.served_distinct[1][TIERS.index("vram")]) == counted.distinct_hits
        assert result.link_bytes["h2d_demand"] == result.admitted_bytes
    if miss == "stream":
        assert result.shares("decode")["pcie"] == 1.0
        assert result.admitted_bytes == 0


@given(
    st.integers(0, 10**6),
    st.sampled_from(["lru", "fifo", "lfu", "lfru", "random", "belady", "static"]),
    st.integers(1, 5),
    st.sampled_from(["global", "layer"]),
)
@settings(max_examples=60, deadline=None)
def test_demand_fetching_counts_the_same_hits_as_the_replay(seed, eviction, slots, scope):
    trace = random_trace(seed)
    capacity = Capacity(slots_per_layer=slots, scope=scope)
    result = simulate(trace, RunSpec(("tesla-p40",), capacity, eviction=eviction, miss="fetch"))
    counted = replay(trace, eviction, capacity)
    check_laws(trace, result)
    assert int(result.served_distinct[1][TIERS.index("vram")]) == counted.phases["all"].distinct_hits
    assert result.evictions == counted.evictions


@given(
    st.integers(0, 10**6),
    st.sampled_from(MISS_MODES),
    st.sampled_from(["none", "previous-token", "oracle", "oracle:window=4"]),
    st.sampled_from(["arena", "mmap"]),
    st.sampled_from(["cold", "warm"]),
    st.integers(0, 4),
)
@settings(max_examples=120, deadline=None)
def test_laws_hold_for_any_choice(seed, miss, prefetch, host, start, slots):
    trace = random_trace(seed)
    spec = RunSpec(
        ("rtx-5070",), Capacity(slots_per_layer=slots), miss=miss, prefetch=prefetch, host=host, start=start
    )
    result = simulate(trace, spec)
    check_laws(trace, result)
    assert result.total_ns >= max(link_bounds_ns(result, "rtx-5070").values())
    used = int(result.resident_end.sum()) * 1_000_000
    assert used <= slots * 3 * 1_000_000
    if host == "mmap" and start == "cold":
        assert result.link_bytes["disk"] > 0
    if host == "arena":
        assert result.link_bytes["disk"] == 0


def test_single_expert_times_add_up_by_hand():
    """One layer, one token, one miss: every part of the time from the profile's own numbers."""
    trace = trace_of([[[0]]], geometry(1, 4, 1))
    card = load_profile("tesla-p40")
    result = simulate(trace, RunSpec(("tesla-p40",), Capacity(slots_per_layer=2), miss="fetch"))
    rate = card.gpu.expert_gb_per_s.mb_per_s("q4")
    dense = -(-2_000_000 * 1000 // card.gpu.dense_gb_per_s.mb_per_s("q4"))
    copy = card.link.copy_t0_ns - (-1_000_000 * 1000 // card.link.h2d_mb_per_s)
    experts = 2 * card.gpu.launch_ns - (-1_000_000 * 1000 // rate)
    causes = dict(zip(CAUSES, result.pass_causes[0].tolist(), strict=True))
    assert causes == {
        "gpu_dense": dense,
        "gpu_experts": experts,
        "cpu_wait": 0,
        "pcie_wait": copy,
        "disk_wait": 0,
        "sync": card.gpu.sync_ns + 2000,
        "handoff": 0,
        "overhead": 500_000,
        "draft": 0,
        "adapt": 0,
    }


def test_a_fixed_cost_per_layer_shows_up_even_when_no_byte_moves():
    # 48 layers x 118 us of synchronisation: at least 5.66 ms a step.
    layers = 48
    trace = trace_of([[[0]] * layers], geometry(layers, 2, 1))
    result = simulate(trace, RunSpec(("tesla-p40",), Capacity(slots_per_layer=2), placement="hindsight"))
    per_layer = load_profile("tesla-p40").gpu.sync_ns + 2000
    assert result.pass_causes[0][CAUSES.index("sync")] == layers * per_layer
    assert sum(result.link_bytes.values()) == 0


def test_one_byte_of_cpu_work_and_dma_share_memory():
    """A hybrid event is slower than either half alone, since both read DRAM."""
    trace = random_trace(1, tokens=1, layers=1, experts=16, top_k=12)
    base = RunSpec(("rtx-5060ti",), Capacity(slots_per_layer=0))
    alone = {m: simulate(trace, replace(base, miss=m)) for m in ("cpu", "fetch", "hybrid")}
    assert alone["hybrid"].total_ns < alone["cpu"].total_ns
    dram = load_profile("rtx-5060ti").dram.shared_mb_per_s
    moved = alone["hybrid"].link_bytes
    assert alone["hybrid"].total_ns >= (moved["cpu"] + moved["h2d_demand"]) * 1000 // dram


def test_oversized_events_run_in_waves():
    # Capacity of one slot, a token that needs experts 1 and 2 of one layer.
    trace = trace_of([[[1, 2]], [[1, 2]]], geometry(1, 4, 2))
    capacity = Capacity(slots_per_layer=1)
    result = simulate(trace, RunSpec(("tesla-p40",), capacity, miss="fetch"))
    assert result.waves == 2
    assert int(result.resident_end.sum()) == 1
    counted = replay(trace, "lru", capacity)
    assert counted.waves == 2
    assert int(result.served_distinct[1][TIERS.index("vram")]) == counted.phases["all"].distinct_hits


def test_prefill_routes_one_expert_many_times_but_reads_it_once():
    builder = TraceBuilder(geometry(1, 8, 1))
    builder.begin_pass(Phase.PREFILL)
    for _ in range(3):
        builder.row(0, [5])
    trace = builder.build()
    result = simulate(trace, RunSpec(("tesla-p40",), Capacity(slots_per_layer=2), miss="fetch"))
    assert result.served_distinct[0].tolist() == [0, 0, 1, 0, 0, 0, 0]
    assert result.served_routed[0].tolist() == [0, 0, 3, 0, 0, 0, 0]
    assert result.link_bytes["h2d_demand"] == 1_000_000


def test_shares_add_up_whatever_serves():
    # Ten routed: some in VRAM, a share over PCIe, the rest on the CPU; PCIe is not left out.
    trace = random_trace(3, tokens=1, layers=1, experts=16, top_k=10)
    spec = RunSpec(
        ("rtx-5070",), Capacity(slots_per_layer=5), eviction="static", placement="hindsight", miss="hybrid"
    )
    shares = simulate(trace, spec).shares("decode")
    assert shares["vram"] == 0.5
    assert shares["pcie"] + shares["cpu_pinned"] == 0.5
    assert shares["pcie"] > 0


def test_perfect_prefetch_hides_copies():
    trace = random_trace(5, tokens=30, layers=4, experts=16, top_k=2)
    base = RunSpec(("rtx-5070",), Capacity(slots_per_layer=8), miss="fetch")
    without = simulate(trace, base)
    ahead = simulate(trace, replace(base, prefetch="oracle:window=4"))
    assert ahead.total_ns < without.total_ns
    assert ahead.prefetch.precision == 1.0
    assert ahead.prefetch.wasted == 0


def test_everything_resident_never_waits():
    trace = random_trace(7)
    result = simulate(trace, RunSpec(("rtx-5070",), Capacity(slots_per_layer=6), placement="hindsight"))
    assert result.shares()["vram"] == 1.0
    assert sum(result.link_bytes.values()) == 0
    data = result.to_dict()
    assert data["prefetch"]["recall"] is None
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_a_policy_that_never_evicts_is_called_unexercised():
    result = simulate(random_trace(7), RunSpec(("rtx-5070",), Capacity(slots_per_layer=6)))
    assert result.evictions == 0
    assert any("never exercised" in warning for warning in result.warnings)


def test_dense_first_layers_keep_the_models_numbers():
    made = replace(geometry(3), layer_ids=(1, 2, 3), total_layers=4)
    builder = TraceBuilder(made)
    builder.begin_pass(Phase.DECODE)
    for layer in (1, 2, 3):
        builder.row(layer, [0, 1])
    result = simulate(builder.build(), RunSpec(("tesla-p40",), Capacity(slots_per_layer=2)))
    assert result.total_ns > 0


def test_several_cards_hand_over_and_cache_their_own_layers():
    trace = random_trace(11, tokens=8, layers=4)
    room = Capacity(card_bytes=(3_000_000, 3_000_000))
    two = simulate(trace, RunSpec(("tesla-p40", "tesla-p40"), room, layers_each=(2, 2)))
    check_laws(trace, two)
    handoff = two.pass_causes[:, CAUSES.index("handoff")]
    assert (handoff == handoff[0]).all()
    assert handoff[0] > 0
    resident = two.resident_end.reshape(4, 6)
    assert resident[:2].sum() <= 3
    assert resident[2:].sum() <= 3


@pytest.mark.parametrize("simulator", ["reference", "kernel"])
@pytest.mark.parametrize("admission", ["balanced", "always"])
def test_cards_with_different_links_decide_by_their_own(admission, simulator):
    """Two cards with one layer each do what each would do alone: admit, fetch and leave to the CPU."""
    if simulator == "kernel":
        pytest.importorskip("numba")
    draw = np.random.default_rng(12)
    sets = [draw.permutation(16)[:9].tolist() for _ in range(20)]
    slow = load_profile("tesla-p40")
    fast = load_profile("rtx-5070")
    fast = fast.model_copy(update={part: getattr(slow, part) for part in ("cpu", "dram", "disk", "ram")})
    assert fast.link.h2d_mb_per_s > 2 * slow.link.h2d_mb_per_s
    preset = load_engine("generic").model_copy(update={"fill": False})  # nothing depends on when a copy lands

    def found(*profiles):
        trace = trace_of([[one] * len(profiles) for one in sets], geometry(len(profiles), 16, 9))
        spec = RunSpec(
            ("tesla-p40",) * len(profiles), Capacity(slots_per_layer=9, scope="layer"), admission=admission,
            layers_each=(1,) * len(profiles), miss="hybrid",
        )  # fmt: skip
        result = simulate(trace, spec, profiles=profiles, preset=preset, simulator=simulator)
        check_laws(trace, result)
        moved = [result.admitted_bytes, result.link_bytes["h2d_demand"], result.link_bytes["cpu"]]
        return np.array([*moved, *result.served_distinct.sum(axis=0)])

    one, other = found(slow), found(fast)
    assert (one != other).any()
    assert found(slow, fast).tolist() == found(fast, slow).tolist() == (one + other).tolist()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"hardware": ("rtx-507",)}, "rtx-5070"),
        ({"miss": "cup"}, "known: cpu, fetch, hybrid, stream"),
        ({"eviction": "lur"}, "did you mean lru"),
        ({"prefetch": "oracle:windw=2"}, "window"),
        ({"engine": "generik"}, "generic"),
        ({"host": "ssd"}, "arena"),
        ({"layers_each": (1,)}, "do not add up"),
        ({"capacity": Capacity(total_bytes=400 << 30)}, "usable VRAM"),
    ],
)
def test_bad_choices_say_what_is_valid(spec, message):
    trace = random_trace(1)
    base = RunSpec(("rtx-5070",), Capacity(slots_per_layer=2))
    with pytest.raises(ValueError, match=message):
        simulate(trace, replace(base, **spec))


def test_an_arena_larger_than_ram_is_refused_and_one_larger_than_the_pin_limit_is_split():
    from expert_residency.sim.timed.host import PAGEABLE, PINNED, plan_host

    big = load_model("qwen3.8-flash-next", "UD-Q4_K_XL")
    with pytest.raises(SimError, match="mmap"):
        plan_host(big, load_profile("rtx-5070"), "arena")
    small = load_model("qwen3.8-flash-next", "IQ2_XS")
    profile = load_profile("rtx-5070")
    limit = profile.ram.pin_limit_gib.model_copy(update={"value": 8.0})
    tight = profile.model_copy(update={"ram": profile.ram.model_copy(update={"pin_limit_gib": limit})})
    plan = plan_host(small, tight, "arena")
    assert plan.pinned_bytes <= 8 << 30 < plan.pinned_bytes + 1_441_000
    assert plan.pinned_bytes + plan.pageable_bytes == small.all_expert_bytes
    assert {PINNED, PAGEABLE} == set(plan.source_of)


SCRIPT = """
import sys
from tests.test_engine import random_trace
from expert_residency.sim.cli.common import dump_json
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.timed.timeline import Timeline
result = simulate(random_trace(2), RunSpec(('rtx-5070',), Capacity(slots_per_layer=2), prefetch='previous-token',
                  miss='hybrid', host='mmap', start='cold'), timeline=sys.argv[1] if len(sys.argv) > 1 else None)
sys.stdout.write(dump_json(result.to_dict(passes=True)))
"""


def test_equal_manifests_give_identical_bytes_whatever_the_hash_seed_and_observer(tmp_path):
    outputs = set()
    for seed, arguments in (("0", []), ("1", []), ("2", [str(tmp_path / "t.json")])):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, *arguments],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_a_timeline_is_a_chrome_trace_with_named_tracks_whose_slices_do_not_overlap(tmp_path):
    path = tmp_path / "timeline.json"
    spec = RunSpec(
        ("rtx-5070",), Capacity(slots_per_layer=2), miss="hybrid", host="mmap", start="cold", prefetch="oracle"
    )
    result = simulate(random_trace(4), spec, timeline=path)
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    kinds = {name.split(":")[0] for name in names.values()}
    assert {"GPU 0", "PCIe to card 0", "CPU pool", "disk, lane 0", "host"} <= kinds
    assert not (tmp_path / "timeline.json.part").exists()
    by_track = {}
    for event in events:
        if event["ph"] == "X":
            by_track.setdefault(event["tid"], []).append((round(event["ts"] * 1000), round(event["dur"] * 1000)))
    for slices in by_track.values():
        end = 0
        for start, duration in sorted(slices):
            assert start >= end
            end = start + duration
    assert max(s + d for track in by_track.values() for s, d in track) <= result.total_ns


def test_what_the_pool_computes_for_many_rows_takes_longer_than_for_few():
    """No profile that ships has `cpu.gflops`: a prompt of 2,048 rows cost as much as one of 512."""
    model, profile = load_model("qwen3-30b-a3b"), load_profile("rtx-5070-7600")
    costs = Costs.of(model, Machine.single(profile, model.n_layers), load_engine("generic"))
    assert costs.cpu_flop_per_ns == round(profile.cpu.arithmetic.value) == 1536
    found = {rows: costs.cpu(0, 0, rows) for rows in (1, 4, 512, 2048)}
    assert found[1] == found[4]  # reading the weights takes longer
    assert found[2048] == 4 * found[512] > 10 * found[1]
    low, high = profile.cpu.arithmetic.spread
    assert low < 1536 < high


def machine_of(**numbers):
    """A P40's profile with other numbers, by section and field."""
    profile = load_profile("tesla-p40")
    for place, value in numbers.items():
        section, name = place.split("__")
        part = getattr(profile, section)
        part = part.model_copy(update={name: Quantity(value=float(value), kind="assumed", source="a test's")})
        profile = profile.model_copy(update={section: part})
    return profile


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 5),
    rates=st.lists(st.floats(1.0, 100.0), min_size=2, max_size=4, unique=True),
    dram=st.floats(2.0, 60.0),
    set_up=st.sampled_from([0.0, 2.0, 10.0]),
    slots=st.integers(1, 5),
    reads=st.sampled_from(["drive", "link"]),
    host=st.sampled_from(["arena", "mmap", "flash"]),
)
def test_a_faster_link_never_makes_a_run_slower(seed, rates, dram, set_up, slots, reads, host):
    """What a copy pays once was stretched by the memory's limit as if it moved bytes.

    Of runs whose copies have the memory for themselves: beside CPU reads a faster link takes more of it.
    """
    trace = cases.random_trace(seed, passes=12)
    spec = RunSpec(("tesla-p40",), Capacity(slots_per_layer=slots), miss="fetch", host=host)
    times = []
    for rate in sorted(rates):
        profile = machine_of(
            link__h2d_gb_per_s=rate, link__h2d_pageable_gb_per_s=rate, link__copy_t0_us=set_up,
            dram__stream_gb_per_s=dram, dram__theory_gb_per_s=dram, dram__shared_fraction=1.0,
        )  # fmt: skip
        preset = load_engine("generic").model_copy(update={"reads": reads})
        result = simulate(trace, spec, profiles=[profile], preset=preset, simulator="reference")
        times.append(result.total_ns)
    assert times == sorted(times, reverse=True)


def test_a_miss_that_the_cpu_serves_from_flash_is_read_once():
    """Its fill was read from the drive a second time, and the drive's bytes were twice those of the misses."""
    trace = cases.random_trace(1, passes=12)
    spec = RunSpec(("tesla-p40",), Capacity(slots_per_layer=3), miss="cpu", host="flash")
    preset = load_engine("generic").model_copy(update={"fill": True})
    result = simulate(trace, spec, preset=preset, simulator="reference")
    page = load_profile("tesla-p40").disk.page_bytes.count
    misses = int(result.served_distinct[:, TIERS.index("disk")].sum())
    assert result.link_bytes["h2d_adapt"] > 0
    assert result.link_bytes["disk"] == misses * 3 * page  # three slices of less than a page each


@pytest.mark.parametrize("machine", ["rtx-5070-7600", "rtx-5060ti-5700x3d", "rtx-3090"])
def test_a_token_goes_to_the_cpu_and_a_long_prompt_over_the_link(machine):
    """The CPU came out faster than streaming the experts at every prompt size, at 11 TFLOP/s."""
    whole = load_model("qwen3-30b-a3b")
    part = {name: getattr(whole, name)[:2] for name in ("layer_ids", "expert_bytes", "dense_bytes")}
    model = replace(whole, **part, session=None, name="two layers")
    rng = np.random.default_rng(1)

    def prompt_ns(rows, miss):
        builder = TraceBuilder(model)
        builder.begin_pass(Phase.PREFILL)
        for layer in range(2):
            for _ in range(rows):
                builder.row(layer, rng.permutation(model.experts)[: model.top_k].tolist())
        return simulate(builder.build(), RunSpec(machine, Capacity(slots_per_layer=0), miss=miss)).total_ns

    assert prompt_ns(1, "cpu") < prompt_ns(1, "stream")
    assert prompt_ns(2048, "cpu") > prompt_ns(2048, "stream")
