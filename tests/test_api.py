"""The functions of the package and the page that documents them."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

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


def test_what_there_is_can_be_listed() -> None:
    assert run("import sim; print(dir(sim))") == str(
        ["Capacity", "RunSpec", "replay", "simulate", "split", "sweep", "tune"]
    )
