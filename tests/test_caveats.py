"""What a result stands on is said at every entrance, by the same code."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import expert_residency as er
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.caveats import TraceFacts, caveats, texts
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.cli import main
from expert_residency.sim.runs.curve import hit_curve
from expert_residency.sim.runs.stream import replay_stream
from expert_residency.sim.studies import demo
from expert_residency.sim.sweep.dataset import read_dataset
from expert_residency.sim.timed.attention import lengths
from expert_residency.traces import Phase, RoutingTrace, TraceBuilder, load_model, write_parquet
from expert_residency.traces.synthetic import generate, load_style

MODEL, MACHINE = "granite-3.0-1b-a400m", "tesla-p40"
WORDS = ("--hardware", MACHINE, "--capacity", "40%")


@pytest.fixture(scope="module")
def trace() -> RoutingTrace:
    return generate(
        load_model(MODEL), load_style("qwen3-30b-a3b"), tokens=3, prompt_tokens=4, seed=1, weights=False
    )


@pytest.fixture(scope="module")
def file(trace, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("caveats") / "trace.parquet"
    write_parquet(trace, path)
    return path


def kinds(found) -> set[str]:
    return {str(caveat).partition(":")[0] for caveat in found}


def printed(*arguments: object) -> str:
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert not ended.value.code
    return out.getvalue()


def answered(*arguments: object) -> object:
    return json.loads(printed(*arguments, "--json", "-"))


COUNTED = {"synthetic", "short"}
TIMED = COUNTED | {"uncompared", "context", "cpu-rate"}
SAID = {
    "synthetic": "caveat: the trace is synthetic",
    "short": "caveat: it stands on 1 request and 3 decoded tokens",
    "uncompared": f"caveat: no measured run of {MODEL} on {MACHINE}",
    "context": "caveat: the card's memory was checked for a context of",
    "cpu-rate": "has no cpu.gflops",
    "file-size": "caveat: the sizes of",
}


def check_said(text: str, found: set[str]) -> None:
    """Each caveat is on screen once, and none but these."""
    for kind, sentence in SAID.items():
        assert (sentence in text) == (kind in found), (kind, text)


@pytest.mark.parametrize(
    ("label", "says"),
    [
        (
            "glm-4.6/Q4_K_M",
            "glm-4.6 taken here are what llama.cpp's quantizer gives; no published file of them was",
        ),
        ("glm-4.5-air/Q3_K_M", "a published file of the name glm-4.5-air/Q3_K_M has 51.01 GiB"),
        ("glm-5.2/int4-g64", "glm-5.2/int4-g64 were compared with no quantizer; no published file"),
        ("glm-4.5-air/Q4_K_M", ""),
        ("deepseek-v2-lite/BF16", ""),
    ],
)
def test_sizes_that_no_published_file_has_are_said(label, says):
    found = caveats(None, load_model(label), [load_profile(MACHINE)])
    said = [caveat.text for caveat in found if caveat.kind == "file-size"]
    assert len(said) == bool(says)
    assert all(says in text for text in said)
    assert "file-size" not in kinds(caveats(None, load_model(label)))


def test_each_check_fires_and_is_silent(trace):
    spec = RunSpec(hardware=(MACHINE,), capacity=Capacity(total_bytes=1 << 30), miss="cpu")
    profile = load_profile(MACHINE)
    base = kinds(caveats(trace, hardware=[profile], spec=spec))
    assert base == TIMED
    recorded = replace(trace, meta={})
    assert base - kinds(caveats(recorded, hardware=[profile], spec=spec)) == {"synthetic"}
    cut = trace.select_passes(np.arange(trace.n_passes) < 1)
    assert "short" in kinds(caveats(cut))
    facts = TraceFacts.of(trace)
    long = replace(facts, requests=frozenset(range(10)), decode_tokens=5000)
    assert base - kinds(caveats(long, hardware=[profile], spec=spec)) == {"short"}
    assert base - kinds(caveats(trace, hardware=[profile], spec=replace(spec, miss="fetch"))) == {"cpu-rate"}
    rate = Quantity(value=100.0, kind="assumed", source="a test's")
    quick = profile.model_copy(update={"cpu": profile.cpu.model_copy(update={"gflops": rate})})
    assert base - kinds(caveats(trace, hardware=[quick], spec=spec)) == {"cpu-rate"}
    assert base - kinds(caveats(trace, hardware=[profile], spec=spec, context_counted=True)) == {"context"}
    compared = replace(trace.geometry, name="Qwen3.8-Flash-Next", layer_ids=trace.geometry.layer_ids)
    assert "uncompared" not in kinds(caveats(None, compared, [profile]))
    headless = replace(trace.geometry, head_bytes=0)
    assert kinds(caveats(None, headless, [profile])) - kinds(caveats(None, trace.geometry, [profile])) == {"sizes"}
    hollow = replace(trace.geometry, dense_bytes=(0,) * trace.geometry.n_layers)
    assert kinds(caveats(None, hollow, [profile])) - kinds(caveats(None, trace.geometry, [profile])) == {"dense"}
    assert "dense" not in kinds(caveats(None, hollow))  # hits need no times


def test_a_part_of_the_layers_is_said():
    whole = load_model(MODEL)
    part = replace(
        whole,
        layer_ids=whole.layer_ids[:2],
        expert_bytes=whole.expert_bytes[:2],
        dense_bytes=whole.dense_bytes[:2],
    )
    assert "partial" in kinds(caveats(None, part))
    builder = TraceBuilder(whole)
    builder.begin_pass(Phase.DECODE)
    for layer in whole.layer_ids:
        builder.row(layer, list(range(whole.top_k)))
    complete = TraceFacts.of(builder.build())
    assert "partial" not in kinds(caveats(complete))
    found = [c.text for c in caveats(replace(complete, layers=frozenset({0}))) if c.kind == "partial"]
    assert found == [
        f"1 of the {whole.n_layers} MoE layers of {MODEL} are in it: times, bytes and hits are those of a part"
    ]


def test_python_results_have_them(trace):
    spec = RunSpec(hardware=(MACHINE,), capacity=Capacity(total_bytes=1 << 30), miss="cpu")
    result = er.simulate(trace, spec)
    assert kinds(result.caveats) == TIMED == kinds(result.to_dict()["caveats"])
    counted = er.replay(trace, "lru", "25%")
    assert kinds(counted.caveats) == COUNTED == kinds(counted.to_dict()["caveats"])
    assert kinds(hit_curve(trace, "lru", ["25%", "50%"])[1].caveats) == COUNTED
    assert counted.caveats == texts(caveats(trace))


def test_a_streamed_replay_has_them(trace):
    pytest.importorskip("numba")
    parts = [trace.select_passes(np.arange(trace.n_passes) // 2 == i) for i in range(2)]
    (result,) = replay_stream(parts, trace.geometry, ["lru"], "25%")
    assert result.caveats == texts(caveats(trace))


def test_run(file):
    assert kinds(answered("run", "--trace", file, *WORDS, "--miss", "cpu")["caveats"]) == TIMED
    check_said(printed("run", "--trace", file, *WORDS, "--miss", "cpu"), TIMED)


def test_a_capacity_that_leaves_room_for_a_context_does_not_leave_it_out(file):
    found = answered("run", "--trace", file, "--hardware", MACHINE, "--capacity", "auto", "--miss", "cpu")
    assert kinds(found["caveats"]) == TIMED - {"context"}


def test_replay_and_curve(file):
    for command in (["replay", file, "--capacity", "25%"], ["curve", file, "--eviction", "lru", "--points", 2]):
        assert kinds(answered(*command)["caveats"]) == COUNTED
        check_said(printed(*command), COUNTED)


def test_vram_and_split(file):
    vram = ["vram", "--model", MODEL, "--hardware", MACHINE]
    assert kinds(answered(*vram)["caveats"]) == {"uncompared"}
    check_said(printed(*vram), {"uncompared"})
    split = ["split", "--model", MODEL, "--gpu", MACHINE, "--trace", file]
    found = answered(*split)["caveats"]
    assert kinds(found) == COUNTED | {"uncompared", "quality", "file-size"}
    assert len([said for said in found if said.startswith("file-size")]) == 1  # of three quantizations
    check_said(printed(*split), COUNTED | {"uncompared", "quality", "file-size"})
    one = [*split, "--quant", "FP16"]
    assert kinds(answered(*one)["caveats"]) == COUNTED | {"uncompared"}
    rules = [*split, "--n-cpu-moe", 2]
    assert kinds(answered(*rules)["caveats"]) == COUNTED | {"uncompared"}
    check_said(printed(*rules), COUNTED | {"uncompared"})


def test_sweep_report_and_score(file, tmp_path):
    out = tmp_path / "swept"
    choices = [
        "--hardware",
        MACHINE,
        "--capacity",
        "40%",
        "--eviction",
        "lru",
        "--eviction",
        "lfu",
        "--miss",
        "cpu",
    ]
    text = printed("sweep", "--trace", file, *choices, "--prefetch", "none", "--out", out, "--workers", 1)
    check_said(text, TIMED)
    assert "(2 of 2 cells)" in text
    assert all(kinds(found) == TIMED for found in read_dataset(out)["caveats"])
    check_said(printed("score", out), TIMED)
    assert all(kinds(made["caveats"]) == TIMED for made in answered("score", out))
    pytest.importorskip("vl_convert")
    printed("report", out, "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "What the numbers stand on" in page
    assert "the trace is synthetic" in page


def test_predictor(file):
    few = ["--recalls", "1", "--precisions", "1", "--windows", "1", "--rank-qualities", "1", "--workers", 1]
    command = ["predictor", file, "--hardware", MACHINE, "--capacity", "40%", *few]
    assert kinds(answered(*command)["caveats"]) == TIMED - {"cpu-rate"}  # misses are fetched
    text = printed(*command)  # of the last passes only
    check_said(text.replace("2 decoded tokens", "3 decoded tokens"), TIMED - {"cpu-rate"})


def test_tune(file, tmp_path):
    pytest.importorskip("optuna")
    path = tmp_path / "tune.toml"
    path.write_text(
        f"""
        [choices]
        trace = "t"
        hardware = "{MACHINE}"
        capacity = "40%"
        eviction = "lru-k:k={{k}}"
        miss = "cpu"

        [parameters]
        k = {{ low = 1, high = 2 }}

        [traces.t]
        path = "{file}"
        """,
        encoding="utf-8",
    )
    check_said(printed("tune", path, "--out", tmp_path / "tuned", "--trials", 1), TIMED)


def test_demo(trace, monkeypatch):
    monkeypatch.setattr(demo, "demo_trace", lambda name, passes: trace)
    spec = RunSpec(hardware=(MACHINE,), capacity=Capacity(total_bytes=1 << 30))
    (run,) = demo.run_demo([("t", MACHINE, "lru", spec)], None, 1, lambda done: None)
    assert {"synthetic", "short", "uncompared", "context"} <= kinds(run.result.caveats)


def test_windows_and_drafts_have_them(file, trace, tmp_path):
    single = tmp_path / "decode.parquet"
    write_parquet(trace.select_passes(trace.pass_phase == Phase.DECODE), single)
    for command, expected in (
        (("window", file), COUNTED),
        (("window", file, "--slots", "200", "--horizon", "1", "--link", MACHINE), COUNTED | {"uncompared"}),
        (("drafts", single, *WORDS, "--miss", "cpu", "--rows", "2"), TIMED - {"cpu-rate"}),
    ):
        check_said(printed(*command), expected)
        found = answered(*command)
        assert isinstance(found, dict)
        assert kinds(found["caveats"]) == expected


def test_a_table_without_positions_counts_context_from_its_rows(tmp_path):
    rows = ["request,pass,layer,experts"]
    for number, (request, length) in enumerate([(0, 3), (1, 2), (0, 1), (1, 1), (0, 1)]):
        rows += [f'{request},{number},{layer},"0 1 2 3 4 5 6 7"' for layer in range(24) for _ in range(length)]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    columns = "request=request,pass=pass,layer=layer,experts=experts"
    path = tmp_path / "t.parquet"
    said = printed("import", tmp_path / "t.csv", path, "--model", MODEL, "--columns", columns)
    assert "counted from the rows of each request" in said
    read = er.read_trace(path)
    assert lengths(read, 0).tolist() == [3, 2, 4, 3, 5]
    assert read.row_position[:3].tolist() == [0, 1, 2]
    spec = RunSpec(hardware=(MACHINE,), capacity=Capacity(slots_per_layer=16))
    found = {caveat.kind: caveat.text for caveat in caveats(read, hardware=[load_profile(MACHINE)], spec=spec)}
    assert "counted from the rows of each request; give --depth" in found["positions"]
    assert "a context of 5 tokens" in found["context"]


def test_a_stored_trace_without_positions_says_that_it_has_no_context(trace):
    spec = RunSpec(hardware=(MACHINE,), capacity=Capacity(slots_per_layer=16))
    bare = replace(trace, row_position=np.full_like(trace.row_position, -1))
    found = {caveat.kind: caveat.text for caveat in caveats(bare, hardware=[load_profile(MACHINE)], spec=spec)}
    assert "reads the --depth tokens (0) and no more" in found["positions"]
    assert "a context of 1 token (" in found["context"]
    whole = caveats(trace, hardware=[load_profile(MACHINE)], spec=spec)
    assert "positions" not in {caveat.kind for caveat in whole}


def test_drafts_that_cost_nothing_are_named():
    model = load_model(MODEL)
    style = load_style("qwen3-30b-a3b")
    windows = generate(model, style, tokens=6, draft_tokens=2, seed=1, weights=False)
    single = generate(model, style, tokens=6, seed=1, weights=False)
    for engine, trace, named in (
        ("fetch-lru", windows, True), ("strata", windows, False), ("strata-reference", windows, False),
        ("llama.cpp", windows, False), ("fetch-lru", single, False),
    ):  # fmt: skip
        spec = RunSpec.for_engine(engine, MACHINE, "1GiB")
        assert ("drafts" in kinds(caveats(trace, spec=spec))) == named, engine
