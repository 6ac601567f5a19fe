"""Tables on the screen: at every width all headings and cells are there, and no heading is cut within a word."""

import ast
import io
import re
import sys
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.sim.cli import list_, main, tables
from expert_residency.sim.cli.tables import LONGEST_WORD, Sheet, fold, table
from tests.golden_runs import fill, help_cases, said

CLI = Path(__file__).parents[1] / "sim" / "cli"
WORDS = st.text("abcdefghij-/_é", min_size=1, max_size=14)
TEXTS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
NUMBERS = st.floats(-1e6, 1e6).map(lambda x: f"{x:,.2f}")


@st.composite
def sheets(draw):
    heads = draw(st.lists(TEXTS, min_size=1, max_size=9))
    shorts = [draw(st.sampled_from((head, head.split()[0]))) for head in heads]
    left = draw(st.integers(1, len(heads)))
    made = table(draw(st.none() | TEXTS), list(zip(heads, shorts, strict=True)), left=left)
    for _ in range(draw(st.integers(1, 4))):
        made.add_row(*(draw(TEXTS if i < left else NUMBERS) for i in range(len(heads))))
    return made


def printed(made: Sheet, width: int) -> list[str]:
    return [line for line, _ in made.lines(width, "─")]


def headings_shown(made: Sheet, lines: list[str]) -> bool:
    """Whether the words above the rule are those of the headings, or each heading stands before its cells."""
    rules = [i for i, line in enumerate(lines) if line and set(line) == {"─"}]
    if not rules:
        flat = " ".join(" ".join(lines).split())
        return all(f"{column.heading}:" in flat for column in made.columns[: len(made.rows[0][0])])
    title = fold(made.title, max(map(len, lines))) if made.title else []
    above = Counter(" ".join(lines[1 + len(title) : rules[0]]).split())
    return any(
        above == Counter(" ".join(getattr(column, form) for column in made.columns).split())
        for form in ("heading", "short")
    )


@given(sheets(), st.integers(24, 130))
def test_nothing_is_lost_at_any_width(made, width):
    lines = printed(made, width)
    assert max(map(len, lines)) <= width
    assert headings_shown(made, lines)
    squeezed = Counter("".join(lines))
    for cells, _ in made.rows:
        for column, text in zip(made.columns, cells, strict=True):
            if column.numbers:
                assert text in " ".join(lines).split(), "a number is never folded"
            assert not Counter(text.replace(" ", "")) - squeezed
    pure = re.sub(r"\s", "", "".join(lines))
    assert all(pure.count(letter) >= sum(text.count(letter) for cells, _ in made.rows for text in cells)
               for letter in "abcdefghij0123456789")  # fmt: skip


@given(TEXTS, st.integers(1, 40))
def test_folding_keeps_every_character_and_the_width(text, width):
    lines = fold(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(len(line) <= width for line in lines)
    if width >= LONGEST_WORD:  # then no word is broken
        assert " ".join(lines).split() == text.split()


def test_what_looks_like_markup_is_printed():
    from rich.console import Console

    made = table("[bold]title", ["[ids]", "n"])
    made.add_row("[/red] a[0]", "1")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(made)
    text = console.export_text()
    assert all(part in text for part in ("[bold]title", "[ids]", "[/red] a[0]"))


def test_narrow_terminals_get_short_headings_then_blocks():
    made = table(None, ["policy", ("headroom/captured", "headroom"), "tokens/s"])
    made.add_row("lru", "12.5", "3.1")
    assert "policy  headroom/captured  tokens/s" in printed(made, 60)
    assert "policy  headroom  tokens/s" in printed(made, 30)
    assert printed(made, 20)[1:-1] == ["policy: lru", "  headroom/captured:", "  12.5", "  tokens/s: 3.1"]


EXAMPLES = {
    "advise": ["advise --model gpt-oss-20b --gpu rtx-3070 --ram 64GB --passes 4 --draws 2"],
    "curve": ["curve <folder>/small.parquet --points 12 --eviction lru --eviction belady-window"],
    "demo": ["demo --passes 4 --workers 1"],
    "drafts": ["drafts <folder>/small.parquet --hardware rtx-5070 --slots-per-layer 16"],
    "inspect": ["inspect <folder>/small.parquet --layers"],
    "leaderboard": [
        (
            "leaderboard <folder>/small.parquet --only --policy lfru --policy belady --policy two-hit --passes 4 "
            "--hardware rtx-5070 --capacity 25% --workers 1"
        )
    ],
    "learn": ["learn synthetic:gpt-oss-20b:tokens=4,requests=22 --predictor transitions"],
    "list": [f"list {kind}" for kind in ("policies", "hardware", "models", "formats", "engines", "traces")],
    "model": ["model granite-3.0-1b-a400m --layers"],
    "predictor": [
        (
            "predictor <folder>/small.parquet --hardware rtx-5070 --slots-per-layer 16 --passes 2 --recalls 0.5,1 "
            "--windows 1 --rank-qualities 0.8 --workers 1"
        )
    ],
    "replay": ["replay <folder>/small.parquet --slots-per-layer 16 --warmup 3 --eviction lru"],
    "run": [
        "run --trace <folder>/small.parquet --hardware rtx-5070 --slots-per-layer 16 --passes 4 --ceiling",
        "run --trace <folder>/small.parquet --hardware rtx-5070 --slots-per-layer 16 --passes 4 --explain",
        "run <folder>/variants.toml",
    ],
    "score": [
        "score <folder>/swept --trace <folder>/small.parquet --passes 4",
        "score <folder>/swept",
    ],
    "split": [
        (
            "split --model granite-3.0-1b-a400m --quant FP16 --gpu tesla-p40 --count 1..2 --ram 32GB "
            "--session 1GiB --simulate 0 --engine generic"
        ),
        (
            "split --model granite-3.0-1b-a400m --quant Q8_0 --gpu tesla-p40 --count 2 --session 1GiB "
            "--n-cpu-moe 6 -ts 10,15"
        ),
        "split --model granite-3.0-1b-a400m --quant Q8_0 --gpu rtx-3070 --count 1..2 --session 5000MiB",
        "split --model granite-3.0-1b-a400m --quant Q8_0 --gpu rtx-3070 --session 1GiB --ram 64GB --engine all",
        "split --model granite-3.0-1b-a400m --quant Q8_0 --gpu rtx-3070 --session 1GiB --n-cpu-moe 2 --explain",
    ],
    "sweep": ["sweep <folder>/sweep.toml --out <folder>/swept-again --workers 1"],
    "tune": ["tune <folder>/tune.toml --out <folder>/tuned --trials 3"],
    "validate": ["validate --group published"],
    "vram": ["vram --model qwen3.8-flash-next --hardware rtx-5070"],
    "why": [
        (
            "why <folder>/small.parquet --hardware rtx-5070 --slots-per-layer 16 --miss fetch "
            "--prefetch previous-token --passes 12"
        )
    ],
    "window": ["window <folder>/small.parquet --slots 200 --horizon 1 --link rtx-5070"],
}
"""Commands that print each table of the program."""

ELSEWHERE = {"fit.py", "machine.py", "validate_added.py", "validate_advice.py"}
"""What needs measured files; their own tests print these."""


def calls_of_table():
    """File and line of each place in the commands that makes a table."""
    return {
        (path.name, node.lineno)
        for path in CLI.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "table"
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("tables")
    fill(found)
    said(["sweep", str(found / "sweep.toml"), "--out", str(found / "swept"), "--workers", "1"])
    return found


def test_every_table_of_every_command_has_all_headings_at_80_columns(folder):
    pytest.importorskip("optuna")
    made, origin = [], {}

    class Watched(Sheet):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)
            frame = sys._getframe(1)
            while frame.f_code.co_filename == tables.__file__:
                frame = frame.f_back
            origin[id(self)] = Path(frame.f_code.co_filename).name, frame.f_lineno

    names = {name for name, _ in help_cases()} - {"residency"}
    assert set(EXAMPLES) <= names
    with mock.patch.object(tables, "Sheet", Watched):
        for command in (line for lines in EXAMPLES.values() for line in lines):
            made.clear()
            words = [word.replace("<folder>", str(folder)) for word in command.split()]
            text = said(words, 80)
            assert made, command
            for sheet in made:
                lines = printed(sheet, 80)
                assert "\n".join(lines) in text, command
                assert max(map(len, lines)) <= 80, command
                assert headings_shown(sheet, lines), command
    reached = {file for file, _ in origin.values()} | ELSEWHERE
    assert {file for file, _ in calls_of_table()} == reached, "each file that makes tables has an example"


@pytest.mark.parametrize("kind", list_.KINDS)
@pytest.mark.parametrize("width", [60, 80, 100])
def test_names_of_a_list_can_be_copied_whole(kind, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit) as end:
        main(["list", kind])
    assert end.value.code == 0
    words = {word.strip(",") for word in capsys.readouterr().out.split()}
    rows = list_._ROWS[kind]()
    names = {row["name"] for row in rows} | {row["measured_in"] for row in rows if row.get("measured_in")}
    names |= {alias for row in rows for alias in row.get("aliases", ())}
    assert not names - words
