"""A plan for a trained model: what it says is what is measured, and what it is made of is what it says."""

import json
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch

import noisescope as ns
import trained
from noisescope.errors import InputError, NothingMatched
from noisescope.planning.precision.texts import Texts
from noisescope.points import Bench
from noisescope.quantising import find_weights, parse_scheme
from noisescope.quantising.checking import measure
from noisescope.sites import Layout

DEGRADATION = dict(enumerate((0.2, 0.08, 0.02, 0.01, 0.03, 0.06, 0.02, 0.12)))
OPTIONS = {"n_samples": 64, "n_verified": 32, "batch_size": 64, "max_length": 12}


@cache
def model() -> torch.nn.Module:
    return trained.fixture("llama")[0]


def planned(**asked) -> ns.PrecisionPlan:
    return ns.plan_precision(model(), tokenizer=trained.tokenizer("llama"), **{**OPTIONS, **asked})


@cache
def plan() -> ns.PrecisionPlan:
    return planned(avg_bits=5, degradation=DEGRADATION)


def row(found: ns.PrecisionPlan, name: str) -> dict:
    return next(row for row in found.sections["verified"] if row["name"] == name)


def test_the_plan_is_better_than_the_others_within_the_same_bits() -> None:
    rows = plan().sections["verified"]
    assert [one["name"] for one in rows] == ["plan", "threshold rule", "all mxfp4", "all nvfp4"]
    assert all(one["bits"] <= 5 for one in rows)
    assert rows[0]["kl"]["value"] < min(one["kl"]["value"] for one in rows[1:])
    assert rows[0]["predicted_kl"] == pytest.approx(rows[0]["kl"]["value"], rel=0.4)


def test_bits_are_those_of_the_weights_with_their_scales() -> None:
    weights = find_weights(Layout.of(model()))
    bits = size = 0.0
    for path, name in plan().formats.items():
        weight = weights[path]
        bits += weight.size * parse_scheme(name).weights.bits(weight.shape, axis=weight.axis)
        size += weight.size
    assert len(plan().formats) == len(weights)
    assert plan().avg_bits == pytest.approx(bits / size)


def test_the_measured_figure_is_that_of_the_text_which_was_held_out() -> None:
    texts = Texts.of(model(), None, trained.tokenizer("llama"), seed=0, **OPTIONS)
    assert plan().kl == measure(Bench(model(), texts.held_out), plan().formats)
    assert plan().sections["data"]["held_out_fingerprint"] == texts.held_out.fingerprint


def test_no_row_of_text_is_used_twice() -> None:
    texts = Texts.of(model(), None, trained.tokenizer("llama"), seed=3, **OPTIONS)

    def rows(part) -> set[tuple[int, ...]]:
        return {tuple(line) for batch in part for line in batch.input_ids.tolist()}

    assert (texts.mapped.rows, texts.held_out.rows) == (64, 32)
    assert not rows(texts.mapped) & rows(texts.held_out)
    assert rows(texts.checked) | rows(texts.sloped) | rows(texts.stepped) <= rows(texts.mapped)
    assert not rows(texts.sloped) & rows(texts.stepped)
    assert texts.checked.rows == 16


def test_weights_that_are_stored_together_have_one_format() -> None:
    formats = plan().formats
    for layer in range(8):
        around = f"model.layers.{layer}"
        assert len({formats[f"{around}.self_attn.{name}_proj"] for name in "qkv"}) == 1
        assert formats[f"{around}.mlp.gate_proj"] == formats[f"{around}.mlp.up_proj"]


def test_what_is_kept_has_16_bits_and_counts() -> None:
    found = planned(avg_bits=8, keep=["*.0.mlp", "re:.*q_proj"], formats=["mxfp4", "int8"])
    kept = {path for path in find_weights(Layout.of(model())) if ".0.mlp." in path or path.endswith("q_proj")}
    assert set(found.sections["plan"]["kept"]) == kept
    assert not kept & set(found.formats)
    assert 6.3 < found.avg_bits <= 8
    low = {one["path"]: one["bits"] for one in found.sections["weights"]}
    assert {low[path] for path in kept} == {16.0}


def test_steps_make_a_plan_better_on_text_that_they_have_not_seen(tmp_path) -> None:
    """The map is the same for both, and made once."""
    asked = {"avg_bits": 4.5, "tokenizer": trained.tokenizer("gpt2"), **OPTIONS, "n_samples": 256, "n_verified": 96}
    asked["map_file"] = tmp_path / "map.json"
    found = ns.plan_precision(trained.fixture("gpt2")[0], **asked)
    alone = ns.plan_precision(trained.fixture("gpt2")[0], **asked, refined=False)
    assert row(found, "by the map alone")["kl"] == row(alone, "plan")["kl"]
    assert found.kl.value < 0.97 * alone.kl.value
    assert found.avg_bits <= 4.5
    steps = found.sections["refined"]
    taken = [step for step in steps["steps"] if step["taken"]]
    assert taken[-1]["kl"]["value"] < steps["from"]["value"]
    for text in (str(found), found.to_markdown(), found.to_html()):
        assert f"Refined: {len(steps['steps'])} steps tried" in text
    assert alone.sections["refined"] is None
    assert "Refined" not in str(alone)


def test_the_threshold_rule_as_a_strategy() -> None:
    found = planned(avg_bits=6, strategy="threshold", degradation=DEGRADATION)
    by_layer = {one["layer"]: one["format"] for one in found.sections["weights"]}
    assert by_layer[0] in ("bf16", "int8")
    assert by_layer[3] in ("mxfp4", "nvfp4")
    assert found.avg_bits <= 6
    assert row(found, "programme")["kl"]["value"] < row(found, "plan")["kl"]["value"]
    with pytest.raises(InputError, match="strategy: the threshold rule needs"):
        planned(strategy="threshold")


def test_the_same_question_gives_the_same_bytes_and_a_map_is_used_again(tmp_path) -> None:
    file = tmp_path / "map.json"
    again = planned(avg_bits=5, degradation=DEGRADATION, map_file=file)
    assert again.to_json() == plan().to_json()
    assert again.to_html() == plan().to_html()
    made = file.stat().st_mtime_ns
    other = planned(avg_bits=4.5, formats=["mxfp4", "nvfp4", "int8"], map_file=file)
    assert file.stat().st_mtime_ns == made
    assert other.avg_bits <= 4.5


def test_the_curve_falls_and_the_plan_is_on_it() -> None:
    points = [(point["bits"], point["kl"]) for point in plan().sections["curve"]]
    bits, kl = zip(*points, strict=True)
    assert list(bits) == sorted(bits)
    assert all(later <= earlier * 1.0002 for earlier, later in pairwise(kl))
    found = plan().sections["plan"]
    assert np.interp(found["bits"], bits, kl) >= found["predicted_kl"] * 0.9


def test_files(tmp_path) -> None:
    page = plan().save(tmp_path / "out")
    assert sorted(path.name for path in page.parent.iterdir()) == ["precision.html", "precision.json", "precision.md"]
    assert json.loads((page.parent / "precision.json").read_text())["schema"] == "noisescope precision plan"
    text = page.read_text()
    assert "<svg" in text
    assert text.count("<circle") == len(plan().sections["verified"]) + 4
    assert "bits on average" in str(plan())


def test_hostile_names_stay_text() -> None:
    evil = '</script><img src=x onerror="alert(1)">'
    found = {**plan().sections, "model": evil, "data": {**plan().sections["data"], "name": evil}}
    found["weights"] = [{**one, "path": f"{one['path']}{evil}"} for one in found["weights"]]
    page = ns.PrecisionPlan(found).to_html()
    assert "&lt;img" in page
    assert "<img" not in page
    assert page.count("<script") == plan().to_html().count("<script")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"avg_bits": 3}, "avg_bits: got 3, but the fewest with these formats is 4.25; allow more bits"),
        ({"avg_bits": -1}, "avg_bits: got -1, expected a number > 0"),
        ({"formats": ["mxfp5"]}, 'unknown format "mxfp5"'),
        ({"formats": []}, "formats: got none"),
        ({"formats": "mxfp4"}, 'formats: got "mxfp4", expected a list'),
        ({"strategy": "guess"}, 'strategy: got "guess", expected one of programme threshold'),
        ({"keep": ["*"]}, "keep: all weights are kept"),
        ({"keep": ["*.nothing"]}, 'keep: "*.nothing" matches no weight'),
        ({"avg_bits": 5, "keep": ["*.mlp"]}, "avg_bits: got 5, but the fewest with these formats is"),
        ({"data": ["one text", "two texts"], "n_samples": 16}, "data: "),
    ],
)
def test_what_cannot_be_planned(asked: dict, why: str) -> None:
    with pytest.raises((InputError, NothingMatched)) as caught:
        planned(**asked)
    assert str(caught.value).startswith(why)
    assert "\n" not in str(caught.value)
