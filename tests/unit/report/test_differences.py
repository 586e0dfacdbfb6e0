"""Two reports: what got worse is found, what did not is not, and what cannot be compared is said."""

import json
import re
from copy import deepcopy
from html import unescape
from typing import Any

import pytest
import torch
from test_markdown import HOSTILE, check_inert

import noisescope as ns
from noisescope.errors import InputError
from noisescope.report.comparison import families
from noisescope.report.comparison.differences import Differences, count
from noisescope.report.comparison.side_by_side import RENDERERS, render_text
from noisescope.store.encoding import decode
from odd_reports import variants
from trained import fixture

pytestmark = pytest.mark.usefixtures("one_thread")


def report(seed: int, *, noise_scale: float = 0.05, factor: float = 1.0) -> dict[str, Any]:
    """Of a fixture, other sequences and other noise for each seed; one layer's weights times `factor`."""
    model, tokenizer = fixture("llama")
    with torch.no_grad():
        model.model.layers[3].mlp.down_proj.weight.mul_(factor)
    spec = ns.DiagnosisSpec(seed=seed, noise_scale=noise_scale)
    found = ns.diagnose(model, None, tokenizer=tokenizer, spec=spec, n_samples=16, max_length=16, batch_size=16)
    return dict(found.sections)


@pytest.fixture(scope="module")
def first() -> dict[str, Any]:
    return report(1)


def significant(found: Differences) -> list[str]:
    return [f"{row.kind} {row.name}" for row in found.rows if row.significant]


def named(found: Differences, name: str) -> Any:
    return next(row for row in found.rows if f"{row.kind} {row.name}" == name)


def figure(kl: float, stderr: float) -> dict[str, float]:
    return {"value": kl, "low": max(0.0, kl - 2 * stderr), "high": kl + 2 * stderr, "stderr": stderr, "n": 50}


# --- real reports -----------------------------------------------------------------------------------------------


def test_other_seeds_are_not_distinguishable(first: dict[str, Any]) -> None:
    found = Differences.between(first, report(2))
    assert significant(found) == []
    assert found.verdict.startswith("0 rows significantly worse, 0 better, ")
    assert len(found.rows) > 60
    assert {fact.name for fact in found.facts.all} == {
        "seed",
        "data.fingerprint",
        "data.calibration.fingerprint",
    }
    assert found.said_first[1].startswith("asked differently: data.fingerprint ")


@pytest.mark.slow
def test_false_alarms_between_real_reports() -> None:
    """Every pair of 12 reports of the same model; at most 5% of the families may have a false alarm.

    Last figure: 1 of 330.
    """
    reports = [report(seed) for seed in range(12)]
    families = alarms = 0
    for at, before in enumerate(reports):
        for after in reports[at + 1 :]:
            kinds = {entry.split()[0] for entry in significant(Differences.between(before, after))}
            families, alarms = families + 5, alarms + len(kinds)
    assert alarms <= 0.05 * families, f"{alarms} of {families}"


def test_a_larger_noise_is_found_and_said_first(first: dict[str, Any]) -> None:
    found = Differences.between(first, report(1, noise_scale=0.1))
    assert found.said_first == ["same model, same environment", "asked differently: noise_scale 0.05 -> 0.1"]
    assert count(found.rows, "worse") > len(found.rows) / 2
    assert count(found.rows, "better") == 0
    assert "a difference need not be one of the models" in found.caveats[0]
    operators = [row for row in found.rows if row.kind == "operator"]
    assert all(3 < row.kl.effect < 5 for row in operators), "the KL grows with the square of the scale"
    check_scatter(found)


def check_scatter(found: Differences) -> None:
    """Raises if a row only repeats the question: a factor that is that of the scales to the last digit."""
    exact = [row.name for row in found.rows if row.kl.effect == pytest.approx(4, rel=1e-6)]
    assert not exact, f"{len(exact)} rows follow from the scale"


def test_what_follows_from_the_scale_is_left_out(first: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    louder = report(1, noise_scale=0.1)
    found = Differences.between(first, louder)
    assert not any(row.predicted for row in found.rows)
    checked = [f"{cell['layer']} {cell['operator']}" for cell in first["map"]["cells"] if cell["measured"]]
    assert {row.name for row in found.rows if row.kind == "cell"} == set(checked)
    assert f"of {len(checked)} checked cells" in found.verdict
    assert "predicts for layers and cells follows from the noise" in found.caveats[1]
    assert "by 4.00 from 0.05 to 0.1" in found.caveats[2]
    monkeypatch.setattr(families, "_question", lambda kind, sections: ())
    with pytest.raises(AssertionError, match="follow from the scale"):
        check_scatter(Differences.between(first, louder))


def test_another_scale_of_layers_leaves_the_cells(sections: dict[str, Any], whole: dict[str, Any]) -> None:
    sections["config"]["layer_noise_scale"] = 0.1
    found = Differences.between(whole, sections)
    assert {row.kind for row in found.rows if row.predicted} == {"cell"}
    assert "predicts for layers follows from the noise" in found.caveats[1]
    sections["config"]["layer_noise_scale"] = 0.05
    assert {row.kind for row in Differences.between(whole, sections).rows if row.predicted} == {"cell", "layer"}


def test_a_layer_that_got_worse_is_found(first: dict[str, Any]) -> None:
    found = Differences.between(first, report(1, factor=4.0))
    assert any(name.startswith("cell 3 ") for name in significant(found))
    assert count(Differences.between(report(1, factor=4.0), first).rows, "better") == count(found.rows, "worse")
    assert found.said_first[0].startswith("differs: weights ")


def test_a_report_does_not_differ_from_itself(whole: dict[str, Any]) -> None:
    found = Differences.between(whole, whole)
    assert significant(found) == []
    assert not found.facts.all
    assert found.same_data
    assert render_text(found).startswith("same model, same environment\nasked alike, of the same data\n0 rows ")


# --- what differs, and what cannot be compared ------------------------------------------------------------------


ASKED = {
    "noise_scale": 0.1,
    "layer_noise_scale": 0.1,
    "error_type": "uniform",
    "layers": [0, 1],
    "operators": ["softmax"],
    "data.task": "multiple choice",
    "data.fingerprint": "0123456789abcdef",
}
COMPARED = {"config.model": "another-model", "config.weights": "0123fed", "environment.dtype": "bfloat16"} | {
    f"environment.{name}": "changed-here" for name in ("device", "attention", "torch", "noisescope", "threads")
}


def put(sections: dict[str, Any], path: str, value: Any) -> None:
    *way, last = path.split(".")
    for name in way:
        sections = sections[name]
    sections[last] = value


@pytest.mark.parametrize("name", ASKED)
def test_another_question_is_said_first(sections: dict[str, Any], whole: dict[str, Any], name: str) -> None:
    put(sections, f"config.{name}", ASKED[name])
    found = Differences.between(whole, sections)
    assert found.said_first[0] == "same model, same environment"
    assert found.said_first[1].startswith(f"asked differently: {name} ")
    assert render_text(found).splitlines()[:2] == found.said_first
    assert "The runs were asked differently" in found.caveats[0]
    assert "are the same" not in render_text(found)


@pytest.mark.parametrize("path", COMPARED)
def test_what_one_compares_for_is_said_first(sections: dict[str, Any], whole: dict[str, Any], path: str) -> None:
    put(sections, path, COMPARED[path])
    found = Differences.between(whole, sections)
    assert found.said_first[0].startswith(f"differs: {path.partition('.')[2]} ")
    assert found.said_first[1] == "asked alike, of the same data"
    for text in (render_text(found), RENDERERS["md"](found), RENDERERS["html"](found)):
        assert 0 <= text.find(COMPARED[path]) < text.find("0 rows significantly worse")


def test_everything_that_can_differ_fits(sections: dict[str, Any], whole: dict[str, Any]) -> None:
    for name, value in ASKED.items():
        put(sections, f"config.{name}", value)
    for path, value in COMPARED.items():
        put(sections, path, value)
    assert not any(line.endswith("...") for line in render_text(Differences.between(whole, sections)).splitlines())


def test_another_number_of_layers_is_refused(sections: dict[str, Any], whole: dict[str, Any]) -> None:
    sections["coverage"]["layers"] += 4
    with pytest.raises(InputError, match=r"^REPORT: got models with 8 layers and 12, expected the same structure"):
        Differences.between(whole, sections)


def test_other_operators_are_refused_unless_they_are_only_hidden(
    sections: dict[str, Any], whole: dict[str, Any]
) -> None:
    sites = sections["coverage"]["sites"]
    silu = sites.pop("silu")
    Differences.between(whole, sections)
    Differences.between(sections, whole)
    sites["gelu"] = silu
    with pytest.raises(InputError, match=r"silu in one and gelu in the other"):
        Differences.between(whole, sections)
    sections["coverage"]["hidden"] = {"silu": silu}
    Differences.between(whole, sections)


def test_attention_computed_otherwise_is_the_same_structure(sections: dict[str, Any], whole: dict[str, Any]) -> None:
    left, right = deepcopy(whole), sections
    del left["coverage"]["sites"]["attention"], right["coverage"]["sites"]["softmax"]
    Differences.between(left, right)


# --- made-up differences ----------------------------------------------------------------------------------------


def test_rows_in_one_report_only_are_named(sections: dict[str, Any], whole: dict[str, Any]) -> None:
    del sections["operator_analysis"]["softmax"]
    sections["layer_analysis"]["L0-5"] = next(iter(sections["layer_analysis"].values()))
    found = Differences.between(whole, sections)
    assert found.only_before == {"operator": ("softmax",)}
    assert found.only_after == {"window": ("L0-5",)}
    assert "only before: operator softmax" in render_text(found)


def test_a_row_that_fails_is_worse_without_a_test(sections: dict[str, Any], whole: dict[str, Any]) -> None:
    sections["operator_analysis"]["silu"] = {"failed": "not finite at x", "total_injections": 3}
    assert significant(Differences.between(whole, sections)) == ["operator silu"]
    found = Differences.between(sections, whole)
    assert (count(found.rows, "better"), count(found.rows, "worse")) == (1, 0)
    assert "FAILED: not finite at x" in render_text(found)


def test_a_row_that_did_not_fit_into_memory_says_nothing(sections: dict[str, Any], whole: dict[str, Any]) -> None:
    sections["operator_analysis"]["silu"] = {"failed": "out of memory", "non_finite": False, "total_injections": 3}
    for found in (Differences.between(whole, sections), Differences.between(sections, whole)):
        assert [count(found.rows, verdict) for verdict in ("untested", "better", "worse")] == [1, 0, 0]


def test_a_layer_measured_here_and_mapped_there_is_not_compared(
    sections: dict[str, Any], whole: dict[str, Any]
) -> None:
    sections["metrics"]["layers"]["0"]["how"] = "measured"
    found = Differences.between(whole, sections)
    assert (found.only_before["layer"], found.only_after["layer"]) == (("0",), ("0 (measured)",))


def test_accuracy_alone_can_be_worse(sections: dict[str, Any], whole: dict[str, Any]) -> None:
    for before, after in zip(whole["operator_analysis"].values(), sections["operator_analysis"].values(), strict=True):
        after |= {"degradation": 0.9, "degradation_interval": [0.88, 0.92], "severity": "CRITICAL"}
        before["degradation_interval"] = [before["degradation"] - 0.02, before["degradation"] + 0.02]
    found = Differences.between(whole, sections)
    assert count(found.rows, "worse") == len(sections["operator_analysis"])


def test_a_kl_that_rises_from_zero_is_worse_and_has_no_factor(sections: dict[str, Any], whole: dict[str, Any]) -> None:
    before = deepcopy(whole)
    before["operator_analysis"]["silu"]["kl"] = figure(0.0, 0.0)
    sections["operator_analysis"]["silu"]["kl"] = figure(0.3, 0.01)
    found = Differences.between(before, sections)
    row = named(found, "operator silu")
    assert (row.verdict, row.kl.kind, row.kl.effect) == ("worse", "difference", 0.3)
    line = next(line for line in render_text(found).splitlines() if "operator silu" in line)
    assert line.split()[:6] == ["operator", "silu", "worse", "0", "0.300", "-"]
    assert named(Differences.between(sections, before), "operator silu").verdict == "better"


def test_layers_and_cells_are_counted_apart(sections: dict[str, Any], whole: dict[str, Any]) -> None:
    before = deepcopy(whole)
    for found, kl in ((before, 0.1), (sections, 0.5)):
        found["metrics"]["layers"]["3"] = {"kl": figure(kl, kl / 50), "how": "map"}
        found["map"]["cells"][0]["predicted"] = figure(kl, kl / 50)
    said = Differences.between(before, sections).verdict
    assert said.startswith("0 rows significantly worse, 0 better, ")
    assert "map: 1 worse and 0 better of 8 layers, 1 worse and 0 better of " in said


# --- the page ---------------------------------------------------------------------------------------------------


def test_a_row_of_the_page_is_headed_by_its_name(sections: dict[str, Any], whole: dict[str, Any]) -> None:
    sections["operator_analysis"]["silu"]["kl"] = figure(9.0, 0.01)
    page = RENDERERS["html"](Differences.between(whole, sections))
    assert '<th scope="row" class="name"><code>operator silu</code></th>' in page
    assert '<span class="word worse">worse</span>' in page
    assert '<th scope="col" class="figure">p, adjusted</th>' in page
    assert "for a single row" in page
    assert all(f'<a href="#{name}">' in page for name in ("levels", "map", "reading"))
    assert 'class="skip" href="#main"' in page
    assert 'id="theme"' in page


def test_the_map_is_folded_on_the_page(sections: dict[str, Any], whole: dict[str, Any]) -> None:
    for cell in sections["map"]["cells"]:
        cell["predicted"] = figure(9.0, 0.01)
    page = RENDERERS["html"](Differences.between(whole, sections))
    unfolded = re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)
    assert "<code>cell " in page
    assert "<code>cell " not in unfolded


@pytest.mark.parametrize("name", ["operator", "layer", "channel", "failed", "odd", "first"])
def test_every_kind_of_report_can_be_compared(whole: dict[str, Any], name: str) -> None:
    for pair in ((whole, variants(whole)[name]), (variants(whole)[name], whole)):
        found = Differences.between(*pair)
        text = render_text(found)
        assert text == render_text(Differences.between(*pair))
        for render in RENDERERS.values():
            assert render(found) == render(Differences.between(*pair))
        json.loads(RENDERERS["json"](found))
        assert decode(RENDERERS["json"](found))["verdict"] == found.verdict
        assert "nan" not in text


def test_nothing_in_common_is_said(whole: dict[str, Any]) -> None:
    found = Differences.between(variants(whole)["channel"], whole)
    assert found.verdict == "nothing to compare: no row is in both reports"


@pytest.mark.parametrize("text", HOSTILE[:12])
def test_hostile_names_stay_text(whole: dict[str, Any], text: str) -> None:
    def pair(name: str) -> Differences:
        before, after = deepcopy(whole), deepcopy(whole)
        for sections, kl in ((before, 1.0), (after, 100.0)):
            row = dict(next(iter(sections["operator_analysis"].values())))
            figure = {"value": kl, "low": kl / 2, "high": 2 * kl, "stderr": kl / 100, "n": 50}
            sections["operator_analysis"][name] = row | {"kl": figure}
            sections["operator_analysis"][f"{name}2"] = {"failed": name} if kl > 1 else row
        after["config"]["model"] = name
        after["environment"] |= {name: name}
        before["layer_analysis"][f"{name}3"] = next(iter(before["layer_analysis"].values()))
        return Differences.between(before, after)

    check_inert(RENDERERS["md"](pair(text)), RENDERERS["md"](pair("harmless")))
    page, harmless = RENDERERS["html"](pair(text)), RENDERERS["html"](pair("harmless"))
    assert page.count("<") == harmless.count("<"), "an element appeared"
    assert len(render_text(pair(text)).splitlines()) == len(render_text(pair("harmless")).splitlines())
    assert "default-src 'none'" in unescape(page)
    assert page.count("<script") == 3, "those of the page itself"
