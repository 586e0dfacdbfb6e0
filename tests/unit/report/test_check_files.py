"""The files of a check: what they show is what was found, and texts of others do nothing in them."""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from hostile_strings import harmless, one_in
from noisescope.report.check import FILES, render_check, save_check
from noisescope.report.check.trend import render_trend
from noisescope.report.junit import Case, render_junit
from page_outline import Page

Sections = dict[str, Any]


def row(operator: str, outcome: str, why: str = "", **more: Any) -> Sections:
    return {
        "operator": operator,
        "outcome": outcome,
        "why": why,
        "current": 0.12,
        "current_interval": [0.1, 0.14],
        "baseline": 0.05,
        "change": 0.07,
        "change_interval": [0.05, 0.09],
        "p": 1e-6,
        "p_limit": None,
        "detectable": 0.03,
        "samples": 0,
        "is_worse": outcome == "failed",
        **more,
    }


def entry(label: str, outcome: str, lost: float) -> Sections:
    degradation = {"linear": [lost, lost - 0.01, lost + 0.01], "softmax": [0.02, 0.01, 0.03]}
    return {"label": label, "outcome": outcome, "accuracy": 0.4, "degradation": degradation}


SECTIONS: Sections = {
    "outcome": "failed",
    "model": "step 2",
    "baseline": {"kind": "baseline", "model": "step 1", "digest": "0"},
    "differs": ["dtype (float32 -> bfloat16)"],
    "doubts": [],
    "accuracy": {"baseline": 0.41, "current": 0.4},
    "rows": [
        row("softmax", "passed", change=0.0),
        row("linear", "failed", "worse"),
        row("head", "inconclusive", "few"),
    ],
    "rules": {"max_degradation": 0.15, "resolution": 0.05, "level": 0.05, "power": 0.8, "tests": 6, "detectable": 0.03},
    "question": {"error_type": "relative_gaussian", "noise_scale": 0.05},
    "environment": {"dtype": "bfloat16"},
    "data": {"name": "python docs", "samples": 400, "predictions": 12400},
    "cost": 9.26,
    "history": [entry("step 1", "passed", 0.05), entry("step 2", "failed", 0.12)],
}


def poisoned(text: str) -> Sections:
    """A copy with this text in every place where a check has a name that others chose."""
    found = deepcopy(SECTIONS)
    found |= {"model": text, "differs": [text]}
    found["baseline"]["model"] = found["data"]["name"] = found["question"]["error_type"] = text
    found["environment"]["dtype"] = text
    for one in found["rows"]:
        one |= {"operator": text, "why": one["why"] and text}
    for one in found["history"]:
        one["label"] = text
    return found


def test_what_failed_comes_first(tmp_path: Path) -> None:
    page = Page.read(save_check(SECTIONS, tmp_path).read_text())
    assert page.one("p", class_="level critical").text == "FAILED"
    assert "More is lost than allowed to noise on linear" in page.one("p", class_="verdict").text
    rows = page.table("What noise on each operator costs, with 95% intervals")[1:]
    assert [found[0] for found in rows] == ["linear", "head", "softmax"]
    assert rows[0][2:5] == ["12.0% [10.0, 14.0]", "5.0%", "7.0 [5.0, 9.0] points"]
    assert [found[0] for found in page.table("Checkpoints so far")[1:]] == ["step 1", "step 2"]
    told = (tmp_path / "check.md").read_text()
    assert told.startswith("## noisescope check: FAILED\n\n**More is lost than allowed to noise on `linear`;")
    assert json.loads((tmp_path / "check.json").read_text())["outcome"] == "failed"


def test_a_report_as_baseline_is_said_to_be_one() -> None:
    rows = [row("linear", "passed", baseline=None, change=None, change_interval=None, p=None, detectable=None)]
    found = SECTIONS | {"rows": rows, "outcome": "passed", "baseline": {"kind": "report", "model": "step 1"}}
    found["rules"] = SECTIONS["rules"] | {"detectable": None}
    for name in ("md", "html"):
        text = re.sub(r"&#39;", "'", render_check(found, name))
        assert "only the limit is tested" in text
        assert "got worse is not" in text
        assert "4 of 5 cases" in text  # a heading; no claim is made of this check
        assert "would be seen in 4 of 5 cases" not in text


@pytest.mark.parametrize("name", FILES)
def test_the_same_check_gives_the_same_bytes(name: str) -> None:
    assert render_check(SECTIONS, name) == render_check(deepcopy(SECTIONS), name)


def test_the_trend_is_the_same_picture_each_time() -> None:
    first = render_trend(SECTIONS["history"], 0.15)
    assert first.startswith(b"\x89PNG")
    assert render_trend(deepcopy(SECTIONS["history"]), 0.15) == first
    assert render_trend(SECTIONS["history"][:1]) != first


@pytest.mark.parametrize("text", one_in(8))
def test_a_strangers_text_is_text(text: str) -> None:
    page, plain = (Page.read(render_check(poisoned(one), "html")) for one in (text, harmless(text)))
    assert page.outline == plain.outline
    hashes = r"sha256-[\w+/=]+|data:image/png;base64,[\w+/=]+"
    assert not re.findall(r"(?:https?:)?//[a-z0-9]", re.sub(hashes, "", plain.source), re.IGNORECASE)
    marked, unmarked = (render_check(poisoned(one), "md") for one in (text, harmless(text)))
    rest = re.sub(r"`[^`\n]*`|</?(?:details|summary)>", "", marked)
    assert not re.search(r"<[a-z!/?]|https?:|@\w|]\(", rest, re.IGNORECASE)
    assert [line.count("|") for line in marked.split("\n")] == [line.count("|") for line in unmarked.split("\n")]


def test_junit_escapes_and_counts() -> None:
    text = render_junit("check", [Case("a<b", 'c"d', "failure", "\x1b[2J & so"), Case("e", "f", "error", "g")])
    assert 'tests="2" failures="1" errors="1"' in text
    assert "\x1b" not in text
    assert '<failure message="\\x1b[2J &amp; so"/>' in text
