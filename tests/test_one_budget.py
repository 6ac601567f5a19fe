"""One budget of VRAM for all entrances, and set-ups that every command which takes them answers alike."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

import expert_residency as er
from expert_residency.errors import MisfitError, UserError
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.choices.vram import card_budget, stage_budget
from expert_residency.sim.cli import main
from expert_residency.sim.runs.simulate import prepare, simulate
from expert_residency.sim.split.cards import Card
from expert_residency.sim.split.layers.study import study_layers
from expert_residency.sim.split.memory import needs_of
from expert_residency.sim.split.study import Question
from expert_residency.traces import Phase, write_parquet
from expert_residency.traces.synthetic import generate, load_style

CARD = "rtx-3070"
MODELS = ("gpt-oss-20b", "qwen3-30b-a3b", "deepseek-v2-lite/Q4_K_M", "olmoe-1b-7b")


def short(model: str, tokens: int = 3):
    return generate(er.load_model(model), load_style("gpt-oss-20b"), tokens=tokens, seed=1, weights=False)


@pytest.mark.parametrize("model", MODELS)
def test_what_vram_leaves_is_what_a_run_takes_and_one_slot_more_is_refused(model, tmp_path):
    """The same bytes at `vram`, `split`, `run` and a sweep's cell, with the context that the trace has."""
    trace, profile = short(model), load_profile(CARD)
    geometry = trace.geometry
    tokens = int(trace.row_position.max()) + 1 + 2_000
    left = card_budget(geometry, profile, context=tokens, kv_type="fp16", draft=False).cache_bytes
    needs = needs_of(geometry, context=tokens, kv_type="fp16", carve=True)
    card = Card.of(profile, geometry.quant_family)
    assert needs.budget(card, 0, 1, 0, geometry.n_layers).cache_bytes == left
    assert stage_budget(geometry, profile, 0, geometry.n_layers, needs.session).cache_bytes == left
    assert stage_budget(geometry, profile, 0, geometry.n_layers, needs.session, by_layer=True).cache_bytes == left

    def spec(nbytes: int) -> RunSpec:
        return RunSpec(CARD, Capacity(total_bytes=nbytes), depth=2_000, kv_type="fp16", miss="cpu")

    assert left < geometry.all_expert_bytes, "a model that fills the card"
    prepare(trace, spec(left))
    with pytest.raises(MisfitError, match=r"an expert cache of .* a context of 2,\d+ tokens \(fp16 KV\) and the"):
        prepare(trace, spec(left + 1))
    write_parquet(trace, tmp_path / "t.parquet")
    for nbytes, status in ((left, "ok"), (left + 1, "refused")):
        file = tmp_path / f"{status}.toml"
        file.write_text(
            f'misfits = "record"\n[traces.t]\npath = "{tmp_path}/t.parquet"\n[constants]\nhardware = "{CARD}"\n'
            f'capacity = "{nbytes}B"\nmiss = "cpu"\ndepth = 2000\nkv_type = "fp16"\n[axes]\neviction = ["lru"]\n'
        )
        frame = er.sweep(file, tmp_path / f"out-{status}", workers=1).frame
        assert (frame["status"].iloc[0] == "ok") == (status == "ok"), frame["reason"].iloc[0]


def answered(*words: str):
    """What a command prints as JSON."""
    out = StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as ended:
        main([*words, "--json", "-"])
    assert ended.value.code == 0
    return json.loads(out.getvalue())


@pytest.mark.parametrize(("engine", "kv"), [("generic", "fp16"), ("strata", "int8"), ("llama.cpp", "fp16")])
def test_keys_and_values_are_stored_as_the_engine_does_or_in_16_bits(engine, kv, tmp_path):
    """One default at `run`, capacity `auto`, `vram`, `split` and Python, and said by each."""
    trace = short("gpt-oss-20b")
    write_parquet(trace, tmp_path / "t.parquet")
    place = ("--model", "gpt-oss-20b", "--hardware", "rtx-3090")
    asked = answered("vram", *place, "--engine", engine)
    assert asked["kv"] == kv
    assert any(f"KV, {kv}," in line["line"] for line in asked["lines"])
    ran = answered("run", str(tmp_path / "t.parquet"), *place[2:], "--capacity", "auto", "--engine", engine)
    assert ran["manifest"]["spec"]["kv_type"] == kv
    assert any(f"({kv} KV" in said for said in (*ran["warnings"], *ran["caveats"]))
    fast = () if engine == "llama.cpp" else ("--simulate", "0")
    split = answered("split", *place[:2], "--gpu", "rtx-3090", "--engine", engine, *fast)
    assert split["kv"] == kv
    study = er.split(trace, "gpt-oss-20b", "rtx-3090", engine=engine, simulate=0)
    assert study.question.kv_type == kv
    assert er.RunSpec.for_engine(engine, "rtx-3090", "auto").kv_type == kv
    assert er.RunSpec.for_engine(engine, "rtx-3090", "auto:kv=q4_0").kv_type == "q4_0"


def test_a_context_is_stored_in_one_way():
    assert RunSpec(CARD, "auto:kv=int8").kv_type == "int8"
    assert RunSpec(CARD, "auto:kv=int8", kv_type="int8").capacity.auto.kv == "int8"
    with pytest.raises(UserError, match="auto:kv=int8 beside KV type fp16"):
        RunSpec(CARD, "auto:kv=int8", kv_type="fp16")


def test_a_longer_context_is_refused_where_a_short_one_fits():
    trace = short("gpt-oss-20b")
    room = Capacity(
        total_bytes=card_budget(trace.geometry, load_profile(CARD), context=4, kv_type="fp16").cache_bytes
    )
    prepare(trace, RunSpec(CARD, room))
    with pytest.raises(MisfitError, match="a context of 100,003 tokens"):
        prepare(trace, RunSpec(CARD, room, depth=100_000))


def test_what_is_assumed_is_said_and_a_capacity_that_was_worked_out_keeps_its_own(capsys):
    trace = short("gpt-oss-20b")
    found = simulate(trace, RunSpec(CARD, "20%", miss="cpu"), simulator="reference").caveats
    assert any("checked for a context of 3 tokens (fp16 KV), the trace's longest" in text for text in found)
    roomy = RunSpec(CARD, "auto:context=64,reserve=1MiB", depth=0)
    assert not any(text.startswith("context") for text in simulate(trace, roomy, simulator="reference").caveats)


SETUPS = [
    (model, cards, ram)
    for model in ("gpt-oss-20b", "deepseek-v2-lite/Q4_K_M", "granite-3.0-1b-a400m/Q8_0", "olmoe-1b-7b")
    for cards, ram in ((("rtx-3070",), 64), (("rtx-3070", "rtx-3070"), 64), (("tesla-p40", "rtx-3070"), 32))
]
"""A dozen: models x machines."""


def asked(command: list[str], folder: Path) -> dict:
    out = StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as end:
        main([*command, "--json", "-"])
    assert not end.value.code
    return json.loads(out.getvalue())


@pytest.mark.parametrize(("model", "cards", "ram"), SETUPS)
def test_a_set_up_is_answered_alike_by_every_command_that_takes_it(model, cards, ram, tmp_path, monkeypatch):
    """split plans, its rules agree, and run, a scenario and a sweep's cell of the same placement are as fast."""
    monkeypatch.chdir(tmp_path)
    trace = short(model, tokens=4)
    write_parquet(trace, tmp_path / "t.parquet")
    name, _, quant = model.partition("/")
    profiles = {card: load_profile(card) for card in cards}
    question = Question(
        name, (quant or None,), (cards,), cards[0], ram_bytes=ram * 10**9, engine="llama.cpp", kv_type="fp16",
        modes=("resident",), context=4,
    )  # fmt: skip
    (answer,) = study_layers(question, trace, profiles).answers
    simple = next(line for line in answer.lines if "-ot" not in line.options)
    placement = simple.placement
    words = dict(zip(simple.options[::2], simple.options[1::2], strict=True))
    rules = ["split", "--model", model, "--ram", f"{ram}GB", "--trace", "t.parquet", "--context", "4"]
    rules += [part for card in placement.cards for part in ("--gpu", card)] + ["--count", str(len(cards))]
    rules += ["--machine", cards[0], "--n-cpu-moe", words.get("--n-cpu-moe", "0"), "-ts", words.get("-ts", "1")]
    said = asked(rules, tmp_path)
    assert said["tokens_per_s"] == placement.tokens_per_s
    if placement.cards[0] != cards[0]:
        return  # the machine whose host it is must stand first in a run
    choices = {
        "hardware": "+".join(placement.cards), "capacity": "+".join(f"{n}B" for n in placement.expert_bytes),
        "layers_each": "+".join(map(str, placement.layers_each)), "engine": "llama.cpp",
    }  # fmt: skip
    ran = simulate(
        trace,
        RunSpec.for_engine("llama.cpp", **{k: v for k, v in choices.items() if k != "engine"}),
        simulator="reference",
    )
    decode = trace.pass_phase != Phase.PREFILL
    assert int(ran.pass_ns[decode].sum()) == placement.parts.ns
    command = ["run", "--trace", "t.parquet", "--simulator", "reference"]
    command += [part for key, value in choices.items() for part in (f"--{key.replace('_', '-')}", value)]
    whole = asked(command, tmp_path)
    assert whole["tokens_per_s"] == pytest.approx(ran.tokens_per_s)
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in choices.items())
    Path("s.toml").write_text(f'trace = "t.parquet"\n{lines}')
    assert asked(["run", "s.toml", "--simulator", "reference"], tmp_path)["tokens_per_s"] == whole["tokens_per_s"]
    Path("w.toml").write_text(f'traces = {{ t = "t.parquet" }}\n[constants]\n{lines}[axes]\nprefetch = ["none"]\n')
    frame = er.sweep("w.toml", tmp_path / "swept", workers=1).frame
    assert frame["tokens_per_s"].iloc[0] == pytest.approx(whole["tokens_per_s"])
    left = [
        stage_budget(trace.geometry, profiles[card], first, first + n, answer.problem.needs.session, by_layer=True)
        for card, n, first in zip(
            placement.cards,
            placement.layers_each,
            np.cumsum([0, *placement.layers_each[:-1]]).tolist(),
            strict=True,
        )
    ]
    assert [budget.cache_bytes for budget in left] == [budget.cache_bytes for budget in placement.budgets]


def test_a_host_that_holds_only_what_no_card_holds_says_how_to_start(tmp_path):
    """split fills the cards first; a run that starts empty is told so."""
    trace = short("qwen3.8-flash-next/UD-Q4_K_XL")
    small = RunSpec(
        "tesla-p40+tesla-p40", "15GiB+15GiB", layers_each=(24, 24), host="resident", miss="cpu", admission="never"
    )
    host = load_profile("tesla-p40")
    from expert_residency.sim.split.study import with_ram

    profiles = [with_ram(host, 64 * 10**9)] * 2
    with pytest.raises(UserError, match=r"start with full cards .--placement full."):
        prepare(trace, small, profiles=profiles)
    from dataclasses import replace

    prepare(trace, replace(small, placement="full"), profiles=profiles)
