"""Notebooks are kept as they ran, charts as pictures; `pytest --nbmake notebooks` executes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
MOST_BYTES = 150_000


def code_of(path: Path) -> list[Any]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def test_they_are_numbered_in_reading_order() -> None:
    assert [int(path.name.split("_")[0]) for path in NOTEBOOKS] == list(range(1, len(NOTEBOOKS) + 1))
    for path in NOTEBOOKS:
        assert "".join(json.loads(path.read_text())["cells"][0]["source"]).startswith(f"# {path.name[0]} ")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_those_of_one_run_from_the_top(path: Path) -> None:
    code = code_of(path)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    assert not [cell["metadata"] for cell in code if cell["metadata"]]  # the times of a run are no content


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_charts_need_no_network(path: Path) -> None:
    code = code_of(path)
    kinds = {kind for cell in code for output in cell["outputs"] for kind in output.get("data", ())}
    assert kinds <= {"text/plain", "text/html", "image/png"}
    assert not [c for c in code if "<script" in json.dumps(c["outputs"]) or "://" in json.dumps(c["outputs"])]
    drawn = [cell for cell in code if "plt.show()" in "".join(cell["source"])]
    assert all(any("image/png" in output.get("data", ()) for output in cell["outputs"]) for cell in drawn)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_files_are_small_and_name_no_machine_of_ours(path: Path) -> None:
    assert path.stat().st_size < MOST_BYTES
    text = json.dumps([cell["outputs"] for cell in code_of(path)])
    assert not [folder for folder in ("/tmp/", "/home/", "/root/", "/work/") if folder in text]
