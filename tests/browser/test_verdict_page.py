"""The page of a verdict in a real browser: the evidence drawn, read by pointing and by keys, and silent."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import noisescope as ns
from chromium import Browser, chromium, need_chromium
from hostile_strings import HOSTILE
from noisescope.report.verdict import render_verdict
from odd_verdicts import poisoned_verdict, with_everything
from trained import fixture

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("one_thread")]

Sections = dict[str, Any]
DRAWN = "return document.getElementById('evidence-plot').data"
PLACE = """
const plot = document.getElementById("evidence-plot");
plot.scrollIntoView({ block: "center" });
const box = plot.getBoundingClientRect(), { xaxis, yaxis } = plot._fullLayout;
return [box.x + xaxis._offset + xaxis.d2p(arguments[0]), box.y + yaxis._offset + yaxis.d2p(arguments[1])];
"""


@dataclass(frozen=True)
class Opened:
    """The sections of verdicts by name, and their pages."""

    sections: dict[str, Sections]
    home: Path

    def file(self, name: str) -> Path:
        found = self.home / f"{name}.html"
        if not found.exists():
            found.write_text(render_verdict(self.sections[name], "html"), encoding="utf-8")
        return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    need_chromium()
    model, tokenizer = fixture("llama")
    given: dict[str, Any] = {"tokenizer": tokenizer, "name": "a llama"}
    healthy = dict(ns.locate(model, **given).sections)
    faulty = dict(ns.locate(model, **given, simulate="saturation:0.2@2.linear").sections)
    found = {"healthy": healthy, "faulty": faulty, "all": with_everything(faulty)}
    return Opened(found, tmp_path_factory.mktemp("page"))


@pytest.fixture(params=[1280, pytest.param(390, marks=pytest.mark.slow)])
def page(browser: Browser, opened: Opened, request: pytest.FixtureRequest) -> Iterator[Browser]:
    """That of a faulty device, on a desktop and on a phone; it must not complain nor ask for anything."""
    browser.open(opened.file("faulty"), width=request.param)
    yield browser
    assert browser.complaints() == []
    assert browser.requests() == []


on_both = pytest.mark.parametrize("page", [1280, 390], indirect=True)
"""where the width matters; the other tests are on a desktop by default"""


def point(page: Browser, column: int, row: int) -> None:
    x, y = page.run(PLACE, column, row)
    for step in (3, 0):  # a pointer arrives, it does not appear
        page.command("Input.dispatchMouseEvent", type="mouseMoved", x=x - step, y=y)


def test_the_evidence_is_drawn_and_the_suspect_outlined(page: Browser, opened: Opened) -> None:
    by_ratio, plainly, same, *_ = page.run(DRAWN)
    coloured = [value for row in by_ratio["z"] for value in row if value is not None]
    assert [10**value for value in coloured] == pytest.approx([opened.sections["faulty"]["verdict"]["worst_ratio"]])
    equal = [value for row in plainly["z"] for value in row if value is not None]
    assert set(equal) == {0}
    assert len(equal) + 1 == len(page.run("return noisescope.data.evidence.cells"))
    assert set(same["text"]) <= {"="}
    shapes = page.run("return document.getElementById('evidence-plot')._fullLayout.shapes.map(s => [s.x0, s.y0])")
    assert shapes == [[2.5, -0.5], [2.5, -0.5]], "a rim and an outline, around layer 2"


@on_both
def test_pointing_reads_a_cell(page: Browser) -> None:
    point(page, 3, 0)
    shown = page.until("return document.getElementById('evidence-readout').innerText.match(/^L2.*/)?.[0]")
    assert shown.startswith("L2 linear: suspect 1: clipping; the worst of 7 calls: model.layers.2.mlp.down_proj")


def test_keys_read_cells(page: Browser) -> None:
    page.run("document.getElementById('evidence-plot').focus()")
    page.press("\ue014")
    assert page.text("#evidence-readout") == "embed linear: no such operator there"
    page.press("\ue014")
    assert page.text("#evidence-readout").startswith("L0 linear: the worst of 7 calls: ")


def test_the_verdict_stands_first(page: Browser) -> None:
    text = page.text("main")
    assert 0 < text.index("Faulty at layer 2, linear") < text.index("FAULTY") < text.index("host: 15 of 4096 elements")
    targets = page.run("return [...document.querySelectorAll('#toc-list a')].map(link => link.hash)")
    assert targets[:3] == ["#evidence", "#suspects", "#truth"]
    assert all(page.text(target) for target in targets)


def test_the_theme_changes_the_colours_of_the_plot(page: Browser) -> None:
    before = page.run(DRAWN)[0]["colorscale"]
    page.run("document.getElementById('theme').click()")
    assert page.run(DRAWN)[0]["colorscale"] != before


@on_both
def test_only_tables_scroll_sideways(page: Browser) -> None:
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["healthy", "all"])
def test_other_verdicts_are_drawn_too(browser: Browser, opened: Opened, name: str, dark: bool) -> None:
    browser.open(opened.file(name), dark=dark)
    traces = browser.run(DRAWN)
    signs = {sign for trace in traces[2:] for sign in trace["text"]}
    assert signs == ({"="} if name == "healthy" else {"=", "?", "!"})
    assert bool(browser.run("return document.querySelector('#evidence-plot .cbtitle')")) == (name == "all")
    assert browser.complaints() == []
    assert browser.requests() == []


def test_the_page_is_there_without_scripts(browser: Browser, opened: Opened) -> None:
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(opened.file("all"))
        assert "looks like clipping" in browser.text("main")
        assert browser.text("#evidence summary")
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("at", [1, 2, 36])
def test_a_strangers_text_does_nothing(browser: Browser, opened: Opened, tmp_path: Path, at: int) -> None:
    file = tmp_path / "verdict.html"
    file.write_text(render_verdict(poisoned_verdict(opened.sections["faulty"], HOSTILE[at]), "html"), encoding="utf-8")
    browser.open(file)
    point(browser, 3, 0)
    assert browser.until("return document.querySelector('#evidence-plot .hoverlayer .hovertext')?.textContent")
    assert browser.run("return window.canary === undefined")
    assert browser.complaints() == []
    assert browser.requests() == []
