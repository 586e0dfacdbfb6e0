"""A check as a person runs it from Python: what passes, what is refused, what is said."""

from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import noisescope as ns
from noisescope.errors import InputError
from noisescope.gate.result import EXIT_CODES
from noisescope.keys import fingerprint_model
from trained import fixture

Loaded = tuple[torch.nn.Module, Any]


def test_a_model_is_no_worse_than_itself(llama: Loaded, baseline: ns.Baseline) -> None:
    model, tokenizer = llama
    before = fingerprint_model(model)
    found = ns.check(model, baseline=baseline, tokenizer=tokenizer, name="again", resolution=0.2)
    assert (found.outcome, found.exit_code, found.passed) == ("passed", 0, True)
    assert [row.change for row in found.rows] == [0, 0, 0]
    assert found.sections["differs"] == []
    assert found.sections["cost"] < 12
    assert found.max_degradation == max(row.current for row in found.rows)
    assert str(found).splitlines()[-1].startswith("PASSED: none of 3 operators got more than 20% and one point worse")
    assert fingerprint_model(model) == before


def test_few_samples_are_inconclusive(llama: Loaded, baseline: ns.Baseline) -> None:
    """The fixture in half precision: another model by a hair, on too few samples to say anything."""
    model, tokenizer = fixture("llama")
    found = ns.check(model.to(torch.bfloat16), baseline=baseline, tokenizer=tokenizer)
    assert found.sections["differs"] == ["dtype (float32 -> bfloat16)"]
    assert found.exit_code == EXIT_CODES[found.outcome] == 11
    assert "samples would do" in found.to_markdown()
    cases = ElementTree.fromstring(found.to_junit()).find("testsuite")
    assert cases is not None
    assert cases.get("tests") == "4"
    assert int(cases.get("errors", "")) == len(cases.findall("testcase/error")) > 0
    assert cases.get("failures") == "0"


def test_a_broken_checkpoint_fails(baseline: ns.Baseline) -> None:
    """All logits get a large common part, which changes no probability; relative noise scatters it."""
    model, tokenizer = fixture("llama")
    with torch.no_grad():
        hidden = model.model(ns.open_data(None, tokenizer, n_samples=4).batches[0].input_ids).last_hidden_state
        common = hidden.mean((0, 1))
        model.lm_head.weight.add_(100 * common / common.square().sum())
    found = ns.check(model, baseline=baseline, tokenizer=tokenizer, name="bad")
    assert (found.outcome, found.exit_code) == ("failed", 1)
    assert [row.operator for row in found.rows if row.outcome == "failed"] == ["head"]
    assert "FAILED  head" in str(found)
    assert "<failure message=" in found.to_junit()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n_samples": 12}, "another n_samples (24, now 12)"),
        ({"max_length": 12}, "another max_length (16, now 12)"),
        ({"batch_size": 4}, "another batch_size (16, now 4)"),
        ({"data": ["one text and another " * 9] * 24}, "another data ("),
    ],
)
def test_other_tokens_are_refused(given: dict[str, Any], said: str, llama: Loaded, baseline: ns.Baseline) -> None:
    model, tokenizer = llama
    with pytest.raises(InputError) as error:
        ns.check(model, given.pop("data", None), baseline=baseline, tokenizer=tokenizer, **given)
    assert f"baseline: made with {said}" in str(error.value)


def test_another_structure_is_refused(baseline: ns.Baseline) -> None:
    model, tokenizer = fixture("gpt2")
    with pytest.raises(InputError, match="another architecture"):
        ns.check(model, baseline=baseline, tokenizer=tokenizer)
    model, tokenizer = fixture("llama")
    model.model.layers = model.model.layers[:7]
    model.eval()
    with pytest.raises(InputError, match=r"another layers in all \(8, now 7\); make the baseline anew for this model"):
        ns.check(model, baseline=baseline, tokenizer=tokenizer)


def test_another_tokenizer_is_refused(llama: Loaded, baseline: ns.Baseline) -> None:
    tokenizer = fixture("llama")[1]
    changed = type(tokenizer).from_pretrained(tokenizer.name_or_path)
    changed.add_tokens(["noisescope"])
    with pytest.raises(InputError, match="another tokenizer"):
        ns.check(llama[0], baseline=baseline, tokenizer=changed)


@pytest.mark.parametrize("limit", [0, -1, 2, float("nan")])
def test_limits_out_of_range(limit: float, llama: Loaded, baseline: ns.Baseline) -> None:
    with pytest.raises(InputError, match="max_degradation: got"):
        ns.check(llama[0], baseline=baseline, max_degradation=limit)


def test_a_model_at_chance_has_nothing_to_lose(llama: Loaded, baseline: ns.Baseline) -> None:
    model, tokenizer = fixture("llama")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    with pytest.raises(InputError, match="is no better than chance"):
        ns.take_baseline(model, tokenizer=tokenizer, n_samples=4, max_length=8, operators="softmax")
    found = ns.check(model, baseline=baseline, tokenizer=tokenizer)
    assert found.outcome == "inconclusive"
    assert "no better than chance" in str(found)
    assert "no better than chance" in found.to_junit()
