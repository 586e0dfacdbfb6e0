"""The files of a verdict: what they show is what was found, and texts of others do nothing in them."""

import json
import re
from copy import deepcopy
from math import inf
from pathlib import Path
from typing import Any

import pytest

import noisescope as ns
from hostile_strings import harmless, one_in
from noisescope.errors import InputError
from noisescope.locating import Evidence
from noisescope.report import html
from noisescope.report.escaping import visible
from noisescope.report.verdict import FILES, render_verdict, render_verdict_summary, save_verdict, truth_line
from noisescope.report.verdict.cells import cells, columns, operators
from noisescope.report.verdict.words import headline
from noisescope.store.encoding import decode
from odd_verdicts import poisoned_verdict, with_everything
from page_outline import Page
from trained import fixture

pytestmark = pytest.mark.usefixtures("one_thread")

Sections = dict[str, Any]
OWN = {"class", "id", "href", "http-equiv", "content", "scope", "for", "type", "value", "name", "rel", "role", "style"}
"""attributes whose values are ours alone"""


@pytest.fixture(autouse=True)
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its script is the same in every page, and long."""
    monkeypatch.setattr(html, "_plotly", lambda: "/* plotly */")


def page_of(sections: Sections) -> Page:
    return Page.read(render_verdict(sections, "html"))


# --- in words ---------------------------------------------------------------------------------------------------


def test_the_headline_of_each_outcome(verdict: Sections) -> None:
    assert headline(verdict) == "Faulty at layer 2, linear (mlp.down_proj): it looks like clipping."
    verdict["suspects"] = [{**verdict["suspects"][0], "kind": "other"}] * 3
    assert headline(verdict).endswith("looks like no fault that has a name. 2 more operators are suspect.")
    verdict["suspects"] = []
    verdict["verdict"] |= {"outcome": "inconclusive", "missing": ["a kernel is hidden"]}
    assert headline(verdict) == "It cannot be told: a kernel is hidden."
    verdict["verdict"] |= {"outcome": "healthy", "worst_ratio": 0.0}
    assert headline(verdict) == "Nothing is wrong: 210 calls were checked, and every one is bit for bit as on the host."
    verdict["verdict"]["worst_ratio"] = 0.53
    assert headline(verdict) == "Nothing is wrong: 210 calls were checked, the worst at 0.530 of its rounding bound."
    verdict["verdict"]["worst_ratio"] = None
    assert headline(verdict) == "Nothing is wrong: 210 calls were checked."


@pytest.mark.parametrize(
    ("fate", "words"),
    [
        ({"rank": 3}, "rank 3"),
        ({"rank": None, "layer_rank": 2}, "not named, but its layer has rank 2"),
        ({"rank": None, "layer_rank": None}, "not found"),
        ({"rank": None, "layer_rank": None, "srdd_rank": 4}, "not named, but its layer has rank 4"),
        ({"inert": True, "rank": None}, "inert: changed no bit"),
    ],
)
def test_how_a_simulated_fault_fared(verdict: Sections, fate: Sections, words: str) -> None:
    assert truth_line(verdict["truth"][0] | fate) == f"layer 2, linear (mlp.down_proj), {words}"


# --- the evidence -----------------------------------------------------------------------------------------------


def test_a_cell_is_the_worst_call_of_an_operator_in_a_layer(verdict: Sections) -> None:
    found = cells(verdict)
    assert columns(found) == ["embed", *range(8), "final_norm", "head"]
    assert operators(found)[:2] == ["linear", "silu"]
    assert sum(len(cell.calls) for cell in found) == len(verdict["sites"])
    (worst,) = [cell for cell in found if cell.suspect]
    assert (worst.layer, worst.operator, worst.state) == (2, "linear", "ratio")
    assert worst.ratio == verdict["verdict"]["worst_ratio"]
    assert worst.told[0] == "suspect 1: clipping"
    assert worst.told[1] == "the worst of 7 calls: model.layers.2.mlp.down_proj.linear.0.forward"
    assert worst.told[3:] == [
        "the same bits when asked again",
        "identities that hold: doubled, negated, permuted",
        "identities that fail: rows scaled, known, checksum",
    ]
    assert {cell.state for cell in found if cell is not worst} == {"same"}


def test_cells_of_every_state(verdict: Sections) -> None:
    found = cells(with_everything(verdict))
    assert {cell.state for cell in found} == {"ratio", "infinite", "same", "unknown", "unasked"}
    assert columns(found)[-1] == "outside"
    (memory,) = [cell for cell in found if cell.operator == "weight"]
    assert memory.told == ["suspect 2: corrupted memory", "weights: 1 of 32768 elements are not those of the file"]


def test_what_is_no_number_is_as_bad_as_can_be(verdict: Sections) -> None:
    verdict["sites"][0]["ratio"] = float("nan")
    assert cells(verdict)[0].ratio == inf
    assert cells(verdict)[0].state == "infinite"


def test_the_script_draws_what_was_found(verdict: Sections) -> None:
    drawn = page_of(verdict).data["evidence"]
    (suspect,) = [cell for cell in drawn["cells"] if cell["suspect"]]
    assert (drawn["layers"][suspect["column"]], drawn["operators"][suspect["row"]]) == ("L2", "linear")
    assert 10 ** suspect["log"] == pytest.approx(verdict["verdict"]["worst_ratio"])
    assert all(cell["log"] is None for cell in drawn["cells"] if cell["state"] != "ratio")


# --- the page ---------------------------------------------------------------------------------------------------


def test_every_section_is_on_the_page(verdict: Sections) -> None:
    sections = with_everything(verdict)
    page = page_of(sections)
    links = [link.attributes["href"] for link in page.all("a") if "nav" in link.parents]
    assert len(links) == 12
    assert all(link[1:] in page.ids for link in links)
    assert page.one("p", class_="verdict").text == headline(sections)
    assert page.one("p", class_="level critical").text == "FAULTY"
    told = [sentence for suspect in sections["suspects"] for sentence in suspect["evidence"]]
    told += [
        *sections["verdict"]["missing"],
        *sections["verdict"]["not_covered"],
        *sections["precision_modes"],
        *sections["non_deterministic"],
    ]
    told += [*sections["coverage"]["hidden"], *sections["environment"].values(), *sections["cost"]["by_stage"]]
    told += [fault["fault"] for fault in sections["truth"]] + [row["method"] for row in sections["evidence"]]
    assert not [text for text in told if text not in page.text]


def test_a_healthy_page_leaves_out_what_there_is_not(verdict: Sections) -> None:
    verdict |= {"suspects": [], "truth": []}
    verdict["verdict"]["outcome"] = "healthy"
    page = page_of(verdict)
    assert not {"suspects", "truth", "missing", "modes", "repeats", "ranking"} & set(page.ids)
    assert page.one("p", class_="level low").text == "HEALTHY"


def test_a_verdict_without_a_single_call_has_a_page(verdict: Sections) -> None:
    verdict |= {"suspects": [], "sites": [], "evidence": []}
    verdict["verdict"] |= {"outcome": "inconclusive", "missing": ["nothing was computed"], "worst_ratio": None}
    page = page_of(verdict)
    assert "evidence" not in page.ids
    assert page.one("p", class_="level moderate").text == "INCONCLUSIVE"
    assert "It cannot be told: nothing was computed." in render_verdict(verdict, "md")


def test_the_page_loads_nothing(verdict: Sections) -> None:
    page = page_of(with_everything(verdict))
    assert not re.findall(r"(?:https?:)?//[a-z0-9]", re.sub(r"sha256-[\w+/=]+", "", page.source), re.IGNORECASE)
    for part in page.elements:
        assert not {"src", "srcset", "action", "style", "background"} & set(part.attributes), part
        assert not any(name.startswith("on") for name in part.attributes), part


def test_our_scripts_write_text_only() -> None:
    for name in ("grid.js", "evidence.js"):
        text = (html.ASSETS / name).read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|fetch\(", text)


@pytest.mark.parametrize("text", one_in(3))
def test_a_strangers_text_is_text(verdict: Sections, text: str) -> None:
    page, plain = (page_of(poisoned_verdict(verdict, name)) for name in (text, harmless(text)))
    assert page.outline == plain.outline
    assert [part.text for part in page.all("script")[1:]] == [part.text for part in plain.all("script")[1:]]
    for one, other in zip(page.elements, plain.elements, strict=True):
        assert all(one.attributes[name] == other.attributes[name] for name in OWN & set(one.attributes)), one
    assert page.one("h1").text == visible(text)
    assert page.text.count(re.sub(r"\s+", " ", visible(text)).strip()) >= 20
    json.dumps(page.data, allow_nan=False)
    page.source.encode()
    notebook, plain = (Page.read(render_verdict_summary(poisoned_verdict(verdict, one))) for one in (text, "x"))
    assert notebook.outline == plain.outline


# --- Markdown ---------------------------------------------------------------------------------------------------


def test_every_section_is_in_the_markdown(verdict: Sections) -> None:
    text = render_verdict(with_everything(verdict), "md")
    assert text.startswith("## noisescope: FAULTY\n\n**Faulty at layer 2, linear (mlp.down\\_proj): it looks like")
    for part in ("### Suspects", "### What is missing", "### Truth", "### Methods", "### Precision modes"):
        assert part in text
    for title in ("Largest errors", "Layers ranked", "otherwise every time", "rounding bound", "Cost", "Environment"):
        assert re.search(f"<summary>.*{title}.*</summary>", text)
    assert "inert: changed no bit" in text


@pytest.mark.parametrize("text", one_in(3))
def test_a_strangers_text_is_text_in_markdown(verdict: Sections, text: str) -> None:
    """Outside code spans there is nothing that a forge would make a link, a mention or an element of."""
    found = render_verdict(poisoned_verdict(verdict, text), "md")
    rest = re.sub(r"`[^`\n]*`", "", found)
    rest = re.sub(r"</?(details|summary)>|<br>", "", rest)
    assert not re.search(r"<[a-z!/?]|https?:|@\w|]\(", rest, re.IGNORECASE)
    assert found.count("\n") == render_verdict(poisoned_verdict(verdict, harmless(text)), "md").count("\n")
    found.encode()


# --- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_the_same_verdict_gives_the_same_bytes(verdict: Sections, name: str) -> None:
    sections = with_everything(verdict)
    assert render_verdict(sections, name) == render_verdict(deepcopy(sections), name)


def test_the_json_is_strict_also_where_numbers_are_not_finite(verdict: Sections) -> None:
    sections = with_everything(verdict)
    text = render_verdict(sections, "json")
    assert "Infinity" in text
    json.loads(text, parse_constant=lambda constant: pytest.fail(constant))
    assert decode(text) == sections


def test_a_format_that_there_is_not(verdict: Sections) -> None:
    with pytest.raises(InputError, match='unknown format "htm", did you mean "html"'):
        render_verdict(verdict, "htm")


def test_json_is_written_last(verdict: Sections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr("noisescope.store.atomic_write", lambda path, _: written.append(path.name))
    assert save_verdict(verdict, tmp_path / "new" / "place") == tmp_path / "new" / "place" / "verdict.html"
    assert written == ["verdict.md", "verdict.html", "verdict.json"]


def test_a_verdict_renders_and_saves_itself(tmp_path: Path) -> None:
    model, tokenizer = fixture("gpt2")
    found = ns.locate(model, tokenizer=tokenizer, method="host")
    page = found.save(tmp_path)
    assert page.read_text() == found.to_html()
    assert (tmp_path / "verdict.md").read_text() == found.to_markdown()
    assert decode((tmp_path / "verdict.json").read_text()) == decode(found.to_json()) == found.sections
    assert "verdict <strong>HEALTHY</strong>" in found._repr_html_()


def test_what_is_missing_stands_in_a_column_of_its_own(verdict: Sections) -> None:
    found = ns.Verdict("inconclusive", (), (Evidence("srdd", "ranked", 1.0),), ("a judge",), sections=verdict)
    assert str(found).splitlines()[:2] == ["srdd     ranked", "missing  a judge"]
