"""Reports: what they say, and what a browser makes of them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from expert_residency.errors import SimError
from expert_residency.sim.sweep import read_dataset, sweep

pytest.importorskip("altair", reason="needs the extra 'report'")
pytest.importorskip("vl_convert", reason="needs the extra 'report'")

from expert_residency.sim.report import write_plots, write_report
from expert_residency.sim.report.across import overall
from expert_residency.sim.report.charts import figures, policy_colours
from expert_residency.sim.report.data import FILTERS, report_rows
from expert_residency.sim.report.plots import COLUMNS, whole
from expert_residency.sim.report.words import MEANINGS

NAME = '</script><b>"6 x 4" & more</b>'
SWEEP: dict[str, Any] = {
    "name": NAME,
    "misfits": "record",
    "traces": {"code": "bundled:tinymoe-code"},
    "constants": {"miss": "fetch", "passes": 8},
    "axes": {
        "hardware": ["rtx-5070", "tesla-p40"],
        "capacity": ["5%", "25%", "50%", "40GiB"],
        "eviction": ["lru", "lfu", "min"],
        "prefetch": ["none", "oracle"],
    },
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "sweep"
    sweep(SWEEP, path, workers=1)
    return path


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    return write_report(folder, folder.parent / "report.html")


# ---- without a browser -------------------------------------------------------------------------


def test_one_file_below_8_mb_with_nothing_to_fetch(report: Path) -> None:
    text = report.read_text()
    assert len(text) < 8e6
    page = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"""(src|href)=["'](?!data:)|url\(|@import""", page)
    assert [p.name for p in report.parent.iterdir() if p.suffix == ".html"] == ["report.html"]


def test_equal_sweeps_give_equal_reports(folder: Path, report: Path, tmp_path: Path) -> None:
    assert write_report(folder, tmp_path / "again.html").read_bytes() == report.read_bytes()


def test_ranks_leave_out_who_sees_the_future(folder: Path) -> None:
    rows = report_rows(read_dataset(folder))
    real = rows[~rows["oracle"]]
    assert real["rank"].tolist() == list(range(1, len(real) + 1))
    assert real["ms_per_token"].is_monotonic_increasing
    assert rows.loc[rows["oracle"], "rank"].isna().all()
    assert set(rows.loc[rows["oracle"], "eviction"]) == {"lru", "lfu", "min"}
    assert (real["of_best"] <= 1).all()


def test_plots_are_pictures(folder: Path, tmp_path: Path) -> None:
    found = {p.name: p.read_bytes() for p in write_plots(folder, tmp_path)}
    kinds = ("png", "-1col.svg", "-2col.svg", "-1col.pdf", "-2col.pdf")
    charts = ("capacity", "causes", "hits", "pareto")
    assert set(found) == {f"{k}{'.' * (kind == 'png')}{kind}" for k in charts for kind in kinds}
    for name, data in found.items():
        assert data.startswith({"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}[name[-3:]])
        assert len(data) > 5000
        if name.endswith("svg"):  # as wide as a column of a paper, and never wider
            width = float(re.search(rb'<svg[^>]* width="([0-9.]+)"', data)[1])
            most = COLUMNS[int(name[-8])]
            assert 0.9 * most <= width <= most + 1, name
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(found)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three traces of two models and six requests each, on three machines: nine charts of capacity."""
    folder = tmp_path_factory.mktemp("several")
    source = {
        "traces": {
            "code": "synthetic:gpt-oss-20b:tokens=2,requests=6",
            "prose": "synthetic:gpt-oss-20b:tokens=2,requests=6,seed=2,request_tilt=2",
            "tiny": {"synthetic": {"style": "qwen3-30b-a3b", "tokens": 2, "requests": 6},
                     "model": "granite-3.0-1b-a400m"},
        },
        "constants": {"miss": "fetch"},
        "axes": {
            "trace": ["code", "prose", "tiny"], "hardware": ["rtx-5070", "rtx-5090", "tesla-p40"],
            "capacity": ["40%"], "eviction": ["belady", "fifo", "lru"], "prefetch": ["none", "oracle"],
        },
    }  # fmt: skip
    sweep(source, folder / "sweep", workers=1)
    return folder / "sweep"


def scales(chart: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """Field and colours of each colour scale in a chart."""
    if isinstance(chart, dict):
        scale = chart.get("scale") or {}
        if {"domain", "range"} <= scale.keys() and str(scale["range"][0]).startswith("#"):
            yield chart["field"], dict(zip(scale["domain"], scale["range"], strict=True))
        for part in chart.values():
            yield from scales(part)
    elif isinstance(chart, list):
        for part in chart:
            yield from scales(part)


def test_a_policy_has_one_colour_on_the_whole_page(several: Path) -> None:
    """Belady sees the future and comes first in the alphabet: it took the colour of the next on one chart only."""
    seen: dict[str, set[str]] = {}
    for figure in figures(report_rows(read_dataset(several))):
        for field, colours in scales(figure.chart.to_dict(validate=False)):
            if field != "what":  # causes of time are no policies
                for name, colour in colours.items():
                    seen.setdefault(name, set()).add(colour)
    assert {"belady", "fifo", "lru", "rtx-5070", "tesla-p40"} <= set(seen)
    assert all(len(colours) == 1 for colours in seen.values())
    assert len({colour for colours in seen.values() for colour in colours}) == len(seen)


def test_there_are_colours_for_any_number_of_policies() -> None:
    rows = pd.DataFrame({"eviction": [f"p{i:02}" for i in range(40)]})
    assert len(set(policy_colours(rows).values())) == 40


def test_every_group_is_in_the_pictures(several: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = report_rows(read_dataset(several))
    for figure in figures(rows):
        charts = whole(figure, rows, 2, 200, 4).to_dict(validate=False)["concat"]
        titles = [" ".join(chart["title"]["text"]) for chart in charts]
        assert len(titles) == (9 if figure.key == "capacity" else 3)
        assert all(any(trace in title for trace in ("code", "prose", "tiny")) for title in titles)


def test_traces_are_compared_by_ratios_only(several: Path) -> None:
    """Tokens/s of two models do not compare: ranks are of one trace, and over all stands the geometric mean."""
    rows = report_rows(read_dataset(several))
    for _, of_trace in rows[~rows["oracle"]].groupby("work"):
        assert sorted(of_trace["rank"]) == list(range(1, len(of_trace) + 1))
    base = rows[(rows["eviction"] == "lru") & (rows["prefetch"] == "none")]
    assert (base["of_base"] == 1).all()
    found = {one["policy"]: one for one in overall(rows)}
    assert set(found) == {"lru + none", "fifo + none"}, "what sees the future is no candidate"
    assert found["lru + none"]["ratio"] == pytest.approx(1)
    fifo = rows[(rows["eviction"] == "fifo") & (rows["prefetch"] == "none")]
    logs = [np.log(of_trace["of_base"]).mean() for _, of_trace in fifo.groupby("trace")]
    assert found["fifo + none"]["ratio"] == pytest.approx(np.exp(np.mean(logs)))
    assert sum(one["wins"] for one in found.values()) >= 3
    assert overall(rows[rows["trace"] == "code"]) == []
    for one in found.values():
        assert one["low"] <= one["ratio"] <= one["high"]
        assert 0 < one["of_bound"] < 1
    assert found["lru + none"]["low"] == found["lru + none"]["high"] == 1
    few = rows.assign(
        blocks=[own[:4] if work == "tiny" else own for own, work in zip(rows["blocks"], rows["work"], strict=True)]
    )
    assert {one["low"] for one in overall(few)} == {None}, "no interval on four requests"


def test_the_bound_on_time_is_beside_every_cell(folder: Path, several: Path) -> None:
    for sweep_folder in (folder, several):
        rows = report_rows(read_dataset(sweep_folder))
        assert rows["of_bound"].between(0, 1).all()
        assert (rows["bound_tokens_per_s"] >= rows["tokens_per_s"]).all()
        base = rows[(rows["eviction"] == "lru") & (rows["prefetch"] == "none")]
        assert (base["headroom"].dropna() == 0).all()
        assert (rows["headroom"].dropna() <= 1).all()
    old = read_dataset(folder).assign(bound_ns=None)  # of a version that did not find it
    rows = report_rows(old)
    assert rows[["of_bound", "headroom", "bound_ms"]].isna().all(axis=None)
    assert len(figures(rows)) == 4


def test_a_label_is_of_one_cell(tmp_path: Path) -> None:
    """Two miss modes of one policy had one label, and their bars were stacked on each other."""
    axes = {"miss": ["fetch", "cpu"], "hardware": ["rtx-5070"], "capacity": ["25%"], "eviction": ["lru", "lfu"]}
    sweep({"traces": {"code": "bundled:tinymoe-code"}, "constants": {"passes": 5}, "axes": axes}, tmp_path / "s")
    rows = report_rows(read_dataset(tmp_path / "s"))
    assert rows["label"].is_unique
    assert rows["label"].str.contains("miss cpu").sum() == 2
    assert set(rows["group"]) == {"code · rtx-5070 · miss fetch", "code · rtx-5070 · miss cpu"}


def test_every_heading_has_a_meaning(several: Path) -> None:
    app = (Path(__file__).parents[1] / "sim" / "report" / "app.js").read_text()
    tables = re.findall(r"const (?:COLUMNS|OVERALL) = \[(.*?)\];", app, re.DOTALL)
    keys = [key for text in tables for key in re.findall(r'\["(\w+)"', text)]
    assert len(keys) > 15
    assert {*keys, *FILTERS} <= set(MEANINGS)


def test_no_numbers_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(trace: Any, spec: Any, **_: Any) -> Any:
        raise RuntimeError("no luck")

    with pytest.raises(SimError, match="no sweep here"):
        write_report(tmp_path, tmp_path / "r.html")
    monkeypatch.setattr("expert_residency.sim.sweep.worker.simulate", fails)
    source = SWEEP | {"axes": {"hardware": ["rtx-5070"], "capacity": ["25%"]}}
    sweep(source, tmp_path / "s", workers=1)
    with pytest.raises(SimError, match="first reason: RuntimeError: no luck"):
        write_report(tmp_path / "s", tmp_path / "r.html")


# ---- in a browser ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as api:
        started = api.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()


Open = Callable[..., Any]


@pytest.fixture
def open_report(browser: Any, report: Path) -> Iterator[Open]:
    """Opens the report; at the end nothing may have been fetched and the console must be empty."""
    pages, heard = [], []

    def open_page(width: int = 1280, scheme: str = "light") -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else heard.append(r.url))
        page.goto(report.as_uri())
        page.wait_for_function("document.body.dataset.drawn")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert heard == []


def column(page: Any, heading: str) -> list[str]:
    heads = page.locator("thead th").all_inner_texts()
    at = next(i for i, text in enumerate(heads) if text.split(" ▲")[0].split(" ▼")[0].strip() == heading)
    return [row.locator("td").nth(at).inner_text() for row in page.locator("tbody tr").all()]


def drawn(page: Any) -> int:
    return int(page.evaluate("document.body.dataset.drawn"))


def click(page: Any, fieldset: str, text: str) -> None:
    before = drawn(page)
    page.locator(f"fieldset[data-column={fieldset}] .chip", has_text=re.compile(f"^{re.escape(text)}$")).click()
    page.wait_for_function(f"+document.body.dataset.drawn > {before}")


def test_every_chart_is_drawn(open_report: Open) -> None:
    page = open_report()
    assert page.title() == f"{NAME}: expert residency"
    assert page.locator("h1").inner_text() == NAME
    assert page.locator("#capacity svg").count() == 2
    for key in ("causes", "hits", "pareto"):
        assert page.locator(f"#{key} svg").count() == 1
    assert page.locator("#causes svg .mark-rect.role-mark path").count() >= 12 * 4
    assert page.locator("#hits svg .mark-symbol.role-mark path").count() == 12
    assert page.locator("#capacity svg .mark-line.role-mark path").count() == 2 * 4, "two policies and two bounds"
    assert page.locator("#pareto svg .mark-line.role-mark path").count() == 2 * 2
    for heading in page.locator("thead th button").all():
        assert len(heading.get_attribute("title")) > 10


def test_the_answer_is_the_first_line_and_agrees_with_the_dataset(open_report: Open, folder: Path) -> None:
    page = open_report()
    rows = report_rows(read_dataset(folder))
    best = rows[~rows["oracle"]].iloc[0]
    answer = page.locator("#answer").inner_text()
    assert answer.startswith(f"Fastest: {best['policy']} on {best['hardware']} with {best['room']} of experts")
    assert f"{best['tokens_per_s']:.2f} tokens/s" in answer
    assert column(page, "tokens/s")[0] == f"{best['tokens_per_s']:.2f}"
    assert "policies that see the future" in page.locator("#capacity p").inner_text()


def test_several_traces_have_a_headline_of_ratios(browser: Any, several: Path, tmp_path: Path) -> None:
    page = browser.new_page()
    page.goto(write_report(several, tmp_path / "r.html").as_uri())
    page.wait_for_function("document.body.dataset.drawn")
    answer = page.locator("#answer").inner_text()
    assert answer.startswith("Over 3 traces, by the geometric mean of ratios to lru + none: ")
    best = overall(report_rows(read_dataset(several)))[0]
    assert f"{best['policy']} {best['ratio']:.3f}x (" in answer
    lines = page.locator("#overall tbody tr").all_inner_texts()
    assert len(lines) == 2
    for line, one in zip(lines, overall(report_rows(read_dataset(several))), strict=True):
        policy, ratio, interval, wins, share = line.split("\t")
        assert (policy, ratio, wins) == (one["policy"], f"{one['ratio']:.3f}", f"{one['wins']} of 3")
        assert [float(end) for end in interval.split(" to ")] == pytest.approx([one["low"], one["high"]], abs=5e-3)
        assert float(share.split()[0]) == pytest.approx(100 * one["of_bound"], abs=0.06)
    for plot in page.locator(".chart figure").all():
        assert plot.locator("figcaption").inner_text().split(" · ")[0] in ("code", "prose", "tiny")
    assert page.locator("#answer div").count() == 3
    assert page.locator("#hits svg").count() == 3
    page.close()


def test_filters_work_on_table_and_charts(open_report: Open) -> None:
    page = open_report()
    assert page.locator("#count").inner_text().startswith("12 of 36 cells")
    click(page, "eviction", "lfu")
    assert set(column(page, "eviction")) == {"lfu"}
    assert page.locator("#hits svg .mark-symbol.role-mark path").count() == 6
    click(page, "hardware", "tesla-p40")
    assert set(column(page, "machine")) == {"tesla-p40"}
    assert page.locator("#count").inner_text().startswith("3 of 36 cells")
    assert page.locator("#capacity svg").count() == 1
    click(page, "eviction", "lfu")
    assert set(column(page, "eviction")) == {"lru", "lfu"}
    click(page, "oracle", "show policies that see the future")
    assert page.locator("#count").inner_text().startswith("18 of 36 cells")
    assert "min" in column(page, "eviction")
    click(page, "prefetch", "oracle")
    assert set(column(page, "#")) == {""}


def test_whoever_asks_for_an_oracle_by_name_gets_it(open_report: Open) -> None:
    page = open_report()
    click(page, "prefetch", "oracle")
    assert set(column(page, "prefetch")) == {"oracle"}


def test_columns_sort_and_lines_open(open_report: Open) -> None:
    page = open_report()
    page.get_by_role("button", name="cache GiB").click()
    values = [float(text) for text in column(page, "cache GiB")]
    assert values == sorted(values)
    page.get_by_role("button", name="cache GiB").click()
    assert [float(text) for text in column(page, "cache GiB")] == sorted(values, reverse=True)
    page.locator("tbody tr").first.click()
    assert "What binds is" in page.locator("tr.detail").inner_text()


def test_misfits_warnings_and_manifest_are_shown(open_report: Open, folder: Path) -> None:
    page = open_report()
    text = page.locator("main").inner_text()
    assert "does not fit" in text
    assert "below one token's experts" in text
    made = json.loads(read_dataset(folder)["manifest"].dropna().iloc[0])
    assert made["trace_sha256"][:16] in page.locator("#manifest").inner_text()
    for digest in made["hardware_sha256"]:
        assert digest in page.locator("#manifest").inner_text()


def luminance(colour: str) -> float:
    parts = [int(x) / 255 for x in re.findall(r"\d+", colour)[:3]]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_can_be_read(open_report: Open, width: int, scheme: str) -> None:
    page = open_report(width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    style = "getComputedStyle(document.querySelector('{}')).{}"
    paper = luminance(page.evaluate(style.format("section", "backgroundColor")))
    assert (paper > 0.8) == (scheme == "light")
    for place in ("h2", "td", "th", "section p"):
        ink = luminance(page.evaluate(style.format(place, "color")))
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5
        assert float(page.evaluate(style.format(place, "fontSize")).removesuffix("px")) >= 12
    ink = page.locator("#hits .role-axis-label text").first.evaluate("e => getComputedStyle(e).fill")
    assert (max(luminance(ink), paper) + 0.05) / (min(luminance(ink), paper) + 0.05) >= 4.5
    for svg in page.locator(".plot svg").all():
        box = svg.bounding_box()
        assert box["width"] > 0.6 * min(width, 420)
        assert box["x"] + box["width"] <= width
    assert page.locator("tbody tr").first.is_visible()


def test_a_change_of_scheme_redraws(open_report: Open) -> None:
    page = open_report()
    before = page.locator("#hits .role-axis-label text").first.evaluate("e => getComputedStyle(e).fill")
    turn = drawn(page)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"+document.body.dataset.drawn > {turn}")
    after = page.locator("#hits .role-axis-label text").first.evaluate("e => getComputedStyle(e).fill")
    assert luminance(after) > luminance(before)
