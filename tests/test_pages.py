"""Pages name files that exist: whoever moves one is told which page to mend."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP = ("expert_residency", "traces", "hwmodels", "policies", "sim", "tests", "benchmarks", "docs", "notebooks")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PATH = re.compile(rf"`((?:{'|'.join(TOP)})/[\w./*-]*)`")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def named(text: str) -> list[str]:
    """Paths from the root that a page writes as code; `my-...` and `my_...` are files for a reader to make."""
    return [path for path in PATH.findall(text) if not re.search(r"/my[-_]", path)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_links_of_a_page_exist(page):
    text = page.read_text(encoding="utf-8")
    files = [path for path in named(text) if not any(ROOT.glob(path.rstrip("/")))]
    links = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert (files, links) == ([], [])


def test_the_walks_name_files():
    assert len(named((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))) > 40
    assert len(named((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))) > 15
