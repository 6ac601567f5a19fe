"""Experts a token of a run that were not the model's: said once, used or refused, never passed over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from expert_residency.sim.cli import main
from expert_residency.traces import TraceError, read_trace
from expert_residency.traces.geometry import load_model, read_model
from expert_residency.traces.weights.write import write_model
from tests.trace_files import SMALL, bigmoe_lines, write_lines


def _moe_trace(path: Path, k: int) -> Path:
    """Eight passes of one token over granite's 24 layers, k lines a (pass, layer)."""
    rows = (f"{layer},{(step + layer + i) % 32}" for step in range(8) for layer in range(24) for i in range(k))
    return write_lines(path, ["layer,expert", *rows])


def test_a_runs_own_k_makes_its_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _moe_trace(tmp_path / "t.csv", 4)
    asked = ["inspect", str(path), "--model", "granite-3.0-1b-a400m", "--json", "-"]
    with pytest.raises(SystemExit, match="2"):
        main(asked)
    assert "expected a multiple of k = 8" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main([*asked, "--top-k", "4"])
    found = json.loads(capsys.readouterr().out)
    assert (found["k_max"], found["rows"]) == (4, 8 * 24)
    by_name = read_trace(path, model="granite-3.0-1b-a400m:top_k=4")
    assert by_name.geometry.top_k == 4


def test_a_file_that_says_its_own_k_is_not_overruled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines(tmp_path / "t.csv", bigmoe_lines())
    assert read_trace(path, top_k=SMALL.top_k).geometry.top_k == SMALL.top_k
    with pytest.raises(TraceError, match=f"the file has {SMALL.top_k} experts a token, top-k says 3"):
        read_trace(path, top_k=3)
    with pytest.raises(SystemExit, match="2"):
        main(["inspect", "bundled:tinymoe-code", "--top-k", "3"])
    assert "--top-k: bundled:tinymoe-code has a format of its own" in capsys.readouterr().err


def test_a_file_of_a_model_takes_a_k_behind_its_name(tmp_path: Path) -> None:
    write_model(tmp_path / "m.toml", read_model("granite-3.0-1b-a400m"))
    assert load_model(f"{tmp_path / 'm.toml'}:top_k=2").top_k == 2
