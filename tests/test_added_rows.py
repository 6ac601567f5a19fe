"""`residency validate --add`: rows are checked whole, never judge themselves, and files lose nothing."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.runs import Line, MeasuredRun, load_measured_file, measured_files
from expert_residency.hwmodels.runs.machine_files import COLUMNS, file_of, schema, with_rows
from expert_residency.sim.cli import main
from expert_residency.sim.validation.measured import added as added_module
from expert_residency.sim.validation.measured import windows as windows_module
from expert_residency.sim.validation.measured.added import add
from expert_residency.sim.validation.measured.group import Answer, answers
from expert_residency.sim.validation.measured.questions import questions

GOOD = {
    "source": "my desk", "date": "2026-11-30", "gpu": "RTX 4070", "n_gpus": "1", "cpu": "Ryzen 7 5800X",
    "model": "gpt-oss-20b", "quant": "MXFP4", "engine": "llama.cpp b6500", "mode": "ncmoe 8", "tok_s": "58.5",
    "workload": "tg128, mine", "hit_rate_pct": "", "kind": "run", "read_in": "source",
}  # fmt: skip
WRONG = {
    "source": "", "date": "last May", "gpu": "", "n_gpus": "one", "model": "", "tok_s": "0",
    "hit_rate_pct": "97-120", "kind": "good", "read_in": "",
}  # fmt: skip
FILE = "1x-rtx-4070-ryzen-7-5800x.csv"


def line(number: int = 2, **cells: str) -> Line[MeasuredRun]:
    cells = GOOD | cells
    return Line(number, cells, MeasuredRun.model_validate({name: cell for name, cell in cells.items() if cell}))


def table(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(GOOD))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def few() -> Iterator[tuple[Answer, ...]]:
    """Answers of a few machines, hits not simulated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows_module, "hit_share", lambda share, own: min(1.0, share**0.5))
        asked = [
            one for one in questions()[0] if one.machine.card.name in ("rtx-4070", "rtx-5080", "gtx-1060-6gb")
        ]
        yield tuple(answers(asked))


def test_the_schema_that_ships_is_that_of_the_rows() -> None:
    """Made anew by `python -m expert_residency.hwmodels.runs.machine_files > docs/measured-run.schema.json`."""
    assert (Path(__file__).parents[1] / "docs" / "measured-run.schema.json").read_text() == schema()
    made = json.loads(schema())
    assert tuple(made["properties"]) == COLUMNS
    assert all(one["description"] for one in made["properties"].values())


@given(st.lists(st.sets(st.sampled_from(sorted(WRONG))), min_size=1, max_size=4))
def test_every_fault_of_every_row_is_said_at_once(tmp_path_factory: Any, faults: list[set[str]]) -> None:
    rows = [GOOD | {name: WRONG[name] for name in wrong} for wrong in faults]
    path = table(tmp_path_factory.mktemp("rows") / "mine.csv", *rows)
    if not any(faults):
        assert len(load_measured_file(path)) == len(rows)
        return
    with pytest.raises(HardwareError) as error:
        load_measured_file(path)
    said = str(error.value)
    for number, wrong in enumerate(faults, 2):
        for name in GOOD:
            assert (f"line {number}: {name} " in said) == (name in wrong), said


def test_every_column_is_checked_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("source,gpu,gpus,gpu\n")
    with pytest.raises(HardwareError) as error:
        load_measured_file(path)
    for what in ("unknown column 'gpus'", "column 'gpu' appears twice", "column 'tok_s' is missing"):
        assert f"line 1: {what}" in str(error.value)


def test_a_spreadsheets_mark_at_the_start_is_no_column(tmp_path: Path) -> None:
    path = table(tmp_path / "mine.csv", GOOD)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [one.row.gpu for one in load_measured_file(path)] == ["RTX 4070"]


def test_a_row_goes_to_the_file_of_its_machine() -> None:
    for name, rows in measured_files().items():
        assert {file_of(row) for row in rows} == {name}
    assert file_of(line().row) == FILE
    like = line(cpu="Amd Ryzen 7 9800X3D (8 workers)", gpu="rtx 5090").row
    assert file_of(like) == "1x-rtx-5090-amd-ryzen-7-9800x3d.csv"


def test_what_a_row_says_never_judges_it(few: tuple[Answer, ...]) -> None:
    mine = [line(), line(3, mode="ncmoe 16", tok_s="40")]
    slow = [line(tok_s="5.85"), line(3, mode="ncmoe 16", tok_s="4")]
    (first, effect), (second, other) = add(mine, few), add(slow, few)
    assert [one.answer and one.answer.tok_s for one in first] == [
        one.answer and one.answer.tok_s for one in second
    ]
    assert effect is not None
    assert other is not None
    assert effect.constants != other.constants
    assert effect.after != other.after
    assert (effect.rows, effect.all_rows) == (len(few), len(few) + 2)
    assert effect.before == statistics.median(abs(one.error) for one in few)
    found = answers([*(one.question for one in few), *(one.asked for one in first)])  # type: ignore[list-item]
    assert effect.after == statistics.median(abs(one.error) for one in found[: len(few)])
    assert effect.together == statistics.median(abs(one.error) for one in found)


def test_a_run_that_is_listed_is_not_added_and_what_lacks_something_is_named(few: tuple[Answer, ...]) -> None:
    listed = few[0].question.row
    told = line()._replace(row=listed.model_copy(update={"source": "somewhere else", "date": "2027"}))
    found, effect = add([told, line(3, model="Nobody-7B"), line(4, model="Nobody-7B", source="again")], few)
    assert effect is None
    assert found[0].twin == few[0].question.name
    assert found[0].answer == few[0]
    assert getattr(found[1].asked, "missing", "") == "no sizes of the model Nobody-7B"
    assert found[1].answer is None
    assert not found[1].twin
    assert found[2].twin == found[1].name, "a row of the file itself"


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=3), st.booleans())
def test_rows_that_are_there_stay(tmp_path_factory: Any, source: str, ends: bool) -> None:
    folder = tmp_path_factory.mktemp("files")
    name, shipped = next((name, rows) for name, rows in measured_files().items() if len(rows) > 2)
    (folder / name).write_text(with_rows(folder, name, [])[: None if ends else -1], "utf-8")
    before = (folder / name).read_text("utf-8")
    new = line(source=source)
    (folder / name).write_text(with_rows(folder, name, [new, new]), "utf-8")
    text = (folder / name).read_text("utf-8")
    assert text.startswith(before)
    rows = [one.row for one in load_measured_file(folder / name)]
    assert rows == [*shipped, new.row, new.row]
    assert with_rows(folder, name, [new]) == text


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["validate", "--add", *map(str, words)])
    return int(stopped.value.code or 0)


def test_the_command(
    few: tuple[Answer, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(added_module, "shipped_answers", lambda: few)
    path = table(tmp_path / "mine.csv", GOOD, GOOD, GOOD | {"model": "Nobody-7B"}, GOOD | {"tok_s": "90"})
    out, plain = tmp_path / "files", tmp_path / "out.json"
    assert run(path, "--out", out, "--json", plain) == 0
    said = capsys.readouterr().out
    assert all(len(text) <= 80 for text in said.splitlines() if "  " in text.strip())
    wanted = (
        "line 4 cannot be predicted: no sizes of the model Nobody-7B", "line 3 is listed already", FILE,
        "constants that move", f"of the {len(few)} shipped rows: ", f"written: {out / FILE}",
    )  # fmt: skip
    for what in wanted:
        assert what in said
    data = json.loads(plain.read_text())
    assert [row["line"] for row in data["rows"]] == [2, 3, 4, 5]
    first = data["rows"][0]
    assert first["error"] == pytest.approx(first["predicted"] / 58.5 - 1)
    assert (first["goes_to"], data["rows"][2]["predicted"]) == (FILE, None)
    assert [one.row.tok_s for one in load_measured_file(out / FILE)] == [58.5, 58.5, 90]
    kept = (out / FILE).read_text()
    assert run(path, "--out", out) == 0
    assert (out / FILE).read_text() == kept


def test_what_cannot_be_written_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(added_module, "add", lambda lines: pytest.fail("work has begun"))
    path = table(tmp_path / "mine.csv", GOOD)
    assert run(path, "--out", path) == 2
    (tmp_path / FILE).write_text(path.read_text())
    assert run(path, "--out", tmp_path) == 2
    assert "nothing is added" in capsys.readouterr().err
    assert (tmp_path / FILE).read_text() == path.read_text()
    (tmp_path / FILE).write_text("nothing\n")
    assert run(path, "--out", tmp_path) == 2
    table(path)
    assert run(path) == 2
    assert "no row under the header" in capsys.readouterr().err
