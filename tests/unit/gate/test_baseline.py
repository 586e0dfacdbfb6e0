"""Baselines as files: whole, of this version, and what was saved; reports in their place."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import noisescope as ns
from noisescope.errors import InputError
from noisescope.gate.baseline import Limits, open_baseline
from noisescope.gate.baseline import _digest as digest_of
from noisescope.gate.checking import check
from noisescope.store.encoding import decode

GOLDEN = Path(__file__).parents[2] / "golden" / "report-v1.json"
Loaded = tuple[torch.nn.Module, Any]


def test_there_and_back(baseline: ns.Baseline, tmp_path: Path) -> None:
    file = baseline.save(tmp_path / "in" / "baseline.json")
    again = ns.Baseline.load(file)
    assert again.to_json() == baseline.to_json() == file.read_text()
    assert again.digest == baseline.digest
    assert again.evaluation.noisy["head"].tolist() == baseline.evaluation.noisy["head"].tolist()
    assert repr(again) == "<Baseline: good, 24 samples, 3 operators>"


def test_it_holds_figures_by_sequence(baseline: ns.Baseline) -> None:
    found = decode(baseline.to_json())
    assert (found["schema"], found["version"]) == ("noisescope baseline", 1)
    assert len(found["evaluation"]["clean"]) == len(found["evaluation"]["noisy"]["softmax"]) == 24
    assert set(found["question"]) >= {"data", "tokenizer", "noise_scale", "error_type", "seed", "operators", "shapes"}


def edited(baseline: ns.Baseline, **changes: Any) -> str:
    return json.dumps({**json.loads(baseline.to_json()), **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "version: got 2, expected 1; make the baseline anew with this release"),
        ({"version": True}, "version: got True, expected 1"),
        ({"schema": "noisescope vote"}, 'schema: got "noisescope vote", expected "noisescope baseline"'),
        ({"model": "another"}, "digest: the content is not what was saved"),
        ({"digest": None}, "digest: the content is not what was saved"),
        ({"evaluation": {}}, "digest: the content is not what was saved"),
    ],
)
def test_what_is_not_as_it_was_is_refused(
    changes: dict[str, Any], said: str, baseline: ns.Baseline, tmp_path: Path
) -> None:
    (tmp_path / "b.json").write_text(edited(baseline, **changes))
    with pytest.raises(InputError) as error:
        ns.Baseline.load(tmp_path / "b.json")
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("clean", [0] * 24, "no prediction is right, so that there is nothing to lose"),
        ("n_samples", 23, "24 sequences, the question has 23"),
        ("n_samples", "x", "24 sequences, the question has x"),
    ],
)
def test_odd_content_with_a_digest_of_its_own_is_refused(
    part: str, value: Any, said: str, baseline: ns.Baseline, tmp_path: Path
) -> None:
    content = json.loads(baseline.to_json())
    content["question" if part in content["question"] else "evaluation"][part] = value
    content["digest"] = digest_of({name: kept for name, kept in content.items() if name != "digest"})
    (tmp_path / "b.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=said) as error:
        open_baseline(tmp_path / "b.json")
    assert len(str(error.value).splitlines()) == 1


def test_cut_off_anywhere_it_is_refused(baseline: ns.Baseline, tmp_path: Path) -> None:
    text = baseline.to_json().rstrip("\n")
    for end in range(0, len(text), 97):
        (tmp_path / "b.json").write_text(text[:end])
        with pytest.raises(InputError, match="not a baseline"):
            ns.Baseline.load(tmp_path / "b.json")


def test_a_changed_figure_is_refused(baseline: ns.Baseline, tmp_path: Path) -> None:
    content = json.loads(baseline.to_json())
    content["evaluation"]["clean"][3] += 1
    (tmp_path / "b.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="digest"):
        ns.Baseline.load(tmp_path / "b.json")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file; make it with `noisescope check MODEL --save-baseline`"):
        ns.Baseline.load(tmp_path / "b.json")


def test_a_report_gives_limits_and_is_no_baseline() -> None:
    found = open_baseline(GOLDEN)
    assert isinstance(found, Limits)
    assert found.layers == 8
    assert found.question["noise_scale"] == 0.05
    assert found.highest >= max(found.degradation.values())
    with pytest.raises(InputError, match="a report of `diagnose`, expected a baseline"):
        ns.Baseline.load(GOLDEN)


def test_a_report_is_held_to_its_limits_alone(llama: Loaded, tmp_path: Path) -> None:
    model, tokenizer = llama
    spec = ns.DiagnosisSpec("operator", operators=("softmax",))
    ns.diagnose(model, tokenizer=tokenizer, spec=spec, n_samples=8, max_length=16).save(tmp_path, ["json"])
    given = {"tokenizer": tokenizer, "n_samples": 24, "max_length": 16}
    found = check(model, baseline=tmp_path, **given)
    limits = open_baseline(tmp_path)
    assert isinstance(limits, Limits)
    assert found.sections["rules"]["max_degradation"] == pytest.approx(max(1.2 * limits.highest, limits.highest + 0.01))
    assert [row.p for row in found.rows] == [None]
    assert "whether an operator got worse is not" in found.to_markdown()
    loose = check(model, baseline=tmp_path, max_degradation=0.9, **given)
    assert loose.outcome == "passed"
    assert "PASSED: none of 1 operator costs more than 90.0% of accuracy; an excess of" in str(loose)
    assert "points over the limit would be seen in 4 of 5 cases" in str(loose)


def test_a_report_of_another_model_is_refused(llama: Loaded) -> None:
    with pytest.raises(InputError, match="a report of other operators"):
        check(llama[0], baseline=GOLDEN, tokenizer=llama[1], n_samples=4, max_length=16)
