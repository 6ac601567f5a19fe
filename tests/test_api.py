"""The functions of the package and the page that documents them."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sim
from sim.curve import hit_curve
from sim.errors import SimError
from sim.stream import replay_stream
from traces.bundled import load

DOCS = Path(__file__).parents[1] / "docs"


def test_every_example_of_the_page_is_true() -> None:
    found = doctest.testfile(str(DOCS / "api.md"), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 15
    assert found.failed == 0


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'pandas', 'pyarrow', 'numba', 'altair', 'joblib', 'simpy', 'optuna', 'pydantic'}"
    assert run(f"import sim, sys; print({heavy} & set(sys.modules))") == "set()"


def test_a_verb_is_a_function_whoever_was_imported_first() -> None:
    for first in (
        "",
        "import sim.replay, sim.sweep, sim.split, sim.tune;",
        "from sim.replay import ReplayResult;",
    ):
        code = (
            f"{first}import sim; print([callable(getattr(sim, n)) for n in ('replay', 'sweep', 'split', 'tune')])"
        )
        assert run(code) == "[True, True, True, True]"


def test_a_string_in_the_place_of_a_capacity_or_tuple_is_one_sentence() -> None:
    trace, room = load("tinymoe-code"), sim.Capacity(slots_per_layer=8)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: sim.RunSpec("rtx-5070", room), "hardware 'rtx-5070': expected a tuple"),
        (lambda: sim.RunSpec(("rtx-5070",), "4GiB"), "'4GiB' is no capacity"),
        (lambda: sim.RunSpec(("rtx-5070",), room, "6,6"), "layers_each '6,6': expected a tuple"),
        (lambda: sim.replay(trace, "lru", "4GiB"), "'4GiB' is no capacity"),
        (lambda: hit_curve(trace, "lru", ["4GiB"]), "'4GiB' is no capacity"),
        (lambda: hit_curve(trace, "lru", room), "no list of capacities"),
        (lambda: replay_stream([], trace.geometry, ["lru"], "4GiB"), "'4GiB' is no capacity"),
        (lambda: sim.Capacity("4GiB"), "expected whole numbers"),
    ]
    for call, words in calls:
        with pytest.raises(SimError, match=words):
            call()


def test_what_there_is_can_be_listed() -> None:
    assert run("import sim; print(dir(sim))") == str(
        ["Capacity", "RunSpec", "replay", "simulate", "split", "sweep", "tune"]
    )
