"""The page of a comparison in a real browser: in the frame of a report's page, and as silent."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest

import noisescope as ns
from chromium import Browser, chromium, need_chromium
from noisescope.report.comparison import RENDERERS, Differences
from trained import fixture

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a report and the same with one operator a hundred times as fragile, on another device."""
    need_chromium()
    model, tokenizer = fixture("llama")
    before = dict(ns.diagnose(model, None, tokenizer=tokenizer, n_samples=8, max_length=12, name="a llama").sections)
    after = deepcopy(before)
    row = after["operator_analysis"]["softmax"]
    row["kl"] = {name: value if name == "n" else 100 * value for name, value in row["kl"].items()}
    after["environment"]["device"] = "cuda"
    found = tmp_path_factory.mktemp("page") / "differences.html"
    found.write_text(RENDERERS["html"](Differences.between(before, after)), encoding="utf-8")
    return found


@pytest.fixture(params=[1280, 390])
def page(browser: Browser, file: Path, request: pytest.FixtureRequest) -> Iterator[Browser]:
    """On a desktop and on a phone; whatever a test does, it must not complain nor ask for anything."""
    browser.open(file, width=request.param)
    yield browser
    assert browser.complaints() == []
    assert browser.requests() == []


def test_what_differs_stands_above_the_verdict(page: Browser) -> None:
    text = page.text("main")
    assert 0 < text.index("cuda") < text.index("1 row significantly worse") < text.index("operator softmax")


def test_the_theme_changes(page: Browser) -> None:
    colour = "return getComputedStyle(document.body).backgroundColor"
    light = page.run(colour)
    page.run("document.getElementById('theme').click()")
    assert page.run(colour) != light
    assert page.text("#theme") == "light"


def test_the_contents_lead_to_sections(page: Browser) -> None:
    targets = page.run("return [...document.querySelectorAll('#toc-list a')].map(link => link.hash)")
    assert targets == ["#levels", "#map", "#runs", "#reading"]
    assert all(page.text(target) for target in targets)


def test_the_map_is_folded_and_opens(page: Browser) -> None:
    assert not page.text("#map table")
    page.run("document.querySelectorAll('#map details').forEach(part => { part.open = true; })")
    assert "cell" in page.run("return document.getElementById('map').innerText")


def test_only_tables_scroll_sideways(page: Browser) -> None:
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


def test_the_page_is_there_without_scripts(browser: Browser, file: Path) -> None:
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(file)
        assert "operator softmax" in browser.text("main")
        assert browser.text("#toc-list")
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)
