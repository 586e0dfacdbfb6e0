"""Markdown for a pull request: what is in it, and that nothing from a model or a file becomes markup."""

import random
import re
from typing import Any

import pytest
from markdown_it import MarkdownIt

from hostile_strings import poisoned
from noisescope.report import escaping, markdown
from noisescope.report.figures import figure, share
from noisescope.report.markdown import render_markdown
from odd_reports import damaged, module_row, variants

pytestmark = pytest.mark.usefixtures("one_thread")

HOSTILE = [
    "a | b | c",
    "\\| \\\\| |",
    "`code` ``two``` |",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</details></td></table>",
    "[link](javascript:alert(1))",
    "![image](http://example.invalid/x.png)",
    "http://example.invalid/a_b",
    "www.example.invalid",
    "someone@example.invalid",
    "@everyone please",
    "fixes #123 and owner/repo#4",
    "GH-123",
    "# heading",
    "\n# heading\n\n- item",
    "> quote",
    "- [x] done",
    "```\nend of fence\n```",
    "\u202egnp.exe \u2066\u200f",
    "line\u2028separator\u2029and\x0b\x0c\x85",
    "\x00\x07\x1b[31mred",
    "*bold* _it_ ~~gone~~ **",
    "$x^2$ and $$y$$",
    ":smile: :+1:",
    "[ref]: http://example.invalid",
    "[^1] [x]",
    "&lt;b&gt; &#64;you &amp;",
    "0123456789abcdef0123456789abcdef01234567",
    "caf\udce9.txt",
    "",
    "   ",
    "\t\r\n",
    "<!-- comment",
    "--> <![CDATA[",
    "<details><summary>x",
    "| --- | --- |\n| a | b |",
    "a" * 5000,
    "`" * 300,
    "|" * 300,
    "\\" * 99,
    "trailing\\",
    "`unfinished",
    "<http://example.invalid>",
    "<a@b.invalid>",
    "mailto:a@b.invalid",
    "javascript:alert(1)",
    "1. one\n2. two",
    "+ plus",
    "===\n---",
    "    indented code",
    "|:-:|",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 | x",
    "e\u0301\u0302\u0303" * 50,
    "{{ 7*7 }} {% raw %}",
    "${HOME} $(id) `id`",
    "@a/b-team",
    "user@0123456789abcdef0123456789abcdef01234567",
    "ftp://example.invalid",
    "%0a%0d<svg/onload=x>",
]


OURS = re.compile(r"</?(details|summary|sub)>")
AUTOMATIC = re.compile(r"@\w|#\d|://|www\.|\bGH-\d|mailto:|:\w+:|\$|\b[0-9a-f]{40}\b", re.IGNORECASE)


def check_inert(rendered: str, harmless: str) -> None:
    """Raises if a text of the report acts as Markdown, as HTML, or as one of GitHub's own links."""
    found, expected = _outline(rendered), _outline(harmless)
    assert found["headings"] == expected["headings"], "a heading appeared or went"
    assert found["tables"] == expected["tables"], "a table changed its columns"
    assert not found["links"], f"a link or image: {found['links'][:1]}"
    assert not found["html"], f"HTML: {found['html'][:1]}"
    assert not found["automatic"], f"GitHub would make a link of {found['automatic'][:1]}"
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]", rendered), "unseen"
    rendered.encode()


def _outline(text: str) -> dict[str, list[Any]]:
    """What a Markdown renderer makes of it."""
    found: dict[str, list[Any]] = {name: [] for name in ("headings", "tables", "links", "html", "automatic")}
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            found["headings"].append((token.tag, tokens[at + 1].content if token.tag == "h3" else ""))
        elif token.type == "tr_open":
            end = next(i for i in range(at, len(tokens)) if tokens[i].type == "tr_close")
            found["tables"].append(sum(part.type in ("td_open", "th_open") for part in tokens[at:end]))
        elif token.type == "html_block":
            found["html"] += [tag for tag in re.findall("<[^>]*>?", token.content) if not OURS.fullmatch(tag)]
        elif token.type in ("hr", "blockquote_open", "ordered_list_open"):
            found["html"].append(token.type)
        for child in token.children or ():
            if child.type in ("link_open", "image"):
                found["links"].append(child)
            elif child.type in ("em_open", "s_open"):
                found["html"].append(child.type)
            elif child.type == "html_inline" and not OURS.fullmatch(child.content):
                found["html"].append(child.content)
            elif child.type == "text" and AUTOMATIC.search(child.content):
                found["automatic"].append(child.content)
    return found


def promise(whole: dict[str, Any], text: str) -> None:
    check_inert(render_markdown(poisoned(whole, text)), render_markdown(poisoned(whole, "harmless")))


@pytest.mark.parametrize("text", HOSTILE[:20])
def test_hostile_strings_stay_text(whole: dict[str, Any], text: str) -> None:
    promise(whole, text)


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE)
def test_sixty_hostile_strings_stay_text(whole: dict[str, Any], text: str) -> None:
    assert len(HOSTILE) == 60
    promise(whole, text)


MUTANTS = {
    "code spans without escapes": ("code", lambda text, longest=120: f"`{text}`"),
    "names without code spans": ("code", lambda text, longest=120: escaping.visible(text)),
    "backslashes in place of code spans": ("prose", lambda text, longest=300: re.sub(r"([^\w\s])", r"\\\1", str(text))),
    "sentences as they are": ("prose", lambda text, longest=300: str(text)),
    "a fence that can be ended": ("fence", lambda command, indent="": f"{indent}```\n{indent}{command}\n{indent}```"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_check_sees_escaping_that_is_skipped(
    whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(markdown, *MUTANTS[name])
    caught = 0
    for text in HOSTILE[:20]:
        try:
            promise(whole, text)
        except AssertionError:
            caught += 1
    assert caught


# --- what it says -----------------------------------------------------------------------------------------------


def test_the_figures_of_the_report_are_there(sections: dict[str, Any]) -> None:
    text = render_markdown(sections)
    assert text.startswith(f"## noisescope: {sections['executive_summary']['overall_risk_level']} risk\n")
    for name, row in sections["operator_analysis"].items():
        lost = share(row["degradation"], row["degradation_interval"])
        assert f"| `{name}` | {figure(row['kl'])} | {lost} | {row['severity']} |" in text
    for row in sections["recommendations"]:
        assert row["command"] in text
    for step in sections["next_steps"]:
        assert f"```sh\n{step['command']}\n```" in text
    for name in sections["readings"]:
        assert f"\n| {name} | " in text
    assert "`observer.bit_identical` | `yes`" in text


@pytest.mark.parametrize("name", ["whole", "operator", "layer", "channel", "failed", "odd", "first"])
def test_every_kind_of_report_renders(whole: dict[str, Any], name: str) -> None:
    text = render_markdown(variants(whole)[name])
    assert text == render_markdown(variants(whole)[name])
    assert "None" not in text
    assert "nan" not in text.replace("provenance", "")
    outline = _outline(text)
    assert not outline["html"]
    assert ("FAILED: `not finite at model.layers.1`" in text) == (name == "failed")
    assert ("What to do" in text) == bool(variants(whole)[name]["recommendations"])


def test_a_report_of_many_layers_fits_a_comment(sections: dict[str, Any]) -> None:
    row = next(iter(sections["layer_analysis"].values()))
    sections["layer_analysis"] = {
        f"L{at}-{at + 2}": row | {"start_layer": at, "end_layer": at + 2} for at in range(300)
    }
    per_layer = sections["channel_analysis"]["per_layer"]
    per_layer |= {f"model.layers.{at}.mlp.down_proj": module_row(*[50.0] * 9) for at in range(300)}
    text = render_markdown(sections)
    assert len(text) < 65_536
    assert "240 more in report.json." in text


def test_what_loads_can_be_rendered(whole: dict[str, Any], tmp_path: Any) -> None:
    """Parts taken away or replaced at random: refused on loading, or rendered; never a traceback."""
    rendered = sum(bool(render_markdown(report.sections)) for report in damaged(whole, tmp_path, random.Random(4), 300))
    assert rendered > 50
