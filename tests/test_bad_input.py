"""What a user may get wrong: one sentence on stderr and exit code 2, before any work is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.aside import aside
from sim.cli import main
from sim.errors import SimError
from tests.test_engine import random_trace
from traces import write_parquet


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scratch folder to stand in, with a trace of 3 layers in it."""
    write_parquet(random_trace(3), tmp_path / "tiny.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The sentence with which a command is refused."""
    with pytest.raises(SystemExit) as stopped:
        main(command.split())
    said = capsys.readouterr()
    assert stopped.value.code == 2, said
    assert said.err.startswith("residency: "), said.err
    assert said.err.count("\n") == 1, said.err
    return said.err


RUN = "run --trace tiny.parquet --hardware tesla-p40"
SPLIT = "split --model qwen3.8-flash-next --quant UD-Q4_K_XL --gpu tesla-p40 --simulate 0"
WRITES = [
    "import tiny.parquet {}",
    "inspect tiny.parquet --json {}",
    "replay tiny.parquet --slots-per-layer 2 --json {}",
    "curve tiny.parquet --points 2 --eviction lru --json {}",
    "curve tiny.parquet --points 2 --eviction lru --plot {}.png",
    f"{RUN} --slots-per-layer 2 --json {{}}",
    f"{RUN} --slots-per-layer 2 --timeline {{}}",
    "predictor tiny.parquet --hardware tesla-p40 --slots-per-layer 2 --plot {}.png",
    "window tiny.parquet --json {}",
    "placement tiny.parquet --slots 4 --out {}",
    "vram --model qwen3.8-flash-next --hardware rtx-5070 --json {}",
    f"{SPLIT} --json {{}}",
    f"{SPLIT} --plot {{}}.png",
    "report . --out {}",
    "score . --json {}",
    "validate --group published --json {}",
    "validate --group published --plot {}.png",
    "list policies --json {}",
    "calibrate --cardless --out {}.toml",
    "record --model . --prompt-file tiny.parquet --out {}",
]


@pytest.mark.parametrize("command", WRITES)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(command, here, capsys):
    for name in ("x", "x.png", "x.toml"):
        (here / name).mkdir()
    before = sorted(here.iterdir())
    assert "it is a folder" in refused(command.format("x"), capsys)
    assert "there is no folder nowhere" in refused(command.format("nowhere/x"), capsys)
    assert sorted(here.iterdir()) == before


def test_a_picture_says_its_format(here, capsys):
    for name in ("x", "x.foo"):
        assert "ends in .png, .svg, .pdf" in refused(f"curve tiny.parquet --points 2 --plot {name}", capsys)


def test_a_file_appears_whole_or_not_at_all(here):
    target = here / "out.json"
    with pytest.raises(SimError, match=r"out.json: cannot be written \(No space left on device\)"), aside(target):
        raise OSError(28, "No space left on device")
    with pytest.raises(KeyError), aside(target) as part:
        raise KeyError(part.write_text("half"))
    assert [path.name for path in here.iterdir()] == ["tiny.parquet"]
    with aside(target) as part:
        part.write_text("whole")
    assert target.read_text() == "whole"
