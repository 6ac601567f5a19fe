"""Commands on real and on bad input: outputs that can be read back, one sentence and exit code 2 for faults."""

import json
import subprocess
import sys

import pytest

from expert_residency.traces import read_trace, write_parquet
from tests.test_engine import random_trace


def residency(*args, cwd=None):
    return subprocess.run(
        [sys.executable, "-c", "from expert_residency.sim.cli import main; main()", *map(str, args)],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "tiny.parquet"
    write_parquet(random_trace(3), path)
    return path


def test_help_names_every_command():
    done = residency("--help")
    assert done.returncode == 0
    for command in ("demo", "import", "inspect", "replay", "run", "list"):
        assert command in done.stdout


def test_help_loads_nothing_heavy():
    code = "import sys, expert_residency.sim.cli; expert_residency.sim.cli._register(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {
        "numpy",
        "pandas",
        "pyarrow",
        "simpy",
        "numba",
        "matplotlib",
        "altair",
        "pydantic",
        "torch",
    }


@pytest.mark.shared
def test_replay_gives_the_engines_own_numbers(shared):
    done = residency(
        "replay",
        shared / "traces/bigmoe-edge/qwen.route.csv",
        "--eviction",
        "lru",
        "--capacity",
        "4000MiB",
        "--json",
        "-",
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    lru = data["policies"]["lru"]
    assert round(100 * lru["phases"]["all"]["hit_rate_distinct"], 2) == 74.88
    assert round(100 * lru["phases"]["decode"]["hit_rate_distinct"], 2) == 80.29
    assert lru["engine_agreement"] == {"equal": 39526, "compared": 39526}
    assert set(data["policies"]) == {"lru", "belady", "min"}


@pytest.mark.shared
def test_replay_of_gpt_oss_gives_the_engines_own_numbers(shared):
    done = residency(
        "replay",
        shared / "traces/bigmoe-edge/gptoss.route.csv",
        "--eviction",
        "lru",
        "--capacity",
        "3000MiB",
        "--json",
        "-",
    )
    lru = json.loads(done.stdout)["policies"]["lru"]
    assert round(100 * lru["phases"]["all"]["hit_rate_distinct"], 2) == 32.41
    assert round(100 * lru["phases"]["decode"]["hit_rate_distinct"], 2) == 44.84
    assert lru["engine_agreement"] == {"equal": 6375, "compared": 6375}


def test_replay_prints_policies_bounds_and_warnings(trace_file):
    done = residency(
        "replay", trace_file, "--eviction", "lru", "--eviction", "lfu:counts=in-cache", "--slots-per-layer", 6
    )
    assert done.returncode == 0, done.stderr
    for expected in (
        "lru",
        "lfu:counts=in-cache",
        "min (bound)",
        "belady (bound)",
        "endless cache",
        "never exercised",
    ):
        assert expected in done.stdout


@pytest.mark.slow
def test_what_sees_the_future_is_marked(trace_file, tmp_path):
    """A fixed set by hindsight, an oracle by name, quotas by hindsight: none of them is a candidate."""
    star = "* sees the future"
    small = ("replay", trace_file, "--capacity", "6MB", "--eviction")
    assert star not in residency(*small, "lru").stdout
    assert "static *" in residency(*small, "static").stdout
    assert star in residency(*small, "lru", "--placement", "hindsight").stdout
    assert star in residency(*small, "lru", "--scope", "layer:hindsight").stdout
    assert "belady-window *" in residency("curve", trace_file, "--points", 2, "--eviction", "belady-window").stdout
    run = ("run", "--trace", trace_file, "--hardware", "tesla-p40", "--slots-per-layer", 2)
    said = "a policy sees the future"
    assert said not in residency(*run).stdout
    for more in (("--eviction", "static"), ("--placement", "hindsight"), ("--prefetch", "oracle")):
        assert said in residency(*run, *more).stdout
    sweep = residency(
        "sweep", "--trace", trace_file, "--out", tmp_path / "s", "--hardware", "tesla-p40", "--capacity", "50%",
        "--eviction", "static", "--eviction", "lru", "--prefetch", "none", "--json",
    )  # fmt: skip
    assert {row["eviction"] for row in json.loads(sweep.stdout)["best"]} == {"lru"}


def test_replay_warns_below_the_token_cycle(trace_file):
    done = residency("replay", trace_file, "--eviction", "lru", "--capacity", "5MB")
    assert "below one token's experts" in done.stdout


def test_run_writes_json_and_a_timeline(trace_file, tmp_path):
    out, timeline = tmp_path / "run.json", tmp_path / "timeline.json"
    done = residency(
        "run", "--trace", trace_file, "--hardware", "tesla-p40", "--slots-per-layer", 2, "--miss", "hybrid",
        "--json", out, "--timeline", timeline,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = json.loads(out.read_text())
    assert data["total_ns"] == sum(data["pass_ns"]) == sum(data["causes_ns"].values())
    assert f"{data['tokens_per_s']:,.2f}" in done.stdout
    assert json.loads(timeline.read_text())["traceEvents"]


def test_a_scenario_file_is_the_same_run_as_its_options(trace_file, tmp_path):
    scenario = tmp_path / "run.toml"
    scenario.write_text(
        f'trace = "{trace_file}"\nhardware = "rtx-5070"\nslots_per_layer = 2\neviction = "lfru"\n'
        'prefetch = "oracle:window=2"\n'
    )
    one = residency("run", scenario, "--json", "-")
    other = residency(
        "run", "--trace", trace_file, "--hardware", "rtx-5070", "--slots-per-layer", 2, "--eviction", "lfru",
        "--prefetch", "oracle:window=2", "--json", "-",
    )  # fmt: skip
    assert one.returncode == 0, one.stderr
    assert one.stdout == other.stdout
    choices = (
        "--hardware",
        "rtx-5070",
        "--slots-per-layer",
        2,
        "--eviction",
        "lfru",
        "--prefetch",
        "oracle:window=2",
    )
    assert residency("run", trace_file, *choices, "--json", "-").stdout == one.stdout
    twice = residency("run", trace_file, "--trace", trace_file, *choices)
    assert twice.returncode == 2
    assert "two traces are given" in twice.stderr


def test_what_starts_full_beside_bounds_that_start_empty_is_said(trace_file):
    said = "static: filled before the first look-up"
    for command in (("curve", "--points", 2), ("replay", "--slots-per-layer", 2)):
        assert said in residency(command[0], trace_file, *command[1:], "--eviction", "static").stdout
        assert "filled before" not in residency(command[0], trace_file, *command[1:], "--eviction", "lru").stdout


def test_an_import_is_called_parquet(trace_file, tmp_path):
    done = residency("import", trace_file, tmp_path / "copy.csv")
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "its name ends in .parquet" in done.stderr


def test_import_and_inspect_round_trip(trace_file, tmp_path):
    copy = tmp_path / "copy.parquet"
    assert residency("import", trace_file, copy).returncode == 0
    assert read_trace(copy).content_hash == read_trace(trace_file).content_hash
    done = residency("inspect", copy, "--layers", "--json", "-")
    assert json.loads(done.stdout)["lookups"] == 72
    assert "token cycle" in residency("inspect", copy).stdout


@pytest.mark.parametrize("kind", ["policies", "hardware", "models", "formats", "engines", "traces"])
def test_list(kind):
    done = residency("list", kind, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


BAD = [
    (["replay", "{trace}", "--eviction", "lur", "--capacity", "4MiB"], ["'lur'", "did you mean lru", "belady"]),
    (["replay", "{trace}", "--capacity", "4000"], ["no unit", "4000MiB"]),
    (["replay", "{trace}"], ["capacity is missing", "4000MiB", "32/layer"]),
    (["replay", "{trace}", "--capacity", "4MiB", "--scope", "layers"], ["unknown scope", "global, layer"]),
    (["replay", "{trace}", "--capacity", "4MiB", "--contract", "sequental"], ["unknown contract", "sequential"]),
    (["replay", "{trace}", "--capacity", "4MiB", "--eviction", "lfu:count=x"], ["unknown parameter", "counts"]),
    (["replay", "nowhere.csv", "--capacity", "4MiB"], ["nowhere.csv"]),
    (["replay", "bundled:nothing", "--capacity", "4MiB"], ["unknown bundled trace"]),
    (["replay", "{empty}", "--capacity", "4MiB"], ["empty.csv"]),
    (["inspect", "{junk}"], ["junk.bin"]),
    (["inspect", "{trace}", "--format", "parket"], ["parket", "parquet"]),
    (["inspect", "{trace}", "--model", "mixtral"], ["unknown model", "mixtral-8x7b"]),
    (["inspect", "{trace}", "--model", "mixtral-8x7b"], ["3 MoE layers", "32 MoE layers"]),
    (["run", "--trace", "{trace}", "--hardware", "rtx507", "--capacity", "4MiB"], ["rtx-5070"]),
    (["run", "--trace", "{trace}", "--hardware", "rtx-5070", "--capacity", "400GiB"], ["usable VRAM"]),
    (["run", "--trace", "{trace}", "--hardware", "rtx-5070", "--capacity", "4MiB", "--miss", "x"], ["hybrid"]),
    (["run", "--trace", "{trace}"], ["hardware is missing", "capacity is missing"]),
    (["run", "--hardware", "rtx-5070"], ["at least a trace"]),
    (["run", "{scenario}"], ["evction", "did you mean eviction"]),
    (["list", "policys"], ["policies, hardware"]),
]


@pytest.mark.parametrize(("args", "parts"), BAD, ids=[" ".join(args)[:60] for args, _ in BAD])
def test_bad_input_is_one_sentence_and_exit_code_2(args, parts, trace_file, tmp_path):
    files = {"empty": "empty.csv", "junk": "junk.bin", "scenario": "bad.toml"}
    paths = {name: tmp_path / file for name, file in files.items()} | {"trace": trace_file}
    paths["empty"].write_text("")
    paths["junk"].write_bytes(bytes(range(256)) * 8)
    paths["scenario"].write_text(
        'trace = "x.parquet"\nhardware = "rtx-5070"\ncapacity = "1GiB"\nevction = "lru"\n'
    )
    done = residency(*(str(a).format(**paths) for a in args))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    for part in parts:
        assert part in done.stderr
