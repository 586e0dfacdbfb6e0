"""A report to plan from, made once, and copies of it in which something is fragile."""

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import noisescope as ns
import trained
from noisescope.report import Report

MODEL = trained.FIXTURES / "llama"


@cache
def report() -> Report:
    """Of the trained llama, on little data: nothing in it is critical."""
    model, tokenizer = trained.fixture("llama")
    return ns.diagnose(model, tokenizer=tokenizer, name="llama", n_samples=16, max_length=24)


def sections() -> dict[str, Any]:
    """A copy that may be changed."""
    return deepcopy(dict(report().sections))


def with_findings() -> Report:
    """The same with a critical operator, an avalanche window and outlier channels."""
    found = sections()
    found["executive_summary"] |= {
        "critical_operators": ["softmax"],
        "avalanche_points": [{"layer_range": "L1-3", "degradation": 0.3, "severity": "CRITICAL"}],
    }
    row = found["channel_analysis"]["per_layer"]["model.layers.4.mlp.down_proj"]
    row |= {"outlier_indices": [7, 20], "outlier_ratios": [12.0, 61.5], "num_outliers": 2, "max_ratio": 61.5}
    row |= {"severities": ["MODERATE", "CRITICAL"], "kinds": ["persistent"] * 2, "persistence": [1.0, 1.0]}
    return Report(found)


def saved(home: Path, found: Report | None = None) -> Path:
    """The JSON of a report in a directory."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "report.json").write_text((found or report()).to_json())
    return home
