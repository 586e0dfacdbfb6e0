"""One real report for all renderers."""

from copy import deepcopy
from typing import Any

import pytest

import noisescope as ns
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
