"""The fuzzer of `tests.fuzz` for a minute with a fixed seed; EXPERT_RESIDENCY_FUZZ_SECONDS and _SEED for more."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz_damage import damaged_bytes, damaged_tree, toml_text

SECONDS, SEED = "EXPERT_RESIDENCY_FUZZ_SECONDS", "EXPERT_RESIDENCY_FUZZ_SEED"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_every_command_answers_with_a_result_or_a_sentence() -> None:
    seconds = os.environ.get(SECONDS, "60")
    args = ["--seconds", seconds, "--seed", os.environ.get(SEED, "1")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *args], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[1], timeout=float(seconds) + 600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) >= 20, done.stdout


def test_damage_is_made_of_the_seed_alone_and_does_something() -> None:
    import tomllib

    tree = {"a": 1, "b": {"c": [1.5, "x", True]}, "d": ["y", {"e": 2}]}
    data = b"a,b,c\n1,2,3\n" * 5
    assert tomllib.loads(toml_text(tree)) == tree
    other = {"bytes": 0, "tree": 0}
    for seed in range(200):
        one, two = (
            (damaged_bytes(random.Random(seed), data), damaged_tree(random.Random(seed), tree)) for _ in "12"
        )
        assert repr(one) == repr(two)
        other["bytes"] += one[0] != data
        other["tree"] += repr(one[1]) != repr(tree)
    assert min(other.values()) > 180
