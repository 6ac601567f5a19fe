"""The functions of the package and the page that documents them."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import expert_residency as er
from expert_residency.errors import UserError
from expert_residency.sim.runs.curve import hit_curve
from expert_residency.sim.runs.stream import replay_stream
from expert_residency.traces.bundled import load

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_every_example_of_the_page_is_true() -> None:
    found = doctest.testfile(str(DOCS / "api.md"), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 15
    assert found.failed == 0


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'pandas', 'pyarrow', 'numba', 'altair', 'joblib', 'simpy', 'optuna', 'pydantic'}"
    assert run(f"import expert_residency, sys; print({heavy} & set(sys.modules))") == "set()"


def test_the_verbs_are_functions_with_a_typed_signature() -> None:
    verbs = (
        er.simulate,
        er.replay,
        er.sweep,
        er.leaderboard,
        er.split,
        er.tune,
        er.read_trace,
        er.load_model,
        er.load_profile,
    )
    for verb in verbs:
        signature = inspect.signature(verb)
        assert inspect.isfunction(verb)
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())


@pytest.mark.slow
def test_a_type_checker_sees_the_names_and_what_they_take(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy comes with the extra lint")
    code = tmp_path / "user.py"
    code.write_text(
        "import expert_residency as er\n"
        "er.RunSpec(hardware=3, nonsense=True)\n"
        "er.nonsense\n"
        "reveal_type(er.simulate)\n"
    )
    (tmp_path / "expert_residency").symlink_to(ROOT / "expert_residency")
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "user.py"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    ).stdout  # fmt: skip
    assert 'Unexpected keyword argument "nonsense"' in found
    assert 'Argument "hardware" to "RunSpec" has incompatible type "int"' in found
    assert 'Module has no attribute "nonsense"' in found
    assert "RunResult" in found


def test_words_and_typed_values_are_the_same_choices() -> None:
    room = er.Capacity(card_bytes=(1 << 30, 2 << 30), scope="layer", quotas="prompt")
    typed = er.RunSpec(("tesla-p40", "rtx-3090"), room, (20, 28), prefetch_bytes=64 << 20)
    words = er.RunSpec("tesla-p40+rtx-3090", "1GiB+2GiB", "20+28", prefetch_bytes="64MiB", scope="layer:prompt")
    lists = er.RunSpec(["tesla-p40", "rtx-3090"], ["1GiB", "2GiB"], [20, 28], prefetch_bytes=64 << 20,
                       scope="layer:prompt")  # fmt: skip
    assert typed == words == lists
    assert words.hardware == ("tesla-p40", "rtx-3090")


def test_what_is_no_choice_is_one_sentence() -> None:
    trace, room = load("tinymoe-code"), er.Capacity(slots_per_layer=8)
    wrong: Any = 4
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: er.RunSpec(wrong, wrong), "hardware is 4, expected a name, .*; size 4 has no unit"),
        (lambda: er.RunSpec("rtx-5070", room, "6,6"), "layers_each is '6,6', expected whole numbers"),
        (lambda: er.RunSpec("rtx-5070", room, predict_us=float("nan")), "predict_us is nan, expected a number"),
        (lambda: er.RunSpec("rtx-5070", room, p2p=wrong), "p2p is 4, expected true or false"),
        (lambda: er.replay(trace, "lru", "4"), "size 4 has no unit"),
        (lambda: hit_curve(trace, "lru", ["much"]), "cannot read the size 'much'"),
        (lambda: hit_curve(trace, "lru", room), "no list of capacities"),
        (lambda: replay_stream([], trace.geometry, ["lru"], "auto"), "no machine is named here"),
        (lambda: er.Capacity(wrong, 4), "more than one capacity given"),
    ]
    for call, words in calls:
        with pytest.raises(UserError, match=words):
            call()


def test_what_there_is_can_be_listed() -> None:
    assert run("import expert_residency as er; print(dir(er) == sorted(er.__all__))") == "True"
    assert {"simulate", "RunSpec", "Capacity", "load_profile"} < set(er.__all__)


def test_no_module_exists_twice(tmp_path: Path) -> None:
    """From an empty folder, where an old name would not even be found, and in the folder of the checkout."""
    code = (
        "import sys, contextlib, io; from expert_residency.sim.cli import main\n"
        "for what in ('models', 'engines', 'hardware', 'policies', 'formats'):\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "        main(['list', what])\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('sim', 'policies', 'hwmodels', 'traces')))"
    )
    for folder in (tmp_path, ROOT):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
        assert done.stdout.strip() == "[]"
