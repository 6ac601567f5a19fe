"""Engine presets: what ships, the rules they state, and how a run takes their choices."""

import pytest

from expert_residency.errors import SimError
from expert_residency.policies import create
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import EnginePreset, list_engines, load_engine
from expert_residency.sim.choices.scenario import build_scenario
from expert_residency.sim.choices.spec import RunSpec

NAMES = (
    "bigmoe-edge", "fetch-lru", "freetoken-hybrid", "generic", "ik_llama.cpp", "imp", "ktransformers", "llama.cpp",
    "llama.cpp-expert-cache", "llama.cpp-moe-cache", "ncmoe", "strata", "strata-0.1.31", "strata-reference",
)  # fmt: skip


def test_the_presets_are_there():
    assert set(NAMES) <= set(list_engines())


@pytest.mark.parametrize("name", [n for n in NAMES if n != "generic"])
def test_a_preset_says_what_is_measured_and_what_is_assumed_and_its_policies_exist(name):
    preset = load_engine(name)
    assert preset.name == name
    notes = " ".join(preset.notes)
    assert "assumed" in notes or "fitted" in notes
    for kind in ("eviction", "admission", "placement"):
        if kind in preset.policy:
            create(kind, preset.policy[kind])


def test_what_is_llama_cpp_has_one_number_for_each_time():
    """A CPU layer once cost 118 us in one of them and 35 in another, and launches nothing in the cache's."""
    ours = load_engine("llama.cpp")
    times = [n for n in EnginePreset.model_fields if n.endswith(("_us", "_gb_per_s")) or n == "dense_launches"]
    assert {"cpu_layer_us", "cpu_core_gb_per_s", "draft_us", "pass_us"} <= set(times)
    for name in ("llama.cpp-moe-cache", "ik_llama.cpp", "ktransformers", "ncmoe"):
        other = load_engine(name)
        assert {n: getattr(other, n) for n in times} == {n: getattr(ours, n) for n in times}
    assert load_engine("llama.cpp-moe-cache").expert_launches == ours.expert_launches
    assert load_engine("llama.cpp-moe-cache").places == "experts"
    with pytest.raises(SimError, match="unknown engine"):
        load_engine("_llama.cpp")


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("llama.cpp", ("PR 232", "PR 20596", "PR 22673", "not fitted by", "RX 6900 XT")),
        ("llama.cpp-moe-cache", ("PR 27861", "no speed of this cache was compared")),
        ("ktransformers", ("nothing was fitted", "13.4 tokens/s where 12.6")),
        ("imp", ("24 slots", "73 (74.1 %", "not explained: 88.7 %")),
    ],
)
def test_a_preset_names_the_runs_behind_its_numbers_and_those_they_do_not_fit(name, runs):
    preset = load_engine(name)
    numbers = [value.source for _, value in preset if hasattr(value, "source")]
    said = " ".join((preset.source, *preset.notes, *numbers))
    assert [run for run in runs if run not in said] == []


@pytest.mark.parametrize(
    ("engine", "link_gb_per_s", "printed"),
    [
        ("strata-0.1.31", 14.2, 0.30),
        ("strata", 18.2, 0.50),
        ("strata", 18.7, 0.52),
        ("strata", 19.3, 0.53),
        ("strata", 28.3, 0.55),
    ],
)
def test_the_share_over_pcie_is_the_one_that_logs_print(engine, link_gb_per_s, printed):
    preset = load_engine(engine).model_copy(update={"pcie_per_layer": None})
    assert preset.fetched(256, round(link_gb_per_s * 1000), 1) / 256 == pytest.approx(printed, abs=0.009)


def test_the_share_is_in_whole_256ths_rounded_down_and_capped():
    strata = load_engine("strata")
    assert [strata.fetched(n, 28_000, 1) for n in (0, 1, 2, 8, 100)] == [0, 0, 1, 4, 16]
    balanced = load_engine("freetoken-hybrid")
    assert balanced.fetched(10, 30_000, 30_000) == 5


def test_a_base_gives_what_the_file_does_not(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('base = "strata"\nname = "mine"\nfill = true\n')
    mine = load_engine(str(file))
    assert isinstance(mine, EnginePreset)
    assert mine.fill
    assert mine.draft_ns == load_engine("strata").draft_ns
    file.write_text('base = "strata"\nname = "mine"\nfil = true\n')
    with pytest.raises(SimError, match="fil"):
        load_engine(str(file))


def test_a_scenario_takes_the_engines_choices_unless_it_has_its_own():
    data = {"trace": "bundled:tinymoe-code", "hardware": "rtx-5070", "slots_per_layer": 4}
    llama = build_scenario(data | {"engine": "llama.cpp-expert-cache"}).spec
    assert (llama.admission, llama.capacity.scope) == ("cap:per_event=2", "layer")
    room = Capacity(slots_per_layer=4)
    assert RunSpec.for_engine("llama.cpp-expert-cache", ("rtx-5070",), room) == llama
    own = build_scenario(
        data | {"engine": "llama.cpp-expert-cache", "admission": "always", "scope": "global"}
    ).spec
    assert (own.admission, own.capacity.scope) == ("always", "global")


def test_a_preset_may_fetch_nothing(tmp_path):
    """A share of 0 over the link is the best setting of many machines: then hybrid is what cpu is."""
    from expert_residency.sim.choices.capacity import Capacity
    from expert_residency.sim.choices.spec import RunSpec
    from expert_residency.sim.runs.simulate import simulate
    from tests.test_engine import random_trace

    trace, found = random_trace(5), {}
    for miss in ("hybrid", "cpu"):
        path = tmp_path / f"{miss}.toml"
        share = 'pcie_share = { value = 0, kind = "measured", source = "a test" }'
        path.write_text(f'base = "generic"\nname = "{miss}"\nfill = false\n{share}\n')
        spec = RunSpec(("tesla-p40",), Capacity(slots_per_layer=3), miss=miss, engine=str(path))
        found[miss] = simulate(trace, spec)
    assert found["hybrid"].pass_ns.tolist() == found["cpu"].pass_ns.tolist()
    assert found["hybrid"].link_bytes == found["cpu"].link_bytes
