"""Engines that place whole layers: llama.cpp's division, the exact search, lines that agree with themselves."""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expert_residency.errors import SimError
from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.units import GB
from expert_residency.hwmodels.vram import Line
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.cli import main
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.split.layers import fill
from expert_residency.sim.split.layers.by_rules import report
from expert_residency.sim.split.layers.division import HOST, devices, shares_for
from expert_residency.sim.split.layers.placement import LayerProblem, evaluate, third_bytes
from expert_residency.sim.split.layers.planner import LayerPlanner
from expert_residency.sim.split.layers.study import study_layers
from expert_residency.sim.split.layers.times import THIRDS, LayerCosts, Parts
from expert_residency.sim.split.memory import Needs
from expert_residency.sim.split.rules import parse_rules
from expert_residency.sim.split.study import Question, sets_of_cards
from expert_residency.traces import Phase, load_model
from expert_residency.traces.synthetic import generate, load_style
from expert_residency.traces.windows import compose_windows
from tests.split_machines import small_model

GRANITE = "granite-3.0-1b-a400m"


class TestDivision:
    def test_the_output_is_one_place_more(self):
        """36 layers: -ts 12,24 divides 37 places, and the first card gets 13."""
        assert devices(36, 2, [12, 25])[0].count(0) == 12
        assert devices(36, 2, [12, 24])[0].count(0) == 13
        assert devices(36, 2, [1, 1]) == ([0] * 19 + [1] * 17, 1)

    @given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.booleans())
    def test_written_shares_are_read_back(self, each, output):
        layers = sum(each)
        ngl = 999 if output else layers
        home, head = devices(layers, len(each), shares_for(each, output=output), ngl)
        assert [home.count(card) for card in range(len(each))] == each
        assert home == sorted(home)
        assert head == (len(each) - 1 if output else HOST)

    def test_layers_before_ngl_and_then_the_output_are_the_cpus(self):
        assert devices(10, 1, [1], 4) == ([HOST] * 6 + [0] * 4, HOST)
        assert devices(10, 1, [1], 11) == ([0] * 10, 0)
        assert devices(10, 2, [0, 1], 999) == ([1] * 10, 1)

    @pytest.mark.parametrize(("shares", "ngl"), [([1, 1, 1], 9), ([0, 0], 9), ([-1, 2], 9), ([1], -1)])
    def test_what_cannot_be_divided(self, shares, ngl):
        with pytest.raises(SimError, match=r"^-ts|^-ngl"):
            devices(4, 2, shares, ngl)


@dataclass
class Fake:
    """Costs drawn at random; a layer's time falls or rises with what its card holds."""

    geometry: object
    cards: dict
    table: dict
    hop: int

    passes = np.zeros(10)
    tokens = 10

    def layer(self, card, layer, thirds):
        return Parts(dense=self.table[card, layer, thirds])

    def on_host(self, layer):
        return Parts(on_cpu=9_000 + layer)

    def ends(self, first, last):
        return Parts(dense=100 + len(first) + (0 if last is None else ord(last[0])))

    def handoff(self, before, after):
        return Parts(handoff=self.hop + ord(before[0]))

    def drive_ns(self, thirds, host_layers, wanted, room):
        return (wanted - room) // 1000


def random_problem(seed: int, *, layers: int = 4) -> LayerProblem:
    rng = random.Random(seed)
    sizes = tuple(rng.choice([900_000, 1_000_000, 1_300_001]) if seed % 3 else 1_000_000 for _ in range(layers))
    geometry = replace(
        small_model(layers, sizes),
        total_layers=layers + seed % 2,
        layer_ids=tuple(range(seed % 2, layers + seed % 2)),
    )
    names = ["a", "b", "c"][: rng.randint(1, 3)]
    cards = {
        name: SimpleNamespace(
            has_card=True,
            gpu=SimpleNamespace(
                vram_usable_bytes=rng.choice([1_500_000, 8_000_000, 17_000_000, 40_000_000])
                + rng.randrange(10**6),
                vram_reserve_bytes=100_000,
                vram_reserve_mib=SimpleNamespace(source=""),
                name=name,
            ),
        )
        for name in names
    }
    uniform = rng.random() < 0.5
    table = {}
    for name in names:
        slow = rng.random() < 0.2
        for layer in range(layers):
            if layer == 0 or not uniform:
                base = sorted((rng.randrange(100, 5_000) for _ in range(THIRDS + 1)), reverse=not slow)
            table |= {(name, layer, n): base[n] for n in range(THIRDS + 1)}
    needs = Needs(geometry, (Line("session", 150_000, ""), Line("KV", 400_001, "")), carve=True)
    chosen = tuple(rng.choice(names) for _ in range(min(layers, rng.randint(1, 3))))
    ram = rng.choice([10**9, 30_000_000, 20_000_000, 9_000_000])
    return LayerProblem(
        Fake(geometry, cards, table, rng.randrange(2_000)), needs, chosen, ram, 1_000_000, rng.random() < 0.3
    )


def brute(problem: LayerProblem, states=range(THIRDS + 1)):
    """Fewest layers on the host first, then the fastest of all."""
    layers, count = problem.geometry.n_layers, len(problem.cards)
    for host_layers in range(layers - count + 1):
        found, fits = [], False
        for order in set(itertools.permutations(problem.cards)):
            for each in itertools.product(range(1, layers + 1), repeat=count):
                if sum(each) != layers - host_layers:
                    continue
                for thirds in itertools.product(states, repeat=layers - host_layers):
                    placement = evaluate(problem, order, each, (0,) * host_layers + thirds, host_layers)
                    fits |= (
                        evaluate(
                            replace(problem, mapped=True), order, each, (0,) * host_layers + thirds, host_layers
                        )
                        is not None
                    )
                    found += [placement] if placement else []
        if found:
            return min(p.parts.ns for p in found), found
        if fits:
            return None, []
    return None, []


class TestSearch:
    @pytest.mark.parametrize("seed", range(60))
    def test_never_worse_than_brute_force(self, seed):
        problem = random_problem(seed, layers=3 + seed % 2)
        planner = LayerPlanner(problem)
        placement = planner.best()
        least, every = brute(problem)
        if problem.mapped and any(p.drive_ns for p in every):
            assert placement is not None  # reads of the drive are an estimate, and the search of them no proof
            assert placement.parts.ns <= 1.35 * least
            return
        assert (placement and placement.parts.ns) == least
        assert planner.exact
        if placement and not problem.mapped and placement.ram_bytes + problem.headroom_bytes < problem.ram_bytes:
            assert placement.rank == min(p.rank for p in every if p.host_layers == placement.host_layers)

    @pytest.mark.parametrize("seed", range(30))
    def test_first_layers_are_never_worse_than_brute_force(self, seed):
        problem = replace(random_problem(seed), mapped=False)
        found = LayerPlanner(problem).by_first_layers()
        ids, best = problem.geometry.layer_ids, None
        for n in range(problem.total_layers + 1):
            thirds = tuple(0 if i < n else THIRDS for i in ids)
            for order in set(itertools.permutations(problem.cards)):
                for each in itertools.product(range(1, 5), repeat=len(order)):
                    placement = evaluate(problem, order, each, thirds) if sum(each) == len(ids) else None
                    if placement and (best is None or placement.parts.ns < best):
                        best = placement.parts.ns
        assert (found and found[1].parts.ns) == best

    def test_too_many_sizes_are_rounded_up_and_said(self, monkeypatch):
        monkeypatch.setattr(fill, "MOST", 200)
        rng = random.Random(1)
        problem = random_problem(0, layers=12)
        sizes = tuple(rng.randrange(700_000, 1_300_000) for _ in range(12))
        geometry = replace(problem.geometry, expert_bytes=sizes)
        table = {("a", i, n): 4_000 - 1_000 * n + rng.randrange(900) for i in range(12) for n in range(4)}
        gpu = SimpleNamespace(
            vram_usable_bytes=60_000_000,
            vram_reserve_bytes=0,
            vram_reserve_mib=SimpleNamespace(source=""),
            name="a",
        )
        fake = Fake(geometry, {"a": SimpleNamespace(gpu=gpu, has_card=True)}, table, 0)
        planner = LayerPlanner(LayerProblem(fake, replace(problem.needs, geometry=geometry), ("a",), 10**9, 0))
        placement = planner.best()
        assert not planner.exact
        whole = [third_bytes(geometry, i, THIRDS) for i in range(12)]
        assert sum(placement.expert_bytes) <= placement.budgets[0].cache_bytes < sum(whole)

    def test_impossible_numbers_of_cards(self):
        problem = random_problem(3)
        for cards in ((), ("a",) * 5, ("a",) * 9):
            with pytest.raises(SimError, match="cards"):
                LayerPlanner(replace(problem, cards=cards))


@pytest.fixture(scope="module")
def trace():
    return generate(load_model(GRANITE), load_style("qwen3-30b-a3b"), tokens=12, seed=3, weights=False)


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("cards", [("tesla-p40",), ("rtx-3090", "tesla-p40")])
@pytest.mark.parametrize("engine", ["llama.cpp", "ik_llama.cpp", "ktransformers"])
def test_the_sum_is_what_the_timed_engine_takes_to_the_nanosecond(trace, cards, windows, engine):
    """Whole layers on cards: static placement of the same layers, the same passes, the same integers."""
    recorded = compose_windows(trace, 3, 2) if windows else trace
    geometry = recorded.geometry
    profiles = {name: load_profile(name) for name in cards}
    preset, host = load_engine(engine), load_profile(cards[0])
    costs = LayerCosts(recorded, profiles, host, preset)
    problem = LayerProblem(costs, Needs(geometry, (), carve=True), cards, 10**12)
    each = (24,) if len(cards) == 1 else (10, 14)
    edges = [0, *np.cumsum(each)]
    thirds = [0] * 24
    for first, end in itertools.pairwise(edges):
        thirds[first + 4 : end] = [THIRDS] * (end - first - 4)  # the first four of each card are the CPU's
    placement = evaluate(problem, cards, each, thirds)
    spec = RunSpec.for_engine(engine, cards, Capacity(card_bytes=placement.expert_bytes), layers_each=each)
    result = simulate(recorded, spec, simulator="reference")
    decode = recorded.pass_phase != Phase.PREFILL
    assert placement.parts.ns == int(result.pass_ns[decode].sum())
    assert result.decode_hit_rate() == pytest.approx(sum(n == THIRDS for n in thirds) / 24, abs=0.03)


def question(model, quant, cards, ram, **more) -> Question:
    return Question(
        model, (quant,), cards, cards[0][0], ram_bytes=ram, engine="llama.cpp", kv_type="fp16",
        modes=("resident", "mmap"), **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "quant", "gpus", "ram"),
    [
        ("gpt-oss-120b", "MXFP4", ["tesla-p40"], 128 * GB),
        ("qwen3-30b-a3b", None, ["rtx-4060ti", "rtx-3070"], 64 * GB),
        ("deepseek-v2-lite", None, ["rtx-3070", "rtx-3070"], 64 * GB),
        ("qwen3.8-flash-next", "IQ3_S", ["tesla-p40", "rtx-3070"], 64 * GB),
        ("gpt-oss-120b", "MXFP4", ["rtx-3070"], 24 * GB),
    ],
)  # fmt: skip
def test_lines_fed_back_give_the_same_number(model, quant, gpus, ram):
    """What is printed is what was simulated: through the options, their rules, and -ts as llama.cpp divides."""
    geometry = load_model(model, quant)
    recorded = generate(geometry, load_style("gpt-oss-20b"), tokens=8, seed=1, weights=False)
    cards = sets_of_cards(gpus, 1, 3 if len(gpus) == 1 else 2)
    profiles = {name: load_profile(name) for name in gpus}
    found = study_layers(question(model, quant, cards, ram), recorded, profiles)
    seen = 0
    for answer in found.answers:
        assert bool(answer.lines) == bool(answer.placement)
        for line in answer.lines:
            words = dict(zip(line.options[::2], line.options[1::2], strict=True))
            rules = parse_rules(
                [words["-ot"]] if "-ot" in words else [], int(words.get("--n-cpu-moe", 0)), geometry.layer_ids
            )
            shares = [float(n) for n in words.get("-ts", "1").split(",")]
            problem = replace(answer.problem, cards=line.placement.cards)
            back = report(problem, rules, shares, int(words["-ngl"]))
            assert back.tokens_per_s == line.placement.tokens_per_s
            assert not any("over-full" in warning or "moves no" in warning for warning in back.warnings)
            held = [device.expert_bytes for device in back.devices[:-1]]
            assert held == list(line.placement.expert_bytes)
            seen += 1
        assert answer.tokens_per_s == max((line.placement.tokens_per_s for line in answer.lines), default=0)
    assert seen >= len(found.answers)


def test_equally_fast_cards_share_the_layers_evenly():
    """Three P40s hold all of it with 11+13+12 layers as well, and then one of them is full to the brim."""
    geometry = load_model("gpt-oss-120b", "MXFP4")
    recorded = generate(geometry, load_style("gpt-oss-20b"), tokens=4, seed=1, weights=False)
    cards = sets_of_cards(["tesla-p40"], 3, 3)
    asked = question("gpt-oss-120b", "MXFP4", cards, 128 * GB)
    found = study_layers(asked, recorded, {"tesla-p40": load_profile("tesla-p40")})
    assert found.best.lines[0].text == "-ngl 999 -ts 12,12,13"
    assert LayerPlanner(found.best.problem).best().layers_each == (12, 12, 12)


def test_rules_are_priced_on_other_cards_too():
    geometry = load_model(GRANITE)
    recorded = generate(geometry, load_style("qwen3-30b-a3b"), tokens=4, seed=1, weights=False)
    profiles = {"tesla-p40": load_profile("tesla-p40")}
    costs = LayerCosts(recorded, profiles, profiles["tesla-p40"], load_engine("llama.cpp"))
    problem = LayerProblem(costs, Needs(geometry, (), carve=True), ("tesla-p40", "tesla-p40"), 10**12)
    plain, moved = (
        report(problem, parse_rules(rules), [12, 13]) for rules in ([], [r"blk\.0\.ffn_up_exps=CUDA1"])
    )
    hop = costs.handoff("tesla-p40", "tesla-p40").ns / len(costs.passes)
    assert moved.pass_ns - plain.pass_ns == pytest.approx(2 * hop, abs=2)
    assert moved.devices[1].expert_bytes - plain.devices[1].expert_bytes == third_bytes(geometry, 0, 1)
    with pytest.raises(SimError, match=r"gets no layer by -ts"):
        report(problem, [], [1, 0])


class TestCommand:
    BASE = ("split", "--model", GRANITE, "--quant", "Q8_0", "--session", "1GiB")

    def run(self, capsys, *more) -> str:
        with pytest.raises(SystemExit) as stop:
            main([*self.BASE, *more])
        assert stop.value.code in (0, None)
        return " ".join(capsys.readouterr().out.split())

    def fail(self, capsys, *more) -> str:
        with pytest.raises(SystemExit) as stop:
            main([*self.BASE, *more])
        assert stop.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    def test_llama_cpp_is_the_default_and_the_answer_says_so(self, capsys):
        out = self.run(capsys, "--gpu", "tesla-p40", "--count", "1..2")
        assert f"{GRANITE} in llama.cpp" in out
        assert "tok/s simulated, by the first layers: -ngl 999" in out
        assert re.search(
            r"The second card (gains|loses) [\d.]+ %: [\d.]+ tok/s against [\d.]+ of tesla-p40; then", out
        )

    @pytest.mark.parametrize("ram", ["8GB", "10GB", "12GB"])
    def test_more_headroom_than_memory_is_no_fault(self, capsys, ram):
        """Where the card holds the model nothing lies in memory."""
        words = ("--gpu", "rtx-3090", "--ram", ram)
        out = self.run(capsys, *words)
        assert "-ngl 999" in out
        assert self.run(capsys, *words, "--n-cpu-moe", "0", "--json", "-")
        assert self.run(capsys, *words, "--engine", "strata")

    def test_the_headroom_that_would_do_is_named_and_does(self, capsys):
        words = ("--gpu", "rtx-3070", "--ram", "9GB", "--model", "qwen3-30b-a3b", "--quant", "Q2_K", "--json", "-")
        base = ("split", *words)

        def answer(*more):
            with pytest.raises(SystemExit) as stop:
                main([*base, *more])
            assert stop.value.code in (0, None)
            return json.loads(capsys.readouterr().out)["answers"][0]

        refused = answer()
        assert not refused["fits"]
        less = re.search(r"what would fit: --headroom (\S+),", refused["limit"])[1]
        assert answer("--headroom", less)["by"] == "simulated"
        assert "--host mmap" in answer("--host", "resident")["limit"]
        with pytest.raises(SystemExit):
            main([*base, "--engine", "all"])
        rows = [row for row in json.loads(capsys.readouterr().out)["engines"] if row["why"] == "does not fit"]
        assert rows
        assert all("--headroom" in row["limit"] for row in rows)

    def test_the_host_that_was_assumed_is_named(self, capsys):
        """It decides: the same card beside another processor."""
        words = ("--gpu", "rtx-4060ti", "--ram", "64GB", "--json", "-")
        own = json.loads(self.run(capsys, *words))["host"]
        assert (own["cpu"], own["ram_bytes"], own["kind"]) == ("Threadripper PRO 3975WX", 64 * GB, "assumed")
        other = json.loads(self.run(capsys, *words, "--cpu", "ryzen-5-5600x"))["host"]
        assert other["expert_gb_per_s"] < own["expert_gb_per_s"]
        for more in ((), ("--n-cpu-moe", "3"), ("--engine", "strata"), ("--engine", "all")):
            out = self.run(capsys, *words[:-2], *more)
            assert out.startswith(
                "host: Threadripper PRO 3975WX, 64 GB of memory, 72 GB/s for experts (assumed); "
            )
            assert "another: --cpu NAME, --ram 64GB@3600x2" in out
            host = json.loads(self.run(capsys, *words, *more))["host"]
            assert host["cpu"] == own["cpu"]

    @pytest.mark.parametrize("engine", ["llama.cpp", "strata"])
    def test_the_best_of_every_quantization_is_listed(self, capsys, engine):
        words = ("--gpu", "rtx-3070", "--ram", "64GB", "--quant", "FP16", "--engine", engine)
        data = json.loads(self.run(capsys, *words, "--json", "-"))
        best = [data["answers"][i] for i in data["best_of_quants"]]
        assert [one["quant"] for one in best] == ["Q8_0", "FP16"]
        assert any("quality is not modelled" in caveat for caveat in data["caveats"])
        out = self.run(capsys, *words)
        assert "quality is not modelled" in out
        assert re.search(r"The fastest of each other quantization: rtx-3070, \w+, .*[\d.]+ tok/s", out)
        alone = self.run(capsys, *words[:4], "--engine", engine)
        assert "quality is not modelled" not in alone
        assert "of each other" not in alone

    def test_a_machine_without_a_card_has_memory_and_no_options(self, capsys):
        words = ("--gpu", "none", "--cpu", "epyc-7763", "--ram", "256GB")
        out = self.run(capsys, *words)
        assert out.startswith("host: EPYC 7763, 256 GB of memory, ")
        assert not re.search("-ngl|experts on cards|another: --cpu", out)
        answer = json.loads(self.run(capsys, *words, "--json", "-"))["answers"][0]
        assert answer["cpu_layers"] == sum(answer["layers_each"])
        assert answer["ram_bytes"] == answer["cards_bytes"][0]["expert_bytes"] > 0
        engines = json.loads(self.run(capsys, *words, "--engine", "all", "--json", "-"))["engines"]
        assert {"llama.cpp", "ktransformers"} <= {row["engine"] for row in engines}
        assert "strata" not in {row["engine"] for row in engines}
        assert "has none: ask llama.cpp" in self.fail(capsys, *words, "--engine", "strata")
        assert "leave out -ngl" in self.fail(capsys, *words, "-ngl", "9")
        assert "not one card of several" in self.fail(capsys, *words, "--count", "2")

    def test_a_file_larger_than_memory_is_read_as_often_with_a_card_that_holds_none_of_it(self, capsys):
        """Experts of a mapped file lie in the page cache, whatever computes them: none has a fixed place there."""

        def asked(card, ram):
            with pytest.raises(SystemExit):
                main(
                    ["split", "--model", "glm-4.5-air/Q8_0", "--gpu", card, "--cpu", "ryzen-9-7950x", "--ram", ram,
                     "--json", "-"]
                )  # fmt: skip
            return json.loads(capsys.readouterr().out)["answers"][0]

        alone, beside = asked("none", "64GB"), asked("rtx-3060", "64GB")
        assert alone["by"] == beside["by"] == "estimated"
        held = beside["cards_bytes"][0]["expert_bytes"]
        assert held < 0.01 * alone["ram_bytes"]

        def experts_ms(one):
            return sum(one["ms_by_cause"][cause] for cause in ("experts on cards", "CPU experts"))

        assert experts_ms(alone) == pytest.approx(experts_ms(beside), rel=0.25)
        assert [one["words"] for one in alone["options"]] == [[]]
        assert alone["ram_bytes"] == alone["cards_bytes"][0]["usable_bytes"] - sum(
            alone["cards_bytes"][0]["lines"].values()
        )
        roomy = asked("none", "80GB")
        assert alone["tokens_per_s"] < roomy["tokens_per_s"] < asked("none", "160GB")["tokens_per_s"]

    def test_a_machine_without_a_card_has_the_cliff_where_memory_holds_all(self, capsys):
        words = ["--gpu", "none", "--cpu", "ryzen-9-7950x", "--context", "4096", "--json", "-"]

        def asked(nbytes):
            with pytest.raises(SystemExit):
                main(["split", "--model", "qwen3-30b-a3b/Q8_0", *words, "--ram", f"{nbytes / 1e9:.6f}GB"])
            return json.loads(capsys.readouterr().out)

        at = next(one["at"] for one in asked(64e9)["cliffs"] if one["kind"] == "memory")
        above, below = (asked(at * share)["answers"][0] for share in (1.01, 0.99))
        assert (above["by"], below["by"]) == ("simulated", "estimated")
        assert below["tokens_per_s"] < above["tokens_per_s"]

    def test_memory_of_a_machine_without_a_card_has_no_slots(self, capsys):
        words = ("vram", "--model", "qwen3-30b-a3b/Q2_K", "--hardware", "none:cpu=epyc-7763,ram=256GB")
        with pytest.raises(SystemExit):
            main([*words])
        out = capsys.readouterr().out
        assert "6,144 of 6,144" in out
        assert not re.search("slot|host arena", out)

    def test_progress_of_all_engines_names_the_engine(self, capsys):
        with pytest.raises(SystemExit):
            main([*self.BASE, "--gpu", "rtx-3070", "--engine", "all", "--ram", "64GB", "--json", "-"])
        lines = capsys.readouterr().err.splitlines()
        assert lines
        assert all(re.match(r"[\w.+-]+: ", line) for line in lines)
        assert len(set(lines)) == len(lines)

    def test_mapped_files_may_be_larger_than_memory(self, capsys):
        words = ["--gpu", "rtx-3070", "--ram", "10.5GB", "--n-cpu-moe", "24", "--json", "-"]
        resident, mapped = (json.loads(self.run(capsys, *words, "--host", mode)) for mode in ("resident", "mmap"))
        assert resident["tokens_per_s"] is None
        assert resident["devices"][-1]["over_bytes"] > 0
        assert mapped["devices"][-1]["over_bytes"] == 0
        assert any("reads of the drive are estimated" in w for w in mapped["warnings"])
        roomy = json.loads(self.run(capsys, *[w.replace("10.5GB", "64GB") for w in words], "--host", "mmap"))
        assert roomy["tokens_per_s"] > 2 * mapped["tokens_per_s"]

    def test_all_engines_side_by_side_are_simulated(self, capsys):
        data = json.loads(self.run(capsys, "--gpu", "rtx-3070", "--engine", "all", "--ram", "64GB", "--json", "-"))
        engines = {row["engine"]: row for row in data["engines"]}
        assert {"llama.cpp", "ik_llama.cpp", "ktransformers", "strata"} <= set(engines)
        for row in engines.values():
            assert (row["tokens_per_s"] is None) == (row["why"] is not None) == (row["options"] is None)
        assert engines["ktransformers"]["options"].startswith("the placement in llama.cpp's words")
        assert re.search(r"--expert-cache \d+", engines["strata"]["options"])
        assert re.match(r"--moe-cache-mib \d+", engines["llama.cpp-moe-cache"]["options"])
        assert re.match(r"expert cache \d+ MiB", engines["fetch-lru"]["options"])
        assert engines["llama.cpp"]["options"].startswith("-ngl 999")

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (("--miss", "cpu"), "--miss with --engine llama.cpp: it places whole layers"),
            (("--engine", "strata", "-ts", "1"), "-ts with --engine strata: these are llama.cpp's options"),
            (("--engine", "all", "--simulate", "1"), "--simulate with --engine all: each engine has its own"),
            (("--host", "arena"), "--host arena with --engine llama.cpp: it has resident and mmap"),
            (("-sm", "row"), "--split-mode row: every tensor divided over all cards is not priced"),
            (("-sm", "rows"), "unknown split mode 'rows'; did you mean row"),
            (("-ts", "a"), "-ts a: expected shares of the cards, as 24,25"),
            (("-ts", "1,1"), "-ts 1,1 names 2 cards, there are 1"),
            (("-ts", "1", "--host", "mmap", "--host", "resident"), "--quant and --host are given at most once"),
        ],
    )  # fmt: skip
    def test_errors_are_one_sentence(self, capsys, more, message):
        assert message in self.fail(capsys, "--gpu", "rtx-3070", *more)


def test_python_asks_llama_cpp_too(trace):
    import expert_residency as er

    found = er.split(trace, GRANITE, "rtx-3070", quants=["FP16"], session="1GiB")
    assert found.best.lines[0].text.startswith("-ngl 999")
    assert found.frame()["options"][0] == found.best.lines[0].text


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_more_memory_on_the_card_is_never_slower_where_cards_are_faster_than_the_cpu(seed):
    problem = random_problem(seed)
    costs = problem.costs
    for card, layer, _ in list(costs.table):
        values = sorted((costs.table[card, layer, n] for n in range(4)), reverse=True)
        costs.table |= {(card, layer, n): values[n] for n in range(4)}
    problem = replace(problem, ram_bytes=10**9)
    before = LayerPlanner(problem).best()
    for card in costs.cards.values():
        card.gpu.vram_usable_bytes += 3_000_000
    after = LayerPlanner(problem).best()
    if before is not None and not before.host_layers:
        assert after.parts.ns <= before.parts.ns


@pytest.mark.parametrize("mapped", [False, True])
def test_the_context_of_layers_that_the_cpu_runs_lies_in_memory(trace, mapped):
    """Nothing maps it: a context that no memory has room for does not fit, be the file mapped or not."""
    asked = question(GRANITE, "Q8_0", (("tesla-p40",),), 16 * GB, headroom_bytes=0)
    found = {}
    for context in (600_000, 1_000_000):
        modes = ("mmap",) if mapped else ("resident",)
        answer = study_layers(
            replace(asked, context=context, modes=modes), trace, {"tesla-p40": load_profile("tesla-p40")}
        ).answers[0]
        found[context] = answer
    fits, not_ = found[600_000], found[1_000_000]
    assert fits.placement is not None
    problem, n = fits.problem, fits.placement.host_layers
    whole = sum(line.nbytes for line in problem.needs.session)
    assert n > 0
    assert problem.context_on_host(n) == pytest.approx(whole * n / 24, rel=1e-6)
    assert fits.placement.ram_bytes + problem.context_on_host(n) <= problem.ram_bytes
    assert not_.placement is None
    assert re.search(
        r"^RAM: [\d.]+ GB .* of the context .* no card has room; .* memory: a smaller --context", not_.limit
    )
