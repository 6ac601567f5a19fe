"""`residency advise`: the setting said to be best is, its numbers are those of runs, an engine is one file."""

import json
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expert_residency.errors import SimError
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.cliffs import cliffs
from expert_residency.sim.choices.preset import ENGINES, EnginePreset, list_engines, load_engine
from expert_residency.sim.choices.spec import make_spec
from expert_residency.sim.choices.workers import with_workers
from expert_residency.sim.cli import main
from expert_residency.sim.cli.advise import _joined, _others
from expert_residency.sim.runs.constants import scaled
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.split.layers.by_rules import report
from expert_residency.sim.split.rules import parse_rules
from expert_residency.sim.studies.advise import Ask, LayerTask, TimedTask, advise
from expert_residency.sim.studies.advise.search import PLAIN, Searcher
from expert_residency.sim.studies.advise.task import whole
from expert_residency.sim.studies.advise.workloads import Workload, after, workloads
from expert_residency.sim.studies.drafts import emitted, gated
from expert_residency.toml import checked
from expert_residency.traces import load_model, write_parquet
from expert_residency.traces.synthetic import generate, load_style

MODEL = "granite-3.0-1b-a400m"
SESSION = 1 << 30


def routing(quant="FP16", seeds=(1, 2), tokens=10):
    return tuple(
        generate(load_model(MODEL, quant), load_style("qwen3-30b-a3b"), tokens=tokens, seed=seed, weights=False)
        for seed in seeds
    )


def asked(engine, cards=("tesla-p40",), *, session=SESSION, preset=None, **more):
    preset = preset or load_engine(engine)
    profiles = tuple(map(load_profile, cards))
    return Ask(
        engine,
        preset,
        profiles,
        tuple(cards),
        tuple(map(Workload, routing())),
        4096,
        preset.kv_type,
        session,
        **more,
    )


def with_knobs(engine, knobs):
    """A preset whose table of knobs is another."""
    return checked(EnginePreset, ENGINES.load(engine) | {"knobs": knobs}, where="test")


SMALL = {
    "pcie-share": {
        "sets": "engine.pcie_share",
        "flag": "--share {value}",
        "values": [0.0, 0.3, 0.6],
        "default": 0.3,
    },
    "cache": {"sets": "capacity", "flag": "--mib {mib:.0f}", "values": [0.01, 0.02], "default": 0.01},
    "swaps": {"sets": "admission.swaps", "flag": "--swaps {value}", "values": [0, 96], "default": 96},
}


@pytest.mark.parametrize("name", list_engines())
def test_every_engine_has_a_space_that_can_be_searched(name):
    """Each knob sets something that is there: a field of the preset, a parameter of its policy, a run's word."""
    task_of = LayerTask if load_engine(name).places == "layers" else TimedTask
    task = task_of(asked(name))
    assert task.controls
    start = tuple(c.values[0] if c.default is None else c.default for c in task.controls)
    for at, control in enumerate(task.controls):
        for value in (control.values[0], control.values[-1]):
            setting = (*start[:at], value, *start[at + 1 :])
            assert task.speed(setting) is not None or task.refused[setting]
            assert isinstance(control.text(value), str)


def test_a_small_space_is_searched_whole_and_its_numbers_are_those_of_runs():
    preset = with_knobs("strata", SMALL)
    task = TimedTask(asked("strata", preset=preset))
    made = advise(task, runs=4)
    assert made.found.complete
    room = sum(task.room)

    def run(share, part, swaps):
        own = preset.model_copy(update={"pcie_share": Quantity(value=share, kind="measured", source="as asked")})
        words = {
            "hardware": "tesla-p40", "engine": "strata", "capacity": f"{int(part * room)}B",
            "admission": f"strata-adaptive:swaps={swaps}",
        }  # fmt: skip
        return simulate(task.ask.traces[0], make_spec(words), preset=own).tokens_per_s

    every = {(a, b, c): run(a, b, c) for a in (0.0, 0.3, 0.6) for b in (0.01, 0.02) for c in (0, 96)}
    best = made.found.best
    assert made.speed == every[best]
    assert made.speed >= max(every.values()) * (1 - PLAIN)
    for at, worth in enumerate(made.worths):
        default = (*best[:at], worth.default, *best[at + 1 :])
        assert worth.without == every[default]
        assert worth.gain == pytest.approx(made.speed / every[default] - 1)
        assert dict(worth.values) == {
            value: every[(*best[:at], value, *best[at + 1 :])] for value, _ in worth.values
        }
    assert made.interval.low < made.speed < made.interval.high


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_knob_alone_gains_anything(data):
    """Whatever the speeds are, and wherever settings do not fit."""
    sizes = data.draw(st.lists(st.integers(2, 7), min_size=4, max_size=5))
    seed = data.draw(st.integers(0, 1 << 20))
    lacking = data.draw(st.floats(0, 0.5))

    class Drawn:
        controls = TimedTask(asked("strata", preset=with_knobs("strata", SMALL))).controls[:1] * len(sizes)
        constants = ()
        workloads = 1

        def __init__(self):
            self.refused = {}
            self.controls = tuple(
                replace(c, values=tuple(range(n)), default=0) for c, n in zip(self.controls, sizes, strict=True)
            )

        def speed(self, setting, machine=None, workload=0):
            dice = np.random.default_rng([seed, *setting])
            if dice.random() < lacking:
                self.refused[setting] = "drawn"
                return None
            return 1.0 + dice.random()

    searcher = Searcher(Drawn())
    found = None
    with suppress(SimError):
        found = searcher.search()
    if found is None:
        assert not [speed for speed in searcher.known.values() if speed]
        return
    for at in range(len(sizes)):
        most = max(speed or 0.0 for speed in searcher.along(found.best, at).values())
        assert most * (1 - PLAIN) <= found.speed
    assert found.speed >= (searcher.speed(found.default) or 0.0) * (1 - PLAIN)
    if found.complete:
        assert found.speed >= max(speed or 0.0 for speed in searcher.known.values()) * (1 - PLAIN)


@pytest.mark.parametrize("cards", [("tesla-p40",), ("rtx-3070", "tesla-p40")])
def test_options_of_whole_layers_are_what_was_simulated(cards):
    """Fed back through llama.cpp's own rules, each value of the knob has the speed that is printed."""
    task = LayerTask(asked("llama.cpp", cards))
    made = advise(task, runs=2)
    assert made.found.complete
    problem = task._planner(made.found.best, None, 0).problem
    layers = next(worth for worth in made.worths if worth.name == "cpu-layers")
    checked_ = 0
    for n, speed in layers.values:
        if speed is None:
            continue
        placement = task.placement((n, *made.found.best[1:]))
        back = report(
            replace(problem, costs=problem.costs, cards=placement.cards),
            parse_rules([], n, problem.geometry.layer_ids),
            [*placement.ts[:-1], placement.ts[-1] + 1],
        )
        assert back.tokens_per_s == pytest.approx(speed, rel=1e-9)
        checked_ += 1
    assert checked_ > 3
    assert made.found.speed >= max(speed for _, speed in layers.values if speed) * (1 - PLAIN)
    assert made.speed >= made.found.speed
    assert task.lines(made.found.best)[0].placement.tokens_per_s == made.speed


def test_a_constant_that_flips_the_choice_is_named():
    """Of two ways that are near each other some constant, within what it may be, makes the other one faster."""
    knobs = {"share": SMALL["pcie-share"] | {"values": [0.0, 1.0], "default": 0.0}}
    task = TimedTask(asked("strata", preset=with_knobs("strata", knobs)))
    task.room = (200 << 20,)
    made = advise(task, runs=2)
    assert made.flips
    other = (1.0 - made.found.best[0],)
    for flip in made.flips:
        assert (flip.value,) == other
        assert flip.low <= flip.at <= flip.high
        far = (flip.high if flip.at > flip.constant.value else flip.low) / flip.constant.value
        there = scaled(task.ask.profiles, task.ask.preset, {flip.constant: far})
        ours, theirs = task.speed(made.found.best, there), task.speed(other, there)
        assert flip.loss == pytest.approx(1 - ours / theirs)
        assert theirs > ours


def test_workers_scale_by_measured_points_or_by_what_a_core_reads():
    profile = load_profile("tesla-p40")
    preset = load_engine("strata")
    one = with_workers(profile, preset, 1).cpu.expert_mb_per_s("pinned", "q4")
    assert one < with_workers(profile, preset, 4).cpu.expert_mb_per_s("pinned", "q4") < 12_000 * 4
    assert one <= 12_000
    rates = {n: Quantity(value=n if n < 5 else 3.0, kind="measured", source="a test") for n in (1, 4, 8)}
    own = profile.model_copy(
        update={"cpu": profile.cpu.model_copy(update={"expert_gb_per_s_by_workers": rates, "workers": rates[4]})}
    )
    base = own.cpu.expert_mb_per_s("pinned", "q4")
    assert with_workers(own, preset, 8).cpu.expert_mb_per_s("pinned", "q4") == pytest.approx(base * 0.75, rel=0.01)
    assert whole([0.25, 0.5, 1.0], 2) == (1, 2)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"a": {"sets": "nothing", "values": [1, 2]}}, "sets 'nothing'"),
        ({"a": {"sets": "capacity", "values": [1.0]}}, "two values at least"),
        ({"a": {"sets": "capacity", "values": [0.5, 1.0], "default": 2}}, "default 2 is not among"),
        ({"a": {"sets": "capacity", "values": [0.5, 1.0], "flag": "{else}"}}, "flag '{else}'"),
    ],
)
def test_a_knob_that_makes_no_sense_is_refused_in_a_sentence(knobs, words):
    with pytest.raises(SimError, match=words):
        with_knobs("strata", knobs)


def test_an_engine_of_ones_own_is_one_file(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(
        'base = "fetch-lru"\nname = "mine"\n[knobs.room]\nsets = "capacity"\nflag = "--room {mib:.0f}"\n'
        "values = [0.01, 0.02]\ndefault = 0.01\n"
    )
    words = f"advise --model {MODEL}/FP16 --gpu tesla-p40 --engine {path} --session 1GiB --passes 8 --draws 2"
    with pytest.raises(SystemExit):
        main([*words.split(), "--json", "-"])
    found = json.loads(capsys.readouterr().out)
    assert found["engine"] == "mine"
    assert [knob["name"] for knob in found["knobs"]] == ["room"]
    speeds = [value["tokens_per_s"] for value in found["knobs"][0]["values"]]
    assert found["tokens_per_s"] >= max(speeds) * (1 - PLAIN)
    assert found["flags"][0].startswith("--room ")
    assert found["trust"]["never_compared"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--gpu none --cpu ryzen-5-5600x --ram 64GB --engine strata", "has none: ask llama.cpp"),
        ("--gpu tesla-p40 --engine strata --headroom 3GB", "--headroom with --engine strata"),
        ("--gpu tesla-p40 --gpu rtx-3070 --count 2", "--count 2 is of one card"),
        ("--gpu tesla-p40 --context 5000", "--context beside --session"),
        ("--gpu tesla-p40 --format table", "give it with --trace"),
        ("--gpu rtx-2060 --session 20GiB", "GiB more than its "),
        ("--gpu rtx-3090 --ram 2GB --engine fetch-lru", "ask --engine llama.cpp, which maps"),
        ("--gpu m4-pro --count 2", "share one memory"),
    ],
)
def test_what_would_do_nothing_is_refused(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["advise", "--model", f"{MODEL}/FP16", "--session", "1GiB", *words.split()])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_memory_smaller_than_the_systems_share_still_has_an_answer(capsys):
    """The shipped share of 4 GiB does not fit into 2 GB: constants are drawn about a profile that is valid."""
    words = "--gpu rtx-3090 --ram 2GB --engine llama.cpp-moe-cache --passes 6 --draws 2"
    assert "read from the drive again" in printed(words, capsys)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 8), st.integers(1, 9))
def test_a_cache_begins_with_what_was_used_before_and_nothing_else(start, passes):
    trace = routing(seeds=(3,))[0]
    made = after(trace, start, passes)
    assert made.trace.n_passes == min(passes, trace.n_passes - start)
    used = trace.keys[np.repeat(trace.event_pass, np.diff(trace.event_offsets)) < start]
    assert set(made.ranked) == set(used.tolist())
    if start == 1:
        assert sorted(made.ranked) == sorted(set(used.tolist()))


def test_warm_caches_hit_as_those_that_have_run_for_long(tmp_path):
    """Generated workloads, and the parts of a recorded trace: more hits than a cold start, and no look ahead."""
    (made, *others) = workloads(f"{MODEL}/FP16", [], None, 20)
    assert made.ranked
    assert len(others) == 3
    warm, cold = (TimedTask(replace(asked("fetch-lru"), workloads=(one,))) for one in (made, Workload(made.trace)))
    for task in (warm, cold):
        task.room = (300 << 20,)
    setting = tuple(c.default for c in warm.controls)
    assert warm.speed(setting) > cold.speed(setting)
    path = tmp_path / "t.parquet"
    write_parquet(generate(load_model(MODEL, "FP16"), load_style("qwen3-30b-a3b"), tokens=70, seed=5), path)
    parts = workloads(f"{MODEL}/FP16", [str(path)], None, 15)
    assert [part.trace.n_passes for part in parts] == [15]
    assert parts[0].ranked


def test_drafts_stop_below_the_floor():
    """Strata's reports: 2.1 drafts a window at a floor of 0.5, of which 0.64 to 0.85 are accepted."""
    rows, tokens = gated(4, 0.75, 0.5)
    assert rows - 1 == pytest.approx(2.1, abs=0.1)
    assert (tokens - 1) / (rows - 1) == pytest.approx(0.745, abs=0.02)
    assert gated(4, 0.75, 0.0) == (4.0, emitted(4, 0.75))
    floors = [gated(4, 0.75, floor) for floor in (0.1, 0.3, 0.5, 0.7, 0.9)]
    assert floors == sorted(floors, reverse=True)
    assert all(tokens <= rows for rows, tokens in floors)
    assert gated(1, 0.75, 0.5) == (1.0, 1.0)


def test_advice_names_the_cliffs_of_its_own_setting():
    """The room beside the context that is asked about, and the cache, memory and workers of the setting."""
    small = 20 << 30  # leaves less than all experts

    def found(engine, share, session=small):
        task = TimedTask(asked(engine, session=session))
        at = next(n for n, c in enumerate(task.controls) if c.knob.sets == "capacity")
        setting = tuple(c.values[0] if c.default is None else c.default for c in task.controls)
        setting = (*setting[:at], share, *setting[at + 1 :])
        return task, {one.kind: one for one in cliffs(task.standing(setting))}

    task, full = found("fetch-lru", 1.0)
    assert full["vram"].at == full["vram"].now == sum(task.room) < task.ask.traces[0].geometry.all_expert_bytes
    assert not full["vram"].warned, "the cache is what the room is"
    assert "a context of" not in full["vram"].text, "its size was given, not its tokens"
    _, half = found("fetch-lru", 0.5)
    assert half["vram"].left == pytest.approx(half["vram"].at / 2, abs=2)
    assert half["floor"].at == task.ask.traces[0].geometry.lru_floor_bytes()
    assert half["memory"].at == task.ask.traces[0].geometry.all_expert_bytes + (
        task.ask.profiles[0].ram.os_reserve_bytes
    )
    assert "workers" not in half, "nothing is computed by the processor"
    layered = LayerTask(asked("llama.cpp", session=small))
    edges = {one.kind: one for one in cliffs(layered.standing((24, 1)))}
    assert edges["vram"].now <= edges["vram"].at
    assert not edges["vram"].warned
    assert edges["memory"].at < half["memory"].at + (10 << 30)


def printed(words, capsys, command="advise"):
    """What a command prints, its lines joined."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--model", f"{MODEL}/FP16", "--session", "1GiB", *words.split()])
    out = capsys.readouterr()
    assert not ended.value.code, out.err
    return out.out


QUICK = "--passes 8 --draws 2"


@pytest.mark.parametrize("cards", [("rtx-3090", "tesla-p40"), ("tesla-p40", "rtx-3090")])
def test_every_order_of_the_cards_is_tried_as_in_split(cards):
    """However they are named: the same speed and the same order, which is printed beside `-ts`."""
    task = LayerTask(asked("llama.cpp", cards))
    made = advise(task, runs=2)
    other = LayerTask(asked("llama.cpp", cards[::-1]))
    assert made.speed == other.headline(made.found.best)
    for line, theirs in zip(task.lines(made.found.best), other.lines(made.found.best), strict=True):
        assert line.placement.cards == theirs.placement.cards
        assert line.options[line.options.index("-ts") + 1].count(",") == 1
    less = task.fewer_cards(made.found.best)  # the model fits on each, and a hand-off costs
    assert less is not None
    assert less.placement.cards == ("rtx-3090",)
    assert less.placement.tokens_per_s >= made.speed


def test_a_card_that_does_not_help_is_named(capsys):
    out = printed(f"--gpu rtx-3090+rtx-3060 --ram 64GB {QUICK}", capsys)
    assert "CUDA0 = rtx-3060-parts, CUDA1 = rtx-3090; CUDA_VISIBLE_DEVICES" in out, "the faster order"
    assert "rtx-3060-parts gains nothing: " in out
    assert "with rtx-3090 alone: -ngl 999" in out


def test_an_engine_without_options_for_it_is_told_in_words(capsys):
    for words in ("--gpu rtx-2060 --ram 64GB --session 3500MiB", "--gpu rtx-3090+rtx-3060 --ram 64GB"):
        out = printed(f"{words} --engine ktransformers {QUICK}", capsys)
        assert "-ngl" not in out
        assert " -ot" not in out
        assert "-ts" not in out
        assert "--cpu_infer" in out
    assert "layers on rtx-3090" in out
    task = LayerTask(asked("ktransformers", session=int(9.2e9), cards=("rtx-3080",)))
    line = task.lines(advise(task, runs=2).found.best)[0]
    assert line.text.startswith("experts of the first "), line.text


def test_without_a_card_nothing_is_placed(capsys):
    out = printed(f"--gpu none --cpu ryzen-5-5600x --ram 64GB {QUICK}", capsys)
    assert "cpu-layers" not in out
    assert "simulated: -t " in out
    assert "-ngl" not in out


def test_reads_of_the_drive_make_a_speed_estimated(capsys):
    words = f"--gpu rtx-2060 --ram 12GB {QUICK} --headroom 11.8GB --session 3500MiB"
    out = printed(words, capsys)
    assert "tok/s estimated, " in out
    assert "tok/s simulated" not in out
    out = printed("--gpu rtx-2060 --ram 12GB --headroom 11.8GB --session 3500MiB", capsys, "split")
    assert "tok/s estimated, " in out
    assert "tok/s simulated" not in out


def test_flags_go_before_what_is_no_flag():
    assert _joined(["a tier: 96 swaps", "--pool 8", "", "rounds: 4"]) == "--pool 8; a tier: 96 swaps; rounds: 4"


def test_what_is_no_flag_is_said_only_beside_the_default(capsys):
    words = SMALL["swaps"] | {"flag": "tier: {value} swaps", "values": [96, 0]}
    preset = with_knobs("strata", {"swaps": words, "cache": SMALL["cache"]})
    task = TimedTask(asked("strata", preset=preset))
    said = _others(advise(task, runs=2), task)
    assert all(word.startswith("--mib") for word in said), said


def test_two_of_one_shared_memory_are_refused_by_split_too(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["split", "--model", f"{MODEL}/FP16", "--gpu", "m4-pro", "--count", "2", "--session", "1GiB"])
    assert ended.value.code == 2
    assert "share one memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("machine", "context", "named"),
    [
        ("--gpu rtx-3090", "500000", "a context of 500,000 fit only with 25 layers on the CPU altogether"),
        ("--gpu rtx-3090", "10000000", "RAM: 962.6 GB (896.5 GiB) of the context are of the first 47 MoE layers"),
        ("--gpu none --cpu ryzen-9-7950x", "10000000", "before it holds one expert (KV, fp16, 10,000,000 cells"),
    ],
)
def test_a_context_that_is_too_long_is_what_is_named(capsys, machine, context, named):
    """Longer than the card has room for, than memory has beside it, than a processor's own memory."""
    words = f"advise --model qwen3-30b-a3b {machine} --ram 64GB --context {context} --passes 4"
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert named in told
    assert ("VRAM" in told) == (context == "500000")
