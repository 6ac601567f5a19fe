"""Sentences that said something else than what is so."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from expert_residency.hwmodels.runs import MeasuredRun
from expert_residency.sim.cli import main
from expert_residency.traces import load_model


def said(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    with pytest.raises(SystemExit) as done:
        main(words)
    assert done.value.code == code
    return " ".join("".join(capsys.readouterr()).split())


def test_advice_of_all_engines_is_asked_of_split(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["advise", "--model", "granite-3.0-1b-a400m", "--gpu", "tesla-p40", "--engine", "all"]
    assert "split --engine all" in said(words, capsys, 2)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_prompt_of_one_pass_leaves_no_gap(tmp_path: Path, lost: int, capsys: pytest.CaptureFixture[str]) -> None:
    model = load_model("granite-3.0-1b-a400m")
    routed = np.broadcast_to(
        np.arange(1, model.top_k + 1, dtype=np.uint8), (20, model.n_layers, model.top_k)
    ).copy()
    routed[14 : 14 + lost] = 0
    np.save(tmp_path / "e.npy", routed)
    words = ["import", str(tmp_path / "e.npy"), str(tmp_path / "o.parquet"), "--model", model.name]
    told = said([*words, "-o", "prompt_tokens=12"], capsys)
    assert ("gaps: 2 missing, the first after pass 2 of 8" in told) if lost else "gaps" not in told


def test_the_page_of_measured_runs_has_the_words_of_read_in() -> None:
    page = (Path(__file__).parents[1] / "docs" / "validation.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| `read_in`"))
    assert all(f"`{word}`" in row for word in get_args(MeasuredRun.model_fields["read_in"].annotation))


@pytest.mark.parametrize(
    ("capacity", "limit"), [("0MiB", "what the processor computes"), ("100%", "what the cards compute")]
)
def test_a_bound_names_what_takes_the_time(capacity: str, limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "bundled:tinymoe-code", "--passes", "30", "--engine", "llama.cpp", "--hardware", "rtx-3090"]
    assert f"It stands on {limit}" in said([*words, "--capacity", capacity], capsys)
