"""Names that files give are text wherever they are shown: no markup, no tags, no formulas, nothing that steers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from expert_residency.sim.cli import main
from expert_residency.sim.sweep.default import default_sweep
from expert_residency.sim.testing.cases import random_trace
from expert_residency.text import inert_json, visible
from expert_residency.traces import write_parquet

NAMES = {
    "a closing tag of rich": "model[/b]",
    "a tag of rich": "model[q4]",
    "a link of rich": "[link=http://x]y[/link]",
    "an escape": "\x1b[31mred\x1b]0;title\x07",
    "a bell and a carriage return": "a\rb\x07c\x00d",
    "turned writing": "abc\u202ecba\u2066",
    "an open comment and a script": "<!--<script>",
    "a closed script": "</script><img src=x onerror=alert(1)>",
    "an entity": "&lt;b&gt; <b>x</b>",
    "half a formula": "50$ and $x_",
    "quotes": '"it\'s" \\ `x` {y} %s',
    "line separators": "a\u2028b\u2029c",
}
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
PLACE = "--hardware tesla-p40 --slots-per-layer 2 --simulator reference"


def output(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What a command prints, whatever it answers; never with anything that steers a terminal."""
    with pytest.raises(SystemExit) as stopped:
        main(list(args))
    said = capsys.readouterr()
    assert stopped.value.code in (0, None), said.err
    assert not STEERING.search(said.out), repr(STEERING.search(said.out))
    assert not STEERING.search(said.err)
    return said.out


def squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.fixture(params=NAMES.values(), ids=NAMES)
def name(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A hostile name, which a model and a trace have; its folder is where we are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    trace = random_trace(3, passes=10)
    hostile = replace(trace.geometry, name=request.param, quant=request.param, source=request.param)
    meta = {"notes": [request.param], "source_engine": request.param, "source_file": request.param}
    write_parquet(replace(trace, geometry=hostile, meta=meta), tmp_path / "t.parquet")
    return str(request.param)


@pytest.mark.parametrize(
    "command",
    [
        "inspect t.parquet",
        f"run --trace t.parquet {PLACE}",
        "replay t.parquet --slots-per-layer 2 --eviction lru --simulator reference",
        "curve t.parquet --points 2 --eviction lru --simulator reference --plot c.png",
    ],
)
def test_tables_and_sentences_show_names_as_they_are(command: str, name: str, capsys: Any) -> None:
    if "--plot" in command:
        pytest.importorskip("matplotlib")
    assert squeezed(visible(name)) in squeezed(output(capsys, *command.split()))


def test_colours_are_no_reason_to_read_markup(name: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", "t.parquet"])
    assert stopped.value.code in (0, None)
    plain = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert not STEERING.search(plain)
    assert squeezed(visible(name)) in squeezed(plain)


def test_an_error_shows_names_as_they_are(name: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--trace", "t.parquet", "--hardware", "tesla-p40", "--capacity", "1TB"])
    said = capsys.readouterr().err
    assert (stopped.value.code, said.count("\n")) == (2, 1)
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", f"{name.replace(chr(0), '')}.csv"])
    said += capsys.readouterr().err
    assert stopped.value.code == 2
    assert not STEERING.search(said)


class Page(HTMLParser):
    """Which tags a browser would find, and the text of the data."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        (self.scripts if self.tags[-1:] == ["script"] else self.text).append(data)


@pytest.mark.slow
def test_a_report_holds_names_as_text(name: str, capsys: Any) -> None:
    pytest.importorskip("altair", reason="needs the extra 'report'")
    pytest.importorskip("vl_convert", reason="needs the extra 'report'")
    key = json.dumps(name).replace("\x7f", "\\u007f")
    Path("s.toml").write_text(
        f"name = {key}\nmisfits = 'record'\ntraces = {{ {key} = 't.parquet' }}\n"
        f"scenarios = {{ {key} = {{ host = 'arena' }} }}\n"
        f"[constants]\nhardware = 'tesla-p40'\nmiss = 'fetch'\nscenario = {key}\n"
        "[axes]\ncapacity = ['2/layer', '40GiB']\neviction = ['lru', 'lfu']\n"
    )
    summary = output(capsys, "sweep", "s.toml", "--out", "out", "--workers", "1", "--simulator", "reference")
    assert "of 4 cells have numbers" in summary
    output(capsys, "report", "out", "--out", "r.html")
    text = Path("r.html").read_text()
    page = Page()
    page.feed(text)
    assert page.tags.count("script") == 3
    assert "img" not in page.tags
    assert "b" not in page.tags
    assert "<!--" not in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert set(data["rows"]["trace"]) == {name}
    assert name.replace("\r", "\n") in "".join(page.text).replace("\r", "\n") or "\x00" in name
    output(capsys, "score", "out")


def test_a_sweep_file_is_made_for_any_name() -> None:
    import tomllib

    for name in [*NAMES.values(), "a\x7fb", 'a"b\\c']:
        assert tomllib.loads(default_sweep(name))["name"] == Path(name).name


def test_what_stands_in_a_script_ends_nothing() -> None:
    for name in NAMES.values():
        made = inert_json(json.dumps([name], ensure_ascii=False))
        assert json.loads(made) == [name]
        assert not set("<>&\u2028\u2029") & set(made)


def test_there_is_one_way_to_a_terminal() -> None:
    """What prints past `say` and the tables prints names as they came."""
    folder = Path(__file__).parents[1] / "sim" / "cli"
    past = [
        path.name
        for path in folder.glob("*.py")
        if path.name not in ("common.py", "__init__.py")
        and re.search(r"typer\.echo|\bprint\(|Console\(|sys\.std(out|err)\.write", path.read_text())
    ]
    assert past == ["progress.py"]
