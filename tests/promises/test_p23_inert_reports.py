"""P23. A report is inert: whatever a stranger wrote into a name, the page shows it as text and does nothing else."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import noisescope as ns
from chromium import Browser, chromium
from hostile_strings import HOSTILE, harmless, poisoned
from noisescope.comparing import compare
from noisescope.report import Report, html, summary
from noisescope.report.divergence import render_comparison
from noisescope.report.escaping import visible
from noisescope.report.html import render_html
from noisescope.report.notebook import render_summary
from noisescope.traces import trace
from odd_comparisons import poisoned_comparison
from page_outline import Page
from trained import fixture

Sections = dict[str, Any]

QUICK, IN_BROWSER = HOSTILE[::3], (HOSTILE[2], HOSTILE[1], HOSTILE[36], HOSTILE[43])
OWN = {"class", "id", "href", "http-equiv", "content", "scope", "for", "type", "value", "name", "rel", "role", "style"}
"""attributes whose values are ours alone"""


@pytest.fixture(scope="module")
def sections() -> Sections:
    model, tokenizer = fixture("llama")
    return dict(ns.diagnose(model, None, tokenizer=tokenizer, n_samples=8, max_length=12, name="a llama").sections)


@pytest.fixture(scope="module")
def compared() -> Sections:
    """Two traces, one of them with a fault."""
    model, _ = fixture("llama")
    ids = {"input_ids": torch.randint(0, model.config.vocab_size, (2, 16), generator=torch.Generator().manual_seed(1))}
    reference = trace(model, ids, inputs=True, checkpoint="x")
    fault = "saturation:0.2@1.linear"
    suspect = trace(model, ids, inputs_from=reference, floor=False, emulate=fault, checkpoint="x")
    found = dict(compare(reference, suspect).sections)
    few = ("embed", 0, 1, "head")
    return found | {name: [row for row in found[name] if row["layer"] in few] for name in ("sites", "fed", "layers")}


@pytest.fixture
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its script is the same in every page, and long."""
    monkeypatch.setattr(html, "_plotly", lambda: "/* plotly */")


def check_inert(sections: Sections, text: str) -> None:
    """The page with this text in it has the elements, attributes and addresses of one with a harmless text."""
    page, plain = (Page.read(render_html(poisoned(sections, name))) for name in (text, harmless(text)))
    assert page.outline == plain.outline
    assert [part.text for part in page.all("script")[1:]] == [part.text for part in plain.all("script")[1:]]
    for one, other in zip(page.elements, plain.elements, strict=True):
        assert all(one.attributes[name] == other.attributes[name] for name in OWN & set(one.attributes)), one
    assert page.source.count("\n") == plain.source.count("\n")
    shown = re.sub(r"\s+", " ", visible(text)).strip()
    assert page.text.count(shown) >= 30
    assert page.one("h1").text == visible(text)
    assert_same_shape(page.data, plain.data)
    json.dumps(page.data, allow_nan=False)
    page.source.encode()
    notebook, plain = (Page.read(render_summary(poisoned(sections, name))) for name in (text, harmless(text)))
    assert notebook.outline == plain.outline
    assert shown[:150] in re.sub(r"\s+", " ", notebook.all("p")[0].text)


def check_inert_on_a_terminal(sections: Sections, text: str) -> None:
    """The summary has the lines of one with a harmless text, and no character that a terminal acts upon."""
    shown, plain = (Report(poisoned(sections, name)).summary(verbose=True) for name in (text, harmless(text)))
    assert len(shown.splitlines()) == shown.count("\n") + 1 == plain.count("\n") + 1
    assert all(character.isprintable() or character == "\n" for character in shown)
    shown.encode()


def check_inert_comparison(sections: Sections, text: str) -> None:
    """The same of the page of a comparison of two traces."""
    page, plain = (
        Page.read(render_comparison(poisoned_comparison(sections, name), "html")) for name in (text, harmless(text))
    )
    assert page.outline == plain.outline
    assert [part.text for part in page.all("script")[1:]] == [part.text for part in plain.all("script")[1:]]
    for one, other in zip(page.elements, plain.elements, strict=True):
        assert all(one.attributes[name] == other.attributes[name] for name in OWN & set(one.attributes)), one
    assert page.text.count(re.sub(r"\s+", " ", visible(text)).strip()) >= 100
    assert_same_shape(page.data, plain.data)
    page.source.encode()


def assert_same_shape(one: Any, other: Any) -> None:
    """Two values that differ in texts only."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same_shape(left, right)


def test_there_are_sixty() -> None:
    assert len(set(HOSTILE)) == len(HOSTILE) == 60
    assert len(QUICK) == 20


@pytest.mark.usefixtures("without_plotly")
@pytest.mark.parametrize("text", QUICK, ids=lambda text: str(HOSTILE.index(text)))
def test_hostile_strings_are_text(sections: Sections, text: str) -> None:
    check_inert(sections, text)


@pytest.mark.usefixtures("without_plotly")
@pytest.mark.parametrize("text", QUICK, ids=lambda text: str(HOSTILE.index(text)))
def test_hostile_strings_are_text_in_a_comparison(compared: Sections, text: str) -> None:
    check_inert_comparison(compared, text)


@pytest.mark.slow
@pytest.mark.usefixtures("without_plotly")
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: str(HOSTILE.index(text)))
def test_all_hostile_strings_are_text(sections: Sections, text: str) -> None:
    check_inert(sections, text)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: str(HOSTILE.index(text)))
def test_hostile_strings_do_nothing_to_a_terminal(sections: Sections, text: str) -> None:
    check_inert_on_a_terminal(sections, text)


def test_the_check_sees_a_summary_that_shows_names_as_they_are(
    sections: Sections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "short", str)
    with pytest.raises(AssertionError):
        check_inert_on_a_terminal(sections, "head\x1b[2J\nRisk: LOW")


# --- in a browser -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


USE = """
[noisescope.map.layers.length - 1, 0, 3].forEach(noisescope.map.pin);
for (const [id, curve] of [["map-plot", 0], ["operators-kl-plot", 0], ["windows-plot", 0]]) {
  Plotly.Fx.hover(document.getElementById(id), [{ curveNumber: curve, pointNumber: id === "map-plot" ? [0, 3] : 0 }]);
}
document.querySelectorAll(".copy, #theme").forEach((button) => button.click());
const kind = (element) => [element.tagName, ...element.getAttributeNames().sort()].join(" ");
const kinds = new Set([...document.querySelectorAll("*")].map(kind));
const scripts = document.querySelectorAll("script").length;
return [[...kinds].sort(), window.canary ?? null, scripts, document.querySelector("h1").textContent];
"""


def used(browser: Browser, file: Path, sections: Sections, text: str) -> tuple[Any, ...]:
    """Every panel opened, plots hovered, buttons pressed: kinds of elements, the canary, scripts and the title."""
    file.write_text(render_html(poisoned(sections, text)), encoding="utf-8")
    browser.open(file)
    found = browser.run(USE)
    assert browser.complaints() == []
    assert browser.requests() == []
    return tuple(found)


def check_inert_when_used(browser: Browser, tmp_path: Path, sections: Sections, text: str) -> None:
    kinds, canary, scripts, title = used(browser, tmp_path / "hostile.html", sections, text)
    expected, _, expected_scripts, _ = used(browser, tmp_path / "harmless.html", sections, harmless(text))
    assert canary is None
    assert kinds == expected
    assert scripts == expected_scripts
    assert title == visible(text)


@pytest.mark.browser
@pytest.mark.parametrize("text", IN_BROWSER, ids=lambda text: str(HOSTILE.index(text)))
def test_hostile_strings_stay_text_when_the_page_is_used(
    browser: Browser, tmp_path: Path, sections: Sections, text: str
) -> None:
    check_inert_when_used(browser, tmp_path, sections, text)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: str(HOSTILE.index(text)))
def test_all_hostile_strings_stay_text_when_the_page_is_used(
    browser: Browser, tmp_path: Path, sections: Sections, text: str
) -> None:
    check_inert_when_used(browser, tmp_path, sections, text)


# --- the checks can fail ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_plotly")
def test_mutant_templates_that_do_not_escape(
    sections: Sections, compared: Sections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html.environment(), "autoescape", False)
    html.environment().cache.clear()
    with pytest.raises(AssertionError, match=r"img|inside"):
        check_inert(sections, HOSTILE[2])
    with pytest.raises(AssertionError, match=r"img|inside"):
        check_inert_comparison(compared, HOSTILE[2])
    html.environment().cache.clear()


@pytest.mark.usefixtures("without_plotly")
def test_mutant_json_that_ends_its_element(sections: Sections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "json_block", json.dumps)
    with pytest.raises(AssertionError, match="script"):
        check_inert(sections, HOSTILE[1])


def rewrite(monkeypatch: pytest.MonkeyPatch, script: str, old: str, new: str) -> None:
    """A script of the page with one line changed."""
    read = html._asset

    def changed(name: str) -> str:
        text = read(name)
        assert name != script or old in text
        return text.replace(old, new) if name == script else text

    monkeypatch.setattr(html, "_asset", changed)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("script", "old", "new", "said"),
    [
        (
            "panel.js",
            "replaceChildren(...byId(`panel-${column}`).cloneNode(true).children)",
            "innerHTML = byId(`panel-${column}`).textContent",
            "'B' != 'BODY'",
        ),
        ("plots.js", 'text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;")', "text", "inline"),
    ],
    ids=["innerHTML", "labels that plotly reads"],
)
def test_mutant_scripts_that_read_names_as_markup(
    browser: Browser,
    tmp_path: Path,
    sections: Sections,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    old: str,
    new: str,
    said: str,
) -> None:
    rewrite(monkeypatch, script, old, new)
    with pytest.raises(AssertionError, match=said):
        check_inert_when_used(browser, tmp_path, sections, HOSTILE[36])


@pytest.mark.browser
def test_mutant_page_without_a_policy_and_without_escaping_runs_the_canary(
    browser: Browser, tmp_path: Path, sections: Sections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary sings if it can: without this, its silence would say nothing."""
    monkeypatch.setattr(html.environment(), "autoescape", False)
    monkeypatch.setattr(html, "content_security_policy", lambda *_: "img-src data:")
    html.environment().cache.clear()
    file = tmp_path / "page.html"
    file.write_text(render_html(poisoned(sections, HOSTILE[0])), encoding="utf-8")
    html.environment().cache.clear()
    browser.open(file)
    assert browser.run("return window.canary") == 1
    browser.complaints()
    browser.requests()
