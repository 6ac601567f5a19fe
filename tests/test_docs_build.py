"""Tables of the pages are those that their functions make."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def build(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    yield __import__("build")
    sys.modules.pop("build")


def test_tables_that_take_no_time_are_up_to_date_and_every_page_is_known(build):
    build.main(["--check"])
    marked = {page.stem for page in DOCS.glob("**/*.md") if "<!-- table" in page.read_text("utf-8")}
    assert marked == set(build.BLOCKS)
    assert set(build.FIGURES) <= {figure.name for figure in (DOCS / "img").iterdir()}


def test_a_table_that_was_edited_is_named_and_made_anew(build, tmp_path, monkeypatch, capsys):
    whole = (DOCS / "published.md").read_text("utf-8")
    (tmp_path / "published.md").write_text(whole.replace("2x-tesla-p40", "3x-tesla-p40"), "utf-8")
    monkeypatch.setattr(build, "HERE", tmp_path)
    with pytest.raises(SystemExit) as stopped:
        build.main(["--check", "published"])
    assert stopped.value.code == 1
    assert capsys.readouterr().out == "published:published is out of date: python docs/build.py\n"
    build.main(["published:published"])
    assert build.fill(tmp_path / "published.md", write=False) == []
    assert "3x-tesla" not in (tmp_path / "published.md").read_text("utf-8")


def test_a_page_without_its_marker_is_refused(build, tmp_path):
    shutil.copy(DOCS / "vram.md", tmp_path)
    page = tmp_path / "vram.md"
    page.write_text(page.read_text("utf-8").replace("<!-- table: slots -->", ""), "utf-8")
    with pytest.raises(SystemExit, match=r"holds tables breakdown, but breakdown, slots are made"):
        build.fill(page)


def test_what_needs_recorded_traces_says_so_and_unknown_names_are_refused(build, monkeypatch, capsys):
    monkeypatch.delenv("EXPERT_RESIDENCY_SHARED", raising=False)
    with pytest.raises(SystemExit, match="policies:hits needs the recorded traces"):
        build.main(["policies:hits"])
    with pytest.raises(SystemExit):
        build.main(["polices"])
    assert "unknown name 'polices'" in capsys.readouterr().err


def test_numbers_of_profiles_in_sentences_are_theirs(build, tmp_path):
    """A page said 7.1 GB/s where the profile has 8.5."""
    page = tmp_path / "hardware.md"
    whole = (DOCS / "hardware.md").read_text("utf-8")
    page.write_text(whole.replace("-->8.5<!--", "-->7.1<!--"), "utf-8")
    assert "-->7.1<!--" in page.read_text("utf-8")
    assert build.fill(page) == ["rtx-5070-7900x cpu.expert_gb_per_s.page_cache.default"]
    assert page.read_text("utf-8") == whole
