"""The page in a real browser: drawn, read by pointing, pinned by click and by key, and silent towards the network.

`NOISESCOPE_REPORT=report.json` adds a report of one's own to the fixture's, for what depends on its size.
"""

import math
import os
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import noisescope as ns
from chromium import Browser, chromium, need_chromium
from noisescope.report import Report
from noisescope.report.figures import figure
from trained import fixture

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("one_thread")]

GIVEN = os.environ.get("NOISESCOPE_REPORT")
ON_GIVEN_TOO = pytest.mark.parametrize("opened", ["fixture", *(["given"] if GIVEN else [])], indirect=True)
PINNED = "return document.getElementById('map-plot')._fullLayout.shapes.map(shape => [shape.x0, shape.x1])"


@dataclass(frozen=True)
class Opened:
    """A report, its page as a file, and the layers and operators of its map as drawn."""

    report: Report
    file: Path

    @property
    def layers(self) -> list[str]:
        found = {cell["layer"] for cell in self.report.map}
        blocks = sorted(layer for layer in found if isinstance(layer, int))
        return ["embed", *(f"L{layer}" for layer in blocks), "final_norm", "head"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    need_chromium()
    if getattr(request, "param", "fixture") == "given":
        report = Report.load(str(GIVEN))
    else:
        model, tokenizer = fixture("llama")
        report = ns.diagnose(model, None, tokenizer=tokenizer, n_samples=8, max_length=12, name="a llama")
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(report.to_html(), encoding="utf-8")
    return Opened(report, file)


@pytest.fixture
def page(browser: Browser, opened: Opened) -> Iterator[Browser]:
    """The page on a desktop; whatever a test does, it must not complain nor ask for anything."""
    browser.open(opened.file)
    yield browser
    assert browser.complaints() == []
    assert browser.requests() == []


def drawn_cells(page: Browser) -> list[dict[str, Any]]:
    return page.run("return noisescope.data.map.cells")


def place(page: Browser, layer: str, operator: str) -> tuple[int, int]:
    layers, operators = page.run("return [noisescope.data.map.layers, noisescope.data.map.operators]")
    return layers.index(layer), operators.index(operator)


# --- drawn ------------------------------------------------------------------------------------------------------


@ON_GIVEN_TOO
def test_everything_is_drawn(page: Browser, opened: Opened) -> None:
    for plot in ("map-plot", "windows-plot", "operators-lost-plot", "operators-kl-plot", "agreement-plot"):
        assert page.run("return document.querySelectorAll(`#${arguments[0]} .main-svg`).length", plot), plot
    assert page.run("return document.querySelector('#map-plot .hm image').href.baseVal").startswith(
        "data:image/png;base64,"
    )
    values = page.run("return document.getElementById('map-plot').data[0].z.flat().filter(value => value !== null)")
    assert len(values) == len(opened.report.map)
    traces = page.run("return document.getElementById('map-plot').data.slice(1).map(trace => trace.x.length)")
    agreeing, disagreeing, not_finite, absent = traces
    assert agreeing + disagreeing == sum(cell["measured"] is not None for cell in opened.report.map)
    assert not_finite == 0
    operators = {cell["operator"] for cell in opened.report.map}
    assert absent == len(opened.layers) * len(operators) - len(opened.report.map), "a dash where there is no cell"
    assert page.run("return document.querySelector('#map-plot .cbtitle').textContent") == "KL, nats per token"


DRAWN = "return document.getElementById(arguments[0]).data"


@ON_GIVEN_TOO
def test_the_plots_are_of_the_figures_that_their_axes_name(page: Browser, opened: Opened) -> None:
    sections = opened.report.sections
    windows, operators = sections["layer_analysis"].values(), sections["operator_analysis"].values()
    lost, amplified, missing = page.run(DRAWN, "windows-plot")
    assert lost["y"] == pytest.approx([100 * row["degradation"] for row in windows])
    assert amplified["y"] == pytest.approx([row["amplification"]["value"] for row in windows])
    assert missing["x"] == []
    (by_loss, _), (by_kl, _) = (page.run(DRAWN, f"operators-{name}-plot") for name in ("lost", "kl"))
    assert by_loss["x"] == pytest.approx([100 * row["degradation"] for row in operators])
    assert by_kl["x"] == pytest.approx([row["kl"]["value"] for row in operators])
    (pairs,) = page.run(DRAWN, "agreement-plot")
    checked = [cell for cell in sections["map"]["cells"] if cell["measured"]]
    assert pairs["x"] == pytest.approx([cell["predicted"]["value"] for cell in checked])
    assert pairs["y"] == pytest.approx([cell["measured"]["value"] for cell in checked])
    ends = page.run("return document.getElementById('windows-plot')._fullLayout.xaxis.range")
    assert ends == [-0.5, sections["coverage"]["layers"] - 0.5], "no wider than the model"


def broken(report: Report) -> Report:
    """Windows and operators that failed, an operator and cells that are not finite."""
    sections = deepcopy(dict(report.sections))
    why = {"failed": "not finite at <b>model</b>.layers.2", "total_injections": 3, "non_finite": True}
    windows, operators = sections["layer_analysis"], sections["operator_analysis"]
    windows["L0-2"] = {key: windows["L0-2"][key] for key in ("start_layer", "end_layer")} | why
    operators["silu"] = why
    for value, row in (
        (math.inf, operators["linear"]),
        *zip((math.inf, math.nan), sections["map"]["cells"], strict=False),
    ):
        row["kl"] = dict.fromkeys(row["kl"], value)
    return Report(sections)


def test_what_failed_is_marked_at_the_edge(browser: Browser, opened: Opened, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(broken(opened.report).to_html(), encoding="utf-8")
    browser.open(file)
    *_, window = browser.run(DRAWN, "windows-plot")
    assert (window["x"], window["hovertext"]) == (
        [1],
        ["L0-2<br>failed: not finite at &lt;b&gt;model&lt;/b&gt;.layers.2"],
    )
    (_, lost), (_, kl) = (browser.run(DRAWN, f"operators-{name}-plot") for name in ("lost", "kl"))
    names = list(opened.report.sections["operator_analysis"])
    assert lost["y"] == [names.index("silu")]
    assert sorted(kl["y"]) == sorted([names.index("silu"), names.index("linear")])
    assert any("linear<br>KL infinite" in text for text in kl["hovertext"])
    for plot, marks in (("windows-plot", 1), ("operators-lost-plot", 1), ("operators-kl-plot", 2)):
        boxes = browser.run(
            "const plot = document.getElementById(arguments[0]), box = plot.getBoundingClientRect();"
            "return [...plot.querySelectorAll('.xy3 .point, .x2y .point')].map(mark => mark.getBoundingClientRect())"
            ".filter(mark => mark.width > 0 && mark.right <= box.right && mark.top >= box.top).length",
            plot,
        )
        assert boxes == marks, plot
    assert "no figure" in browser.text("#windows .legend")
    assert "no figure" in browser.text("#operators .legend")
    strongest = "const heat = document.getElementById('map-plot').data[0]; return heat.zmax"
    heat, *_, warnings, _ = browser.run(DRAWN, "map-plot")
    assert warnings["text"] == ["!", "!"]
    for column, row in zip(warnings["x"], warnings["y"], strict=True):
        assert heat["z"][row][column] == browser.run(strongest)
    assert browser.complaints() == []
    assert browser.requests() == []


def test_plotly_offers_no_way_out(page: Browser) -> None:
    assert page.run("return document.querySelectorAll('.modebar-btn, a[href^=http]').length") == 0


def test_the_page_is_there_without_scripts(browser: Browser, opened: Opened) -> None:
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(opened.file)
        text = browser.text("main")
        assert opened.report.risk in text
        assert browser.text("#map .layers + details summary").startswith("The map as a table")
        assert not browser.text("#windows-plot"), "no empty frames"
        browser.driver.find_element("css selector", "#map .layers summary").click()
        assert "that matter most at each site" in browser.text("#panel-3")
        assert not browser.text(".controls")
        assert browser.text("#toc-list")
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)


# --- read, pinned -----------------------------------------------------------------------------------------------


@ON_GIVEN_TOO
def test_pointing_at_a_cell_shows_its_figure(page: Browser, opened: Opened) -> None:
    """The figure is the one in the JSON, for the most fragile cell, a checked one and one in the middle."""
    checked = next(cell for cell in opened.report.map if cell["measured"])
    some = [opened.report.map.top(1).rows[0], checked, opened.report.map.rows[len(opened.report.map) // 2]]
    for cell in some:
        name = f"L{cell['layer']}" if isinstance(cell["layer"], int) else cell["layer"]
        page.point(*place(page, name, cell["operator"]))
        expected = f"{name} {cell['operator']}"
        page.until("return document.getElementById('map-readout').textContent.startsWith(arguments[0])", expected)
        shown = page.until("return document.querySelector('#map-plot .hoverlayer .hovertext')?.textContent")
        assert expected in shown
        assert f"KL {figure(cell['kl'])} nats per token, {cell['how']}" in shown
        readout = page.text("#map-readout")
        assert f"KL {figure(cell['kl'])} nats per token, {cell['how']}" in readout
        for how in ("predicted", "measured"):
            if cell[how] and cell["how"] != how:
                assert f"{how} {figure(cell[how])}" in shown
                assert f"{how} {figure(cell[how])}" in readout
        if cell["measured"]:
            assert ("disagree" in shown) == cell["disagrees"]


def test_a_click_pins_a_layer_and_opens_its_panel(page: Browser, opened: Opened) -> None:
    column, row = place(page, "L2", "softmax")
    assert page.run("return document.getElementById('panel').hidden")
    page.point(column, row, click=True)
    page.until("return !document.getElementById('panel').hidden")
    assert page.text("#panel-title") == "Layer 2"
    assert page.run(PINNED) == [[column - 0.5, column + 0.5]] * 2, "the outline and its rim"
    assert page.run("return document.getElementById('layer').value") == str(column)
    text = page.text("#panel-body")
    for cell in opened.report.map:
        if cell["layer"] == 2:
            assert f"{cell['operator']}\t{figure(cell['kl'])}" in text
    modules = [path for path in opened.report.sections["channel_analysis"]["per_layer"] if ".2." in path]
    assert modules
    assert all(path.split(".2.")[1] in text for path in modules)
    assert "channels that matter most at each site" in text
    assert page.run("return document.querySelectorAll('#panel-body [id]').length") == 0, "a copy has no names"
    page.point(column, row, click=True)
    page.until("return document.getElementById('panel').hidden")
    assert page.run(PINNED) == []


def test_escape_unpins(page: Browser) -> None:
    page.point(*place(page, "L1", "linear"), click=True)
    page.until("return !document.getElementById('panel').hidden")
    page.press("\ue00c")
    page.until("return document.getElementById('panel').hidden")
    assert page.run("return document.getElementById('layer').value") == ""
    assert page.run(PINNED) == []


def test_the_keyboard_reads_and_pins(page: Browser, opened: Opened) -> None:
    page.run("document.getElementById('map-plot').focus()")
    right, down, enter, end, escape = "\ue014", "\ue015", "\ue007", "\ue010", "\ue00c"
    page.press(right, right, down)
    assert page.text("#map-readout").startswith(f"{opened.layers[1]} ")
    page.press(enter)
    assert page.text("#panel-title") == "Layer 0"
    page.press(enter)
    assert page.run("return document.getElementById('panel').hidden")
    page.press(end, " ")
    assert page.text("#panel-title") == opened.layers[-1]
    page.press(escape)
    assert page.run("return document.getElementById('panel').hidden")
    outline = page.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "where the focus is must be seen"


def test_keys_begin_at_the_pinned_layer(page: Browser) -> None:
    page.run("noisescope.map.pin(3); document.getElementById('map-plot').focus()")
    page.press("\ue007")
    assert page.run("return noisescope.map.state.pinned") is None, "Enter unpins it, and pins no other"
    page.run("noisescope.map.pin(3)")
    page.press("\ue014", "\ue014", " ")
    assert page.run("return noisescope.map.state.pinned") == 4


SCROLLERS = """
const boxes = [...document.querySelectorAll(".scroll")].filter((box) => box.checkVisibility());
return boxes.map((box) => [
  box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1, box.tabIndex === 0]);
"""


def test_only_what_scrolls_is_a_stop_of_the_tab_key(browser: Browser, opened: Opened) -> None:
    for width, some in ((1280, False), (390, True)):
        browser.open(opened.file, width=width, height=844)
        browser.run(
            "noisescope.map.pin(3); return new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))"
        )
        found = browser.run(SCROLLERS)
        assert all(scrolls == stops for scrolls, stops in found)
        assert any(scrolls for scrolls, _ in found) == some


def test_a_resting_pointer_does_not_speak_over_the_keys(page: Browser) -> None:
    column, row = place(page, "L3", "linear")
    page.point(column, row)
    page.until("return document.getElementById('map-readout').textContent.startsWith('L3 linear')")
    page.run("document.getElementById('map-plot').focus()")
    page.press("\ue014", "\ue007")
    page.run("return new Promise(done => setTimeout(done, 200))")
    assert page.text("#map-readout").startswith("embed ")
    assert page.run("return getComputedStyle(document.querySelector('#map-plot .hoverlayer')).display") == "none"
    page.point(column + 1, row)
    page.until("return document.getElementById('map-readout').textContent.startsWith('L4 linear')")


def test_the_select_box_and_the_buttons_pin_too(page: Browser, opened: Opened) -> None:
    from selenium.webdriver.support.ui import Select

    Select(page.driver.find_element("id", "layer")).select_by_visible_text("L1")
    assert page.text("#panel-title") == "Layer 1"
    page.driver.find_element("id", "panel-after").click()
    assert page.text("#panel-title") == "Layer 2"
    page.driver.find_element("id", "panel-before").click()
    page.driver.find_element("id", "panel-before").click()
    assert page.text("#panel-title") == "Layer 0"
    page.driver.find_element("id", "panel-close").click()
    assert page.run("return document.getElementById('panel').hidden")
    assert page.run("return document.activeElement.id") == "map-plot"


# --- sizes, themes, paper ---------------------------------------------------------------------------------------


@ON_GIVEN_TOO
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_no_width_needs_sideways_scrolling(browser: Browser, opened: Opened, width: int, dark: bool) -> None:
    browser.open(opened.file, width=width, height=844, dark=dark)
    for column in (None, 3):
        browser.run(
            "noisescope.map.pin(arguments[0]); document.querySelectorAll('details').forEach(d => d.open = true)", column
        )
        assert browser.run("return document.documentElement.scrollWidth") <= width
        wide = browser.run(
            "return [...document.querySelectorAll('main .plot')].filter("
            "e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.id)"
        )
        assert wide == []
    assert browser.complaints() == []
    assert browser.requests() == []


def test_contents_fold_on_a_phone(browser: Browser, opened: Opened) -> None:
    browser.open(opened.file, width=390, height=844)
    assert not browser.text("#toc-list")
    browser.driver.find_element("id", "toc-toggle").click()
    assert "Windows of layers" in browser.text("#toc-list")
    browser.driver.find_element("css selector", "#toc-list a[href='#windows']").click()
    assert not browser.text("#toc-list")
    assert browser.run("return document.getElementById('windows').getBoundingClientRect().top") < 400


def test_nothing_covers_the_contents_on_a_phone(browser: Browser, opened: Opened) -> None:
    for width in (390, 900):
        browser.open(opened.file, width=width, height=844)
        browser.run("scrollTo(0, 2000)")
        bar, contents = browser.run(
            "return ['.bar', '.toc'].map(name => document.querySelector(name).getBoundingClientRect())"
        )
        assert bar["bottom"] == contents["top"]
        browser.run("document.getElementById('windows').scrollIntoView()")
        assert (
            browser.run("return document.getElementById('windows').getBoundingClientRect().top") >= contents["bottom"]
        )


def test_names_stay_when_a_table_is_moved_sideways(browser: Browser, opened: Opened) -> None:
    browser.open(opened.file, width=390, height=844)
    first, last = browser.run(
        """
        const box = document.querySelector("#operators .scroll");
        box.scrollLeft = 1000;
        const row = box.querySelector("tbody tr"), left = (cell) => cell.getBoundingClientRect().left;
        return [left(row.firstElementChild) - left(box), box.scrollLeft];
        """
    )
    assert first == 0
    assert last > 0, "or there was nothing to move"


PALEST = """
const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const rgb = (colour) => colour[0] === "#"
  ? [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)) : colour.match(/[\\d.]+/g).map(Number);
const paper = light(rgb(getComputedStyle(document.body).backgroundColor));
const ratio = (other) => (Math.max(paper, other) + 0.05) / (Math.min(paper, other) + 0.05);
return Math.min(...document.getElementById("map-plot").data[0].colorscale.map(([, stop]) => ratio(light(rgb(stop)))));
"""


@pytest.mark.parametrize("dark", [False, True])
def test_the_weakest_cell_is_not_the_colour_of_paper(browser: Browser, opened: Opened, dark: bool) -> None:
    browser.open(opened.file, dark=dark)
    assert browser.run(PALEST) > 1.9


CONTRAST = """
const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
const behind = (element) => {
  for (; element; element = element.parentElement) {
    const colour = parts(getComputedStyle(element).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
};
const poor = {};
for (const element of document.querySelectorAll("body *")) {
  if (element.closest("svg") || !element.checkVisibility()) continue;
  if (![...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
  const [a, b] = [light(parts(getComputedStyle(element).color)), light(behind(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) poor[`${element.tagName}.${element.className}`] = ratio;
}
return poor;
"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_in_both_themes(browser: Browser, opened: Opened, dark: bool) -> None:
    """WCAG AA: 4.5 to 1 for every text there is."""
    browser.open(opened.file, dark=dark)
    browser.run("noisescope.map.pin(2)")
    assert browser.run(CONTRAST) == {}


def test_the_theme_follows_the_system_and_can_be_switched(browser: Browser, opened: Opened) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    ink = "return getComputedStyle(document.querySelector('#map-plot .ytick text')).fill"
    browser.open(opened.file, dark=False)
    light = browser.run(paper), browser.run(ink)
    browser.driver.find_element("id", "theme").click()
    dark = browser.run(paper), browser.run(ink)
    assert all(before != after for before, after in zip(light, dark, strict=True))
    browser.open(opened.file, dark=True)
    assert (browser.run(paper), browser.run(ink)) == dark
    browser.driver.find_element("id", "theme").click()
    assert (browser.run(paper), browser.run(ink)) == light


def test_paper_is_light_and_whole(browser: Browser, opened: Opened) -> None:
    browser.open(opened.file, dark=True)
    seen = "document.querySelector('#map-plot .ytick text')"
    browser.run(
        f"addEventListener('beforeprint', () => {{ window.printed = [getComputedStyle({seen}).fill,"
        " Math.max(...[...document.querySelectorAll('.main-svg')].map(e => e.getBoundingClientRect().width))] })"
    )
    before = browser.run(f"return getComputedStyle({seen}).fill")
    assert browser.command("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=True)["data"]
    ink, widest = browser.run("return printed")
    assert ink == "rgb(21, 24, 27)"
    assert widest <= 670, "A4 between its margins"
    assert browser.until(f"return getComputedStyle({seen}).fill") == before
    assert browser.complaints() == []


def test_a_command_is_copied(browser: Browser, opened: Opened, tmp_path: Path) -> None:
    sections = {**opened.report.sections, "next_steps": [{"command": "noisescope diagnose x", "why": "closer"}]}
    file = tmp_path / "report.html"
    file.write_text(Report(sections).to_html(), encoding="utf-8")
    browser.open(file)
    browser.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    button = browser.driver.find_element("css selector", "#next_steps .copy")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    assert browser.until("return window.copied") == "noisescope diagnose x"
    assert button.text == "copied"
