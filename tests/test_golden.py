"""Results are what they were: runs of both engines, answers of commands, help. `tests/golden_runs.py` says how to
change them on purpose."""

import json
import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

from tests.golden_runs import (
    GOLDEN,
    JSON_CASES,
    QUICK,
    QUICK_REPLAYS,
    REPLAY_CASES,
    RUN_CASES,
    RUNS,
    SLOW_JSON,
    answer,
    counted,
    fill,
    help_cases,
    normal,
    said,
    timed,
)

HELP_MADE_BY = 0, 29
"""Version of typer that printed the golden help."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the files lie that the cases name."""
    found = tmp_path_factory.mktemp("golden")
    fill(found)
    return found


@pytest.fixture(scope="module")
def golden():
    return json.loads(RUNS.read_text(encoding="utf-8"))


def compiled(names, quick):
    """Names, those whose compiling takes long marked."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


def test_nothing_is_missing_and_nothing_left_over(golden):
    assert list(golden["timed"]) == list(RUN_CASES)
    assert list(golden["replay"]) == list(REPLAY_CASES)
    assert {path.stem for path in (GOLDEN / "json").iterdir()} == set(JSON_CASES)
    assert {path.stem for path in (GOLDEN / "help").iterdir()} == {name for name, _ in help_cases()}


@pytest.mark.parametrize("name", RUN_CASES)
def test_run(name, golden, folder):
    assert timed(RUN_CASES[name], "reference", folder) == golden["timed"][name]


@pytest.mark.parametrize("name", compiled(RUN_CASES, QUICK))
def test_compiled_run(name, golden, folder):
    pytest.importorskip("numba")
    assert timed(RUN_CASES[name], "kernel", folder) == golden["timed"][name]


@pytest.mark.parametrize("name", REPLAY_CASES)
def test_replay(name, golden):
    assert counted(REPLAY_CASES[name], "reference") == golden["replay"][name]


@pytest.mark.parametrize("name", compiled(REPLAY_CASES, QUICK_REPLAYS))
def test_compiled_replay(name, golden):
    pytest.importorskip("numba")
    assert counted(REPLAY_CASES[name], "kernel") == golden["replay"][name]


def test_the_runs_differ_from_each_other(golden):
    """A choice that changed nothing would be watched by nobody."""
    times = [json.dumps(found, sort_keys=True) for found in golden["timed"].values()]
    assert len(set(times)) >= len(times) - 3


def registered_readers():
    """As the checkout has them."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    return set(tomllib.loads(text)["project"]["entry-points"]["expert_residency.readers"])


def installed_readers():
    """As Python finds them: written once, at the installation."""
    return {point.name for point in entry_points(group="expert_residency.readers")}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW_JSON else ()) for name in JSON_CASES]
)
def test_answer(name, folder):
    if name == "tune":
        pytest.importorskip("optuna")
    if name == "list-formats" and registered_readers() != installed_readers():
        pytest.skip("readers were registered since the installation: pip install -e . again")
    golden = json.loads((GOLDEN / "json" / f"{name}.json").read_text(encoding="utf-8"))
    assert answer(name, folder) == golden


def test_help():
    if tuple(map(int, version("typer").split(".")[:2])) < HELP_MADE_BY:
        pytest.skip("older versions of typer print the same help in other forms, as '\\[required]'")
    for name, words in help_cases():
        golden = (GOLDEN / "help" / f"{name}.txt").read_text(encoding="utf-8")
        assert said(words) == golden, name


def test_what_does_not_count_is_all_that_is_left_out():
    given = {"version": "9", "spec": {"file": "/there/a", "share": 0.12345678949}, "n": list(range(20))}
    kept = normal(given, "/there")
    assert kept["version"] == "..."
    assert kept["spec"] == {"file": "<folder>/a", "share": 0.123456789}
    assert kept["n"] != normal({"n": [*range(19), 18]}, "/there")["n"]
