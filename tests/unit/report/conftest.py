"""One real report for all renderers."""

from copy import deepcopy
from typing import Any

import pytest
import torch

import noisescope as ns
from noisescope.comparing import compare
from noisescope.traces import trace
from odd_reports import with_version_2
from trained import fixture


@pytest.fixture(scope="session")
def whole() -> dict[str, Any]:
    """The sections of a real report, with everything that the second version of the schema knows."""
    model, tokenizer = fixture("llama")
    report = ns.diagnose(model, None, tokenizer=tokenizer, n_samples=8, max_length=12, batch_size=8, name="a llama")
    return with_version_2(dict(report.sections))


@pytest.fixture
def sections(whole: dict[str, Any]) -> dict[str, Any]:
    """A copy that a test may change."""
    return deepcopy(whole)


@pytest.fixture(scope="session")
def found_fault() -> dict[str, Any]:
    """The sections of a verdict on a device with a simulated fault."""
    model, tokenizer = fixture("llama")
    found = ns.locate(model, tokenizer=tokenizer, simulate="saturation:0.2@2.linear", name="a llama")
    return dict(found.sections)


@pytest.fixture
def verdict(found_fault: dict[str, Any]) -> dict[str, Any]:
    """A copy that a test may change."""
    return deepcopy(found_fault)


@pytest.fixture(scope="session")
def found_divergence() -> dict[str, Any]:
    """The sections of a comparison of two traces, one with faults in layers 3 and 5, fed with the other's inputs."""
    model, _ = fixture("llama")
    ids = torch.randint(0, model.config.vocab_size, (4, 32), generator=torch.Generator().manual_seed(1))
    given: dict[str, Any] = {"checkpoint": "x", "name": "a llama"}
    reference = trace(model, {"input_ids": ids}, inputs=True, **given)
    faults = ("saturation:0.2@3.linear", "noise:0.01@5.softmax")
    suspect = trace(model, {"input_ids": ids}, inputs_from=reference, floor=False, emulate=faults, **given)
    return dict(compare(reference, suspect).sections)


@pytest.fixture
def comparison(found_divergence: dict[str, Any]) -> dict[str, Any]:
    """A copy that a test may change."""
    return deepcopy(found_divergence)
