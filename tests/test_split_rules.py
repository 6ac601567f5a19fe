"""llama.cpp rules in and out, impossibilities in one sentence, estimates beside the engine, and the command."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from expert_residency.errors import SimError
from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.units import GB, parse_size
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.cli import main
from expert_residency.sim.split.cards import Card, HostSide
from expert_residency.sim.split.compare import forced, gain_sentence, room_sentence, speed_matters
from expert_residency.sim.split.curve import HitCurve
from expert_residency.sim.split.limits import explain, few_slots
from expert_residency.sim.split.memory import needs_of
from expert_residency.sim.split.placement import Problem
from expert_residency.sim.split.planner import Planner
from expert_residency.sim.split.report import label
from expert_residency.sim.split.rules import CPU, parse_rules, place, tensor
from expert_residency.sim.split.study import Answer, Question, for_equal_cards, sets_of_cards, study
from expert_residency.sim.split.timed import Simulated, simulate_placement
from expert_residency.traces import load_model
from expert_residency.traces.synthetic import generate, load_style
from expert_residency.traces.windows import compose_windows
from tests.split_machines import GENERIC, STYLE, small_model

FLASH = "qwen3.8-flash-next"


@pytest.fixture(scope="module")
def trace():
    return generate(load_model(FLASH), load_style(FLASH), tokens=48, seed=1, weights=False)


@pytest.fixture(scope="module")
def curve(trace) -> HitCurve:
    return HitCurve.measure(trace)


def flash(curve, cards, quant="UD-Q4_K_XL", *, mode="arena", ram=64 * GB, engine="generic", miss="cpu", **options):
    geometry = load_model(FLASH, quant)
    profiles = [load_profile(name) for name in cards]
    return Problem(
        needs_of(geometry, **({"kv_type": "int8"} | options)),
        tuple(Card.of(p, geometry.quant_family) for p in profiles),
        HostSide.of(profiles[0], geometry.quant_family, ram), curve, load_engine(engine), miss, mode,
    )  # fmt: skip


class TestRules:
    def test_first_match_counts_and_parts_of_a_layer_can_go_apart(self):
        rules = parse_rules([r"blk\.0\.ffn_down_exps=CUDA1,blk\.0\.=CPU"], 0, range(2))
        assert place(small_model(2), rules, (0, 1)) == [(CPU, CPU, 1), (1, 1, 1)]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("blk=GPU0", "a device CPU or CUDA0"), ("blk", "expected REGEX=DEVICE"), ("(=CPU", "does not compile"),
            ("=CPU", "expected REGEX=DEVICE"),
        ],
    )  # fmt: skip
    def test_bad_rules(self, text, message):
        with pytest.raises(SimError, match=message):
            parse_rules([text])

    def test_cards_and_layers_that_are_not_there(self):
        with pytest.raises(SimError, match="names CUDA1, but there are 1 cards"):
            place(small_model(4), parse_rules(["up=CUDA1"]), (0, 0, 0, 0))
        with pytest.raises(SimError, match="--n-cpu-moe 5: the model has 4 layers"):
            parse_rules([], 5, range(4))

    def test_tensor_names_are_llama_cpps(self):
        assert tensor(7, "gate") == "blk.7.ffn_gate_exps.weight"


class TestLimits:
    def sentence(self, problem_):
        planner = Planner(problem_)
        assert planner.best() is None
        return explain(problem_, planner.shortfall)

    def test_ram_below_need_says_how_much_and_what_fits(self, curve):
        text = self.sentence(flash(curve, ["tesla-p40"], mode="resident"))
        assert text == (
            "RAM: resident keeps the experts that no card holds in memory, 60.0 GB (55.9 GiB) and 10.0 "
            "GB (9.3 GiB) of headroom need 70.0 GB (65.2 GiB), 5.6 GiB more than the 64.0 GB (59.6 GiB); "
            "what would fit: --headroom 4GB or --host mmap (6.0 GB (5.6 GiB) of experts on the drive) or 2 "
            "cards or NVFP4"
        )

    def test_less_headroom_is_said_where_it_fits_and_does(self, curve):
        for mode, ram in (("resident", 64 * GB), ("budget", 8 * GB), ("arena", 80 * GB)):
            asked = flash(curve, ["tesla-p40"], mode=mode, ram=ram)
            text = self.sentence(asked)
            less = re.search(r"what would fit: --headroom (\S+)", text)[1]
            assert parse_size(less) >= GB
            assert Planner(replace(asked, headroom_bytes=parse_size(less))).best()
        assert "--headroom" not in self.sentence(flash(curve, ["tesla-p40"], mode="resident", ram=50 * GB))

    def test_a_model_that_the_cards_hold_needs_no_memory_to_be_left(self, curve):
        asked = flash(curve, ["tesla-p40"] * 3, "IQ3_S", mode="resident", ram=8 * GB)
        placement = Planner(asked).best()
        assert placement.ram.experts_bytes == 0
        assert placement.ram.needed_bytes <= 8 * GB

    def test_what_is_said_to_fit_does(self, curve):
        assert Planner(flash(curve, ["tesla-p40"] * 2, mode="resident")).best()
        assert Planner(flash(curve, ["tesla-p40"], "NVFP4", mode="resident")).best()
        assert Planner(flash(curve, ["tesla-p40"], mode="mmap")).best()

    def test_card_too_small_for_its_dense_part(self, curve):
        tight = flash(curve, ["rtx-3070"], mode="mmap", context=1_048_576)
        text = self.sentence(tight)
        found = re.search(
            r"rtx-3070 needs ([\d.]+) GiB more than its 7\.6 GiB .*a context of ([\d,]+) tokens", text
        )
        assert float(found[1]) > 10
        fits = int(found[2].replace(",", ""))
        assert Planner(flash(curve, ["rtx-3070"], mode="mmap", context=fits)).best()
        assert not Planner(flash(curve, ["rtx-3070"], mode="mmap", context=fits + 1024)).best()

    def test_a_context_that_eats_the_slots_is_said(self, curve):
        fits = flash(curve, ["rtx-3070"], mode="mmap", context=65_536)
        notes = few_slots(fits, Planner(fits).best())
        found = re.search(
            r"keeps (\d) experts a layer, fewer than the 10 .* ([\d.]+) GiB are missing; a context of ([\d,]+)",
            notes[0],
        )
        roomy = flash(curve, ["rtx-3070"], mode="mmap", context=int(found[3].replace(",", "")))
        assert not few_slots(roomy, Planner(roomy).best())

    def test_one_gib_of_kv_costs_whole_slots(self, curve):
        """Slots fall by what the session grows, in whole experts (EfficientMoE/MoE-Infinity#32)."""
        less, more = (
            Planner(flash(curve, ["tesla-p40"], mode="mmap", context=n)).best().slots for n in (32_768, 98_304)
        )
        grown = 65_536 * (12 * 1_056 + 1_536 + 256)
        assert less - more == pytest.approx(grown / 3_134_208, abs=1.01)


class TestTimed:
    def test_estimate_equals_the_engine_when_everything_is_in_vram(self):
        model = replace(load_model("olmoe-1b-7b"), name="olmoe")
        trace = generate(model, STYLE, tokens=20, seed=2, weights=False)
        profile = load_profile("rtx-3090")
        for preset in ("generic", "strata"):
            card = Card.of(profile, model.quant_family)
            machine = Problem(
                needs_of(model, session_bytes=0), (card, card), HostSide.of(profile, model.quant_family),
                HitCurve.measure(trace), load_engine(preset), "cpu",
            )  # fmt: skip
            placement = Planner(machine).best()
            ran = simulate_placement(placement, trace, {card.name: profile}, profile, engine=preset)
            assert placement.hit_rate == 1
            assert ran.hit_rate == 1
            assert placement.pass_ns / 1e6 == pytest.approx(
                ran.ms_a_pass, rel=1e-3
            )  # attention is the engine's alone

    @pytest.mark.parametrize("cards", [1, 2])
    def test_the_slots_that_are_printed_are_simulated(self, cards):
        """Layers of unequal sizes: with every expert on the cards nothing is missed."""
        model = load_model("deepseek-v2-lite", "Q4_K_M")
        assert len(set(model.expert_bytes)) > 1
        trace = generate(model, STYLE, tokens=12, seed=2, weights=False)
        profile = load_profile("rtx-3090")
        card = Card.of(profile, model.quant_family)
        machine = Problem(
            needs_of(model, session_bytes=0), (card,) * cards, HostSide.of(profile, model.quant_family),
            HitCurve.measure(trace), GENERIC, "cpu",
        )  # fmt: skip
        placement = Planner(machine).best()
        assert placement.slots == model.n_experts
        assert simulate_placement(placement, trace, {card.name: profile}, profile).hit_rate == 1

    def test_estimate_is_near_the_engine_with_misses_on_the_cpu(self, trace, curve):
        machine = flash(curve, ["tesla-p40"], "IQ3_S", mode="arena", ram=200 * GB)
        placement = Planner(machine).best()
        sized = replace(trace, geometry=machine.needs.geometry)
        profile = load_profile("tesla-p40")
        ran = simulate_placement(placement, sized, {"tesla-p40": profile}, profile)
        assert placement.pass_ns / 1e6 == pytest.approx(ran.ms_a_pass, rel=0.1)

    def test_published_windows_that_were_not_fitted(self, trace):
        """2x RTX 4060 Ti, UD-IQ4_XS, 3.18 rows: 43 to 47 ms (Strata, 2026-10-05), at 87 % hits 11 % too slow."""
        hits = HitCurve.measure(compose_windows(trace, 3.18, 2.3))
        machine = flash(
            hits, ["rtx-4060ti"] * 2, "UD-IQ4_XS", ram=128 * GB, engine="strata", miss="hybrid", carve=True
        )
        times = Planner(machine).times
        rates = [np.mean([hits.hit_rate(layer, n) for layer in range(48)]) for n in range(513)]
        slots = int(np.argmin(np.abs(np.asarray(rates) - 0.87)))
        card = machine.cards[0]
        ns = (
            sum(times.layer_ns(card, layer, slots, 512) for layer in range(48))
            + times.head_ns(card)
            + times.overhead_ns
        )
        assert ns / 1e6 == pytest.approx(1.11 * 45.4, rel=0.02)


class TestStudy:
    def test_sets_of_cards(self):
        assert sets_of_cards(["p40"], 1, 3) == (("p40",), ("p40", "p40"), ("p40", "p40", "p40"))
        assert sets_of_cards(["a", "b"]) == (("a",), ("b",), ("a", "b"))
        assert sets_of_cards(["a", "a", "b"], 2) == (("a", "a"), ("a", "b"))
        for gpus, low, high in ((["a"], 1, 5), (["a", "b"], 3, 3), (["a"], 3, 2)):
            with pytest.raises(SimError, match=r"cards: (expected at least 1|\d are given|at most 4)"):
                sets_of_cards(gpus, low, high)

    def test_the_best_few_are_simulated_and_the_others_say_that_they_are_not(self, trace):
        profiles = {"tesla-p40": load_profile("tesla-p40")}
        asked = Question(
            FLASH, ("UD-Q4_K_XL",), sets_of_cards(["tesla-p40"], 1, 2), "tesla-p40", 64 * GB, simulate=1
        )
        found = study(asked, trace, profiles)
        assert [bool(a.placement) for a in found.answers] == [False, True, False, True, False, True, True, True]
        best = found.best
        assert best is not None
        assert [a.cards for a in found.answers if a.simulated] == [("tesla-p40",), ("tesla-p40", "tesla-p40")]
        assert found.one_card_fewer == [a for a in found.answers if a.simulated and a is not best]
        alone = found.one_card_fewer[0].simulated.tokens_per_s
        assert f"{best.simulated.tokens_per_s:.1f} tok/s against {alone:.1f}" in gain_sentence(found)
        assert gain_sentence(found).endswith("(simulated).")
        unseen = study(replace(asked, simulate=0), trace, profiles)
        assert gain_sentence(unseen).endswith("(estimated).")

    def test_a_split_that_the_estimate_puts_second_is_taken_where_it_simulates_faster(self, trace, monkeypatch):
        names = ("tesla-p40", "rtx-3090")
        profiles = {name: load_profile(name) for name in names}
        asked = Question(FLASH, ("IQ2_XS",), (names,), names[0], 32 * GB, modes=("resident",), kv_type="int8")

        def ran(placement, *_, **__):
            return Simulated(placement.vram_expert_bytes / GB, 1.0, 0.5, "always")

        monkeypatch.setattr("expert_residency.sim.split.study.simulate_placement", ran)
        (estimated,) = study(replace(asked, simulate=0), trace, profiles).answers
        assert estimated.placement.layers_each != estimated.roomiest.layers_each
        assert room_sentence(estimated).endswith("% less (estimated)")
        found = study(asked, trace, profiles)
        (answer,) = found.answers
        assert answer.placement.layers_each == estimated.roomiest.layers_each
        assert answer.tokens_per_s == ran(estimated.roomiest).tokens_per_s
        assert room_sentence(answer, found.run) is None
        assert speed_matters(answer, found.run).endswith("(simulated).")

    def test_no_split_that_was_simulated_faster_is_passed_over(self, trace, monkeypatch):
        """The split for equally fast cards was told as 1.3 % faster beside an answer that was not it."""
        names = ["tesla-p40", "rtx-3070"]
        profiles = {name: load_profile(name) for name in names}
        asked = Question(FLASH, ("IQ3_S",), (tuple(names),), "tesla-p40", 64 * GB, ("mmap",), simulate=1)

        def ran(placement, *_, **__):
            return Simulated(float(placement.layers_each[0]), 1.0, 0.5, "always")

        monkeypatch.setattr("expert_residency.sim.split.study.simulate_placement", ran)
        (estimated,) = study(replace(asked, simulate=0), trace, profiles).answers
        other = for_equal_cards(estimated)
        assert other.layers_each != estimated.placement.layers_each
        (answer,) = study(asked, trace, profiles).answers
        assert answer.tokens_per_s == max(
            ran(one).tokens_per_s for one in (estimated.placement, estimated.roomiest, other)
        )

    def test_an_estimate_is_never_held_against_a_simulated_speed(self, trace, monkeypatch):
        """Where the engine takes no smaller set, both speeds of the sentence are estimates, and it says so."""
        profiles = {"tesla-p40": load_profile("tesla-p40")}
        asked = Question(FLASH, ("IQ2_XS",), sets_of_cards(["tesla-p40"], 1, 2), "tesla-p40", 64 * GB, simulate=1)

        def ran(placement, *_, **__):
            if len(placement.stages) == 1:
                raise SimError("not this one")
            return Simulated(1e6, 1.0, 0.5, "always")

        monkeypatch.setattr("expert_residency.sim.split.study.simulate_placement", ran)
        found = study(asked, trace, profiles)
        assert found.best.tokens_per_s == 1e6
        assert gain_sentence(found).endswith("(estimated).")
        assert f"{found.best.placement.tokens_per_s:.1f} tok/s against" in gain_sentence(found)
        refused = [a for a in found.answers if a.placement and len(a.cards) == 1]
        assert refused
        assert all("not simulated: not this one" in a.notes for a in refused)

    def test_speed_matters_says_what_the_blind_split_loses(self, curve):
        unequal = flash(curve, ["tesla-p40", "rtx-3070"], "IQ3_S", mode="mmap", carve=True)
        planner = Planner(unequal)
        answer = Answer(("tesla-p40", "rtx-3070"), unequal.needs.geometry, "mmap", planner, planner.best())
        assert re.match(
            r"Card speed matters for this split: [\d,]+ layers give .* % less \(estimated\)\.",
            speed_matters(answer),
        )
        points = forced(answer)
        assert max(p.tokens_per_s for _, p in points if p) == answer.placement.tokens_per_s
        equal = Planner(flash(curve, ["tesla-p40"] * 2, mode="mmap"))
        assert speed_matters(Answer(("a", "b"), unequal.needs.geometry, "mmap", equal, equal.best())) is None

    def test_the_roomiest_split_is_told_where_the_fastest_leaves_vram_empty(self, curve):
        machine = flash(curve, ["tesla-p40"] * 3, "IQ3_S", mode="resident")
        planner = Planner(machine)
        answer = Answer(
            ("tesla-p40",) * 3,
            machine.needs.geometry,
            "resident",
            planner,
            planner.best(),
            roomiest=planner.roomiest(),
        )
        assert "would keep every expert in VRAM" in room_sentence(answer)
        assert "10.0 GB of RAM needed" in room_sentence(answer)


class TestCommand:
    RULES = ("split", "--model", FLASH, "--quant", "UD-Q4_K_XL", "--ram", "64GB")
    BASE = (*RULES, "--simulate", "0", "--engine", "generic")

    def run(self, capsys, *more, base=BASE) -> str:
        with pytest.raises(SystemExit) as stop:
            main([*base, *more])
        assert stop.value.code == 0
        return capsys.readouterr().out

    def fail(self, capsys, *more) -> str:
        with pytest.raises(SystemExit) as stop:
            main([*self.BASE, *more])
        assert stop.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    def test_table_json_and_plot(self, capsys, tmp_path):
        out = self.run(
            capsys, "--gpu", "tesla-p40", "--gpu", "rtx-3070", "--count", "2", "--host", "mmap", "--host",
            "resident", "--plot", str(tmp_path / "a.png"), "--json", str(tmp_path / "a.json"),
        )  # fmt: skip
        assert "does not fit" in out
        assert "estimated" in out
        assert "the trace is synthetic" in out
        assert (tmp_path / "a.png").stat().st_size > 5_000
        data = json.loads((tmp_path / "a.json").read_text())
        fitting = data["answers"][data["best"]]
        assert sum(fitting["layers_each"]) == 48
        assert fitting["estimated_pass_ns"] == (
            sum(s["ns"] for s in fitting["stages"]) + sum(fitting["handoffs_ns"]) + fitting["overhead_ns"]
        )
        assert fitting["prefill_handoffs_ns"][0] > 10_000_000
        missing = next(a for a in data["answers"] if not a["fits"])
        assert missing["short_of"] == "RAM"
        assert missing["short_bytes"] > 0

    @pytest.mark.slow
    def test_cards_stand_in_the_order_of_their_stages(self, capsys, tmp_path):
        """Names and layers must agree, whatever order was asked."""
        seen = []
        for gpus in (("rtx-5070", "tesla-p40"), ("tesla-p40", "rtx-5070")):
            asked = [part for gpu in gpus for part in ("--gpu", gpu)]
            asked += ["--machine", "rtx-5070", "--host", "mmap", "--json", str(tmp_path / "a.json")]
            text = " ".join(self.run(capsys, *asked).split())
            data = json.loads((tmp_path / "a.json").read_text())
            best = data["answers"][data["best"]]
            first, second = best["cards"]
            assert all(s["card"].startswith(c) for s, c in zip(best["stages"], best["cards"], strict=True))
            assert f"best: {first} + {second}," in text
            assert re.search(r"The second card gains \d+\.\d %: |Without a second card", text)
            seen.append((first, second, *best["layers_each"]))
        assert seen[0] == seen[1]

    def test_equal_cards_that_are_no_neighbours_are_not_counted_together(self):
        assert label(["a", "a", "b"]) == "2x a + b"
        assert label(["a", "b", "a"]) == "a + b + a"

    def test_rules(self, capsys):
        out = self.run(capsys, "--gpu", "tesla-p40", "--count", "2", "--n-cpu-moe", "25", base=self.RULES)
        assert "tesla-p40 (CUDA1) is over-full by" in out
        assert re.search(
            r"No speed: what is over-full does not run so\. What fits:\n  [\d.]+ tok/s simulated, by", out
        )
        assert "tesla-p40 (CUDA0) keeps no experts" in out
        out = self.run(
            capsys, "--gpu", "tesla-p40", "-ot", r"blk\.([0-9]|[1-3][0-9])\.ffn_.*_exps=CPU", "--json", "-",
            base=self.RULES,
        )  # fmt: skip
        data = json.loads(out)
        assert data["tokens_per_s"] is None
        assert [d["over_bytes"] > 0 for d in data["devices"]] == [False, True]

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (("--gpu", "tesla-p41"), "unknown hardware profile or card 'tesla-p41'; did you mean tesla-p4"),
            (("--gpu", "tesla-p40", "--host", "swap"), "unknown host mode 'swap' (known: arena, mmap, resi"),
            (("--gpu", "tesla-p40", "--count", "x"), "--count x: expected a number of cards, or a range as 1..3"),
            (("--gpu", "tesla-p40", "--ram", "64"), "size 64 has no unit"),
            (("--gpu", "tesla-p40", "--host", "mmap", "--plot", "x.png"), "no machine of several cards fits"),
            (("--gpu", "tesla-p40", "--rows", "3", "--emitted", "4"), "a window of 3 rows cannot emit 4 tokens"),
            (("--gpu", "tesla-p40", "--p2p", "--count", "2"), "cannot hand over peer to peer"),
            (("--gpu", "tesla-p40", "--miss", "guess"), "unknown miss mode 'guess'"),
        ],
    )  # fmt: skip
    def test_errors_are_one_sentence(self, capsys, more, message):
        assert message in self.fail(capsys, *more)

    @pytest.mark.parametrize("more", [(), ("--session", "1GiB")])
    def test_every_model_is_placed_with_its_own_session_or_the_one_given(self, more):
        with pytest.raises(SystemExit) as stop:
            main(
                [
                    "split",
                    "--model",
                    "mixtral-8x7b",
                    "--gpu",
                    "rtx-3070",
                    "--simulate",
                    "0",
                    "--engine",
                    "generic",
                    *more,
                ]
            )
        assert stop.value.code == 0


def test_a_pattern_that_does_not_come_to_an_end_is_refused(monkeypatch):
    monkeypatch.setattr("expert_residency.sim.split.rules._PATTERN_SECONDS", 1)
    with pytest.raises(SimError, match=r"takes more than 1 s on the names of tensors"):
        parse_rules([r"(([a-z_.0-9]+)*)*X=CPU"], 0, range(48))
    rules = parse_rules([r"blk\.(1|2)[0-9]*\.ffn_.*_exps\.=CPU"], 0, range(48))
    found = [rules[0].pattern.search(tensor(layer, "up")) is not None for layer in (1, 3, 12)]
    assert found == [True, False, True]
