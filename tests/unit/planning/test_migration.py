"""A migration plan: who is risky, who gets which priority, and what is refused."""

import json
import random
import re
from contextlib import suppress
from copy import deepcopy
from math import ceil, inf, nan
from pathlib import Path
from typing import Any

import pytest

import noisescope as ns
import planned
from hostile_strings import HOSTILE, harmless
from noisescope.errors import InputError
from noisescope.report import Report
from noisescope.report.divergence import load_comparison
from noisescope.report.migration import render_migration
from noisescope.store.encoding import encode
from page_outline import Page
from trained import fixture

pytestmark = pytest.mark.usefixtures("one_thread")

Sections = dict[str, Any]


@pytest.fixture(scope="module")
def compared() -> ns.Comparison:
    """A device whose layer 3 gives too much, fed and free."""
    model, tokenizer = fixture("llama")
    asked: dict[str, Any] = {"tokenizer": tokenizer, "n_samples": 2, "max_length": 24, "name": "llama"}
    good = ns.trace(model, inputs=True, **asked)
    return ns.compare(
        good, ns.trace(model, emulate="gain:0.5@3.linear", inputs_from=good, tokenizer=tokenizer, name="llama")
    )


def rows(plan: ns.MigrationPlan) -> dict[Any, Sections]:
    return {row["layer"]: row for row in plan.sections["rows"]}


def test_without_a_comparison_the_risk_is_the_sensitivity() -> None:
    plan = ns.plan_migration(planned.report())
    found = rows(plan)
    layers = planned.report().sections["metrics"]["layers"]
    for name, row in layers.items():
        assert found[int(name)]["risk"] == {part: row["kl"][part] for part in ("value", "low", "high")}
    cells = planned.report().sections["map"]["cells"]
    head = sum(cell["kl"]["value"] for cell in cells if cell["layer"] == "head")
    assert found["head"]["risk"]["value"] == pytest.approx(head)
    risks = [row["risk"]["value"] for row in plan.sections["rows"]]
    assert risks == sorted(risks, reverse=True)
    count = len(risks)
    assert len(plan.layers(1)) == ceil(0.1 * count)
    assert len(plan.layers(2)) == ceil(0.2 * count)
    assert [*plan.layers(1), *plan.layers(2), *plan.layers(3)] == [row["layer"] for row in plan.sections["rows"]]


def test_with_one_it_is_sensitivity_times_divergence(compared: ns.Comparison) -> None:
    plan = ns.plan_migration(planned.report(), compared.sections)
    found, scale = rows(plan), planned.report().sections["config"]["noise_scale"]
    for row in compared.sections["layers"]:
        mine = found[row["layer"]]
        assert mine["divergence"]["value"] == pytest.approx(row["added"])
        assert mine["mape"]["value"] == pytest.approx(row["mape"])
        assert mine["risk"]["value"] == pytest.approx(mine["sensitivity"]["value"] * (row["added"] / scale) ** 2)
        assert mine["risk"]["low"] <= mine["risk"]["value"] <= mine["risk"]["high"]
    assert plan.sections["rows"][0]["layer"] == 3
    assert plan.layers(1)[0] == 3
    off = {layer for layer, row in found.items() if row["mape"]["high"] > 0.05}
    assert off <= set(plan.layers(1))


def test_avalanches_are_of_the_first_priority_and_outliers_are_smoothed() -> None:
    plan = ns.plan_migration(planned.with_findings())
    found = rows(plan)
    for layer in (1, 2, 3):
        assert found[layer]["priority"] == 1
        assert "in the avalanche window L1-3" in found[layer]["evidence"][0]
    assert found[4]["fallback"].startswith("smooth it")
    assert "2 outlier channels" in found[4]["evidence"]
    assert all(row["evidence"] for row in found.values())
    told = {(row["priority"], row["precision"], row["max_mape"]) for row in found.values()}
    assert told == {(1, "FP16", 0.05), (2, "BF16", 0.10), (3, "INT8", None)}


def test_a_layer_that_breaks_ranks_first_and_a_device_that_is_not_finite_too(compared: ns.Comparison) -> None:
    sections = planned.sections()
    sections["metrics"]["layers"]["6"] = {"failed": "not finite"}
    plan = ns.plan_migration(Report(sections))
    assert plan.sections["rows"][0]["layer"] == 6
    assert plan.sections["rows"][0]["risk"]["value"] == inf
    other = deepcopy(dict(compared.sections))
    for part in ("sites", "fed"):
        for site in other[part]:
            if site["layer"] == 5:
                site["non_finite"] = [0, 3]
    plan = ns.plan_migration(planned.report(), other)
    assert plan.sections["rows"][0]["layer"] == 5
    assert json.loads(plan.to_json())["rows"][0]["risk"]["value"] == {"non_finite": "Infinity"}


def test_where_nothing_diverges_the_sensitive_come_first(compared: ns.Comparison) -> None:
    same = deepcopy(dict(compared.sections))
    for part in ("sites", "fed"):
        for site in same[part]:
            zero = {"value": 0.0, "low": 0.0, "high": 0.0}
            site["metrics"] |= {"relative_error": zero, "mape": zero}
    plan, alone = ns.plan_migration(planned.report(), same), ns.plan_migration(planned.report())
    assert [row["layer"] for row in plan.sections["rows"]] == [row["layer"] for row in alone.sections["rows"]]
    assert {row["risk"]["value"] for row in plan.sections["rows"]} == {0.0}


@pytest.mark.parametrize("field", ["layers", "weights", "model", "sites"])
def test_a_comparison_of_another_model_is_refused_by_its_field(compared: ns.Comparison, field: str) -> None:
    other = deepcopy(dict(compared.sections))
    trace = other["traces"]["reference"]
    if field == "layers":
        trace["layers"] = 30
    elif field == "weights":
        trace["weights"] = "0" * 16
    elif field == "model":
        trace |= {"model": "gpt2", "weights": None}
    else:
        other["sites"] = [site for site in other["sites"] if site["layer"] != 2]
    with pytest.raises(InputError, match=f"comparison: {field}: ") as refused:
        ns.plan_migration(planned.report(), other)
    assert "\n" not in str(refused.value)


def test_other_names_of_the_same_weights_are_no_other_model(compared: ns.Comparison) -> None:
    other = deepcopy(dict(compared.sections))
    other["traces"]["reference"]["model"] = "a copy"
    ns.plan_migration(planned.report(), other)


def test_a_report_of_channels_alone_is_refused() -> None:
    sections = planned.sections()
    sections["config"]["level"] = "channel"
    sections["metrics"].pop("layers")
    sections["map"] = {}
    with pytest.raises(InputError, match=r"tells nothing of layers \(level channel\)"):
        ns.plan_migration(Report(sections))


def mutated(value: Any, draw: random.Random) -> Any:
    """A copy in which one part, anywhere, is something else."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        return {name: mutated(part, draw) if name == key else part for name, part in value.items()}
    if isinstance(value, list) and value and draw.random() < 0.9:
        at = draw.randrange(len(value))
        return [mutated(part, draw) if place == at else part for place, part in enumerate(value)]
    return draw.choice([None, "x", -1, 0, 2**62, 1e308, nan, inf, [], {}, True, [1], {"a": 1}])


@pytest.mark.parametrize("seed", range(12))
def test_any_file_gives_a_plan_or_is_refused(compared: ns.Comparison, seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    for number in range(4):
        report, comparison = planned.sections(), dict(compared.sections)
        if number % 2:
            report = mutated(report, draw)
        else:
            comparison = mutated(comparison, draw)
        (tmp_path / "report.json").write_text(encode(report))
        (tmp_path / "comparison.json").write_text(encode(comparison))
        for make in (
            lambda: ns.plan_migration(tmp_path, tmp_path).save(tmp_path / "plan"),
            lambda: ns.plan_fault_tests(tmp_path).save(tmp_path / "plan"),
        ):
            with suppress(InputError):
                make()


# --- files ------------------------------------------------------------------------------------------------------


def test_a_comparison_is_read_back(compared: ns.Comparison, tmp_path: Path) -> None:
    compared.save(tmp_path)
    assert load_comparison(tmp_path) == load_comparison(tmp_path / "comparison.json")
    assert (
        ns.plan_migration(planned.report(), tmp_path).to_json()
        == ns.plan_migration(planned.report(), compared.sections).to_json()
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found | {"schema": "noisescope verdict"}, "schema: got 'noisescope verdict'"),
        (lambda found: found | {"version": 2}, "version: got 2, expected 1"),
        (lambda found: found | {"version": True}, "version: got True"),
        (lambda found: {key: part for key, part in found.items() if key != "sites"}, "sites: missing"),
        (lambda found: found | {"layers": [{}]}, "layers[0].layer: missing"),
        (lambda found: found | {"sites": [{**found["sites"][0], "metrics": {"mape": 1}}]}, "metrics.mape: got int"),
        (lambda found: [], "schema: got a list"),
    ],
)
def test_a_file_that_is_no_comparison_is_refused(
    compared: ns.Comparison, change: Any, said: str, tmp_path: Path
) -> None:
    compared.save(tmp_path)
    file = tmp_path / "comparison.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(InputError) as refused:
        load_comparison(file)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_same_plan_gives_the_same_bytes_without_paths(tmp_path: Path) -> None:
    files = [ns.plan_migration(planned.saved(tmp_path / name)).save(tmp_path / name).parent for name in "ab"]
    for name in ("migration.json", "migration.md", "migration.html"):
        first, second = (home / name for home in files)
        assert first.read_bytes() == second.read_bytes()
        assert str(tmp_path).encode() not in first.read_bytes()


def test_the_page_shows_the_plan(compared: ns.Comparison) -> None:
    plan = ns.plan_migration(planned.report(), compared.sections)
    page = Page.read(plan.to_html())
    head, first, *_ = page.table("Layers, the riskiest first")
    assert head[:3] == ["layer", "priority", "precision"]
    assert first[:3] == ["L3", "1", "FP16"]
    assert page.one("p", class_="verdict").text.startswith("Validate L3")
    assert "Validate `L3`" in plan.to_markdown()
    assert "validate with" in str(plan)


def test_a_long_tail_is_one_line_on_the_screen() -> None:
    plan = ns.plan_migration(planned.report())
    assert " more of priority 3" not in str(plan)
    more = [{**plan.sections["rows"][-1], "layer": layer} for layer in range(8, 30)]
    longer = ns.MigrationPlan({**plan.sections, "rows": [*plan.sections["rows"], *more]})
    shown = str(longer).splitlines()
    rest = len(plan.layers(3)) + len(more)
    (line,) = (line for line in shown if line.startswith(f" and {rest} more of priority 3, INT8, standard: "))
    assert line.endswith("L28, L29")
    assert len(shown) < 20


def poisoned(text: str, compared: ns.Comparison) -> Sections:
    """A plan with this text wherever a stranger chose one."""
    found = deepcopy(dict(ns.plan_migration(planned.report(), compared.sections).sections))
    found |= {"model": text, "data": text, "weights": text}
    found["comparison"] |= {"reference_file": text, "suspect_file": text, "outcome": text}
    found["commands"] = [{"command": text or "none", "why": text or "none"}] * 2
    for row in found["rows"][:2]:
        row |= {"layer": text, "evidence": [text], "fallback": text}
    return found


def unfenced(text: str) -> list[str]:
    """The lines of a Markdown text that are not commands to copy."""
    return re.sub(r"^(`{3,})sh\n.*\n\1$", "", text, flags=re.MULTILINE).split("\n")


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: str(HOSTILE.index(text)))
def test_a_strangers_text_is_text(text: str, compared: ns.Comparison) -> None:
    page, plain = (Page.read(render_migration(poisoned(one, compared), "html")) for one in (text, harmless(text)))
    assert page.outline == plain.outline
    marked, unmarked = (render_migration(poisoned(one, compared), "md") for one in (text, harmless(text)))
    bars, plain_bars = ([line.count("|") for line in unfenced(one)] for one in (marked, unmarked))
    assert bars == plain_bars
    assert str(ns.MigrationPlan(poisoned(text, compared))).replace("\n", "").isprintable()


def test_the_documented_name_gives_the_documented_keys() -> None:
    model, tokenizer = fixture("llama")
    data = ns.open_data(None, tokenizer, n_samples=4, max_length=8)
    found = ns.plan_hardware_migration(model, data, data)
    assert set(found) == {"priority_1_layers", "priority_2_layers", "priority_3_layers", "recommendations"}
    layers = [layer for number in (1, 2, 3) for layer in found[f"priority_{number}_layers"]]
    assert sorted(map(str, layers)) == sorted([*map(str, range(8)), "embed", "final_norm", "head"])
    told = found["recommendations"]
    assert told["precision"] == {"priority_1": "FP16", "priority_2": "BF16", "priority_3": "INT8"}
    assert told["validation"]["priority_2"] == "spot check, MAPE < 10%"
    assert "smooth" in told["fallback"]["priority_1"]
