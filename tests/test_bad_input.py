"""What a user may get wrong: one sentence on stderr and exit code 2, before any work is done."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from expert_residency.errors import FileError, MisfitError, SimError
from expert_residency.files import atomic
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.cli import main
from expert_residency.sim.live.schedule import sizes_of
from expert_residency.sim.runs.curve import hit_curve
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.runs.simulate import simulate
from expert_residency.traces import write_parquet
from tests.test_engine import random_trace


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scratch folder to stand in, with a trace of 3 layers in it."""
    write_parquet(random_trace(3), tmp_path / "tiny.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The sentence with which a command is refused."""
    with pytest.raises(SystemExit) as stopped:
        main(command.split())
    said = capsys.readouterr()
    assert stopped.value.code == 2, said
    assert said.err.startswith("residency: "), said.err
    assert said.err.count("\n") == 1, said.err
    return said.err


RUN = "run --trace tiny.parquet --hardware tesla-p40"
SPLIT = "split --model qwen3.8-flash-next --quant UD-Q4_K_XL --gpu tesla-p40 --simulate 0 --engine generic"
WRITES = [
    "import tiny.parquet {}",
    "inspect tiny.parquet --json {}",
    "replay tiny.parquet --slots-per-layer 2 --json {}",
    "curve tiny.parquet --points 2 --eviction lru --json {}",
    "curve tiny.parquet --points 2 --eviction lru --plot {}.png",
    f"{RUN} --slots-per-layer 2 --json {{}}",
    f"{RUN} --slots-per-layer 2 --timeline {{}}",
    "predictor tiny.parquet --hardware tesla-p40 --slots-per-layer 2 --plot {}.png",
    "window tiny.parquet --json {}",
    "placement tiny.parquet --slots 4 --out {}",
    "vram --model qwen3.8-flash-next --hardware rtx-5070 --json {}",
    f"{SPLIT} --json {{}}",
    f"{SPLIT} --plot {{}}.png",
    "report . --out {}",
    "score . --json {}",
    "validate --group published --json {}",
    "validate --group published --plot {}.png",
    "list policies --json {}",
    "calibrate --cardless --out {}.toml",
    "record --model . --prompt-file tiny.parquet --out {}",
]


@pytest.mark.parametrize("command", WRITES)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(command, here, capsys):
    for name in ("x", "x.png", "x.toml"):
        (here / name).mkdir()
    before = sorted(here.iterdir())
    assert "it is a folder" in refused(command.format("x"), capsys)
    assert "there is no folder nowhere" in refused(command.format("nowhere/x"), capsys)
    assert sorted(here.iterdir()) == before


def test_a_picture_says_its_format(here, capsys):
    for name in ("x", "x.foo"):
        assert "ends in .png, .svg, .pdf" in refused(f"curve tiny.parquet --points 2 --plot {name}", capsys)


def test_a_file_appears_whole_or_not_at_all(here):
    target = here / "out.json"
    with (
        pytest.raises(FileError, match=r"out.json: cannot be written \(No space left on device\)"),
        atomic(target),
    ):
        raise OSError(28, "No space left on device")
    with pytest.raises(KeyError), atomic(target) as part:
        raise KeyError(part.write_text("half"))
    assert [path.name for path in here.iterdir()] == ["tiny.parquet"]
    with atomic(target) as part:
        part.write_text("whole")
    assert target.read_text() == "whole"


def test_what_is_no_regular_file_is_written_to_and_a_link_is_followed(here, capsys):
    os.mkfifo(here / "pipe")
    (here / "real").write_text("old")
    for name, to in (("link", "real"), ("new", "made"), ("to_pipe", "pipe")):
        (here / name).symlink_to(to)
    reader = os.open(here / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    said = []
    try:
        for name in ("pipe", "to_pipe", "link", "new"):
            with pytest.raises(SystemExit) as stopped:
                main(["inspect", "tiny.parquet", "--json", name])
            assert stopped.value.code == 0
            said.append(os.read(reader, 1 << 20).decode() if "pipe" in name else (here / name).read_text())
    finally:
        os.close(reader)
    assert (here / "pipe").is_fifo()
    assert all((here / name).is_symlink() for name in ("link", "new", "to_pipe"))
    assert said[0].startswith("{")
    assert said == [said[0]] * 4
    assert (here / "made").is_file()


IGNORED = [
    ("run {scenario} --eviction lfu", "--eviction"),
    ("run {scenario} --passes 3", "--passes"),
    ("sweep {sweep} --out new --passes 3", "--passes"),
    ("sweep {sweep} --out new --miss cpu", "--miss"),
    ("sweep {sweep} --out new --retry-failed", "--resume"),
    (f"{SPLIT} -ts 24,24", "-ts with --engine generic"),
    (f"{SPLIT} --n-cpu-moe 4 --plot x.png", "--n-cpu-moe with --engine generic"),
    ("window tiny.parquet --horizon 4", "need --slots"),
    ("window tiny.parquet --link rtx-5070", "need --slots"),
    ("score x.json --passes 3", "--trace"),
    (f"{RUN} --card-capacity 1MB --card-capacity 1MB", "2 card(s) given for 1"),
]


@pytest.mark.parametrize(("command", "words"), IGNORED, ids=[command for command, _ in IGNORED])
def test_an_option_that_would_do_nothing_is_refused(command, words, here, capsys):
    (here / "run.toml").write_text('trace = "tiny.parquet"\nhardware = "tesla-p40"\nslots_per_layer = 2\n')
    (here / "sweep.toml").write_text('traces = { tiny = "tiny.parquet" }\n[axes]\nhardware = ["tesla-p40"]\n')
    assert words in refused(command.format(scenario="run.toml", sweep="sweep.toml"), capsys)
    assert not (here / "new").exists()


MISSPELT = [
    ("vram --model qwen3.8-flash-next --hardware rtx-5070 --host mmpa", "did you mean mmap"),
    ("vram --model qwen3.8-flash-next --hardware rtx-5070 --host budget:gib=inf", "a number of GiB"),
    ("vram --model qwen3.8-flash-next --hardware rtx-5070 --host budget:gib=-1", "more than 0"),
    ("calibrate --out here.toml --like rtx-507", "unknown hardware profile"),
    (f"{SPLIT} --count 0", "expected at least 1"),
    (f"{SPLIT} --count 3..1", "the smaller number first"),
    (f"{SPLIT} --count 1..9", "at most 4"),
]


@pytest.mark.parametrize(("command", "words"), MISSPELT, ids=[command for command, _ in MISSPELT])
def test_a_name_or_number_that_is_none_is_refused(command, words, here, capsys):
    assert words in refused(command, capsys)


def test_what_a_refused_sweep_leaves_is_in_nobodys_way(here, capsys):
    made = (
        "sweep --trace tiny.parquet --out new --hardware tesla-p40 --capacity 50% --eviction lru --prefetch none"
    )
    assert "did you mean lru" in refused(made.replace("--eviction lru", "--eviction lruu"), capsys)
    with pytest.raises(SystemExit) as ended:
        main([*made.split(), "--workers", "1", "--simulator", "reference"])
    assert ended.value.code == 0
    assert "there are results here already" in refused(made, capsys)
    assert "differs from this command's sweep" in refused(f"{made} --resume --passes 3", capsys)


BASE = 'trace = "tiny.parquet"\nhardware = "tesla-p40"\n'
ROOM = BASE + "slots_per_layer = 2\n"
MADE = 'trace = "synthetic"\nmodel = "granite-3.0-1b-a400m"\nhardware = "tesla-p40"\nslots_per_layer = 2\n'
SCENARIOS = [
    (BASE + 'slots_per_layer = "2"', "slots_per_layer is '2', expected a whole number"),
    (BASE + "slots_per_layer = true", "slots_per_layer is True, expected a whole number"),
    (BASE + "slots_per_layer = 9999999", "no layer has more than"),
    (BASE + 'capacity = "1e30GB"', "more than any machine has"),
    (BASE + 'capacity = "1e999999999GB"', "more than any machine has"),
    (BASE + 'card_capacity = "1GiB"', "a list of sizes"),
    (BASE + "vram = { context = 4096 }", "auto:session=600MiB"),
    (BASE + "vram = 4096", "vram is 4096, expected a table"),
    (BASE + 'model = "qwen3.8-flash-next"\nvram = { context = "a" }', "context is 'a'"),
    (ROOM + "predict_us = inf", "expected 0 to"),
    (ROOM + "predict_us = -1", "expected 0 to"),
    (ROOM + "layers_each = [-1, 4]", "do not add up"),
    (ROOM + "passes = true", "passes is True"),
    (ROOM + "chunk = 0", "chunk is 0"),
    (ROOM + "windows = 5", "two numbers, rows and emitted"),
    (ROOM + 'windows = { rows = "a", emitted = 1 }', "two numbers, rows and emitted"),
    (ROOM + "windows = { rows = inf, emitted = 1 }", "a window of inf rows"),
    (ROOM + "model = 5", "model is 5"),
    (ROOM.replace('"tesla-p40"', "[]"), "hardware is [], expected a name"),
    (MADE + "synthetic = 3", "needs a table `synthetic`"),
    (MADE + 'synthetic = { style = "gpt-oss-20b" }', "tokens is missing"),
    (MADE + 'synthetic = { tokens = "many" }', "expected a whole number"),
    (MADE + "synthetic = { tokens = 5, acceptance = true }", "expected a number"),
    (MADE + 'synthetic = { tokens = 5, dead_tail = "long" }', "dead_tail"),
]


@pytest.mark.parametrize(("text", "words"), SCENARIOS, ids=[text.split("\n")[-1] for text, _ in SCENARIOS])
def test_a_scenario_that_means_nothing_is_refused(text, words, here, capsys):
    (here / "run.toml").write_text(text)
    assert words in refused("run run.toml", capsys)


def number(value: object) -> str:
    return f'{{ value = {value}, kind = "assumed", source = "a test" }}'


FILES = [
    (f"[link]\nh2d_gb_per_s = {number(1e300)}", "h2d_gb_per_s.value"),
    (f"[link]\nh2d_gb_per_s = {number('nan')}", "finite"),
    ('[link]\nh2d_gb_per_s = { kind = "assumed", source = "a test" }', "value is missing"),
    (f"[ram]\ntotal_gib = {number(1)}", "os_reserve_gib 4 is more than total_gib 1"),
]


@pytest.mark.parametrize(("text", "words"), FILES, ids=[words for _, words in FILES])
def test_a_profile_that_no_machine_can_have_is_refused(text, words, here, capsys):
    (here / "own.toml").write_text(f'name = "own"\nbase = "tesla-p40"\nsummary = ""\n{text}\n')
    said = refused("run --trace tiny.parquet --hardware own.toml --slots-per-layer 2", capsys)
    assert words in said
    assert "own.toml" in said


PRESETS = [
    (b'base = "own.toml"', "is there a circle?"),
    (b"base = 5", "expected a name or path (engine)"),
    (b"\xff", "not a text file"),
    (b'base = "generic"\npcie_share = ' + number(5).encode(), "pcie_share: must be a share from 0 to 1"),
    (b'base = "generic"\npcie_share = ' + number(0.5).replace("a test", "").encode(), "pcie_share.source: "),
    (b'base = "generic"\npcie_per_layer = ' + number(1.5).encode(), "pcie_per_layer: must be a whole number"),
]


@pytest.mark.parametrize(("text", "words"), PRESETS, ids=[words for _, words in PRESETS])
def test_a_preset_that_no_engine_can_have_is_refused(text, words, here, capsys):
    (here / "own.toml").write_bytes(text)
    assert words in refused(f"{RUN} --slots-per-layer 2 --engine own.toml", capsys)


def test_a_preset_stands_on_a_file_beside_it(here):
    (here / "below").mkdir()
    (here / "below/first.toml").write_text('base = "generic"\nname = "first"\nmiss = "fetch"\n')
    (here / "below/second.toml").write_text('base = "first.toml"\nname = "second"\nfill = false\n')
    preset = load_engine("below/second.toml")
    assert (preset.name, preset.miss, preset.fill) == ("second", "fetch", False)


@pytest.mark.parametrize("share", ["nan%", "inf%", "101%", "-5%", "x%"])
def test_a_share_of_the_experts_is_one(share, here, capsys):
    assert "a share from 0% to 100%" in refused(f"sweep --trace tiny.parquet --out new --capacity {share}", capsys)


@pytest.mark.parametrize(
    "command",
    [
        "replay tiny.parquet --slots-per-layer 0",
        "replay tiny.parquet --capacity 1kB",
        "replay tiny.parquet --capacity 2MB --scope layer",
        "replay tiny.parquet --capacity 1kB --eviction lru --stream",
        f"{RUN} --capacity 1kB",
        f"{RUN} --capacity 2MB --scope layer",
    ],
)
def test_room_for_less_than_one_expert_is_refused(command, here, capsys):
    assert "one expert takes" in refused(command, capsys)


@pytest.mark.parametrize("simulator", ["reference", "kernel"])
def test_a_curve_has_no_point_below_one_expert(simulator):
    with pytest.raises(MisfitError, match="one expert takes"):
        hit_curve(random_trace(3), "lru", [Capacity(total_bytes=1)], simulator=simulator)


def test_events_that_may_stay_over_the_capacity_need_no_room():
    """Published curves have such points, with the rule that an event stays whole over its budget."""
    room = Capacity(total_bytes=1)
    found = [
        replay(random_trace(3), "lru", room, oversize="overflow", simulator=s) for s in ("reference", "kernel")
    ]
    assert found[0].phases == found[1].phases
    assert found[0].phases["all"].distinct > 0


def test_a_run_without_any_cache_says_so():
    """A whole model beside the card is a machine that exists; part of an expert on it is not."""
    result = simulate(random_trace(3), RunSpec(("tesla-p40",), Capacity(slots_per_layer=0), miss="cpu"))
    assert "no card has room for experts: every look-up misses" in result.warnings


def test_what_the_sizes_of_a_trace_lack_is_said(here, capsys):
    trace = random_trace(3)
    bare = replace(trace, geometry=replace(trace.geometry, head_bytes=0, hidden_size=0, expert_params=1))
    write_parquet(bare, here / "bare.parquet")
    for command in ("inspect bare.parquet", f"{RUN} --capacity 4MB".replace("tiny", "bare")):
        with pytest.raises(SystemExit) as stopped:
            main(command.split())
        said = capsys.readouterr().out
        assert stopped.value.code == 0
        assert "lack output head and hidden size, which then cost nothing: give the model with --model" in said
    assert "what a context of tiny occupies is not taken off (residency vram" in said
    whole = replace(bare.geometry, head_bytes=1, hidden_size=1)
    assert whole.gap == ""
    with pytest.raises(SimError, match="--model"):
        sizes_of(bare.geometry)


def test_layers_without_experts_take_vram_too():
    trace = random_trace(3)
    usable = load_profile("tesla-p40").gpu.vram_usable_bytes
    full = replace(trace, geometry=replace(trace.geometry, dense_only_bytes=usable))
    with pytest.raises(MisfitError, match=r"the engine's reserve, .* does not fit .* \(residency vram\)"):
        simulate(full, RunSpec(("tesla-p40",), Capacity(slots_per_layer=1)))


def test_a_card_without_layers_is_named(here):
    spec = RunSpec(("tesla-p40", "rtx-3090"), Capacity(slots_per_layer=2))
    assert "no layer is on card 2 of 2: layers_each says how many each" in simulate(random_trace(3), spec).warnings


SWEEPS = [("trace = ['tiny']", "trace = ['tiny']: expected a name"), ("scenario = ['a']", "expected a name")]


@pytest.mark.parametrize(("line", "words"), SWEEPS, ids=[line for line, _ in SWEEPS])
def test_a_sweep_names_traces_and_scenarios(line, words, here, capsys):
    (here / "sweep.toml").write_text(
        f'traces = {{ tiny = "tiny.parquet" }}\n[constants]\nhardware = "tesla-p40"\nslots_per_layer = 2\n{line}\n'
    )
    assert words in refused("sweep sweep.toml --out new", capsys)


@pytest.mark.slow
def test_damaged_files_are_named(here, capsys):
    (here / "noise.csv").write_bytes(b"\xf6\x00\xff")
    replay = "replay tiny.parquet --slots-per-layer 2 --eviction lru --placement profile:file="
    assert "noise.csv: not a text file" in refused(f"{replay}noise.csv", capsys)
    (here / "nan.csv").write_text("layer,expert,count\n0,1,nan\n")
    assert "nan.csv: line 2: expected numbers" in refused(f"{replay}nan.csv", capsys)
    (here / "live-x1.csv").write_bytes(b"\xf6\x00\xff")
    assert "live-x1.csv: not a text file" in refused("validate --group live --live .", capsys)
    for text in ("[1]", "null", "{}"):
        (here / "result.json").write_text(text)
        assert "result.json: not a result of" in refused("score result.json", capsys)
    (here / "out/cells").mkdir(parents=True)
    (here / "out/plan.json").write_text("{")
    (here / "out/journal.jsonl").write_text("")
    assert "plan.json: cannot be read" in refused("report out", capsys)
    (here / "out/plan.json").unlink()
    (here / "out/cells/part-00000.parquet").write_text("x")
    assert "part-00000.parquet: cannot be read" in refused("report out", capsys)
