"""The HTML page: what it shows is what the report says, it loads nothing, and every kind of report has a page."""

import base64
import hashlib
import json
import math
import os
import random
import re
import subprocess
import sys
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import noisescope as ns
from families import build, tokens
from noisescope.errors import InputError
from noisescope.report import Report, html
from noisescope.report.escaping import visible
from noisescope.report.figures import MINUS, NOTHING, figure, number, share
from noisescope.report.html import render_html
from noisescope.report.layers import channel_unit, inner_path, layer_of_module, layer_of_site, parts
from noisescope.report.page import data as page_data
from noisescope.report.sentences import verdict
from page_outline import Page
from trained import fixture

pytestmark = pytest.mark.usefixtures("one_thread")

Sections = dict[str, Any]


@pytest.fixture(scope="module")
def report() -> Report:
    model, tokenizer = fixture("llama")
    return ns.diagnose(model, None, tokenizer=tokenizer, n_samples=10, max_length=12, batch_size=10, name="a llama")


@pytest.fixture(scope="module")
def page(report: Report) -> Page:
    return Page.read(report.to_html())


@pytest.fixture
def sections(report: Report) -> Sections:
    """A copy that a test may change."""
    return deepcopy(dict(report.sections))


def rendered(sections: Sections) -> Page:
    return Page.read(render_html(sections))


def panel(page: Page, layer: str) -> Page:
    """The part of the page that is about one layer."""
    at = page.data["map"]["layers"].index(layer)
    ids = [part.attributes.get("id") for part in page.elements]
    start = ids.index(f"panel-{at}")
    later = [index for index, part in enumerate(page.elements) if index > start and part.tag in ("section", "details")]
    return Page("", page.elements[start : later[0]])


# --- what it shows ----------------------------------------------------------------------------------------------


def test_the_verdict_comes_first(report: Report, page: Page) -> None:
    assert page.one("h1").text == "a llama"
    assert page.one("p", class_="verdict").text == verdict(report.sections)
    assert page.one("p", class_=f"level {report.risk.lower()}").text == report.risk
    assert f"{report.sections['cost']['forward_pass_equivalents']:.1f} forward passes" in page.text


def test_the_contents_lead_to_sections_that_exist(page: Page) -> None:
    links = [element for element in page.all("a") if "nav" in element.parents]
    assert len(links) >= 10
    assert len(set(page.ids)) == len(page.ids)
    assert {link.attributes["href"][1:] for link in links} <= set(page.ids)


def test_headings_are_in_order_and_sections_are_named(page: Page) -> None:
    levels = [int(part.tag[1]) for part in page.elements if re.fullmatch(r"h\d", part.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for section in page.all("section"):
        assert section.attributes["aria-labelledby"] in page.ids
    assert all(page.all(tag) for tag in ("main", "nav", "header", "footer"))


def test_tables_have_captions_and_headings(page: Page) -> None:
    assert len(page.all("caption")) == len(page.all("table")) >= 9
    for head in page.all("th"):
        assert head.attributes["scope"] == ("col" if "thead" in head.parents else "row")


def test_operators_are_shown_with_their_figures(report: Report, page: Page) -> None:
    rows = page.table("Noise at one operator in all layers")[1:]
    assert [row[0] for row in rows] == list(report.sections["operator_analysis"])
    for name, lost, kl, *_, severity in rows:
        found = report.sections["operator_analysis"][name]
        assert lost == share(found["degradation"], found["degradation_interval"])
        assert kl == figure(found["kl"])
        assert severity == found["severity"]


def test_every_cell_of_the_map_is_in_the_table_and_in_the_data(report: Report, page: Page) -> None:
    """The table is for those who run no scripts, the data for the plot; both must say what the report says."""
    cells = {(str(cell["layer"]).removeprefix("L"), cell["operator"]): cell for cell in report.sections["map"]["cells"]}
    rows = page.table("Every cell of the map")[1:]
    assert {(row[0].removeprefix("L"), row[1]) for row in rows} == set(cells)
    for layer, operator, kl, how, predicted, measured, remark in rows:
        cell = cells[layer.removeprefix("L"), operator]
        assert (kl, how) == (figure(cell["kl"]), cell["how"])
        assert (predicted, measured) == (figure(cell["predicted"]), figure(cell["measured"]))
        assert bool(remark) == cell["disagrees"]
    drawn = page.data["map"]
    assert drawn["layers"] == ["embed", *(f"L{layer}" for layer in range(8)), "final_norm", "head"]
    for cell in drawn["cells"]:
        name = drawn["layers"][cell["column"]].removeprefix("L"), drawn["operators"][cell["row"]]
        assert cell["log_kl"] == math.log10(cells[name]["kl"]["value"])
        assert cell["kl"] == figure(cells[name]["kl"])
        assert (cell["measured"] is not None) == (cells[name]["measured"] is not None)
    assert len(drawn["cells"]) == len(cells)


def test_every_layer_has_a_panel_without_any_script(report: Report, page: Page) -> None:
    count = len(page.data["map"]["layers"])
    titles = [page.one("h3", id=f"panel-{at}-title").text for at in range(count)]
    assert titles == ["embed", *(f"Layer {layer}" for layer in range(8)), "final_norm", "head"]
    found = panel(page, "L3")
    cells = [cell for cell in report.sections["map"]["cells"] if cell["layer"] == 3]
    operators = found.table("Its operators")[1:]
    assert [row[:2] for row in operators] == [
        [cell["operator"], figure(cell["kl"])] for cell in sorted(cells, key=lambda cell: -cell["kl"]["value"])
    ]
    assert {row[0] for row in found.table("Outlier channels of its modules")[1:]} == {
        path.removeprefix("model.layers.3.")
        for path in report.sections["channel_analysis"]["per_layer"]
        if path.startswith("model.layers.3.")
    }


def test_channels_that_matter_most_are_told_apart_and_named_as_what_they_are(report: Report, page: Page) -> None:
    """The calls of an operator are different sites; in attention the map sums by head, at the output by token."""
    caption = "The 5 channels that matter most at each site, with their share of it"
    rows = panel(page, "L3").table(caption)[1:]
    sites = {name: row for name, row in report.sections["map"]["channels"].items() if ".layers.3." in name}
    assert len({tuple(row[:2]) for row in rows}) == len(rows) == len(sites)
    for (name, found), (module, call, unit, shares) in zip(sites.items(), rows, strict=True):
        assert name == f"model.layers.3.{module}.{call}.forward".replace("the block.", "")
        assert unit == ("head" if call.split(".")[0] in ("softmax", "matmul", "bmm") else "channel")
        pairs = zip(found["channels"], found["shares"], strict=True)
        assert shares == ", ".join(f"{channel} ({share(part)})" for channel, part in pairs)
        assert unit != "head" or max(found["channels"]) < fixture("llama")[0].config.num_attention_heads
    assert [row[:3] for row in panel(page, "head").table(caption)[1:]] == [["lm_head", "linear.0", "token id"]]


def test_outlier_channels_are_ranked(sections: Sections) -> None:
    name = "model.layers.3.mlp.down_proj"
    module = sections["channel_analysis"]["per_layer"][name]
    module |= {"outlier_indices": [4, 9], "outlier_ratios": [12.0, 61.0], "num_outliers": 2, "max_ratio": 61.0}
    module |= {"severities": ["MODERATE", "CRITICAL"], "kinds": ["massive", None], "persistence": [0.5, None]}
    found = rendered(sections)
    first, second = found.table("Outlier channels, the largest first")[1:]
    assert first == [name, "9", "61.0x", "CRITICAL", NOTHING, NOTHING]
    assert second == [name, "4", "12.0x", "MODERATE", "massive", f"{round(module['samples'] / 2)} of 10 samples"]
    assert ["mlp.down_proj", "9"] in [row[:2] for row in panel(found, "L3").table("Outlier channels of its modules")]


def test_what_version_2_adds_is_shown(sections: Sections) -> None:
    sections["readings"] = {
        "KL": {"formula": "p log p/q", "unit": "nats", "bands": ["< 1 LOW"], "source": "us", "note": "n"}
    }
    sections["coverage"]["observer"] = {"bit_identical": True, "steps_difference": 7.15e-7}
    sections["recommendations"] = [
        {
            "priority": "HIGH",
            "component": "c",
            "issue": "i",
            "action": "act",
            "evidence": "e",
            "command": "noisescope x",
        }
    ]
    sections["next_steps"] = [{"command": "noisescope y", "why": "because"}]
    found = rendered(sections)
    assert "instrumented run is bit-identical to the bare modelyes" in found.text
    assert "7.15e-7" in found.text
    assert found.table("What a figure is called, and why")[1] == ["KL (nats)", "p log p/q", "< 1 LOW", "us", "n"]
    commands = [code.text for code in found.all("code") if "div" in code.parents[-1:]]
    assert {"noisescope x", "noisescope y"} <= set(commands)
    assert len(found.all("button", class_="copy")) == 2
    assert {"readings", "next_steps", "recommendations"} <= set(found.ids)


def test_a_report_of_version_1_has_a_page(sections: Sections) -> None:
    sections |= {"readings": {}, "next_steps": []}
    sections["coverage"]["observer"] = {}
    for item in sections["recommendations"]:
        item["command"] = ""
    found = rendered(sections)
    assert not {"readings", "next_steps"} & set(found.ids)
    assert not found.all("button", class_="copy")
    assert "bit-identical" not in found.text


# --- every kind of report ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "there"), [("operator", "operators"), ("layer", "windows"), ("channel", "channels")])
def test_every_level_has_a_page(level: str, there: str) -> None:
    model, tokenizer = fixture("llama")
    spec = ns.DiagnosisSpec(level=level)
    found = ns.diagnose(model, None, tokenizer=tokenizer, n_samples=4, max_length=8, spec=spec, name="a llama")
    page = Page.read(found.to_html())
    assert {there} == {"operators", "windows", "channels"} & set(page.ids)
    assert {"coverage", "environment", "configuration"} <= set(page.ids)
    assert page.one("p", class_="verdict").text
    assert "a llama" in found._repr_html_()


# --- what the plots show ----------------------------------------------------------------------------------------


def ends(found: Any) -> list[float]:
    return [found["value"], found["low"], found["high"]]


def check_plots(sections: Sections, drawn: Any) -> None:
    """Every position that a script gets is the figure of the report that its axis names."""
    for name, rows in (("operator_analysis", drawn["operators"]), ("layer_analysis", drawn["windows"])):
        assert [row["name"] for row in rows] == list(sections[name])
        for row, found in zip(rows, sections[name].values(), strict=True):
            lost = [found["degradation"], *found["degradation_interval"]]
            assert row["lost"] == [pytest.approx(100 * value) for value in lost]
            assert row["kl"] == ends(found["kl"])
            assert (row["lost_text"], row["kl_text"]) == (share(lost[0], lost[1:]), figure(found["kl"]))
            assert (row["severity"], row["failed"]) == (found["severity"], "")
    avalanches = [point["layer_range"] for point in sections["executive_summary"]["avalanche_points"]]
    for row, found in zip(drawn["windows"], sections["layer_analysis"].values(), strict=True):
        assert row["amplification"] == ends(found["amplification"])
        assert row["amplification_text"] == figure(found["amplification"])
        assert row["ends"] == [found["start_layer"], found["end_layer"]]
        assert row["middle"] == sum(row["ends"]) / 2
        assert row["avalanche"] == (row["name"] in avalanches)
    checked = [cell for cell in sections["map"]["cells"] if cell["measured"]]
    assert len(checked) == len(drawn["agreement"]) > 0
    for pair, cell in zip(drawn["agreement"], checked, strict=True):
        assert (pair["predicted"], pair["measured"]) == (ends(cell["predicted"]), ends(cell["measured"]))
        assert pair["told"] == [f"predicted {figure(cell['predicted'])}", f"measured {figure(cell['measured'])}"]
        assert pair["disagrees"] == cell["disagrees"]
    assert [(row["name"], row["ends"]) for row in drawn["groups"]] == [
        (name, [row["start_layer"], row["end_layer"]]) for name, row in sections["metrics"]["groups"].items()
    ]


def test_plots_show_the_figures_of_the_report(report: Report, page: Page) -> None:
    check_plots(dict(report.sections), page.data)


def _upper_bound(row: Any) -> Any:
    return row | {"degradation": row["degradation_interval"][1]}


def _perplexity(row: Any) -> Any:
    return row | {"kl": row["perplexity"]}


def _amplified_by_kl(row: Any) -> Any:
    return row | {"amplification": row["kl"]}


def _swapped(cell: Any) -> Any:
    return cell | {"predicted": cell["measured"], "measured": cell["predicted"]} if cell["measured"] else cell


@pytest.mark.parametrize("mutant", [_upper_bound, _perplexity, _amplified_by_kl, _swapped])
def test_a_plot_of_another_figure_is_found_out(sections: Sections, mutant: Any) -> None:
    wrong = deepcopy(sections)
    if mutant is _swapped:
        wrong["map"]["cells"] = [mutant(cell) for cell in wrong["map"]["cells"]]
    else:
        wrong["layer_analysis"] = {name: mutant(row) for name, row in wrong["layer_analysis"].items()}
    with pytest.raises(AssertionError):
        check_plots(sections, json.loads(html.json_block(page_data.page_data(wrong))))


def test_rows_that_failed_are_said_so(sections: Sections) -> None:
    why = {"failed": "not finite at model.layers.2", "total_injections": 3}
    sections["operator_analysis"]["silu"] = why
    sections["layer_analysis"]["L0-2"] |= why
    sections["metrics"]["together"]["all"] = why
    sections["metrics"]["groups"]["early"] |= why
    sections["metrics"]["layers"]["3"] = why
    found = rendered(sections)
    assert ["silu", "failed: not finite at model.layers.2"] in found.table("Noise at one operator in all layers")
    assert found.one("p", class_="verdict").text.startswith("Noise at silu, L0-2 makes the output non-finite")
    for rows, name in ((found.data["windows"], "L0-2"), (found.data["operators"], "silu")):
        (row,) = [row for row in rows if row["name"] == name]
        assert row["failed"] == "failed: not finite at model.layers.2", "it is on the plot, at the edge"
        assert row["lost"] == row["kl"] == [None] * 3
    assert found.source.count("no figure: it failed, or is not finite") == 2, "in the legend of both plots"
    assert "failed: not finite at model.layers.2" in Report(sections)._repr_html_()


def test_an_accuracy_that_says_nothing() -> None:
    """Random weights, and noise without a map."""
    spec = ns.DiagnosisSpec(level="full", error_type="stuck_at", noise_scale=0.01)
    found = ns.diagnose(build("llama"), ns.open_data([tokens(rows=4)]), spec=spec)
    page = Page.read(found.to_html())
    assert "no better than chance, so the KL ranks" in page.one("p", class_="verdict").text
    assert "it has no map" in page.text
    assert all(row["lost"] == [None] * 3 for row in page.data["operators"])
    assert not page.all("div", id="map-plot")


def test_figures_that_are_not_finite(sections: Sections) -> None:
    for value in (math.nan, math.inf, -math.inf, 1e300, 0.0):
        for cell in sections["map"]["cells"][:3]:
            cell["kl"] = {"value": value, "low": value, "high": value, "stderr": value, "n": 4}
        for row in sections["operator_analysis"].values():
            row |= {"degradation": value, "degradation_interval": [value, value], "sensitivity_score": value}
        sections["executive_summary"]["risk_score"] = value
        sections["cost"]["by_stage"]["map"] = value
        found = rendered(sections)
        assert not re.search(r"\b(nan|inf)\b", found.text)
        assert found.data["map"]["cells"]


def test_a_cell_that_is_not_finite_is_told_from_a_weak_one(report: Report, page: Page, sections: Sections) -> None:
    infinite, zero, *_ = sections["map"]["cells"]
    infinite["kl"] = dict.fromkeys(infinite["kl"], math.inf)
    zero["kl"] = dict.fromkeys(zero["kl"], 0.0)
    found = rendered(sections)
    drawn = found.data["map"]["cells"][:2]
    assert [(cell["log_kl"], cell["finite"]) for cell in drawn] == [(None, False), (None, True)]
    legends = [" ".join(part.text for part in shown.all("ul", class_="legend")) for shown in (page, found)]
    assert ["not finite: worse than any colour" in legend for legend in legends] == [False, True]


def test_noise_of_another_scale_at_windows_is_said(page: Page, sections: Sections) -> None:
    assert "Noise of scale 0.05 at all operators of neighbouring layers" in page.text
    sections["config"]["layer_noise_scale"] = 0.02
    text = rendered(sections).text
    assert "Noise of scale 0.02 (not 0.05, as elsewhere) at all operators of neighbouring layers" in text
    assert "relative_gaussian, scale 0.05, 0.02 for windows of layers" in text


def test_an_unknown_threshold_is_called_so_everywhere(sections: Sections) -> None:
    sections["metrics"]["critical_thresholds"]["L3"] |= {"critical_threshold": None, "how": "unknown"}
    found = rendered(sections)
    (row,) = [row for row in found.table("The smallest noise that costs too much") if row[0] == "L3"]
    assert row[1:3] == ["unknown", "unknown"]
    facts = [part.text for part in panel(found, "L3").all("dd")]
    assert "unknown" in facts
    assert "none found" not in found.text


def test_a_command_that_several_have_in_common_is_offered_once(sections: Sections) -> None:
    item = dict.fromkeys(("priority", "component", "issue", "action", "evidence"), "x")
    commands = ["noisescope a", "noisescope b", "noisescope a", ""]
    sections |= {"recommendations": [{**item, "command": command} for command in commands], "next_steps": []}
    found = rendered(sections)
    assert [part.text.removesuffix("copy") for part in found.all("div", class_="command")] == commands[:2]
    assert len(found.all("p", class_="evidence")) == 4


def test_a_cell_that_was_carried_or_disagrees_is_marked(sections: Sections) -> None:
    carried, off = sections["map"]["cells"][:2]
    carried |= {"how": "carried", "measured": None}
    off |= {"how": "measured", "measured": off["kl"], "disagrees": True}
    found = rendered(sections)
    assert [cell["how"] for cell in found.data["map"]["cells"][:2]] == ["carried", "measured"]
    assert found.data["map"]["cells"][1]["disagrees"]
    assert "prediction and measurement disagree" in found.text


ODD = (None, "odd", 7, -1.5, [], {}, [None], True, 1e300, *({"non_finite": name} for name in ("NaN", "Infinity")))


def ways(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """To every part of a value, of tables and lists only the first two entries that are alike."""
    if isinstance(value, dict):
        alike = len(value) > 3 and all(isinstance(part, dict) for part in value.values())
        parts = list(value.items())[: 2 if alike and way else None]
    else:
        parts = list(enumerate(value))[:2] if isinstance(value, list) else []
    return [found for key, part in parts for found in ((*way, key), *ways(part, (*way, key)))]


def test_what_loads_has_a_page(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts replaced at random: refused on loading, or shown; never a traceback."""
    monkeypatch.setattr(html, "_plotly", lambda: "")
    whole, draw, shown = report.to_json(), random.Random(4), 0
    for way in draw.sample(ways(json.loads(whole)), 80):
        damaged = at = json.loads(whole)
        for part in way[:-1]:
            at = at[part]
        at[way[-1]] = draw.choice(ODD)
        (tmp_path / "report.json").write_text(json.dumps(damaged))
        try:
            again = Report.load(tmp_path)
        except InputError:
            continue
        assert again.to_html()
        assert again._repr_html_()
        shown += 1
    assert 10 < shown < 80


# --- inert ------------------------------------------------------------------------------------------------------


def policy(page: Page) -> dict[str, list[str]]:
    (meta,) = [part for part in page.all("meta") if part.attributes.get("http-equiv") == "Content-Security-Policy"]
    parts = (part.split() for part in meta.attributes["content"].split(";"))
    return {name: sources for name, *sources in parts}


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_policy_names_every_script_and_style_and_nothing_else(page: Page) -> None:
    found = policy(page)
    assert found["default-src"] == found["base-uri"] == found["form-action"] == ["'none'"]
    assert found["img-src"] == ["data:"]
    scripts = [part.text for part in page.all("script") if "type" not in part.attributes]
    assert found["script-src"] == [digest(text) for text in scripts]
    assert set(found["style-src-elem"]) == {digest(part.text) for part in page.all("style")}
    assert found["style-src-attr"] == ["'unsafe-hashes'", digest("")]
    assert "unsafe-inline" not in str(found)
    assert "unsafe-eval" not in str(found)
    order = [part.tag for part in page.elements]
    assert order.index("meta") < order.index("style") < order.index("script")


def test_nothing_is_loaded(page: Page) -> None:
    """Outside plotly's own script, which the policy keeps from asking for anything, there is no address at all."""
    plotly = max(page.all("script"), key=lambda part: len(part.text)).text
    rest = re.sub(r"sha256-[\w+/=]+", "", page.source.replace(plotly, ""))
    assert not re.findall(r"(?:https?:)?//[a-z0-9]", rest, flags=re.IGNORECASE)
    for part in page.elements:
        assert not {"src", "srcset", "action", "style", "background"} & set(part.attributes), part
        assert not any(name.startswith("on") for name in part.attributes), part
        assert part.attributes.get("href", "#")[0] == "#" or part.attributes["href"] == "data:,"
    assert not {"iframe", "object", "embed", "img", "form", "base"} & {part.tag for part in page.elements}


def test_our_scripts_write_text_only() -> None:
    for name in html.SCRIPTS:
        text = (html.ASSETS / name).read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|fetch\(|XMLHttp", text
        )


def test_the_json_block_ends_nothing() -> None:
    text = html.json_block({"a": "</script><!--&\u2028\u2029"})
    assert not re.search(r"[<>&\u2028\u2029]", text)
    assert html.json.loads(text) == {"a": "</script><!--&\u2028\u2029"}


@pytest.mark.parametrize("damage", ["</script>", "<!-- x"])
def test_a_plotly_that_would_end_its_element_is_refused(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package_data").mkdir()
    (tmp_path / "package_data" / "plotly.min.js").write_text(f"'{damage}'")
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr(html, "find_spec", lambda name: spec)
    with pytest.raises(InputError, match="plotly: this version cannot be put into a page"):
        html._plotly.__wrapped__()


def test_without_plotly_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install plotly"):
        html._plotly.__wrapped__()


# --- same bytes, small enough -----------------------------------------------------------------------------------


def test_the_same_report_gives_the_same_bytes(report: Report, tmp_path: Path) -> None:
    """In other processes too, with other hash seeds, locales, time zones and directories."""
    report.save(tmp_path)
    code = "import sys, noisescope.report as r; sys.stdout.buffer.write(r.Report.load(sys.argv[1]).to_html().encode())"
    expected = report.to_html()
    assert render_html(deepcopy(dict(report.sections))) == expected
    for seed, zone, locale in (("0", "UTC", "C"), ("77", "Asia/Tokyo", "de_DE.UTF-8")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": locale}
        env["PYTHONPATH"] = str(Path(ns.__file__).parent.parent)
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], env=env, cwd="/", capture_output=True, check=True
        )
        assert done.stdout.decode() == expected


def test_the_page_is_small_enough_to_send(report: Report) -> None:
    assert len(report.to_html().encode()) < 8_000_000


def test_rendering_does_not_import_the_plotly_package() -> None:
    heavy = "{'plotly', 'torch', 'numpy'}"
    code = f"import sys, noisescope.report.html as h; h._plotly(); assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- the pieces -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.51373, "0.514"), (0.5, "0.500"), (12, "12"), (12.0, "12.0"), (999.7, "1,000"), (99.96, "100"), (0.0, "0"),
        (1.5e-7, "1.50e-7"), (26139.2, "26,139"), (-0.0312, f"{MINUS}0.0312"), (1e300, "1.00e300"),
        (math.nan, "not a number"), (math.inf, "infinite"), (None, NOTHING), (134515008, "134,515,008"),
    ],
)  # fmt: skip
def test_numbers_have_three_significant_digits(value: Any, text: str) -> None:
    assert number(value) == text


def test_shares_are_percentages_with_their_interval() -> None:
    assert share(0.2553, (0.1934, 0.3172)) == "25.5% [19.3, 31.7]"
    assert share(-0.0001, (-0.02, math.nan)) == "0.0%"
    assert share(math.nan, (0.0, 1.0)) == NOTHING


def test_characters_that_cannot_be_seen_are_escaped() -> None:
    assert visible("a\u202eb\x00c\nd\udce9 é中") == "a\\u202eb\\x00c\\nd\\udce9 é中"


@pytest.mark.parametrize(
    ("path", "layer", "inner"),
    [
        ("model.layers.7.mlp.down_proj", 7, "mlp.down_proj"),
        ("transformer.h.11", 11, "the block"),
        ("model.layers.3.block_sparse_moe.experts.1.w1", 3, "block_sparse_moe.experts.1.w1"),
        ("lm_head", None, "lm_head"),
        ("layer7.x", None, "layer7.x"),
    ],
)
def test_the_layer_of_a_module(path: str, layer: int | None, inner: str) -> None:
    assert (layer_of_module(path), inner_path(path)) == (layer, inner)


def test_the_layer_of_a_site_outside_the_blocks() -> None:
    outer = {"linear": "head", "embedding": "embed"}
    assert layer_of_site("lm_head.linear.0.forward", outer) == "head"
    assert layer_of_site("model.layers.5.self_attn.softmax.0.forward", outer) == 5
    assert layer_of_site("odd", outer) is None
    norms = {"layer_norm": "final_norm", "embedding": "embed"}
    assert layer_of_site("transformer.word_embeddings_layernorm.layer_norm.0.forward", norms) == "embed"
    assert layer_of_site("transformer.ln_f.layer_norm.0.forward", norms) == "final_norm"


def test_the_parts_of_a_site() -> None:
    assert parts("model.layers.5.self_attn.matmul.1.forward") == ("model.layers.5.self_attn", "matmul", "1")
    assert parts("odd") == ("odd", "", "")


@pytest.mark.parametrize(
    ("module", "operator", "layer", "unit"),
    [
        ("model.layers.5.self_attn", "softmax", 5, "head"),
        ("transformer.h.2.attention", "bmm", 2, "head"),
        ("model.layers.5.self_attn", "attention", 5, "channel"),
        ("model.layers.5.mlp.gate", "softmax", 5, "channel"),
        ("model.layers.5.self_attn.o_proj", "linear", 5, "channel"),
        ("lm_head", "linear", "head", "token id"),
    ],
)
def test_what_channels_are(module: str, operator: str, layer: int | str, unit: str) -> None:
    assert channel_unit(module, operator, layer) == unit


# --- notebooks --------------------------------------------------------------------------------------------------


def test_a_notebook_gets_a_static_summary(report: Report) -> None:
    text = report._repr_html_()
    page = Page.read(text)
    assert verdict(report.sections) in " ".join(part.text for part in page.all("p"))
    assert not {"script", "style", "link", "iframe", "img"} & {part.tag for part in page.elements}
    assert 1 <= len(page.all("tr")) - 1 <= 6
    assert len(text) < 10_000
    assert text == report._repr_html_()


def test_a_notebook_escapes_names(sections: Sections) -> None:
    sections["config"]["model"] = "<img src=x onerror=alert(1)>"
    page = Page.read(Report(sections)._repr_html_())
    assert not page.all("img")
    assert "<img src=x onerror=alert(1)>" in page.all("p")[0].text
