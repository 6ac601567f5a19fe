"""Folders of results: nothing of the user's is lost, refused commands leave nothing, damage is seen."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expert_residency.errors import SimError
from expert_residency.sim.cli import main
from expert_residency.sim.studies.tune import tune
from expert_residency.sim.sweep import read_dataset, sweep
from expert_residency.sim.sweep.folder import MARK, claim
from expert_residency.sim.sweep.stored import open_stored, store
from expert_residency.traces.bundled import load

TINY: dict[str, Any] = {
    "traces": {"code": "bundled:tinymoe-code"},
    "constants": {"miss": "fetch", "passes": 3, "hardware": "rtx-5070", "capacity": "20%"},
    "axes": {"eviction": ["lru", "lfu"]},
}
BAD = TINY | {"axes": {"eviction": ["lruu"]}}
SEARCH: dict[str, Any] = {
    "traces": TINY["traces"],
    "choices": TINY["constants"] | {"eviction": "{policy}"},
    "parameters": {"policy": {"values": ["lru", "lfu"]}},
}


def command(folder: Path, *args: str) -> list[str]:
    choices = ["--passes", "3", "--hardware", "rtx-5070", "--capacity", "20%", "--prefetch", "none"]
    return ["sweep", "--trace", "bundled:tinymoe-code", *choices, "--workers", "1", "--out", str(folder), *args]


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(list(args))
    return int(stopped.value.code or 0)


def picture(folder: Path) -> dict[str, str]:
    """Everything below a folder, with its content."""
    return {
        str(path.relative_to(folder)): "link" if path.is_symlink()
        else "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
    }  # fmt: skip


def occupied(folder: Path) -> Path:
    """A folder with a person's work under the very names that a sweep uses."""
    (folder / "cells/sub").mkdir(parents=True)
    (folder / "cells/cell-001.csv").write_text("microscope data")
    (folder / "cells/part-00000.parquet").write_text("not ours")
    (folder / "sweep.toml").write_text("# hours of work")
    (folder / "cache").mkdir()
    return folder


@pytest.mark.parametrize("extra", [[], ["--resume"]])
def test_a_folder_with_other_files_is_refused_and_untouched(extra: list[str], tmp_path: Path, capsys: Any) -> None:
    folder = occupied(tmp_path / "mine")
    before = picture(tmp_path)
    assert run(*command(folder, *extra)) == 2
    assert "holds files that no sweep made (cache, cells, sweep.toml); name a new" in capsys.readouterr().err
    with pytest.raises(SimError, match="holds files that no sweep made"):
        sweep(TINY, folder, resume=bool(extra))
    with pytest.raises(SimError, match="holds files that no sweep made"):
        tune(SEARCH, folder, trials=1, resume=bool(extra))
    assert picture(tmp_path) == before


def test_a_link_to_a_folder_with_other_files_is_refused_and_untouched(tmp_path: Path) -> None:
    occupied(tmp_path / "mine")
    (tmp_path / "out").symlink_to("mine")
    before = picture(tmp_path)
    assert run(*command(tmp_path / "out")) == 2
    assert picture(tmp_path) == before


@pytest.mark.parametrize("name", ["cells", "cache", "journal.jsonl", "plan.json", "log.jsonl"])
def test_a_link_inside_results_is_refused_and_not_followed(name: str, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    sweep(TINY, out, workers=1)
    elsewhere.mkdir()
    shutil.move(out / name, elsewhere / name)
    (out / name).symlink_to(elsewhere / name)
    before = picture(tmp_path)
    with pytest.raises(SimError, match=f"{name}: is a link"):
        sweep(TINY, out, workers=1, resume=True)
    assert picture(tmp_path) == before


def test_what_a_person_puts_beside_results_stays(tmp_path: Path) -> None:
    whole = sweep(TINY, tmp_path, workers=1).frame
    own = {"notes.txt": "mine", "cells/notes.txt": "mine", "cells/part-a.txt": "mine"}
    for name, text in own.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "cells/sub").mkdir()
    again = sweep(TINY, tmp_path, workers=1, resume=True)
    assert again.ran == 0
    assert again.frame.equals(whole)
    assert {name: (tmp_path / name).read_text() for name in own} == own
    assert (tmp_path / "cells/sub").is_dir()


@pytest.mark.parametrize("existing", ["none", "empty", "results"])
def test_a_refused_sweep_leaves_the_folder_as_it_was(existing: str, tmp_path: Path) -> None:
    out = tmp_path / "deep/er/out"
    if existing == "empty":
        out.mkdir(parents=True)
    elif existing == "results":
        sweep(TINY, out, workers=1)
        shutil.rmtree(out / "cache")
    before = picture(tmp_path)
    with pytest.raises(ValueError, match="unknown eviction policy"):
        sweep(BAD, out, workers=1, resume=existing == "results")
    assert picture(tmp_path) == before
    if existing != "results":
        assert run(*command(out, "--eviction", "lruu")) == 2
        bad = SEARCH | {"parameters": {"policy": {"values": ["lruu"]}}}
        with pytest.raises(ValueError, match="unknown eviction policy"):
            tune(bad, out, trials=1)
        with pytest.raises(ValueError, match="no such file"):
            tune(SEARCH | {"traces": {"code": "none.csv"}}, out, trials=1)
    assert picture(tmp_path) == before


def test_the_built_in_sweep_does_not_overwrite_its_changed_file(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert run(*command(out)) == 0
    assert run(*command(out, "--resume")) == 0
    with (out / "sweep.toml").open("a") as file:
        file.write("# mine\n")
    before = picture(out)
    assert run(*command(out, "--resume")) == 2
    assert "differs from this command's sweep" in capsys.readouterr().err
    assert picture(out) == before


def test_results_without_a_mark_say_how_to_go_on(tmp_path: Path) -> None:
    sweep(TINY, tmp_path, workers=1)
    (tmp_path / MARK).unlink()
    with pytest.raises(SimError, match=r"earlier version: touch .*\.residency-results"):
        sweep(TINY, tmp_path, workers=1, resume=True)
    (tmp_path / MARK).touch()
    assert sweep(TINY, tmp_path, workers=1, resume=True).ran == 0


def test_a_folder_is_held_by_one_process(tmp_path: Path) -> None:
    with claim(tmp_path / "out", resume=False):
        before = picture(tmp_path)
        for start in (
            lambda: sweep(TINY, tmp_path / "out", workers=1),
            lambda: tune(SEARCH, tmp_path / "out", trials=1),
        ):
            with pytest.raises(SimError, match="another process is writing to these results"):
                start()
        assert picture(tmp_path) == before
    assert sweep(TINY, tmp_path / "out", workers=1).ran == 2


SLOW = """
import sys, time
import numpy as np
from expert_residency.errors import SimError
from expert_residency.sim.sweep import sweep
real = np.save
np.save = lambda *args: (real(*args), time.sleep(0.05))
source = {"traces": {"code": "bundled:tinymoe-code"}, "axes": {"eviction": ["lru", "lfu"]},
          "constants": {"miss": "fetch", "passes": 3, "hardware": "rtx-5070", "capacity": "20%"}}
try:
    print(len(sweep(source, sys.argv[1], workers=1, simulator="reference").frame))
except SimError as error:
    print(error)
"""


def test_two_that_begin_together_do_not_harm_each_other(tmp_path: Path) -> None:
    start = [sys.executable, "-c", SLOW, str(tmp_path / "out")]
    both = [subprocess.Popen(start, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = [one.communicate(timeout=120)[0].strip() for one in both]
    assert "2" in found
    assert any("results" in other for other in found if other != "2")
    assert read_dataset(tmp_path / "out")["status"].tolist() == ["ok", "ok"]
    stored = [path.name for path in (tmp_path / "out/cache").iterdir()]
    assert stored == [load("tinymoe-code").content_hash[:16]]


def swapped(path: Path) -> None:
    experts = np.load(path)
    rows = experts.reshape(-1, load("tinymoe-code").geometry.top_k)
    rows[50:900] = rows[1050:1900]
    np.save(path, experts)


DAMAGE = {
    "other experts": ("row_experts.npy", swapped),
    "cut off": ("row_experts.npy", lambda path: path.write_bytes(path.read_bytes()[:1000])),
    "gone": ("event_pass.npy", Path.unlink),
    "empty": ("row_offsets.npy", lambda path: path.write_bytes(b"")),
    "offsets that lead nowhere": ("event_row_offsets.npy", lambda path: np.save(path, np.load(path) * 7)),
    "another header": ("trace.json", lambda path: path.write_text(path.read_text().replace("tinymoe", "huge"))),
    "no header": ("trace.json", lambda path: path.write_text("{")),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_copy_of_a_trace_is_made_anew(kind: str, tmp_path: Path) -> None:
    name, harm = DAMAGE[kind]
    trace = load("tinymoe-code")
    folder = store(trace, tmp_path)
    whole = picture(tmp_path)
    harm(folder / name)
    assert picture(tmp_path) != whole
    assert store(trace, tmp_path) == folder
    assert picture(tmp_path) == whole
    assert open_stored(folder).content_hash == trace.content_hash


def test_numbers_do_not_change_with_the_stored_copy(tmp_path: Path) -> None:
    whole = sweep(TINY, tmp_path / "whole", workers=1).frame
    out = tmp_path / "out"
    sweep(TINY | {"axes": {"eviction": ["lru"]}}, out, workers=1)
    (copy,) = (out / "cache").iterdir()
    swapped(copy / "row_experts.npy")
    assert sweep(TINY, out, workers=1, resume=True).frame.equals(whole)
