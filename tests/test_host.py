"""Ways to hold experts on the host: budgets, start states, slices, exchanges."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import SimError
from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.units import GIB
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.studies.score import ScoredRun
from expert_residency.sim.timed.host import PAGE_CACHE, PAGEABLE, PINNED, parse_host, plan_host
from expert_residency.sim.timed.page_cache import PageCache
from expert_residency.sim.timed.result import CAUSES
from expert_residency.traces import Phase, TraceBuilder, load_model
from tests.test_engine import check_laws, geometry, random_trace, trace_of

MACHINE = load_profile("rtx-5060ti")
BIG = load_model("qwen3.8-flash-next", "IQ4_XS")


def small_ram(**changes):
    """The machine with other memory sizes, in GiB."""
    ram = MACHINE.ram
    fields = {k: getattr(ram, k).model_copy(update={"value": v, "spread": None}) for k, v in changes.items()}
    return MACHINE.model_copy(update={"ram": ram.model_copy(update=fields)})


def cause(result, name):
    return int(result.pass_causes[:, CAUSES.index(name)].sum())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("arenna", "did you mean arena"),
        ("arena:pin=maybe", "slices, whole, none"),
        ("mmap:acces=direct", "known: access"),
        ("budget", "gib is missing"),
        ("budget:gib=lots", "number of GiB"),
        ("budget:gib=60", "cannot be page-locked"),
        ("resident", "budget:gib=N"),
    ],
)
def test_bad_hosts_say_what_is_valid(spec, message):
    tight = small_ram(total_gib=40.0)
    with pytest.raises(SimError, match=message):
        plan_host(BIG, tight, spec)


def test_defaults_come_first_and_are_filled_in():
    assert parse_host("arena") == ("arena", {"pin": "slices"})
    assert parse_host("budget:gib=40,file=gguf")[1] == {
        "gib": "40", "file": "gguf", "swap": "exchange", "cache": "pages",
    }  # fmt: skip


def test_an_arena_over_the_pin_limit_is_split_or_not_pinned_at_all():
    split, whole = plan_host(BIG, MACHINE, "arena"), plan_host(BIG, MACHINE, "arena:pin=whole")
    assert split.pinned_bytes > 46 * GIB
    assert set(split.source_of) == {PINNED, PAGEABLE}
    assert whole.pinned_bytes == 0
    assert whole.load_bytes == BIG.all_expert_bytes


@given(st.integers(1, 46), st.integers(0, 6000))
def test_a_budget_pins_the_hottest_of_what_no_card_holds_and_takes_it_from_the_page_cache(gib, on_card):
    ranked = list(range(BIG.n_experts))[::-1]
    plan = plan_host(BIG, MACHINE, f"budget:gib={gib}", on_card=ranked[:on_card], ranked=ranked)
    size = BIG.expert_bytes[0]
    pinned = [key for key in ranked if plan.source_of[key] == PINNED]
    assert pinned == ranked[on_card : on_card + len(pinned)]
    assert plan.pinned_bytes == len(pinned) * size <= gib * GIB
    assert gib * GIB < plan.pinned_bytes + size or on_card + len(pinned) == BIG.n_experts
    assert plan.page_cache_bytes + plan.pinned_bytes == 61 * GIB
    assert plan.cpu_sources[PINNED] == "budget"


def test_a_budget_above_what_no_card_holds_is_all_of_that():
    """An engine caps it: 60 GiB beside a card that holds 40 of 61 GiB is 21 GiB, which can be page-locked."""
    on_card = range(40 * GIB // BIG.expert_bytes[0])
    plan = plan_host(BIG, MACHINE, "budget:gib=60", on_card=on_card)
    assert plan.pinned_bytes == BIG.all_expert_bytes - len(on_card) * BIG.expert_bytes[0]
    assert not plan.source_of[-1]


def test_the_complement_of_the_card_is_what_resident_holds():
    held = list(range(6000))
    plan = plan_host(BIG, MACHINE, "resident", on_card=held)
    assert plan.pinned_bytes + plan.pageable_bytes == BIG.all_expert_bytes - 6000 * BIG.expert_bytes[0]
    assert {plan.source_of[key] for key in held} == {PAGE_CACHE}


def test_the_second_run_of_a_mapped_file_reads_nothing():
    """The page cache is an input: cold, the first pass reads every byte once; warm or carried on, none."""
    trace = random_trace(5)
    spec = RunSpec(("rtx-5060ti",), Capacity(slots_per_layer=0), host="mmap", start="cold", miss="cpu")
    cache = PageCache(0, 4096)
    cold = simulate(trace, spec, page_cache=cache)
    again = simulate(trace, replace(spec, start="carry"), page_cache=cache)
    warm = simulate(trace, replace(spec, start="warm"))
    pages = -(-trace.geometry.expert_bytes[0] // 4096) * 4096
    assert cold.link_bytes["disk"] == len(np.unique(trace.keys)) * pages
    assert again.link_bytes["disk"] == warm.link_bytes["disk"] == 0
    assert again.total_ns == warm.total_ns < cold.total_ns
    steady = cold.pass_ns[1:].sum() - again.pass_ns[1:].sum()
    assert cold.pass_ns[0] - again.pass_ns[0] > steady / len(cold.pass_ns)
    with pytest.raises(SimError, match="variants"):
        simulate(trace, replace(spec, start="carry"))


def test_what_a_run_begins_with_is_in_its_manifest():
    """Two runs that carried other states had equal manifests, and results 4.6 times apart."""
    trace = random_trace(5)
    first = trace.select_passes(np.arange(trace.n_passes) < 1)
    spec = RunSpec(("rtx-5060ti",), Capacity(slots_per_layer=0), host="mmap", start="cold", miss="cpu")
    carry = replace(spec, start="carry")
    whole, part = PageCache(0, 4096), PageCache(0, 4096)
    simulate(trace, spec, page_cache=whole)
    simulate(first, spec, page_cache=part)
    after = [simulate(trace, carry, page_cache=cache) for cache in (whole, part)]
    assert after[0].total_ns < after[1].total_ns
    starts = [result.manifest["start"] for result in after]
    assert starts[0]["resident_sha256"] == starts[1]["resident_sha256"]
    assert starts[0]["pages_sha256"] != starts[1]["pages_sha256"]
    assert ScoredRun.of(after[0]).case != ScoredRun.of(after[1]).case
    again = PageCache(0, 4096)
    simulate(trace, spec, page_cache=again)
    assert simulate(trace, carry, page_cache=again).manifest == after[0].manifest
    kernel = [simulate(trace, spec, simulator=name).manifest["start"] for name in ("reference", "kernel")]
    assert kernel[0] == kernel[1]
    arena = replace(spec, host="arena", start="warm", capacity=Capacity(slots_per_layer=2))
    placed = [simulate(trace, replace(arena, placement=name)).manifest["start"] for name in ("none", "hindsight")]
    assert placed[0]["pages_sha256"] is None
    assert placed[0]["resident_sha256"] != placed[1]["resident_sha256"]


def test_page_locked_bytes_leave_less_page_cache_to_the_next_run():
    trace = random_trace(6, experts=8)
    pinned_gib = 4 * 8e6 / GIB / 4
    room = 24 * 1_003_520 / GIB  # the whole file fits, in whole pages
    profile = small_ram(total_gib=room + 0.001, os_reserve_gib=0.001, pin_limit_gib=1.0)
    mapped = RunSpec(("rtx-5060ti",), Capacity(slots_per_layer=0), host="mmap", miss="cpu")
    budget = replace(mapped, host=f"budget:gib={pinned_gib}", admission="never", start="carry")
    cache = PageCache(0, 4096)
    assert simulate(trace, mapped, profiles=(profile,), page_cache=cache).link_bytes["disk"] == 0
    simulate(trace, budget, profiles=(profile,), page_cache=cache)
    after = simulate(trace, replace(mapped, start="carry"), profiles=(profile,), page_cache=cache)
    assert after.link_bytes["disk"] > 0
    assert cause(after, "disk_wait") > 0


def test_bare_faults_are_slower_than_read_ahead_and_direct_reads():
    trace = random_trace(7, top_k=3)
    base = RunSpec(("rtx-5060ti",), Capacity(slots_per_layer=0), host="mmap", start="cold", miss="cpu")
    ahead = simulate(trace, base)
    direct = simulate(trace, replace(base, host="mmap:access=direct"))
    bare = simulate(trace, replace(base, host="mmap:access=fault"))
    assert 10 * max(direct.total_ns, ahead.total_ns) < bare.total_ns
    assert direct.link_bytes["disk"] == ahead.link_bytes["disk"] == bare.link_bytes["disk"]


def test_a_model_file_in_place_reads_three_slices_and_puts_them_together():
    trace = random_trace(8)
    base = RunSpec(("rtx-5060ti",), Capacity(slots_per_layer=0), start="cold", miss="cpu")
    blobs = simulate(trace, replace(base, host="mmap:access=direct"))
    slices = simulate(trace, replace(base, host="gguf-in-place"))
    assert slices.link_bytes["disk"] > blobs.link_bytes["disk"]  # each slice is rounded up to a page
    warm = replace(base, start="warm")
    ratio = cause(simulate(trace, replace(warm, host="gguf-in-place")), "cpu_wait") / cause(
        simulate(trace, replace(warm, host="mmap")), "cpu_wait"
    )
    rates = MACHINE.cpu.expert_gb_per_s
    assert ratio == pytest.approx(
        rates.rates("page_cache").default.value / rates.rates("assembled").default.value, 0.1
    )


SWAP = "strata-adaptive:every=2,min_usage=1,min_gain=0.5"


@pytest.mark.parametrize("swap", ["exchange", "streams"])
def test_an_exchange_copies_a_victim_back_for_every_newcomer(swap):
    trace = random_trace(9, tokens=16)
    spec = RunSpec(
        ("rtx-5060ti",), Capacity(slots_per_layer=3), engine="strata", admission=SWAP,
        host=f"resident:swap={swap}", placement="matched:hits=0.3",
    )  # fmt: skip
    result = simulate(trace, spec)
    check_laws(trace, result)
    moved = result.link_bytes
    assert 0 < moved["d2h"] == moved["h2d_adapt"]
    assert (cause(result, "adapt") > 0) == (swap == "exchange")


def test_without_an_exchange_nothing_goes_back():
    trace = random_trace(9, tokens=16)
    spec = RunSpec(
        ("rtx-5060ti",), Capacity(slots_per_layer=3), engine="strata", admission=SWAP, placement="matched:hits=0.3"
    )
    result = simulate(trace, spec)
    assert result.link_bytes["h2d_adapt"] > 0 == result.link_bytes["d2h"]


def test_a_host_without_copies_of_residents_refuses_admission_on_demand():
    spec = RunSpec(("rtx-5060ti",), Capacity(slots_per_layer=3), host="resident", miss="fetch")
    with pytest.raises(SimError, match="swaps alone"):
        simulate(random_trace(10), spec)


def test_look_ahead_that_warms_pages_copies_nothing_to_the_card():
    trace = random_trace(11)
    base = RunSpec(
        ("rtx-5060ti",), Capacity(slots_per_layer=1), engine="strata", admission="never", host="mmap", start="cold"
    )
    plain = simulate(trace, base)
    warmed = simulate(trace, replace(base, prefetch="oracle:window=1", insertion="pages"))
    check_laws(trace, warmed)
    assert warmed.link_bytes["h2d_prefetch"] == 0
    assert warmed.prefetch.issued > 0
    assert warmed.link_bytes["disk"] == plain.link_bytes["disk"]
    assert warmed.total_ns <= plain.total_ns


def test_a_window_looks_up_the_union_of_its_rows():
    """A round of three tokens routing {1,2}, {2,3}, {1,2}: 3 look-ups, 6 routed; drafts are paid for."""
    builder = TraceBuilder(geometry(1))
    builder.begin_pass(Phase.VERIFY, emits=2)
    for experts in ([1, 2], [2, 3], [1, 2]):
        builder.row(0, experts)
    trace = builder.build()
    result = simulate(
        trace, RunSpec(("rtx-5070",), Capacity(slots_per_layer=2), engine="strata", placement="full")
    )
    assert result.served_distinct.sum() == 3
    assert result.served_routed.sum() == 6
    assert cause(result, "draft") == 2 * load_engine("strata").draft_ns
    assert result.decode_tokens == 2


def test_fixed_costs_of_a_layer_show_with_no_bytes_moved():
    """48 layers at 118 us of submitting, waiting and merging if the CPU computes their experts, else none."""
    trace = trace_of([[[0, 1]] * 48], geometry(48, 2))
    cpu, card = (
        simulate(trace, RunSpec(("rtx-5070",), Capacity(slots_per_layer=2), engine="ncmoe", placement=where))
        for where in ("none", "full")
    )
    assert cause(cpu, "cpu_wait") >= 48 * 118_000
    assert cause(card, "sync") == cause(card, "cpu_wait") == 0
    assert sum(card.link_bytes.values()) == 0


def test_a_link_that_reads_files_does_one_thing_after_another():
    """Two misses on the disk: reads and copies in turn; a drive of its own reads while the link copies."""
    trace = trace_of([[[0, 1]], [[2, 3]], [[0, 1]]])
    preset = load_engine("generic").model_copy(update={"copy_unit": "layer", "copy_order": "asked"})
    spec = RunSpec(("rtx-5060ti",), Capacity(slots_per_layer=2), miss="fetch", host="mmap", start="cold")
    runs = {
        reads: simulate(trace, spec, preset=preset.model_copy(update={"reads": reads}))
        for reads in ("drive", "link")
    }
    nbytes = trace.geometry.expert_bytes[0]
    pages = -(-nbytes // MACHINE.disk.page_bytes.count) * MACHINE.disk.page_bytes.count
    copy = -(-nbytes * 1000 // MACHINE.link.h2d_pageable_mb_per_s)
    read = MACHINE.disk.latency_ns - (-pages * 1000 // MACHINE.disk.read_ahead_mb_per_s)
    cold, _, warm = (int(ns) for ns in runs["link"].pass_ns)
    assert cold - warm == 2 * read, "the third pass finds the file in memory"
    assert int(runs["drive"].pass_ns[0]) == cold - copy, "the first copy is hidden behind the second read"
    causes = runs["link"].pass_causes.T[[CAUSES.index("disk_wait"), CAUSES.index("pcie_wait")]]
    assert causes[:, 0].tolist() == [MACHINE.link.copy_t0_ns + 2 * read, 2 * copy]
    assert causes[0, 2] == 0, "nothing is read"
    assert runs["link"].link_bytes["disk"] == runs["drive"].link_bytes["disk"] == 4 * pages
