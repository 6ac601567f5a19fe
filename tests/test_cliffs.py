"""Cliffs: at the size that is named a run is well, beyond it the simulator shows the fall."""

from __future__ import annotations

import io
import json
import pickle
from contextlib import redirect_stdout
from dataclasses import replace

import pytest

import expert_residency as er
from expert_residency.errors import MisfitError
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.cliffs import NEAR
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import make_spec
from expert_residency.sim.choices.workers import enough_workers, pool_gb_per_s, with_workers
from expert_residency.sim.cli import main
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.sweep.dataset import read_dataset
from expert_residency.traces import Phase, TraceBuilder, load_model, write_parquet
from expert_residency.traces.synthetic import generate, load_style

MODEL, MACHINE = "granite-3.0-1b-a400m", "rtx-3070"
GIB = 1 << 30


@pytest.fixture(scope="module")
def trace():
    return generate(load_model(MODEL), load_style("qwen3-30b-a3b"), tokens=60, seed=1, weights=False)


def chosen(**words):
    return make_spec({"hardware": MACHINE, "engine": "generic", "capacity": "25%"} | words)


def of_kind(kind, trace, spec, **more):
    return next(edge for edge in er.cliffs(trace, spec, **more) if edge.kind == kind)


def set_to(value):
    return Quantity(value=value, kind="assumed", source="a test")


def with_memory(nbytes, profile=None):
    """The machine with other memory, all of it lockable."""
    profile = profile or load_profile(MACHINE)
    ram = {"total_gib": set_to(nbytes / GIB), "pin_limit_gib": set_to(max(0.0, nbytes / GIB))}
    return profile.model_copy(update={"ram": profile.ram.model_copy(update=ram)})


def test_more_experts_than_vram_leaves_are_refused(trace):
    """The edge moves with the context, and one byte beyond it there is no run."""
    big = {"model": "qwen3-30b-a3b"}
    long = generate(load_model(big["model"]), load_style("qwen3-30b-a3b"), tokens=3, seed=1, weights=False)
    edge = of_kind("vram", long, chosen(capacity="100MiB"))
    assert (edge.side, edge.now, edge.warned) == ("above", 100 << 20, False)
    assert of_kind("vram", long, chosen(capacity="100MiB", depth=8000)).at < edge.at
    at = simulate(long, chosen(capacity=f"{int(edge.at)}B"))
    assert at.tokens_per_s
    assert [text for text in at.caveats if text.startswith("cliff: cliff, experts in VRAM")]
    assert "at the edge" in of_kind("vram", long, chosen(capacity=f"{int(edge.at)}B")).text
    over = chosen(capacity=f"{int(edge.at) + 1}B")
    assert of_kind("vram", long, over).past
    with pytest.raises(MisfitError, match="at most"):
        simulate(long, over)
    assert not [edge for edge in er.cliffs(trace, chosen(capacity="100MiB")) if edge.kind == "vram"], "all fit"
    auto = of_kind("vram", long, chosen(capacity="auto:context=4096"))
    assert (auto.left, auto.warned) == (0, False), "it is worked out from the room"


def test_below_its_floor_a_cache_hits_nothing():
    """Every token wants the same experts: at the floor a global LRU finds some again, below it none."""
    geometry = load_model(MODEL)
    builder = TraceBuilder(geometry)
    for token in range(30):
        builder.begin_pass(Phase.DECODE)
        for layer in geometry.layer_ids:
            builder.row(layer, list(range(geometry.top_k)), position=token)
    trace = builder.build()
    edge = of_kind("floor", trace, chosen())
    fits = simulate(trace, chosen(capacity=f"{int(edge.at)}B"))
    below = simulate(trace, chosen(capacity=f"{int(edge.at) - 1}B"))
    assert fits.decode_hit_rate() > 0 == below.decode_hit_rate()
    assert fits.tokens_per_s > below.tokens_per_s
    said = [text for text in below.caveats if text.startswith("cliff:")]
    assert ["hits nothing under a global LRU" in text for text in said] == [True]
    assert not [e for e in er.cliffs(trace, chosen(scope="layer")) if e.kind == "floor"]
    assert not [e for e in er.cliffs(trace, chosen(eviction="lfu")) if e.kind == "floor"]


@pytest.mark.parametrize(
    ("engine", "host"),
    [("generic", "mmap"), ("strata", "mmap"), ("generic", "gguf-in-place"), ("strata", "budget:gib=0.3")],
)
def test_memory_must_hold_all_experts_where_they_move(trace, host, engine):
    """What goes to a card stays in the page cache, where its victim is read again: not only what no card holds."""
    spec = chosen(engine=engine, host=host, capacity="40%")
    edge = of_kind("memory", trace, spec)
    held = int(0.4 * trace.geometry.all_expert_bytes)
    page_room = edge.at - load_profile(MACHINE).ram.os_reserve_bytes
    assert page_room >= trace.geometry.all_expert_bytes

    def run(nbytes):
        return simulate(trace, spec, profiles=[with_memory(nbytes)])

    roomy, at = run(4 * edge.at), run(edge.at + (1 << 20))
    assert roomy.link_bytes["disk"] == 0
    assert at.link_bytes["disk"] == 0
    assert at.tokens_per_s == roomy.tokens_per_s
    below = run(edge.at - held // 2)  # more than what no card holds
    assert below.link_bytes["disk"] > 0
    assert below.tokens_per_s < 0.95 * at.tokens_per_s
    assert [text for text in below.caveats if "read from the drive again" in text]
    assert not [text for text in roomy.caveats if "read from the drive again" in text]


def test_where_nothing_moves_memory_must_hold_what_no_card_holds(trace):
    spec = chosen(admission="never", placement="full", host="mmap", miss="cpu", capacity="50%")
    edge = of_kind("memory", trace, spec)
    whole, kept = trace.geometry.all_expert_bytes, load_profile(MACHINE).ram.os_reserve_bytes
    assert edge.at - kept == pytest.approx(whole / 2, rel=0.02)

    def later(nbytes):
        """Time of the last passes: before, a file read from front to back has not everything in memory yet."""
        return int(simulate(trace, spec, profiles=[with_memory(nbytes)]).pass_ns[30:].sum())

    assert later(edge.at + (8 << 20)) <= 1.05 * later(4 * edge.at)
    assert later(kept + 0.8 * (edge.at - kept)) > 1.03 * later(4 * edge.at)
    assert later(kept + 0.4 * (edge.at - kept)) > 1.2 * later(4 * edge.at)


@pytest.mark.parametrize("host", ["arena", "resident"])
def test_a_copy_that_memory_does_not_hold_is_refused(trace, host):
    spec = chosen(engine="strata", host=host, placement="full")
    edge = of_kind("memory", trace, spec)
    assert simulate(trace, spec, profiles=[with_memory(edge.at + (1 << 20))]).tokens_per_s
    with pytest.raises(MisfitError):
        simulate(trace, spec, profiles=[with_memory(edge.at - (1 << 20))])
    copied = edge.at - load_profile(MACHINE).ram.os_reserve_bytes
    assert copied / trace.geometry.all_expert_bytes == pytest.approx(1.0 if host == "arena" else 0.75, abs=0.01)


def test_workers_beyond_the_memory_gain_nothing(trace):
    """An engine that limits a core: each worker up to the edge adds, none beyond; measured points may fall."""
    preset, spec = load_engine("llama.cpp"), chosen(miss="cpu", admission="never", placement="none")
    base = load_profile(MACHINE)
    cores = base.cpu.model_copy(update={"cores": set_to(64), "workers": set_to(64)})
    many = base.model_copy(update={"cpu": cores})
    enough, most = enough_workers(many, preset, trace.geometry.quant_family)
    assert 1 < enough < most == 64

    def speed(profile, engine, workers):
        made = with_workers(profile, engine, workers)
        return simulate(trace, spec, profiles=[made], preset=engine).tokens_per_s

    assert speed(many, preset, enough - 2) < speed(many, preset, enough - 1) < speed(many, preset, enough)
    assert speed(many, preset, 64) == pytest.approx(speed(many, preset, enough + 1))
    points = {n: set_to(rate) for n, rate in ((1, 9.0), (4, 30.0), (8, 24.0))}
    falls = base.model_copy(
        update={"cpu": base.cpu.model_copy(update={"expert_gb_per_s_by_workers": points, "workers": set_to(8)})}
    )
    generic = load_engine("generic")
    assert enough_workers(falls, generic, "fp16") == (4, 8)
    assert speed(falls, generic, 4) > 1.1 * speed(falls, generic, 8)
    (said,) = [edge for edge in er.cliffs(trace, spec, profiles=[falls]) if edge.kind == "workers"]
    assert said.past
    assert "read less" in said.text
    assert [t for t in simulate(trace, spec, profiles=[falls]).caveats if t.startswith("cliff: cliff, workers")]
    rising = {n: set_to(9.0 * n) for n in (1, 4, 8)}
    cpu = falls.cpu.model_copy(update={"expert_gb_per_s_by_workers": rising})
    assert enough_workers(falls.model_copy(update={"cpu": cpu}), generic, "fp16") == (8, 8), "all pay"


def test_rates_of_workers_are_those_of_a_run(trace):
    """What the edge is found by is what the profile says with so many workers."""
    base, family = load_profile("tesla-p40"), trace.geometry.quant_family
    for engine in ("strata", "llama.cpp"):
        preset = load_engine(engine)
        for n in range(1, base.cpu.workers.count + 1):
            cpu = with_workers(base, preset, n).cpu
            core = preset.cpu_core_gb_per_s and cpu.most_gb_per_s(preset.cpu_core_gb_per_s.value)
            own = min(cpu.expert_mb_per_s("pinned", family), base.dram.shared_mb_per_s) / 1000
            assert pool_gb_per_s(base, preset, family, n) == pytest.approx(min(own, core or own), abs=0.002)


def printed(*arguments):
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert not ended.value.code
    return out.getvalue()


def test_cliffs_are_named_at_every_entrance(trace, tmp_path):
    """Run, sweep, tune's datasets, split and Python: near ones are caveats with the code `cliff`."""
    path = tmp_path / "t.parquet"
    write_parquet(trace, path)
    floor = of_kind("floor", trace, chosen()).at
    words = ("--hardware", MACHINE, "--engine", "generic", "--capacity", f"{int(floor * 0.9)}B")
    text = printed("run", path, *words)
    assert "cliffs: memory below" in text, "those that are far off, before the run"
    assert "caveat: cliff, an expert cache below" in text
    data = json.loads(printed("run", path, *words, "--json", "-"))
    kinds = {edge["kind"]: edge for edge in data["cliffs"]}
    assert (kinds["floor"]["past"], kinds["floor"]["at"]) == (True, floor)
    assert not kinds["memory"]["warned"]
    near = int(floor * (1 + NEAR / 2))
    file = tmp_path / "s.toml"
    file.write_text(
        f'[traces.t]\npath = "{path}"\n[constants]\nhardware = "{MACHINE}"\nengine = "generic"\n'
        f'[axes]\ncapacity = ["{near}B", "50%"]\n'
    )
    printed("sweep", file, "--out", tmp_path / "out", "--workers", "1")
    rows = read_dataset(tmp_path / "out")["caveats"]
    said = [[text for text in row if text.startswith("cliff:")] for row in rows]
    assert sorted(map(len, said)) == [0, 1]
    split = printed("split", "--model", MODEL, "--gpu", MACHINE, "--session", "5GiB", "--quant", "FP16")
    assert "cliffs: experts in VRAM above" in split
    told = json.loads(printed("split", "--model", MODEL, "--gpu", MACHINE, "--session", "1GiB", "--engine",
                              "strata", "--quant", "Q8_0", "--json", "-"))  # fmt: skip
    assert {edge["kind"] for edge in told["cliffs"]} >= {"memory"}


def test_a_remedy_is_in_the_words_of_the_command(trace, tmp_path, capsys):
    """The error says what does not fit; what helps is each command's own option."""
    path = tmp_path / "t.parquet"
    big = load_model("gpt-oss-120b")
    write_parquet(generate(big, load_style("gpt-oss-20b"), tokens=3, seed=1, weights=False), path)
    card = "rtx-3070:cpu=ryzen-5-5600x,ram=32GB"
    with pytest.raises(SystemExit) as ended:
        main(["run", str(path), "--hardware", card, "--capacity", "1GiB"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "an arena of gpt-oss-120b" in said
    assert "use --host mmap" in said
    file = tmp_path / "s.toml"
    file.write_text(
        f'misfits = "record"\n[traces.t]\npath = "{path}"\n[constants]\nhardware = "{card}"\n'
        f'engine = "generic"\n[axes]\ncapacity = ["1GiB"]\n'
    )
    printed("sweep", file, "--out", tmp_path / "out", "--workers", "1")
    (reason,) = read_dataset(tmp_path / "out")["reason"]
    assert 'host = "mmap"' in reason
    assert "--host" not in reason
    words = ["--model", "gpt-oss-120b", "--gpu", "rtx-3070", "--cpu", "ryzen-5-5600x", "--ram", "32GB"]
    with pytest.raises(SystemExit) as ended:
        main(["advise", *words, "--engine", "fetch-lru", "--passes", "4", "--draws", "2"])
    said = capsys.readouterr().err
    assert "an arena of gpt-oss-120b" in said
    assert "give more --ram" in said
    assert "--host" not in said
    words += ["--engine", "llama.cpp-moe-cache", "--passes", "4", "--draws", "2", "--json", "-"]
    found = json.loads(printed("advise", *words))
    assert found["setting"]["file"] == "mmap", "llama.cpp maps its file"
    assert found["tokens_per_s"] > 0
    assert next(edge for edge in found["cliffs"] if edge["kind"] == "memory")["past"]


def test_a_misfit_travels_whole():
    made = MisfitError("an arena takes 9 GiB", "use --host mmap", lacks="ram")
    other = pickle.loads(pickle.dumps(made))
    assert (str(other), other.fact, other.lacks) == (str(made), "an arena takes 9 GiB", "ram")
    assert other.told({"ram": "buy some"}) == "an arena takes 9 GiB; buy some"
    assert other.told({}) == "an arena takes 9 GiB"


def test_a_spec_that_does_not_add_up_has_no_cliffs(trace):
    assert er.cliffs(trace, replace(chosen(), layers_each=(1,))) == []
