"""Fitting constants to runs: known constants are found again, ties are named, and a real knob is set right."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from expert_residency.errors import SimError
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import make_spec
from expert_residency.sim.choices.trace import routing_of
from expert_residency.sim.cli.fit import _following, _ties, _write
from expert_residency.sim.runs.constants import scaled
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.studies.fit import MeasuredRun, constants_of, fit_runs, read_runs
from expert_residency.sim.studies.fit.fit import Fitted, NextRun
from expert_residency.sim.studies.fit.llama_bench import of_one_machine
from expert_residency.sim.studies.fit.write import preset_toml, profile_toml
from expert_residency.traces import load_model
from expert_residency.traces.bundled import load
from expert_residency.traces.windows import compose_windows
from tests.test_cli import residency

HARDWARE, ENGINE = "rtx-5070", "generic"
BENCHED = load_model("qwen3-30b-a3b/Q4_K_M")
MACHINE = ("--hardware", HARDWARE, "--engine", ENGINE)


@pytest.fixture(scope="module")
def trace():
    whole = load("tinymoe-code")
    large = replace(whole.geometry, expert_bytes=(4_000_000,) * whole.geometry.n_layers)  # so that bytes are felt
    return replace(whole, geometry=large).select_passes(np.arange(whole.n_passes) < 16)


def truth(trace, factors, choices):
    """Runs of a machine whose constants are so many times those of the profile."""
    profiles, preset = (load_profile(HARDWARE),), load_engine(ENGINE)
    named = {one.name: one for one in constants_of(profiles, preset)}
    cards, engine = scaled(profiles, preset, {named[name]: factor for name, factor in factors.items()})
    found = []
    for number, words in enumerate(choices):
        spec = make_spec({"hardware": HARDWARE, "engine": ENGINE, **words})
        result = simulate(trace, spec, profiles=cards, preset=engine)
        found.append(MeasuredRun(f"run {number}", words, result.tokens_per_s))
    return found


CHOICES = [
    {"capacity": "0B", "miss": "cpu"},
    {"capacity": "50%", "miss": "cpu"},
    {"capacity": "10%", "miss": "fetch"},
    {"capacity": "50%", "miss": "fetch"},
    {"capacity": "100%", "miss": "fetch", "placement": "layers"},
]


def test_known_constants_are_found_again(trace):
    factors = {"cpu.expert_gb_per_s.pinned.default": 1.6, "link.h2d_gb_per_s": 0.7}
    found = fit_runs(truth(trace, factors, CHOICES), HARDWARE, ENGINE, lambda _: trace, noise=0.01)
    named = {one.constant.name: one for one in found.fitted}
    for name, one in named.items():
        factor = factors.get(name, 1.0)
        assert one.low <= factor * one.constant.value <= one.high, name
        if name in factors:
            assert one.value / one.constant.value == pytest.approx(factor, rel=0.15), name
    assert named["link.h2d_gb_per_s"].verdict == "determined"
    before, after, others = found.error
    assert after < 1 < before
    assert others < before


def test_what_runs_cannot_tell_apart_stays_a_prior_and_the_next_run_tells_it(trace):
    one = truth(trace, {"cpu.expert_gb_per_s.pinned.default": 1.5}, CHOICES[:1])
    found = fit_runs(one, HARDWARE, ENGINE, lambda _: trace, noise=0.02)
    assert len(found.fitted) > 1
    assert sum(f.verdict == "determined" for f in found.fitted) <= 1
    assert found.following
    widest = found.following[0]
    assert widest.low < widest.tokens_per_s < widest.high
    spreads = [math.log(run.high / run.low) for run in found.following]
    assert spreads == sorted(spreads, reverse=True)
    assert dict(widest.words) not in [dict(run.words) for run in one]


def test_more_runs_do_not_widen_an_interval(trace):
    """Up to a quarter: derivatives are taken at the place where each fit ends."""
    runs = truth(trace, {"cpu.expert_gb_per_s.pinned.default": 1.3}, CHOICES)
    few, many = (fit_runs(runs[:n], HARDWARE, ENGINE, lambda _: trace, noise=0.02) for n in (2, 5))
    wide = {one.constant.name: math.log(one.high / one.low) / few.misfit for one in few.fitted}
    for one in many.fitted:
        if one.constant.name in wide:
            assert math.log(one.high / one.low) / many.misfit <= wide[one.constant.name] * 1.25


def test_runs_that_contradict_each_other_widen_every_interval(trace):
    (run,) = truth(trace, {}, CHOICES[:1])
    torn = [run, replace(run, name="again", tokens_per_s=2 * run.tokens_per_s)]
    found = fit_runs(torn, HARDWARE, ENGINE, lambda _: trace, noise=0.02)
    assert found.misfit > 5
    assert not [one for one in found.fitted if one.verdict == "determined"]


def test_a_fitted_card_that_reads_faster_than_its_memory_can_be_loaded(trace, tmp_path):
    """Runs do not feel the memory's own rate: it is then the fastest read that they tell."""
    found = fit_runs(truth(trace, {}, CHOICES[:1]), HARDWARE, ENGINE, lambda _: trace)
    path = ("gpu", "expert_gb_per_s", "default")
    own = replace(found.fitted[0], value=9e3, low=8e3, high=1e4)
    own = replace(own, constant=replace(own.constant, card=0, path=path))
    (tmp_path / "here.toml").write_text(profile_toml(replace(found, fitted=[own]), HARDWARE, "runs.csv"))
    gpu = load_profile(str(tmp_path / "here.toml")).gpu
    assert gpu.expert_gb_per_s.default.value == gpu.mem_gb_per_s.value == 9000


def test_what_is_written_is_what_was_fitted(trace, tmp_path):
    found = fit_runs(truth(trace, {"link.h2d_gb_per_s": 0.6}, CHOICES), HARDWARE, ENGINE, lambda _: trace)
    (tmp_path / "here.toml").write_text(profile_toml(found, HARDWARE, "runs.csv"))
    profile = load_profile(str(tmp_path / "here.toml"))
    assert profile.link.h2d_gb_per_s.value == pytest.approx(found.profiles[0].link.h2d_gb_per_s.value, rel=1e-3)
    text = preset_toml(found, ENGINE, "runs.csv")
    if text:
        (tmp_path / "engine.toml").write_text(text)
        assert load_engine(str(tmp_path / "engine.toml")).name == "generic-fitted"


@pytest.mark.parametrize("hardware", ["rtx-3060", "rtx-3060:cpu=ryzen-5-5600x,ram=32GB", "./own/machine"])
def test_a_fitted_file_loads_whatever_it_was_fitted_from(hardware, trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "own" / "machine").write_text('base = "rtx-3060"\nname = "mine"\nsummary = "mine"\n')
    (tmp_path / "own" / "engine").write_text(f'base = "{ENGINE}"\nname = "ours"\n')
    found = fit_runs(truth(trace, {}, CHOICES[:1]), hardware, "own/engine", lambda _: trace)
    own = replace(found.fitted[0], constant=replace(found.fitted[0].constant, card=None, path=("cpu_layer_us",)))
    found = replace(found, fitted=[*found.fitted, own])
    _write(found, Path("other") / "here.toml", hardware, "own/engine", Path("runs.csv"))
    assert load_profile(tmp_path / "other" / "here.toml").ram.total_gib == found.profiles[0].ram.total_gib
    assert load_engine(str(tmp_path / "other" / "here.engine.toml")).name == "ours-fitted"


@pytest.mark.slow
def test_a_share_over_pcie_is_set_right_after_four_runs_of_a_real_machine(shared):
    """A 4090 Laptop, seven shares at two cache sizes: fitted to four runs of the first, both are ranked right."""
    with (shared / "reference" / "measured_runs.csv").open(encoding="utf-8") as file:
        rows = {row["id"]: float(row["value"]) for row in csv.DictReader(file)}
    shares = (0.0, 0.2, 0.35, 0.55, 0.75, 0.9, 1.0)
    first = {share: rows[f"M{number:04}"] for number, share in enumerate(shares, start=1)}
    second = {share: rows[f"M{number:04}"] for number, share in enumerate(shares, start=8)}
    words = {"admission": "never", "placement": "hindsight"}
    windows = compose_windows(routing_of("qwen3.8-flash-next/IQ3_S", passes=60), rows=3.5, emitted=2.6)
    runs = [
        MeasuredRun(f"{share:g}", words | {"capacity": "7.44GiB"}, first[share], knobs={"pcie_share": share})
        for share in (0.0, 0.35, 0.75, 1.0)
    ]
    found = fit_runs(runs, "rtx-4090-laptop", "strata", lambda _: windows)

    def predicted(capacity, profiles, preset):
        speeds = {}
        for share in shares:
            given = Quantity(value=share, kind="measured", source="as run")
            spec = make_spec({"hardware": "rtx-4090-laptop", "engine": "strata", "capacity": capacity, **words})
            speeds[share] = simulate(
                windows, spec, profiles=profiles, preset=preset.model_copy(update={"pcie_share": given}), runs=40
            ).tokens_per_s
        return speeds

    for capacity, measured in (("7.44GiB", first), ("5.53GiB", second)):
        before = predicted(capacity, (load_profile("rtx-4090-laptop"),), load_engine("strata"))
        after = predicted(capacity, found.profiles, found.preset)
        best = max(measured.values())
        assert (
            measured[max(before, key=before.__getitem__)] > 0.9 * best
        )  # the profile alone, its rate by data sheet
        assert measured[max(after, key=after.__getitem__)] > 0.95 * best
        for a in shares:
            for b in shares:
                if measured[a] > 1.2 * measured[b]:
                    assert after[a] > after[b], (capacity, a, b)


class TestFiles:
    def test_a_table(self, tmp_path):
        path = tmp_path / "runs.csv"
        path.write_text(
            "name,capacity,depth,p2p,pcie_share,n_cpu_moe,tokens_per_s\na,25%,4096,true,0.5,,12.5\n,0B,,,,8,7\n"
        )
        one, two = read_runs(path)[0]
        assert one == MeasuredRun(
            "a", {"capacity": "25%", "depth": 4096, "p2p": True}, 12.5, knobs={"pcie_share": 0.5}
        )
        assert two == MeasuredRun("line 3", {"capacity": "0B"}, 7.0, n_cpu_moe=8)

    def test_llama_bench(self, tmp_path):
        entry = {"n_prompt": 0, "n_gen": 128, "n_depth": 4096, "avg_ts": 31.5, "type_k": "q8_0", "type_v": "q8_0"}
        exps = r"blk\.({})\.ffn_.*_exps=CPU"
        whole = BENCHED.all_expert_bytes + sum(BENCHED.dense_bytes) + BENCHED.head_bytes
        rows = [
            entry | {"n_cpu_moe": 12, "n_gpu_layers": 99, "gpu_info": "RTX 3090", "model_size": whole},
            entry | {"n_prompt": 512, "n_gen": 0},
            entry | {"tensor_buft_overrides": "exps=CPU"},
            entry | {"n_gpu_layers": 20},
            entry | {"type_v": "f16"},
            entry | {"tensor_buft_overrides": exps.format("0|1|2")},
            entry | {"tensor_buft_overrides": exps.format("5") + ";" + exps.format("7"), "n_cpu_moe": 1},
            entry | {"tensor_buft_overrides": r"blk\.(0|1)\.ffn_up_exps=CPU"},
            entry | {"tensor_buft_overrides": "attn_q=CPU"},
            entry | {"model_size": 3_800_000_000, "model_type": "llama 7B Q4_0"},
            entry | {"gpu_info": "RTX 4090, RTX 4090"},
            entry | {"n_threads": 2},
            entry | {"no_kv_offload": True},
            entry | {"n_cpu_moe": "12"},
        ]
        path = tmp_path / "bench.json"
        path.write_text(json.dumps(rows))
        runs, left_out = read_runs(path)
        runs, others = of_one_machine(runs, BENCHED, 1)
        words = {"depth": 4096, "kv_type": "q8_0"}
        assert [(run.name, run.n_cpu_moe) for run in runs] == [
            ("entry 1", 12), ("entry 3", 48), ("entry 6", 3), ("entry 7", 3)
        ]  # fmt: skip
        assert all(run.words == words for run in runs)
        said = dict(text.split(": ", 1) for text in left_out + others)
        wanted = {
            "entry 2": "no generation alone", "entry 4": "n_gpu_layers 20", "entry 5": "KV of q8_0 and f16",
            "entry 8": "a part of layer 0", "entry 9": "attn_q=CPU", "entry 10": "model_size 3.8 GB",
            "entry 11": "names 2 cards", "entry 12": "n_threads 2", "entry 13": "no_kv_offload",
            "entry 14": "n_cpu_moe is '12'",
        }  # fmt: skip
        assert said.keys() == wanted.keys()
        for name, words in wanted.items():
            assert words in said[name], name

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "no column 'tokens_per_s'"),
            ("capacity\n1GiB\n", "no column 'tokens_per_s'"),
            ("capacty,tokens_per_s\n1GiB,5\n", "did you mean capacity"),
            ("hardware,tokens_per_s\nx,5\n", "given by --hardware"),
            ("capacity,tokens_per_s\n1GiB,fast\n2GiB,-1\n", "line 2: tokens_per_s is 'fast'.*line 3"),
            ("depth,tokens_per_s\nlong,5\n", "depth is 'long', expected a number"),
            ("capacity,tokens_per_s\n1GiB\n", "line 2: it has more or fewer cells"),
            ("capacity,tokens_per_s\n", "no run with a decode speed"),
            ("[1]", "lacks avg_ts"),
            ("[{", "not JSON"),
            ('[{"avg_ts": 5}]', "no run with a decode speed: entry 1"),
        ],
    )
    def test_what_is_wrong_is_said(self, tmp_path, text, words):
        path = tmp_path / "runs.csv"
        path.write_text(text)
        with pytest.raises(SimError, match=words):
            read_runs(path)


class TestCommand:
    def test_it_prints_what_is_determined_and_writes_it(self, tmp_path):
        (tmp_path / "runs.csv").write_text(
            "capacity,miss,tokens_per_s\n0B,cpu,300\n25%,fetch,420\n60%,fetch,600\n"
        )
        words = (
            tmp_path / "runs.csv",
            "--trace",
            "bundled:tinymoe-code",
            "--hardware",
            HARDWARE,
            "--engine",
            ENGINE,
        )
        out = tmp_path / "here.toml"
        done = residency("fit", *words, "--passes", 12, "--out", out)
        assert done.returncode == 0, done.stderr
        for heading in ("by others", "verdict", "Runs that would tell more", "median error"):
            assert heading in done.stdout
        assert load_profile(str(out)).name.endswith("-fitted")

    def test_what_cannot_be_simulated_is_named(self, tmp_path):
        (tmp_path / "runs.csv").write_text("capacity,tokens_per_s\n900GiB,300\n25%,20\n1TiB,5\n")
        words = (
            tmp_path / "runs.csv",
            "--trace",
            "bundled:tinymoe-code",
            "--hardware",
            HARDWARE,
            "--engine",
            ENGINE,
        )
        done = residency("fit", *words)
        assert done.returncode == 2
        assert "line 2: " in done.stderr
        assert "line 4: " in done.stderr
        assert "line 3: " not in done.stderr

    @pytest.mark.slow
    def test_layers_on_the_cpu(self, tmp_path):
        (tmp_path / "runs.csv").write_text("n_cpu_moe,tokens_per_s\n48,18.5\n24,29\n12,41\n")
        words = (
            "--model",
            "qwen3-30b-a3b/Q4_K_M",
            "--hardware",
            "rtx-3090",
            "--engine",
            "llama.cpp",
            "--passes",
            12,
        )
        out = tmp_path / "here.toml"
        done = residency("fit", tmp_path / "runs.csv", *words, "--out", out)
        assert done.returncode == 0, done.stderr
        for heading in ("by others", "verdict", "Runs that would tell more", "median error"):
            assert heading in done.stdout
        assert load_profile(str(out)).name.endswith("-fitted")
        found = json.loads(residency("fit", tmp_path / "runs.csv", *words, "--json", "-").stdout)
        assert found["median_error_pct"]["after"] < found["median_error_pct"]["before"]


def test_each_pair_that_is_not_told_apart_is_named_once():
    def one(name, *tied):
        return Fitted(SimpleNamespace(name=name), 1.0, 0.5, 2.0, "not told apart" if tied else "prior", tied)

    assert _ties([one("A", "B", "C"), one("B", "A"), one("C", "A", "D"), one("D", "C"), one("E")]) == [
        "not told apart: A and B, C",
        "not told apart: C and D",
    ]


def test_names_of_the_next_runs_stay_whole_at_80_columns():
    tells = ("cpu.bandwidth.effective.MXFP4", "gpu.dense_gb_per_s.MXFP4", "host_link.bandwidth")
    run = NextRun({"n_cpu_moe": 48, "miss": "cpu"}, 21.3, 18.2, 25.1, tells)
    lines = [line for line, _ in _following([run]).lines(80)]
    assert any("n_cpu_moe=48" in line for line in lines), lines
