"""Both engines beside plain arithmetic, to the ns: what they share cannot agree with itself only."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.registry import load_profile
from expert_residency.policies import create
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.split.cards import HostSide
from expert_residency.sim.split.cost import LayerTimes
from expert_residency.sim.split.curve import HitCurve
from expert_residency.sim.testing.prefetch import proposals
from expert_residency.traces import ModelGeometry, TraceBuilder, load_model
from expert_residency.traces import Phase as Pass
from expert_residency.traces.synthetic import generate, load_style
from tests.plain_model import plain_run
from tests.tiny_runs import Tiny, draw_trace, profiles, whole

QUIET = ("start_us", "send_us", "ahead_us", "copy_us", "fill_us", "fill_copy_us", "beside_us")
TIMED = ("plan_us", "combine_us", "pass_us", "row_us", "draft_us")


@st.composite
def plain_cases(draw):
    """A run that plain arithmetic knows: memory and ports are wide, and no copy is sent for later."""
    trace = draw_trace(draw(st.integers(0, 2**32 - 1)))
    layers = trace.geometry.n_layers
    n = draw(st.integers(1, min(3, layers)))
    cards = []
    for _ in range(n):
        card = draw(profiles("tesla-p40"))
        link = card.link.model_copy(
            update={
                "root_port": None, "handoff_us": whole(draw(st.sampled_from([0.0, 3.0, 20.0]))),
                "handoff_gb_per_s": whole(draw(st.sampled_from([0.001, 0.01, 1.0]))),
                "p2p_us": whole(draw(st.sampled_from([0.0, 2.0]))),
                "p2p_gb_per_s": whole(draw(st.sampled_from([0.002, 0.05]))),
            }
        )  # fmt: skip
        gflops = Quantity(value=draw(st.sampled_from([1.0, 100.0])), kind="assumed", source="a test's")
        parts = {
            "link": link,
            "gpu": card.gpu.model_copy(update={"group_us_by_bytes": {}}),
            "cpu": card.cpu.model_copy(update={"gflops": gflops}),
            "dram": card.dram.model_copy(update={"stream_gb_per_s": whole(1000.0)}),
            "ram": load_profile("tesla-p40").ram,
        }
        cards.append(card.model_copy(update=parts))
    cuts = sorted(draw(st.permutations(range(1, layers)))[: n - 1])
    each = tuple(b - a for a, b in zip([0, *cuts], [*cuts, layers], strict=True))
    times = {name: whole(draw(st.sampled_from([0.0, 1.0, 70.0]))) for name in TIMED}
    preset = load_engine("generic").model_copy(
        update=dict.fromkeys(QUIET, whole(0.0)) | times
        | {"overlap": draw(st.booleans()), "fill": False, "copy_unit": "expert", "prefill_admits": True}
    )  # fmt: skip
    miss = draw(st.sampled_from(["fetch", "cpu"]))
    largest = int(np.diff(trace.event_offsets).max())
    slots = draw(st.integers(largest, trace.geometry.experts))
    spec = RunSpec(
        ("tesla-p40",) * n, Capacity(slots_per_layer=slots, scope="layer"), layers_each=each, placement="full",
        admission="always" if miss == "fetch" else "never", miss=miss, p2p=draw(st.booleans()), host="arena",
    )  # fmt: skip
    return Tiny(trace, spec, tuple(cards), preset)


def check_plain(tiny: Tiny) -> None:
    """Every pass, the speed and the bytes of the link, in both engines."""
    layer_card = [card for card, n in enumerate(tiny.spec.layers_each) for _ in range(n)]
    slots = tiny.spec.capacity.slots_per_layer
    plain = plain_run(tiny.trace, tiny.profiles, layer_card, tiny.preset, slots, tiny.spec.miss, tiny.spec.p2p)
    for simulator in SIMULATORS:
        result = simulate(tiny.trace, tiny.spec, profiles=tiny.profiles, preset=tiny.preset, simulator=simulator)
        assert result.pass_ns.tolist() == plain.pass_ns
        assert result.decode_tokens == plain.decode_tokens
        assert result.tokens_per_s == pytest.approx(plain.tokens_per_s)
        assert result.link_bytes["h2d_demand"] == plain.fetched_bytes


SIMULATORS = ["reference"]
try:
    import numba  # noqa: F401

    SIMULATORS.append("kernel")
except ImportError:
    pass


def for_plain(cases: int, check=check_plain) -> None:
    """Call `check` on so many runs, the same every time."""

    @settings(
        max_examples=cases, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(plain_cases())
    def run(tiny):
        check(tiny)

    run()


def test_both_engines_are_plain_arithmetic():
    for_plain(150)


def whole_pages() -> None:
    """Two experts of a page and a byte each do not both fit into three pages: every use reads again."""
    shape = ModelGeometry("two", (0,), 2, 1, (4097,), (1000,), quant_family="q4", head_bytes=1, expert_params=100)
    builder = TraceBuilder(shape)
    for number in range(6):
        builder.begin_pass(Pass.DECODE)
        builder.row(0, [number % 2])
    card = load_profile("tesla-p40")
    free = Fraction(3 * 4096, 2**30)
    ram = card.ram.model_copy(update={"total_gib": whole(float(card.ram.os_reserve_gib.value + free))})
    spec = RunSpec("tesla-p40", Capacity(slots_per_layer=0), miss="cpu", host="mmap", start="cold")
    for simulator in SIMULATORS:
        found = simulate(
            builder.build(), spec, profiles=[card.model_copy(update={"ram": ram})], simulator=simulator
        )
        assert found.link_bytes["disk"] == 6 * 2 * 4096


def test_the_page_cache_holds_whole_pages():
    whole_pages()


def oracle_sees_its_window() -> None:
    """What an oracle proposes lies within its window, and over the events is all of it."""
    for window in (1, 2, 5):
        trace = draw_trace(3)
        found = proposals(create("prefetch", f"oracle:window={window}"), trace)
        offsets, keys = trace.event_offsets.tolist(), trace.keys.tolist()
        seen: set[tuple[int, int]] = set()
        for event, pairs in enumerate(found):
            last = min(event + window, trace.n_events - 1)
            assert all(event < deadline <= last for _, deadline in pairs)
            seen.update(pairs)
        wanted = {(key, e) for e in range(1, trace.n_events) for key in keys[offsets[e] : offsets[e + 1]]}
        assert seen == wanted


def test_an_oracle_sees_its_window_and_no_more():
    oracle_sees_its_window()


def budget_takes_its_own_rate() -> None:
    """In a split, experts of a page-locked budget are read at the budget's rate, not at the arena's."""
    model = load_model("granite-3.0-1b-a400m")
    curve = HitCurve.measure(generate(model, load_style("qwen3-30b-a3b"), tokens=3, seed=1, weights=False))
    host = HostSide.of(load_profile("tesla-p40"), model.quant_family, None)
    host = replace(
        host, arena_mb_per_s=9_000, complement_mb_per_s=3_000, dram_mb_per_s=10**6, pin_limit_bytes=1 << 40
    )
    found = {
        mode: LayerTimes(model, curve, host, load_engine("generic"), "cpu", mode, 1 << 40).cpu_mb_per_s
        for mode in ("arena", "budget")
    }
    assert found == pytest.approx({"arena": 9_000, "budget": 3_000})


def test_a_split_reads_a_budget_at_its_own_rate():
    budget_takes_its_own_rate()
