"""The files of a vote: what they show is what was found, and texts of others do nothing in them."""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

import noisescope as ns
from hostile_strings import HOSTILE, harmless
from noisescope.comparing import Vote
from noisescope.report.vote.files import FILES, render_vote
from page_outline import Page
from trained import fixture

pytestmark = pytest.mark.usefixtures("one_thread")

Sections = dict[str, Any]


@pytest.fixture(scope="module")
def voted() -> Vote:
    """Three traces, the second with a fault."""
    model, _ = fixture("llama")
    ids = torch.randint(0, model.config.vocab_size, (2, 16), generator=torch.Generator().manual_seed(3))
    traces = [
        ns.trace(model, {"input_ids": ids}, name="a llama", emulate=what) for what in ((), "gain:0.1@3.linear", ())
    ]
    return ns.compare_many(traces)


def poisoned(sections: Sections, text: str) -> Sections:
    """A copy with this text in every place where a vote has a name that others chose."""
    found = deepcopy(sections)
    names = {trace["file"]: f"{text}{at}" for at, trace in enumerate(found["traces"])}
    found |= {"model": text, "odd": names[found["odd"]]}
    for trace in found["traces"]:
        environment = dict.fromkeys(trace["environment"], text)
        trace |= {"file": names[trace["file"]], "model": text, "environment": environment}
    for pair in found["pairs"]:
        pair |= {"first": names[pair["first"]], "second": names[pair["second"]], "site": pair["site"] and text}
    return found


def test_the_page_shows_everyone_against_everyone(voted: Vote, tmp_path: Path) -> None:
    file = voted.save(tmp_path)
    page = Page.read(file.read_text())
    assert page.one("p", class_="level critical").text == "ODD ONE OUT"
    assert "trace 2 is the odd one out" in page.one("p", class_="verdict").text
    head, first, second, third = page.table("The largest error between two of them, in units of what is tolerated")
    assert head[1:] == ["1. trace 1", "2. trace 2", "3. trace 3"]
    assert first[1] == second[2] == third[3] == ""
    assert first[3] == third[1] == "agree, bits equal"
    excess = voted.sections["pairs"][0]["excess"]
    assert first[2] == second[1] == f"diverge, {excess:,.0f}x"
    assert [row[2] for row in page.table("Every pair")[1:]] == ["diverge", "agree", "diverge"]
    assert json.loads((tmp_path / "vote.json").read_text())["odd"] == "trace 2"
    assert "## noisescope: ODD ONE OUT" in (tmp_path / "vote.md").read_text()


@pytest.mark.parametrize("name", FILES)
def test_the_same_vote_gives_the_same_bytes(voted: Vote, name: str) -> None:
    assert render_vote(voted.sections, name) == render_vote(deepcopy(dict(voted.sections)), name)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: str(HOSTILE.index(text)))
def test_a_strangers_text_is_text(voted: Vote, text: str) -> None:
    page, plain = (
        Page.read(render_vote(poisoned(dict(voted.sections), one), "html")) for one in (text, harmless(text))
    )
    assert page.outline == plain.outline
    assert not re.findall(r"(?:https?:)?//[a-z0-9]", re.sub(r"sha256-[\w+/=]+", "", plain.source), re.IGNORECASE)
    marked, unmarked = (render_vote(poisoned(dict(voted.sections), one), "md") for one in (text, harmless(text)))
    rest = re.sub(r"`[^`\n]*`", "", marked)
    assert not re.search(r"<[a-z!/?]|https?:|@\w|]\(", rest, re.IGNORECASE)
    assert [line.count("|") for line in marked.split("\n")] == [line.count("|") for line in unmarked.split("\n")]
