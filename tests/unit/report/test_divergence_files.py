"""The files of a comparison: what they show is what was found, and texts of others do nothing in them."""

import json
import re
from copy import deepcopy
from math import log10
from pathlib import Path
from typing import Any

import pytest
import torch

from hostile_strings import harmless, one_in
from noisescope.comparing import compare
from noisescope.errors import InputError
from noisescope.report import html
from noisescope.report.divergence import FILES, render_comparison, render_comparison_summary, save_comparison
from noisescope.report.divergence.growth import drawn, passes
from noisescope.report.divergence.words import headline
from noisescope.report.escaping import visible
from noisescope.store.encoding import decode
from noisescope.traces import trace
from odd_comparisons import poisoned_comparison, with_everything_compared
from page_outline import Page
from trained import fixture

pytestmark = pytest.mark.usefixtures("one_thread")

Sections = dict[str, Any]
OWN = {"class", "id", "href", "http-equiv", "content", "scope", "for", "type", "value", "name", "rel", "role", "style"}
"""attributes whose values are ours alone"""
NONE = "–"  # noqa: RUF001 - for no figure


@pytest.fixture(autouse=True)
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its script is the same in every page, and long."""
    monkeypatch.setattr(html, "_plotly", lambda: "/* plotly */")


@pytest.fixture
def few(comparison: Sections) -> Sections:
    """The same with a few layers only: a text is put into every site."""
    kept = ("embed", 0, 3, "head")
    return comparison | {
        name: [row for row in comparison[name] if row["layer"] in kept] for name in ("sites", "fed", "layers")
    }


def page_of(sections: Sections) -> Page:
    return Page.read(render_comparison(sections, "html"))


# --- the plot ---------------------------------------------------------------------------------------------------


def test_sites_are_drawn_in_the_order_of_their_calls(comparison: Sections) -> None:
    (picture,) = drawn(comparison)
    assert picture["title"] == "prefill, forward"
    assert [layer["label"] for layer in picture["layers"]] == [
        "embed",
        *(f"L{n}" for n in range(8)),
        "final_norm",
        "head",
    ]
    assert picture["layers"][1] == {"label": "L0", "block": True, "first": 1, "last": 13}
    assert [site["place"] for site in picture["sites"]][1:3] == [
        "L0 rms_norm (input_layernorm)",
        "L0 linear (self_attn.q_proj)",
    ]
    assert [site["name"] for site in picture["sites"]][5:8] == ["self_attn", "o_proj", "residual"]
    found = [picture["sites"][at] for at in picture["sources"]]
    assert [site["place"] for site in found] == ["L3 linear (mlp.down_proj)", "L5 attention (self_attn)"]


def test_heights_are_logarithms(comparison: Sections) -> None:
    (picture,) = drawn(comparison)
    for site, row in zip(picture["sites"], comparison["sites"], strict=True):
        error = row["metrics"]["relative_error"]["value"]
        assert site["state"] == ("error" if error else "none")
        assert site["log"] == (log10(error) if error else None)
        assert site["tolerance"] == log10(row["tolerance"])
        assert site["beyond"] == row["beyond"]
    first = picture["sites"][picture["sources"][0]]
    assert first["own"]["log"] == first["log"]
    assert [line.split(" ")[0] for line in first["told"]] == ["relative", "SQNR", "noise", "given"]


def test_every_pass_has_a_picture(comparison: Sections) -> None:
    sections = with_everything_compared(comparison)
    assert list(passes(sections)) == [("prefill", "forward"), ("decode", "forward"), ("prefill", "backward")]
    page = page_of(sections)
    assert [option.text for option in page.all("option")] == [picture["title"] for picture in page.data["growth"]]
    assert len(page.all("select")) == 2
    assert len(page_of(comparison).all("select")) == 1


def test_what_has_no_figure_is_drawn_at_the_edge(comparison: Sections) -> None:
    sites = drawn(with_everything_compared(comparison))[0]["sites"]
    assert [sites[at]["state"] for at in (5, 7, 9, 11, 13)] == ["unknown"] * 5
    assert "7 values are not finite, 0 in the reference" in sites[5]["told"]
    assert sites[15]["tolerance"] is sites[15]["floor"] is None


# --- the page ---------------------------------------------------------------------------------------------------


def test_every_section_is_on_the_page(comparison: Sections) -> None:
    sections = with_everything_compared(comparison)
    page = page_of(sections)
    links = [link.attributes["href"] for link in page.all("a") if "nav" in link.parents]
    assert links == ["#growth", "#layers", "#repairs", "#sites", "#missing", "#traces", "#environments"]
    assert all(link[1:] in page.ids for link in links)
    assert page.one("p", class_="verdict").text == headline(sections)
    assert page.one("p", class_="level critical").text == "DIVERGES"
    told = [site["name"] for site in sections["sites"]] + [*sections["missing"]["unlike"], "cuda", "npu", "gpu.trace"]
    told += [str(value) for value in sections["traces"]["reference"]["environment"].values() if value is not None]
    assert not [text for text in told if text not in page.text]


def test_the_tables_have_the_figures_of_the_plot(comparison: Sections) -> None:
    page = page_of(comparison)
    rows = page.table("In the order of their calls")
    assert len(rows) == 1 + len(comparison["sites"])
    assert {len(row) for row in rows} == {16}
    head = rows[0]
    first = next(row for row in rows if row[0] == comparison["verdict"]["first"])
    error = comparison["sites"][rows.index(first) - 1]["metrics"]["relative_error"]["value"]
    assert float(first[head.index("relative error")].split(" ")[0]) == pytest.approx(error, rel=0.01)
    assert first[head.index("own error")] == first[head.index("relative error")]
    assert rows[1][head.index("error / tolerance")] == "bits equal"
    layers = page.table("Layers in their order")
    assert [row[1] for row in layers[1:]][4:7] == ["SOURCE", "passes on", "SOURCE"]
    assert layers[5][-1] == "linear (mlp.down_proj)"
    assert page.table("The largest first")[1][0] == "L3 linear (mlp.down_proj)"


def test_what_is_no_number_is_said(comparison: Sections) -> None:
    page = page_of(with_everything_compared(comparison))
    rows = page.table("In the order of their calls")
    column = rows[0].index("relative error")
    assert [rows[at + 1][column] for at in (7, 9, 11, 13)] == [NONE, "not a number", "infinite", NONE]
    assert page.table("Layers in their order")[1][-3:] == ["infinite", "not a number %", ""]
    assert page.table("What was recorded")[-1] == ["so it keeps", "26.0% of all values", NONE]


def test_a_page_leaves_out_what_there_is_not(comparison: Sections) -> None:
    comparison |= {"fed": [], "differences": [], "floor": None}
    comparison["verdict"] |= {"outcome": "within the noise floor", "fed": False, "first": None, "sources": []}
    page = page_of(comparison)
    assert not {"repairs", "missing"} & set(page.ids)
    assert page.one("p", class_="level low").text == "WITHIN THE NOISE FLOOR"
    assert "own error" not in page.table("In the order of their calls")[0]


def test_a_comparison_without_a_single_site_has_a_page(comparison: Sections) -> None:
    comparison |= {"sites": [], "fed": [], "layers": [], "floor": None}
    comparison["verdict"] |= {"outcome": "inconclusive", "first": None, "sources": []}
    page = page_of(comparison)
    assert not {"growth", "sites", "layers"} & set(page.ids)
    assert page.one("p", class_="level moderate").text == "INCONCLUSIVE"
    assert "It cannot be told" in render_comparison(comparison, "md")
    assert "INCONCLUSIVE" in render_comparison_summary(comparison)


def test_the_page_loads_nothing(comparison: Sections) -> None:
    page = page_of(with_everything_compared(comparison))
    assert not re.findall(r"(?:https?:)?//[a-z0-9]", re.sub(r"sha256-[\w+/=]+", "", page.source), re.IGNORECASE)
    for part in page.elements:
        assert not {"src", "srcset", "action", "style", "background"} & set(part.attributes), part
        assert not any(name.startswith("on") for name in part.attributes), part


def test_our_scripts_write_text_only() -> None:
    for name in ("growth.js", "sorting.js"):
        text = (html.ASSETS / name).read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|fetch\(", text)


@pytest.mark.parametrize("text", one_in(3))
def test_a_strangers_text_is_text(few: Sections, text: str) -> None:
    page, plain = (page_of(poisoned_comparison(few, name)) for name in (text, harmless(text)))
    assert page.outline == plain.outline
    assert [part.text for part in page.all("script")[1:]] == [part.text for part in plain.all("script")[1:]]
    for one, other in zip(page.elements, plain.elements, strict=True):
        assert all(one.attributes[name] == other.attributes[name] for name in OWN & set(one.attributes)), one
    assert page.one("h1").text == visible(text)
    assert page.text.count(re.sub(r"\s+", " ", visible(text)).strip()) >= 100
    json.dumps(page.data, allow_nan=False)
    page.source.encode()
    notebook, plain = (Page.read(render_comparison_summary(poisoned_comparison(few, one))) for one in (text, "x"))
    assert notebook.outline == plain.outline


# --- Markdown ---------------------------------------------------------------------------------------------------


def test_every_section_is_in_the_markdown(comparison: Sections) -> None:
    text = render_comparison(with_everything_compared(comparison), "md")
    assert text.startswith("## noisescope: DIVERGES\n\n**The suspect diverges from L3 linear (mlp.down\\_proj) on: ")
    for part in ("### What differs", "### Source or amplifier", "### Fix first", "### Sites furthest off"):
        assert part in text
    for title in ("Only in the reference", "Of another shape", "Traces", "Environments"):
        assert re.search(f"<summary>.*{title}.*</summary>", text)
    assert "| `L3` | 0.00159 | 0 | – | 0 % | **SOURCE** |" in text  # noqa: RUF001 - for no figure
    assert "| `device` | `cuda` | `npu` |" in text
    worst = text.split("### Sites furthest off\n\n")[1].split("\n\n")[0]
    assert worst.count("\n") == 21


@pytest.mark.parametrize("text", one_in(3))
def test_a_strangers_text_is_text_in_markdown(few: Sections, text: str) -> None:
    """Outside code spans there is nothing that a forge would make a link, a mention or an element of."""
    found = render_comparison(poisoned_comparison(few, text), "md")
    plain = render_comparison(poisoned_comparison(few, harmless(text)), "md")
    rest = re.sub(r"</?(details|summary)>", "", re.sub(r"`[^`\n]*`", "", found))
    assert not re.search(r"<[a-z!/?]|https?:|@\w|]\(", rest, re.IGNORECASE)
    assert [columns(line) for line in found.split("\n")] == [columns(line) for line in plain.split("\n")]
    found.encode()


def columns(line: str) -> int:
    """Of a line of a table."""
    return len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0


# --- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_the_same_comparison_gives_the_same_bytes(comparison: Sections, name: str) -> None:
    sections = with_everything_compared(comparison)
    assert render_comparison(sections, name) == render_comparison(deepcopy(sections), name)


@pytest.mark.parametrize("name", ["md", "html"])
def test_a_comparison_that_was_saved_renders_as_before(comparison: Sections, name: str) -> None:
    sections = with_everything_compared(comparison)
    assert render_comparison(decode(render_comparison(sections, "json")), name) == render_comparison(sections, name)


def test_the_json_is_strict_also_where_numbers_are_not_finite(comparison: Sections) -> None:
    sections = with_everything_compared(comparison)
    text = render_comparison(sections, "json")
    assert "Infinity" in text
    json.loads(text, parse_constant=lambda constant: pytest.fail(constant))
    assert repr(decode(text)) == repr(sections)


def test_a_format_that_there_is_not(comparison: Sections) -> None:
    with pytest.raises(InputError, match='unknown format "htm", did you mean "html"'):
        render_comparison(comparison, "htm")


def test_json_is_written_last(comparison: Sections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr("noisescope.store.atomic_write", lambda path, _: written.append(path.name))
    assert save_comparison(comparison, tmp_path / "new" / "place") == tmp_path / "new" / "place" / "comparison.html"
    assert written == ["comparison.md", "comparison.html", "comparison.json"]


def test_a_comparison_renders_and_saves_itself(tmp_path: Path) -> None:
    model, _ = fixture("gpt2")
    reference = trace(model, {"input_ids": torch.arange(16).reshape(2, 8)}, checkpoint="x")
    found = compare(reference, reference)
    page = found.save(tmp_path)
    assert page.read_text() == found.to_html()
    assert (tmp_path / "comparison.md").read_text() == found.to_markdown()
    assert decode((tmp_path / "comparison.json").read_text()) == decode(found.to_json()) == found.sections
    assert "<strong>WITHIN THE NOISE FLOOR</strong>" in found._repr_html_()
    assert "No divergence: all bits are equal." in found.to_markdown()
