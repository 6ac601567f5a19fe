"""Split planner: the seed's table, exactness of the search, and laws that no placement may break."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from expert_residency.errors import SimError
from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.units import GB, GIB
from expert_residency.sim.split.cards import Card, HostSide, handoff_ns, together_mb_per_s
from expert_residency.sim.split.curve import HitCurve
from expert_residency.sim.split.memory import HOST_MODES, needs_of, ram_need, spread_slots
from expert_residency.sim.split.placement import Placement, Problem
from expert_residency.sim.split.planner import Planner
from expert_residency.traces import load_model
from expert_residency.traces.synthetic import generate, load_style
from tests.split_machines import CARD, EXPERTS, GENERIC, HOST, STYLE, problem, small_model

rates = st.integers(20_000, 900_000)
cards_strategy = st.builds(
    lambda vram, dense, expert, h2d, sync, name: replace(
        CARD, name=name, usable_bytes=vram, dense_mb_per_s=dense, expert_mb_per_s=expert, h2d_mb_per_s=h2d,
        h2d_pageable_mb_per_s=h2d - h2d // 6, sync_ns=sync,
    ),
    st.integers(4_000_000, 120_000_000), rates, rates, st.integers(3_000, 50_000), st.integers(0, 60_000),
    st.sampled_from(["a", "b"]),
)  # fmt: skip


def outcome(p: Placement | None) -> object:
    return p and ([(s.card, s.first, s.end) for s in p.stages], p.pass_ns, p.slots, p.ram)


@pytest.fixture(scope="module")
def curve() -> HitCurve:
    """A short curve of Qwen3.8-Flash-Next size."""
    geometry = load_model("qwen3.8-flash-next")
    return HitCurve.measure(generate(geometry, load_style("qwen3.8-flash-next"), tokens=40, seed=1, weights=False))


class TestSearch:
    @pytest.mark.parametrize("seed", range(200))
    def test_pruned_search_equals_brute_force(self, seed):
        """Random small machines: 1 to 4 cards, all host modes, RAM that is ample, tight or too small."""
        rng = random.Random(seed)
        kinds = [
            replace(
                CARD,
                name=f"card {i}",
                usable_bytes=rng.choice([3_000_000, 9_000_000, 30_000_000, 90_000_000]) + rng.randrange(10**6),
                dense_mb_per_s=rng.randrange(50_000, 900_000),
                expert_mb_per_s=rng.randrange(50_000, 900_000),
                h2d_mb_per_s=rng.randrange(4_000, 50_000),
                handoff_ns=rng.choice([0, 5_000, 100_000]),
            )
            for i in range(2)
        ]
        layers = rng.randint(4, 8)
        cards = [rng.choice(kinds) for _ in range(rng.randint(1, 4))]
        planner = Planner(
            problem(
                cards, layers, mode=rng.choice(HOST_MODES), miss=rng.choice(["cpu", "fetch", "hybrid"]),
                ram=rng.choice([10**9, 60_000_000, 30_000_000, 8_000_000]), carve=rng.random() < 0.5,
                store=rng.choice([None, None, kinds[0]]) if kinds[0].usable_bytes > 9_000_000 else None,
            )
        )  # fmt: skip
        pruned, looked = planner.best(), planner.visited
        brute = planner.best(prune=False)
        assert outcome(pruned) == outcome(brute)
        assert looked <= planner.visited
        splits = [
            planner.evaluate(order, each)
            for order in planner.orders
            for each in itertools.product(range(1, layers + 1), repeat=len(cards))
            if sum(each) == layers
        ]
        fitting = [p.pass_ns for p in splits if p]
        assert (pruned.pass_ns if pruned else None) == min(fitting, default=None)

    def test_pruning_leaves_most_splits_out(self):
        planner = Planner(problem([CARD, replace(CARD, expert_mb_per_s=90_000)] * 2, 8))
        planner.best(prune=False)
        everything = planner.visited
        planner.best()
        assert planner.visited < everything / 2

    @pytest.mark.parametrize("seed", range(40))
    def test_roomiest_equals_brute_force(self, seed):
        rng = random.Random(seed)
        cards = [
            replace(
                CARD,
                name=str(i),
                usable_bytes=rng.randrange(3, 40) * 10**6,
                dense_mb_per_s=rng.randrange(10**5, 10**6),
            )
            for i in range(rng.randint(1, 3))
        ]
        planner = Planner(problem(cards, 5, carve=seed % 2 == 0, mode="budget"))
        splits = [
            planner.evaluate(order, each)
            for order in planner.orders
            for each in itertools.product(range(1, 6), repeat=len(cards))
            if sum(each) == 5
        ]
        ranks = [(p.vram_expert_bytes, -p.pass_ns) for p in splits if p]
        found = planner.roomiest()
        assert (found and (found.vram_expert_bytes, -found.pass_ns)) == max(ranks, default=None)

    @pytest.mark.parametrize("count", [2, 3])
    def test_of_equally_fast_splits_the_one_with_most_free_on_its_fullest_card(self, count):
        planner = Planner(problem([replace(CARD, usable_bytes=80_000_000)] * count, 6))
        best = planner.best()
        assert best.hit_rate == 1
        every = [
            planner.evaluate(planner.orders[0], each)
            for each in itertools.product(range(1, 6), repeat=count)
            if sum(each) == 6
        ]
        free = [
            min(s.budget.cache_bytes - s.expert_bytes for s in p.stages)
            for p in every
            if p and p.pass_ns == best.pass_ns
        ]
        assert len(free) > 1
        assert min(s.budget.cache_bytes - s.expert_bytes for s in best.stages) == max(free)

    def test_forced_first_stage(self):
        planner = Planner(problem([CARD, replace(CARD, dense_mb_per_s=50_000)]))
        best = planner.best()
        order = tuple(stage.card for stage in best.stages)
        forced = [planner.best(order=order, first_layers=n) for n in range(1, 6)]
        assert [p.layers_each[0] for p in forced] == [1, 2, 3, 4, 5]
        assert min(p.pass_ns for p in forced) == best.pass_ns

    @pytest.mark.parametrize(
        ("cards", "layers", "message"),
        [((), 6, "0 cards"), ((CARD,) * 5, 6, "5 cards"), ((CARD,) * 3, 2, "3 cards for 2 MoE layers")],
    )
    def test_impossible_numbers_of_cards(self, cards, layers, message):
        with pytest.raises(SimError, match=message):
            Planner(problem(cards, layers))

    def test_a_model_of_unknown_width_cannot_be_handed_over(self):
        p = problem([CARD, CARD])
        unknown = replace(p.needs, geometry=replace(p.needs.geometry, hidden_size=0))
        with pytest.raises(SimError, match="hand-off between cards has no size"):
            Planner(replace(p, needs=unknown))


class TestLaws:
    @settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    @given(cards_strategy, st.sampled_from(HOST_MODES), st.sampled_from(["cpu", "fetch", "hybrid"]), st.booleans())
    def test_a_third_equal_card_never_wins_when_all_fits_on_two(self, card, mode, miss, carve):
        card = replace(card, usable_bytes=70_000_000)
        two, three = (Planner(problem([card] * n, mode=mode, miss=miss, carve=carve)).best() for n in (2, 3))
        assert two.hit_rate == 1
        assert three.handoffs_ns[0] > 0
        assert three.pass_ns == two.pass_ns + three.handoffs_ns[0]

    @settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.lists(cards_strategy, min_size=1, max_size=3), st.data(), st.sampled_from(HOST_MODES),
        st.sampled_from(["cpu", "fetch"]),
    )  # fmt: skip
    def test_a_faster_card_never_makes_the_best_plan_slower(self, cards, data, mode, miss):
        at = data.draw(st.integers(0, len(cards) - 1))
        field = data.draw(
            st.sampled_from(["dense_mb_per_s", "expert_mb_per_s", "h2d_mb_per_s", "handoff_mb_per_s"])
        )
        factor = data.draw(st.floats(1, 5))
        faster = list(cards)
        faster[at] = replace(cards[at], **{field: int(getattr(cards[at], field) * factor)})
        before, after = (Planner(problem(c, mode=mode, miss=miss, ram=50_000_000)).best() for c in (cards, faster))
        assert (before is None) == (after is None)
        if before:
            assert after.pass_ns <= before.pass_ns

    @settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.lists(cards_strategy, min_size=2, max_size=4),
        st.randoms(use_true_random=False),
        st.sampled_from(HOST_MODES),
    )
    def test_permuting_cards_changes_nothing(self, cards, rng, mode):
        shuffled = list(cards)
        rng.shuffle(shuffled)
        one, two = (Planner(problem(c, 5, mode=mode, ram=40_000_000)).best() for c in (cards, shuffled))
        assert outcome(one) == outcome(two)

    @settings(deadline=None, max_examples=40)
    @given(cards_strategy, st.integers(1_000_000, 100_000_000))
    def test_more_ram_never_makes_it_slower_and_each_byte_has_one_place(self, card, ram):
        for mode in ("mmap", "budget", "resident"):
            less, more = (Planner(problem([card], mode=mode, ram=r)).best() for r in (ram, 2 * ram))
            if less:
                assert more.pass_ns <= less.pass_ns
                total = small_model(6).all_expert_bytes
                assert less.vram_expert_bytes + less.ram.experts_bytes + less.ram.file_bytes == total

    @settings(deadline=None, max_examples=60)
    @given(st.integers(0, 10**9), st.lists(st.integers(1, 10**6), min_size=1, max_size=8), st.integers(1, 600))
    def test_slots_fit_and_none_is_left_out(self, cache, sizes, experts):
        slots = spread_slots(cache, sizes, experts)
        rounded = [-(-size // 256) * 256 for size in sizes]
        used = sum(n * size for n, size in zip(slots, rounded, strict=True))
        assert used <= cache
        assert max(slots) - min(slots) <= 1
        assert max(slots) <= experts
        open_sizes = [size for n, size in zip(slots, rounded, strict=True) if n == min(slots)]
        if max(slots) < experts:
            assert cache - used < sum(rounded)
            assert max(slots) == min(slots) or cache - used < min(open_sizes)


class TestLinks:
    def test_two_links_add_up_to_the_limit_of_their_port(self):
        # ik_llama.cpp discussion 258: 13 + 13 GB/s; with a host limit of 20: 20.
        free = replace(CARD, h2d_mb_per_s=13_000)
        assert together_mb_per_s((free, free), HOST) == 26_000
        shared = replace(free, root_port="chipset", root_port_mb_per_s=20_000)
        assert together_mb_per_s((shared, shared), HOST) == 20_000
        assert together_mb_per_s((shared, shared, free), HOST) == HOST.dram_mb_per_s

    def test_a_port_limits_a_single_card_too(self):
        profile = load_profile("tesla-p40")
        narrow = profile.model_copy(
            update={
                "link": profile.link.model_copy(
                    update={
                        "root_port": "chipset",
                        "root_port_gb_per_s": profile.link.h2d_gb_per_s.model_copy(
                            update={"value": 3.5, "spread": None}
                        ),
                    }
                )
            }
        )
        assert Card.of(narrow, "q4").h2d_mb_per_s == 3_500

    def test_handoff_mapped_is_as_measured_and_peer_to_peer_is_faster(self):
        v100 = CARD  # 51,216 B a token over a mapped host bounce: 33, 66, 122 us for 2, 4, 8 tokens
        for tokens, us in ((2, 33), (4, 66), (8, 122)):
            assert handoff_ns(v100, v100, 51_216 * tokens, p2p=False) / 1000 == pytest.approx(us, rel=0.06)
        near = replace(CARD, p2p_ns=1_000, p2p_mb_per_s=27_120)
        assert handoff_ns(near, near, 51_216 * 3, p2p=True) < handoff_ns(near, near, 51_216 * 3, p2p=False)
        with pytest.raises(SimError, match="no p2p_gb_per_s"):
            handoff_ns(near, CARD, 1, p2p=True)

    def test_the_slower_link_of_a_boundary_counts(self):
        slow = replace(CARD, handoff_mb_per_s=500)
        assert handoff_ns(CARD, slow, 10**6, p2p=False) == handoff_ns(slow, CARD, 10**6, p2p=False) == 2_005_000


class TestStore:
    def test_a_store_card_serves_what_the_cpu_would_and_frees_ram(self):
        near = replace(CARD, p2p_ns=1_000, p2p_mb_per_s=27_000, usable_bytes=12_000_000)
        slow_cpu = replace(HOST, arena_mb_per_s=4_000, complement_mb_per_s=4_000)
        plain = replace(problem([near], mode="resident"), host=slow_cpu, p2p=True)
        without, with_store = Planner(plain).best(), Planner(replace(plain, store=near)).best()
        assert with_store.pass_ns < without.pass_ns
        assert with_store.ram.experts_bytes < without.ram.experts_bytes
        assert with_store.hit_rate == without.hit_rate

    def test_a_store_without_room_is_refused(self):
        with pytest.raises(SimError, match="no room for one expert"):
            Planner(problem([CARD], store=replace(CARD, usable_bytes=600_000)))

    def test_peer_to_peer_needs_figures(self):
        with pytest.raises(SimError, match="so experts cannot come peer to peer"):
            Planner(problem([replace(CARD, usable_bytes=12_000_000)], store=CARD, p2p=True)).best()


class TestSeed:
    """UD-Q4_K_XL on 1 to 3 P40s with 64 GB (Niko1221/Strata #604): about 17 / 34 / 51 GB in VRAM, and the rest."""

    GEOMETRY = load_model("qwen3.8-flash-next", "UD-Q4_K_XL")

    def planner(self, curve, count, quant="UD-Q4_K_XL", ram=10**12, **options) -> Planner:
        geometry = load_model("qwen3.8-flash-next", quant)
        profile = load_profile("tesla-p40")
        host = HostSide.of(profile, geometry.quant_family, ram)
        card = Card.of(profile, geometry.quant_family)
        return Planner(
            Problem(
                needs_of(geometry, kv_type="int8", **options),
                (card,) * count,
                host,
                curve,
                GENERIC,
                mode="resident",
            )
        )

    def place(self, curve, count, quant="UD-Q4_K_XL", ram=10**12, **options) -> Placement | None:
        return self.planner(curve, count, quant, ram, **options).best()

    @pytest.mark.parametrize(
        ("count", "vram", "ram", "needed"), [(1, 17, 60, 70), (2, 34, 43, 53), (3, 51, 26, 36)]
    )
    def test_table(self, curve, count, vram, ram, needed):
        found = self.place(curve, count)
        assert round(found.vram_expert_bytes / GB) == vram
        assert round(found.ram.experts_bytes / GB) == ram
        assert round(found.ram.needed_bytes / GB) == needed

    def test_one_card_needs_more_than_64_gb_and_two_do_not(self, curve):
        assert self.place(curve, 1, ram=64 * GB) is None
        assert self.place(curve, 2, ram=64 * GB) is not None

    def test_iq3_s_lies_entirely_in_vram_on_three(self, curve):
        total = 24_576 * 2_046_549
        assert self.planner(curve, 3, "IQ3_S").roomiest().vram_expert_bytes == total
        assert self.planner(curve, 2, "IQ3_S").roomiest().vram_expert_bytes < total

    def test_carving_gives_each_card_2_to_3_gib_back(self, curve):
        planners = [self.planner(curve, 2, carve=carve) for carve in (False, True)]
        whole, carved = (p.evaluate(p.orders[0], (24, 24)) for p in planners)
        for before, after in zip(whole.stages, carved.stages, strict=True):
            back = after.budget.cache_bytes - before.budget.cache_bytes
            assert 2.0 < back / GIB < 2.9
        assert self.place(curve, 1, carve=True).slots == self.place(curve, 1).slots

    def test_ram_rule_is_experts_and_headroom(self):
        need = ram_need(needs_of(self.GEOMETRY), "arena", 200 * GB, 17 * GB)
        assert need.needed_bytes == self.GEOMETRY.all_expert_bytes + 10 * GB
        resident = ram_need(needs_of(self.GEOMETRY), "resident", 200 * GB, 17 * GB)
        assert need.needed_bytes - resident.needed_bytes == 17 * GB

    def test_streamed_kv_takes_ram_instead_of_vram(self):
        kept, streamed = (
            needs_of(self.GEOMETRY, context=262_144, kv_type="int8", kv_resident=n) for n in (0, 32_768)
        )
        moved = (262_144 - 32_768) * 12 * 1_056
        assert sum(x.nbytes for x in kept.session) - sum(x.nbytes for x in streamed.session) == moved
        assert streamed.streamed_kv_bytes == moved

    def test_a_model_whose_session_is_not_known_needs_it_in_bytes(self):
        unknown = replace(load_model("qwen3-30b-a3b"), name="mine", session=None)
        with pytest.raises(SimError, match="--session 2GiB"):
            needs_of(unknown)
        assert needs_of(unknown, session_bytes=GIB).session[0].nbytes == GIB

    def test_a_draft_layer_of_unknown_size_is_refused(self):
        with pytest.raises(SimError, match="leave --draft out"):
            needs_of(load_model("qwen3-30b-a3b"), draft=True)


def test_curve_is_that_of_an_lru_replay():
    """Same hits as an LRU with a quota a layer that starts full, on the passes after the warm-up."""
    from expert_residency.traces.synthetic import lru_curve

    trace = generate(small_model(3), STYLE, tokens=80, seed=3, weights=False)
    curve = HitCurve.measure(trace, warm_share=0.0)
    published = lru_curve(trace, range(1, EXPERTS))
    measured = [np.mean([curve.hit_rate(layer, n) for layer in range(3)]) for n in range(1, EXPERTS)]
    first_touches = len(np.unique(trace.keys)) / trace.n_lookups
    assert all(0 <= m - p <= first_touches + 1e-9 for m, p in zip(measured, published, strict=True))
    assert curve.hit_rate(0, EXPERTS) == 1
    assert curve.hit_rate(0, 0) == 0
