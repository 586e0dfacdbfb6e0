"""The page of a comparison in a real browser: the error drawn through depth, read by pointing and keys, and silent."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log10
from pathlib import Path
from typing import Any

import pytest
import torch

from chromium import Browser, chromium, need_chromium
from hostile_strings import HOSTILE
from noisescope.comparing import compare
from noisescope.report.divergence import render_comparison
from noisescope.traces import trace
from odd_comparisons import poisoned_comparison, with_everything_compared
from trained import fixture

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("one_thread")]

Sections = dict[str, Any]
RIGHT, UP, HOME = "\ue014", "\ue013", "\ue011"
PLOT = "const plot = document.getElementById('growth-plot');"
PLACE = f"""{PLOT}
plot.scrollIntoView({{ block: "center" }});
const box = plot.getBoundingClientRect(), {{ xaxis, yaxis }} = plot._fullLayout;
return [box.x + xaxis._offset + xaxis.d2p(arguments[0]), box.y + yaxis._offset + yaxis._length / 2];
"""
CHOOSE = """
const found = document.getElementById(arguments[0]);
found.value = arguments[1];
found.dispatchEvent(new Event("change"));
"""


@dataclass(frozen=True)
class Opened:
    """The sections of comparisons by name, and their pages."""

    sections: dict[str, Sections]
    home: Path

    def file(self, name: str) -> Path:
        found = self.home / f"{name}.html"
        if not found.exists():
            found.write_text(render_comparison(self.sections[name], "html"), encoding="utf-8")
        return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    need_chromium()
    model, _ = fixture("llama")
    ids = {"input_ids": torch.randint(0, model.config.vocab_size, (4, 32), generator=torch.Generator().manual_seed(1))}
    given: dict[str, Any] = {"checkpoint": "x", "name": "a llama"}
    reference = trace(model, ids, inputs=True, **given)
    faults = ("saturation:0.2@3.linear", "noise:0.01@5.softmax")
    suspect = trace(model, ids, inputs_from=reference, floor=False, emulate=faults, **given)
    faulty = dict(compare(reference, suspect).sections)
    found = {
        "faulty": faulty,
        "same": dict(compare(reference, reference).sections),
        "all": with_everything_compared(faulty),
        "empty": faulty | {"sites": [], "fed": [], "layers": []},
    }
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


def point(page: Browser, at: int) -> None:
    """At the middle of the column of a site, wherever its error is."""
    x, y = page.run(PLACE, at)
    for step in (3, 0):  # a pointer arrives, it does not appear
        page.command("Input.dispatchMouseEvent", type="mouseMoved", x=x - step, y=y)


def first_source(opened: Opened) -> int:
    sections = opened.sections["faulty"]
    return [site["name"] for site in sections["sites"]].index(sections["verdict"]["first"])


def heights(page: Browser, colour: str) -> list[float]:
    """Of the points that are drawn in a colour of the page."""
    script = f"""{PLOT}
    const wanted = noisescope.colour(arguments[0]);
    const points = plot.data.filter((trace) => trace.mode === "markers" && trace.marker.color === wanted);
    return points.flatMap(({{ y }}) => y);
    """
    return list(page.run(script, colour))


def test_errors_beyond_the_floor_are_drawn_where_they_are(page: Browser, opened: Opened) -> None:
    beyond = [site for site in opened.sections["faulty"]["sites"] if site["beyond"]]
    expected = [log10(site["metrics"]["relative_error"]["value"]) for site in beyond]
    assert heights(page, "alarm") == pytest.approx(expected)
    own = [site["metrics"]["relative_error"]["value"] for site in opened.sections["faulty"]["fed"]]
    assert heights(page, "own") == pytest.approx([log10(error) for error in own if error])


def test_sources_are_marked(page: Browser, opened: Opened) -> None:
    lines = page.run(f"{PLOT} return plot._fullLayout.shapes.filter(s => s.type === 'line').map(s => s.x0)")
    assert lines[0] == first_source(opened)
    assert len(lines) == 2
    names = page.run(f"{PLOT} return plot._fullLayout.annotations.map(a => a.text)")
    assert names[-2:] == ["L3", "L5"]


@on_both
def test_pointing_reads_a_site_wherever_in_its_column(page: Browser, opened: Opened) -> None:
    point(page, first_source(opened))
    shown = page.until("return document.getElementById('growth-readout').innerText.match(/^L3 .*down_proj.*/)?.[0]")
    assert shown.startswith("L3 linear (mlp.down_proj): relative error 0.018")
    assert "noise floor" in shown
    assert "given the reference's input: 0.018" in shown


def test_keys_read_sites_and_layers(page: Browser) -> None:
    page.run("document.getElementById('growth-plot').focus()")
    page.press(RIGHT)
    assert page.text("#growth-readout").startswith("L3 linear (mlp.down_proj): "), "keys begin where the error does"
    page.press(RIGHT)
    assert page.text("#growth-readout").startswith("L3 residual 1: ")
    page.press(UP)
    assert page.text("#growth-readout").startswith("L4 rms_norm (input_layernorm): ")
    page.press(HOME)
    assert page.text("#growth-readout").startswith("embed embedding (model.embed_tokens): bits equal")


def test_looking_into_a_layer_names_its_sites(page: Browser) -> None:
    page.run(CHOOSE, "zoom", "4")
    assert page.run(f"{PLOT} return plot._fullLayout.xaxis.ticktext")[-3:] == ["up_proj", "down_proj", "residual 1"]
    first, last = page.run(f"{PLOT} return plot._fullLayout.xaxis.range")
    assert last - first < 14
    page.run(CHOOSE, "zoom", "")
    assert page.run(f"{PLOT} return plot._fullLayout.xaxis.ticktext")[0] == "0"


def test_the_verdict_stands_first(page: Browser) -> None:
    text = page.text("main")
    assert 0 < text.index("The suspect diverges from L3 linear") < text.index("DIVERGES") < text.index("SOURCE")
    targets = page.run("return [...document.querySelectorAll('#toc-list a')].map(link => link.hash)")
    assert targets == ["#growth", "#layers", "#sites", "#traces", "#environments"]
    assert all(page.text(target) for target in targets)


def test_all_sites_are_sorted_and_filtered(page: Browser, opened: Opened) -> None:
    sites = opened.sections["faulty"]["sites"]
    rows = "[...document.querySelectorAll('#sites-table tbody tr')].filter(row => !row.hidden)"
    names = f"return {rows}.map(row => row.cells[0].textContent)"
    head = "document.querySelector('#sites-table th[data-sorts] button')"
    assert page.run(names) == [site["name"] for site in sites]
    page.run(f"{head}.click()")
    assert page.run(names)[0] == max(sites, key=lambda site: site["excess"])["name"]
    page.run(f"{head}.click()")
    assert page.run(names)[-1] == max(sites, key=lambda site: site["excess"])["name"]
    page.run(f"{head}.click()")
    assert page.run(names) == [site["name"] for site in sites]
    page.run("document.getElementById('sites-filter').value = 'DOWN_proj'")
    page.run("document.getElementById('sites-filter').dispatchEvent(new Event('input'))")
    assert len(page.run(names)) == 8
    page.run("document.getElementById('sites-beyond').click()")
    assert page.run("return document.getElementById('sites-count').textContent") == "5 of 107"


def test_the_theme_changes_the_colours_of_the_plot(page: Browser) -> None:
    before = heights(page, "alarm")
    page.run("document.getElementById('theme').click()")
    assert heights(page, "alarm") == before, "drawn again in what the colour is now"


@on_both
def test_only_tables_scroll_sideways(page: Browser) -> None:
    page.run("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["same", "all", "empty"])
def test_other_comparisons_are_drawn_too(browser: Browser, opened: Opened, name: str, dark: bool) -> None:
    browser.open(opened.file(name), dark=dark)
    if name == "all":
        assert browser.run(f"{PLOT} return plot._fullLayout.yaxis.ticktext")[-3:] == [
            "no error",
            "own: none",
            "not finite",
        ]
        for at in ("1", "2"):
            browser.run(CHOOSE, "pass", at)
            assert len(browser.run(f"{PLOT} return plot.data[0].x")) == 6
    assert bool(browser.text("#growth")) == (name != "empty")
    assert browser.complaints() == []
    assert browser.requests() == []


def test_the_page_is_there_without_scripts(browser: Browser, opened: Opened) -> None:
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(opened.file("all"))
        assert "its own error begins at" in browser.text("main")
        assert browser.text("#sites summary")
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("at", [1, 2, 36])
def test_a_strangers_text_does_nothing(browser: Browser, opened: Opened, tmp_path: Path, at: int) -> None:
    file = tmp_path / "comparison.html"
    sections = poisoned_comparison(opened.sections["faulty"], HOSTILE[at])
    file.write_text(render_comparison(sections, "html"), encoding="utf-8")
    browser.open(file)
    point(browser, first_source(opened))
    assert browser.until("return document.querySelector('#growth-plot .hoverlayer .hovertext')?.textContent")
    browser.run(CHOOSE, "pass", "1")
    browser.run(CHOOSE, "zoom", "0")
    assert browser.run("return window.canary === undefined")
    assert browser.complaints() == []
    assert browser.requests() == []
