"""Searching for parameters: reproducible, resumable, one objective or two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from expert_residency.errors import SimError
from expert_residency.sim.studies.tune import load_tune, tune
from expert_residency.sim.sweep import read_dataset

pytest.importorskip("optuna", reason="needs the extra 'tune'")

FILE: dict[str, Any] = {
    "name": "search",
    "seed": 3,
    "traces": {"code": "bundled:tinymoe-code"},
    "choices": {
        "hardware": "rtx-5070",
        "miss": "fetch",
        "passes": 5,
        "capacity": "{share}%",
        "eviction": "{policy}",
    },
    "parameters": {
        "share": {"low": 10, "high": 60, "step": 10},
        "policy": {"values": ["lru", "random:seed={seed}"]},
        "seed": {"low": 0, "high": 5},
    },
}


def test_one_objective_finds_the_largest_cache(tmp_path: Path) -> None:
    result = tune(FILE, tmp_path, trials=15)
    best = result.best(1).iloc[0]
    assert best["cached_share"] == pytest.approx(result.frame["cached_share"].max())
    assert result.frame["eviction"].str.fullmatch(r"lru|random:seed=[0-5]").all()


def test_stopped_and_resumed_is_the_same_search(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 7:
            raise Stop

    file = FILE | {"objectives": ["ms_per_token", "vram_bytes"]}
    whole = tune(file, tmp_path / "whole", trials=14)
    with pytest.raises(Stop):
        tune(file, tmp_path / "cut", trials=14, progress=stop)
    again = tune(file, tmp_path / "cut", trials=14, resume=True)
    assert again.frame.equals(whole.frame)
    assert (tmp_path / "cut/cells/part-00000.parquet").read_bytes() == (
        tmp_path / "whole/cells/part-00000.parquet"
    ).read_bytes()
    assert tune(file, tmp_path / "cut", trials=14, resume=True).ran == 0
    with pytest.raises(SimError, match="results here already"):
        tune(file, tmp_path / "cut", trials=14)


def test_a_trial_too_large_for_the_machine_is_recorded(tmp_path: Path) -> None:
    file = FILE | {
        "choices": FILE["choices"] | {"capacity": "{gib}GiB", "eviction": "lru"},
        "parameters": {"gib": {"values": [1, 20]}},
    }
    tune(file, tmp_path, trials=6)
    assert read_dataset(tmp_path)["status"].value_counts().to_dict() == {"ok": 1, "misfit": 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parameters": {}}, "parameters"),
        ({"parameters": {"share": {"low": 3}}}, "give low and high, or values"),
        ({"parameters": {"share": {"low": 3, "high": 2}}}, "low 3 is above high 2"),
        ({"parameters": {"share": {"low": 3, "high": 9, "step": 2, "log": True}}}, "a log scale takes no step"),
        ({"parameters": {"shore": {"low": 3, "high": 9}}}, "parameter shore is in no choice"),
        ({"objectives": ["hit_rate"]}, "objectives"),
        ({"choice": {}}, "choice"),
    ],
)
def test_bad_files_are_refused_in_words(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SimError) as error:
        load_tune(FILE | change)
    assert words in str(error.value)


def test_a_bad_choice_is_named(tmp_path: Path) -> None:
    file = FILE | {"choices": FILE["choices"] | {"hardware": "rtx"}}
    with pytest.raises(ValueError, match="rtx: say which, rtx-3080"):
        tune(file, tmp_path, trials=1)
