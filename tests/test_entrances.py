"""One language at every entrance: the same words become the same choices, or are refused with the same sentence.

Each entrance takes words by the names of the table and gives the run that it would make, its capacity settled for
the trace; what it raises is the refusal. No run is simulated.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import expert_residency as er
from expert_residency.errors import UserError
from expert_residency.sim.choices.capacity import NO_MACHINE
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import CHOICES, DEFAULTS, FIELDS, RunSpec
from expert_residency.sim.choices.trace import fit_geometry
from expert_residency.sim.cli import _register, app
from expert_residency.sim.cli.choices import ALL
from expert_residency.sim.runs import simulate as running
from expert_residency.sim.runs.curve import hit_curve
from expert_residency.sim.runs.variants import load_variants, open_scenario_trace
from expert_residency.sim.split import study as splitting
from expert_residency.sim.split.layers import study as layering
from expert_residency.sim.studies import drafts as drafting
from expert_residency.sim.studies import predictor as predicting
from expert_residency.sim.studies.tune import load_tune
from expert_residency.sim.sweep.cells import make_cell, plan_cells
from expert_residency.sim.sweep.rows import COLUMNS, room_row
from expert_residency.sim.sweep.spec import SweepFile, load_sweep
from expert_residency.sim.sweep.stored import store
from expert_residency.traces import RoutingTrace, write_parquet
from expert_residency.traces.synthetic import generate, load_style

MODEL = "granite-3.0-1b-a400m"
PLAIN = {"hardware": "tesla-p40", "capacity": "25%", "eviction": "lru", "prefetch": "none", "miss": "cpu"}
TWO = {"hardware": "tesla-p40+rtx-3090", "layers_each": [10, 14]}


class Reached(Exception):
    """A command has made its choices and would run now."""


@cache
def trace() -> RoutingTrace:
    model, style = er.load_model(MODEL), load_style("qwen3-30b-a3b")
    return generate(model, style, tokens=3, prompt_tokens=4, seed=1, weights=False)


@cache
def commands() -> Any:
    """The command line, built once; `main` builds it anew, and makes a sentence of what is raised."""
    _register()
    return typer.main.get_command(app)


class House:
    """A folder with a trace, and every way in."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.found: dict[str, Any] = {}
        self.trace = trace()
        write_parquet(self.trace, folder / "tiny.parquet")
        self.stored = {"tiny": str(store(self.trace, folder / "cache"))}
        for module, name in ((running, "simulate"), (predicting, "study"), (drafting, "window_costs")):
            patch.setattr(module, name, lambda trace, spec, *_, **__: self.reached(spec=self.checked(spec, trace)))
        for module, name in ((splitting, "study"), (layering, "study_layers")):
            patch.setattr(module, name, lambda question, *_: self.reached(question=question))
        patch.setattr("expert_residency.sim.sweep.sweep", lambda *_, keep, **__: self.reached(text=keep))
        patch.chdir(folder)

    def reached(self, **found: Any) -> None:
        self.found = found
        raise Reached

    def checked(self, spec: RunSpec, trace: RoutingTrace) -> RunSpec:
        running.prepare(trace, spec)
        return spec.settled(trace.geometry)

    def command(self, *args: str) -> None:
        """Run a command until it has made its choices."""
        with suppress(Reached):
            commands()(list(args), standalone_mode=False)

    def options(self, words: Mapping[str, Any], *, several: bool = False) -> list[str]:
        made = []
        for key, value in words.items():
            for item in value if isinstance(value, list) and not several else [value]:
                text = "+".join(map(str, item)) if isinstance(item, list) else str(item)
                made += [f"--{key.replace('_', '-')}", text]
        return made

    def python(self, words: dict[str, Any]) -> RunSpec:
        trace, own = self.trace, dict(words)
        if (model := own.pop("model", None)) is not None:
            trace = fit_geometry(trace, er.load_model(model))
        return self.checked(er.RunSpec(**own), trace)

    def run(self, words: dict[str, Any]) -> RunSpec:
        capacity = words.get("capacity")
        joined = {"capacity": "+".join(capacity)} if isinstance(capacity, list) else {}
        self.command("run", "--trace", "tiny.parquet", *self.options(words | joined))
        return self.found["spec"]

    def predictor(self, words: dict[str, Any]) -> RunSpec:
        own = {key: value for key, value in words.items() if key not in ("prefetch", "placement")}
        self.command("predictor", "tiny.parquet", *self.options(own, several=True))
        return replace(self.found["spec"], **{key: words[key] for key in words.keys() - own.keys()})

    def drafts(self, words: dict[str, Any]) -> RunSpec:
        self.command("drafts", "tiny.parquet", *self.options(words, several=True))
        return self.found["spec"]

    def scenario(self, words: dict[str, Any]) -> RunSpec:
        Path("scenario.toml").write_text('trace = "tiny.parquet"\n' + toml(words))
        (variant,) = load_variants("scenario.toml")
        return self.checked(variant.scenario.spec, open_scenario_trace(variant.scenario))

    def planned(self, text: str) -> RunSpec:
        Path("sweep.toml").write_text(text)
        (cell,) = plan_cells(*load_sweep("sweep.toml"), self.folder / "cache")
        return cell.spec

    def sweep(self, words: dict[str, Any]) -> RunSpec:
        return self.planned('traces = { tiny = "tiny.parquet" }\n[constants]\n' + toml(words))

    def quick_sweep(self, words: dict[str, Any]) -> RunSpec:
        args = self.options(words, several=True)
        self.command("sweep", "--trace", "tiny.parquet", "--out", "out", *args)
        return self.planned(self.found["text"].replace("misfits", "# misfits"))

    def tune(self, words: dict[str, Any]) -> RunSpec:
        choices = dict(words) | {"start": "{start}"}
        parameters = {"start": {"values": ["warm", "cold"]}}
        file, _ = load_tune({"traces": {"tiny": "tiny.parquet"}, "choices": choices, "parameters": parameters})
        own = {key: value for key, value in file.choices.items() if key != "start"}
        cell = make_cell(0, own, SweepFile(traces=file.traces), self.stored)
        if cell.misfit is not None:  # a trial without numbers
            raise UserError(cell.misfit)
        return cell.spec

    def replay(self, words: dict[str, Any]) -> tuple[int, str]:
        self.command(
            "replay", "tiny.parquet", "--simulator", "reference", "--json", "out.json",
            *self.options(words, several=True),
        )  # fmt: skip
        found = json.loads(Path("out.json").read_text())
        return found["capacity_bytes"], found["scope"]

    def curve(self, words: dict[str, Any]) -> tuple[int, str]:
        scope = {"scope": "global"} | words
        self.command(
            "curve", "tiny.parquet", "--simulator", "reference", "--json", "out.json",
            *self.options(scope, several=True),
        )  # fmt: skip
        found = json.loads(Path("out.json").read_text())
        (point,) = found["policies"]["min"]
        return point["capacity_bytes"], found["scope"].partition(":")[0]

    def python_replay(self, words: dict[str, Any]) -> tuple[int, str]:
        own = {"eviction": "lru"} | words
        result = er.replay(
            self.fitted(own), own.pop("eviction"), own.pop("capacity"), simulator="reference", **own
        )
        return result.capacity_bytes, result.scope

    def python_curve(self, words: dict[str, Any]) -> tuple[int, str]:
        own = {"eviction": "lru"} | words
        trace, eviction, capacity = self.fitted(own), own.pop("eviction"), own.pop("capacity")
        (point,) = hit_curve(trace, eviction, [capacity], simulator="reference", **own)
        return point.capacity_bytes, str(words.get("scope", "global")).partition(":")[0]

    def fitted(self, own: dict[str, Any]) -> RoutingTrace:
        model = own.pop("model", None)
        return self.trace if model is None else fit_geometry(self.trace, er.load_model(model))


def toml(words: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in words.items())


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    return House(tmp_path, monkeypatch)


Run = Callable[[House, dict[str, Any]], RunSpec]
RUNS: tuple[Run, ...] = (
    House.python, House.run, House.predictor, House.drafts, House.scenario, House.sweep, House.quick_sweep,
    House.tune,
)  # fmt: skip
COUNTS: tuple[Callable[[House, dict[str, Any]], tuple[int, str]], ...] = (
    House.python_replay, House.python_curve, House.replay, House.curve
)  # fmt: skip
COUNTED = ("capacity", "scope", "eviction", "model")
"""Words that a replay and a curve take."""

TAKEN: dict[str, dict[str, Any]] = {
    "bytes": {"capacity": "100MiB"},
    "decimal bytes": {"capacity": "0.2 GB"},
    "a share": {"capacity": "37.5%"},
    "slots": {"capacity": "8/layer"},
    "what VRAM leaves": {"capacity": "auto:session=600MiB,reserve=1GiB"},
    "a list of one": {"capacity": ["100MiB"]},
    "one share for two cards": TWO | {"capacity": "25%"},
    "two shares": TWO | {"capacity": "50%+25%"},
    "two sizes": TWO | {"capacity": ["100MiB", "200MiB"], "layers_each": "10+14"},
    "two cards with what VRAM leaves": TWO | {"capacity": "auto:session=600MiB"},
    "quotas of layers": {"scope": "layer"},
    "quotas by a ranking": {"scope": "layer:prompt", "capacity": "200MiB"},
    "policies": {"eviction": "lfu:counts=in-cache", "admission": "two-hit"},
    "oracles": {"prefetch": "oracle:window=2", "placement": "hindsight", "insertion": "staging:slots=2"},
    "a model": {"model": f"{MODEL}/Q8_0", "capacity": "25%"},
    "limits": {"prefetch_bytes": "64MiB", "predict_us": 2, "host": "mmap:access=fault", "engine": "strata"},
}


@pytest.mark.parametrize("words", TAKEN.values(), ids=TAKEN)
def test_the_same_words_are_the_same_run(words: dict[str, Any], house: House) -> None:
    if "engine" in words:  # what a preset chooses is left to it
        words = {key: value for key, value in (PLAIN | words).items() if key != "eviction"}
        runs, expected = (House.run, House.scenario, House.sweep, House.tune), house.scenario(words)
        assert expected.admission == load_engine("strata").policy["admission"]
    else:
        words = PLAIN | words
        runs, expected = RUNS, house.python(words)
    assert {run.__name__: run(house, words) for run in runs} == {run.__name__: expected for run in runs}
    counted = {key: value for key, value in words.items() if key in COUNTED}
    if len(expected.hardware) == 1 and "auto" not in counted["capacity"]:
        trace = house.fitted(dict(words))
        assert room_row(trace, expected)["capacity_bytes"] == pytest.approx(
            house.python_replay(counted)[0], rel=0.01
        )
        assert len({count(house, counted) for count in COUNTS}) == 1


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no unit": ({"capacity": "4000"}, "size 4000 has no unit"),
    "no size": ({"capacity": "much"}, "cannot read the size 'much'"),
    "more than all": ({"capacity": "101%"}, "expected a share from 0% to 100%"),
    "no share": ({"capacity": "x%"}, "expected a share from 0% to 100%"),
    "no slots": ({"capacity": "8/layers"}, "cannot read the capacity '8/layers'"),
    "a mixed list": ({"capacity": "4GiB+25%"}, "cannot read the capacity"),
    "too many cards": ({"capacity": "50MiB+50MiB"}, "capacities of 2 card(s) given for 1"),
    "too many shares": ({"capacity": "5%+5%"}, "capacities of 2 card(s) given for 1"),
    "less than an expert": ({"capacity": "1kB"}, "one expert takes"),
    "a misspelt parameter": ({"capacity": "auto:contxt=5"}, "unknown parameter 'contxt'; did you mean context?"),
    "no scope": ({"scope": "layers"}, "unknown scope 'layers' (known: global, layer, layer:PLACEMENT)"),
    "no placement": ({"scope": "layer:promt"}, "unknown placement policy 'promt'; did you mean prompt?"),
    "a global quota": ({"scope": "global:prompt"}, "quotas of layers need scope layer"),
    "quotas of slots": ({"scope": "layer:prompt", "capacity": "8/layer"}, "nothing to share out by quotas"),
    "no policy": ({"eviction": "lruu"}, "unknown eviction policy 'lruu'; did you mean lru?"),
    "no parameter": ({"eviction": "lfu:count=x"}, "unknown parameter 'count'; did you mean counts?"),
    "no model": ({"model": "granit-3.0-1b-a400m"}, f"did you mean {MODEL}?"),
    "no quantization": ({"model": f"{MODEL}/Q9"}, "unknown quantization 'Q9'"),
    "no machine": ({"hardware": "rtx507"}, "did you mean rtx-5070"),
    "half a machine": ({"hardware": "tesla-p40+"}, "hardware is 'tesla-p40+', expected a name"),
    "no layers": ({"layers_each": "a+b"}, "expected whole numbers"),
    "no miss mode": ({"miss": "cpuu"}, "unknown miss mode 'cpuu'"),
}


def sentence(entrance: Callable[[House, dict[str, Any]], object], house: House, words: dict[str, Any]) -> str:
    """With which the words are refused."""
    with pytest.raises(UserError) as refused:
        entrance(house, words)
    return " ".join(str(refused.value).split())


@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED)
def test_what_one_refuses_all_refuse_with_one_sentence(words: dict[str, Any], said: str, house: House) -> None:
    own = PLAIN | words
    expected = sentence(House.python, house, own)
    assert said in expected
    counts = COUNTS if words.keys() <= {*COUNTED} else ()
    if "parameter 'contxt'" in said or "one expert takes" in said:
        counts = COUNTS[:1]
    for entrance in (*RUNS, *counts):
        shown = {key: value for key, value in own.items() if entrance in RUNS or key in COUNTED}
        if entrance is House.predictor and words.keys() & {"prefetch", "placement"}:
            continue
        assert expected in sentence(entrance, house, shown), entrance.__name__


@pytest.mark.parametrize("run", RUNS[1:])
def test_a_run_has_one_capacity_and_a_machine(
    run: Callable[[House, dict[str, Any]], RunSpec], house: House
) -> None:
    both = sentence(run, house, PLAIN | {"slots_per_layer": 8})
    assert "capacity and slots_per_layer are both given: a run has one capacity" in both
    nothing = {key: value for key, value in PLAIN.items() if key not in ("capacity", "hardware")}
    if run is not House.quick_sweep:  # which has machines and capacities of its own
        none = sentence(run, house, nothing)
        assert "hardware is missing" in none
        assert "capacity is missing: give one of 4000MiB, 25% (of all experts), 32/layer" in none
    slots = {key: value for key, value in PLAIN.items() if key != "capacity"} | {"slots_per_layer": 8}
    assert run(house, slots) == house.python(PLAIN | {"capacity": "8/layer"})


def test_where_no_machine_is_named_nothing_is_left_by_it(house: House) -> None:
    found = {sentence(count, house, {"capacity": "auto"}) for count in COUNTS}
    assert found == {NO_MACHINE}


def test_auto_is_what_vram_and_split_leave_and_says_what_it_assumes(house: House) -> None:
    from expert_residency.hwmodels.registry import load_profile
    from expert_residency.sim.choices.vram import card_budget
    from expert_residency.sim.split.cards import Card
    from expert_residency.sim.split.memory import needs_of

    model = er.load_model("qwen3.8-flash-next")
    left = card_budget(model, load_profile("rtx-5070")).cache_bytes
    one = er.RunSpec("rtx-5070", "auto").settled(model)
    assert one.capacity.total_bytes == left
    assert "context of 4,096 tokens (fp16 KV) with the draft layer where there is one" in one.capacity.assumes
    two = er.RunSpec("tesla-p40+rtx-3090", "auto:context=65536", layers_each=(20, 28)).settled(model)
    needs = needs_of(model, context=65536, draft=True, carve=True)
    cards = [Card.of(load_profile(name), model.quant_family) for name in two.hardware]
    edges = [(0, 20), (20, 48)]
    budgets = [needs.budget(card, i, 2, *edges[i]).cache_bytes for i, card in enumerate(cards)]
    assert two.capacity.card_bytes == (20 * model.experts * model.expert_bytes[0], budgets[1])
    assert budgets[0] > two.capacity.card_bytes[0]
    small = er.RunSpec("tesla-p40", "auto:session=1MiB").settled(er.load_model(MODEL))
    assert small.capacity.total_bytes == er.load_model(MODEL).all_expert_bytes


def test_a_capacity_that_was_worked_out_is_in_the_manifest_with_its_assumption(house: House) -> None:
    asked = er.RunSpec("tesla-p40", "auto:session=600MiB", scope="layer:prompt")
    for spec in (asked, asked.settled(house.trace.geometry)):
        plain = json.loads(json.dumps(spec.to_dict()))
        assert RunSpec.from_dict(plain) == spec
    assert "a context of 629.15 MB" in plain["capacity"]["assumes"]
    assert "assumes" not in er.RunSpec("tesla-p40", "4GiB").to_dict()["capacity"]


def test_a_split_takes_machines_and_models_in_the_same_words(house: House) -> None:
    asked = ("split", "--model", f"{MODEL}/Q8_0", "--session", "1GiB", "--count", "2", "--gpu")
    house.command(*asked, "tesla-p40+rtx-3090")
    joined = house.found["question"]
    house.command(*asked, "tesla-p40", "--gpu", "rtx-3090")
    assert joined == house.found["question"]
    assert joined.cards == (("tesla-p40", "rtx-3090"),)
    for words, model, gpu in (("no machine", MODEL, "rtx507"), ("no model", "granit-3.0-1b-a400m", "tesla-p40")):
        with pytest.raises(UserError) as refused:
            house.command("split", "--model", model, "--session", "1GiB", "--gpu", gpu)
        assert sentence(House.python, house, PLAIN | REFUSED[words][0]) in " ".join(str(refused.value).split())


def test_the_table_has_every_field_option_and_column() -> None:
    signature = inspect.signature(RunSpec).parameters
    assert list(signature) == [*FIELDS, "scope"]
    assert set(DEFAULTS) == set(FIELDS) - {"hardware", "capacity"}
    assert set(ALL) == set(CHOICES) - {"vram"}
    assert {column.name for column in COLUMNS} >= {*FIELDS, "scope", "slots_per_layer"} - {"capacity"}
    assert all(choice.help.endswith(".") for choice in CHOICES.values())
    assert replace(er.RunSpec("tesla-p40", "25%"), hardware=("rtx-5070",)).capacity == er.Capacity.of("25%")
