"""The report as a file: well-formed, alone in the world, and seen in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from bench.pipeline.made_trace import Maker
from browsers import VIEWS, background, too_wide, watched
from wheeld.cli.app import app
from wheeld_pipeline import PipelineError
from wheeld_pipeline.report import Paths, compare, load, save, write, write_comparison
from wheeld_pipeline.report.page.glossary import TERMS

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from pyspark.sql import SparkSession

VOID = {"meta", "link", "br", "img", "hr", "input"}
LOADS = re.compile(r"(?:src|href|url|xlink:href|@import)\s*[=(]?\s*[\"']?\s*(?:https?:|//)", re.I)
EVERY_PLOT = 15


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Maker(tmp_path_factory.mktemp("made"), rows=20_000, hours=0.2, workers=5).make()


@pytest.fixture(scope="module")
def paths(spark: SparkSession, trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Paths:
    out = tmp_path_factory.mktemp("report")
    done = CliRunner().invoke(app, ["pipeline", "report", str(trace), "--out", str(out)])
    assert done.exit_code == 0, done.output
    made = Paths(out / "report.html", out / "report.json", out / "tables")
    assert done.stdout.split() == [str(path) for path in (made.page, made.json, made.tables)]
    assert "report: counting all events" in done.stderr
    return made


def test_a_notebook_shows_the_page_in_a_frame(paths: Paths) -> None:
    shown = load(paths.json.parent)._repr_html_()
    (inside,) = re.findall(r'<iframe [^>]*srcdoc="([^"]*)"></iframe>', shown)
    assert unescape(inside) == paths.page.read_text()


class Tags(HTMLParser):
    """Checks that every element is closed, in order; gathers ids, links and text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.svgs: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [str(found["id"])] if "id" in found else []
        self.links += [str(found["href"])] if tag == "a" else []
        self.svgs += [found] if tag == "svg" else []
        assert tag != "script"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Opened and closed at once."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    return tags


def test_the_page_is_well_formed_and_needs_nothing_else(paths: Paths) -> None:
    text = paths.page.read_text(encoding="utf-8")
    tags = parsed(text)
    assert not LOADS.search(text)
    assert len(set(tags.ids)) == len(tags.ids)
    assert {link.removeprefix("#") for link in tags.links} <= set(tags.ids)  # none leads elsewhere
    assert len(tags.svgs) == EVERY_PLOT
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in tags.svgs)
    assert {f"g-{anchor}" for anchor, _, _ in TERMS} <= set(tags.ids)
    assert not re.search(r"\bnan\b", text, re.I)


def test_every_term_is_used(paths: Paths) -> None:
    linked = set(parsed(paths.page.read_text(encoding="utf-8")).links)
    assert {f"#g-{anchor}" for anchor, _, _ in TERMS} <= linked


def test_names_cannot_break_the_page(paths: Paths, tmp_path: Path) -> None:
    report = load(paths.json.parent)
    evil = '</title><script>alert("1")</script>&'
    workers = report.tables["workers"].assign(worker=evil)
    makers = report.tables["herd_makers"].assign(worker=evil)
    facts = report.facts | {"hosts": [evil], "daemons": [evil]}
    tables = report.tables | {"workers": workers, "herd_makers": makers}
    broken = replace(report, facts=facts, tables=tables)
    parsed(save(broken, tmp_path).page.read_text(encoding="utf-8"))


def test_tables_and_numbers_are_files(paths: Paths, trace: Path) -> None:
    content = json.loads(paths.json.read_text(encoding="utf-8"))
    facts = content["facts"]
    events = pd.read_parquet(trace / "events")
    assert facts["rows"] == len(events)
    assert facts["trace"] == str(trace)
    for name, rows in content["tables"].items():
        assert len(pd.read_parquet(paths.tables / f"{name}.parquet")) == len(rows)
    account = facts["daemon_account"]
    assert {name: facts["events"][name] for name in ("scheduled", "cancelled", "expired")} == {
        name: account[name] for name in ("scheduled", "cancelled", "expired")
    }


def test_a_report_can_be_read_back(paths: Paths, tmp_path: Path) -> None:
    again = save(load(paths.json.parent), tmp_path)
    assert again.page.read_text(encoding="utf-8") == paths.page.read_text(encoding="utf-8")
    for text, said in (("{", "not a report"), ('{"format": 99}', "has format 99, expected 1")):
        again.json.write_text(text)
        with pytest.raises(PipelineError, match=said):
            load(tmp_path)
    with pytest.raises(PipelineError, match="is no report"):
        load(tmp_path / "nothing")


def test_compare_puts_both_in_one_page(java: None, paths: Paths, tmp_path: Path) -> None:
    folder = str(paths.json.parent)
    command = ["pipeline", "compare", folder, folder, "--out", str(tmp_path), "--names", "a,b<>"]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)["figures"]
    ratios = [each["ratio"] for each in figures if each["first"]]
    assert ratios
    assert set(ratios) == {1.0}
    text = (tmp_path / "compare.html").read_text(encoding="utf-8")
    tags = parsed(text)
    assert not LOADS.search(text)
    assert len(tags.svgs) == 6
    assert "b&lt;&gt;" in text


def test_compare_says_what_changed(paths: Paths, tmp_path: Path) -> None:
    first = load(paths.json.parent)
    slower = dict(first.facts["lateness_ns"], p99=first.facts["lateness_ns"]["p99"] * 3)
    second = replace(first, facts=first.facts | {"lateness_ns": slower, "timeout_rate": None})
    found = compare(first, second, ("old", "new"))
    table = found.table().set_index("figure")
    assert table.loc["lateness p99, ns", "ratio"] == pytest.approx(3)
    assert pd.isna(table.loc["timeout rate", "ratio"])
    text = write_comparison(found, tmp_path).read_text(encoding="utf-8")
    assert "p99 of lateness in new is 3 times that in old" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "nowhere"], "no trace nowhere"),
        (["report", ".", "--from", "soon"], "--from soon: expected a time"),
        (["report", ".", "--master", "local", "--remote", "sc://x"], "expected one of them"),
        (["compare", "nowhere", "nowhere"], "nowhere is no report"),
        (["compare", "a", "b", "--names", "one"], "expected two names"),
    ],
)
def test_commands_end_with_one_line(
    spark: SparkSession, tmp_path: Path, monkeypatch: Any, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["pipeline", *arguments])
    assert done.exit_code == (2 if "--" in "".join(arguments) else 1)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("wheeld: ")
    assert said in last


def test_out_is_a_file(spark: SparkSession, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match="is a file"):
        write(spark, trace, tmp_path / "file")


@pytest.fixture
def seen(browser: Any, request: pytest.FixtureRequest) -> Iterator[tuple[Page, list[str]]]:
    with watched(browser, request.param, ("file:", "data:"), offline=True) as found:
        yield found


def hidden(page: Page) -> list[str]:
    return page.evaluate(  # type: ignore[no-any-return]
        """() => [...document.querySelectorAll('svg')].flatMap(svg => {
            const box = svg.getBoundingClientRect();
            const drawn = [...svg.querySelectorAll('.line, .dot, .bar, .band')]
                .filter(part => { const b = part.getBoundingClientRect();
                    return b.width + b.height > 0; });
            const ink = drawn.some(part => { const s = getComputedStyle(part);
                return (s.stroke !== 'none' || s.fill !== 'none') && s.visibility === 'visible'; });
            return box.width > 150 && box.height > 60 && drawn.length && ink
                ? [] : [svg.getAttribute('aria-label')];
        })"""
    )


@pytest.mark.parametrize("seen", list(VIEWS), indirect=True)
def test_a_browser_shows_every_plot(
    seen: tuple[Page, list[str]], paths: Paths, tmp_path: Path
) -> None:
    page, complaints = seen
    page.goto(paths.page.as_uri())
    assert page.locator("svg").count() == EVERY_PLOT
    assert hidden(page) == []
    assert not too_wide(page)
    page.locator("summary").first.click()
    assert page.locator("details[open] table").first.is_visible()
    shot = tmp_path / "report.png"
    page.screenshot(path=shot, full_page=True)
    assert shot.stat().st_size > 20_000
    assert complaints == []


@pytest.mark.parametrize("seen", ["dark"], indirect=True)
def test_the_dark_page_is_dark(seen: tuple[Page, list[str]], paths: Paths) -> None:
    page, _ = seen
    page.goto(paths.page.as_uri())
    assert max(background(page)) < 60
