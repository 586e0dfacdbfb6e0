"""The table of a page that is made from the results of benchmarks/training."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs_benchmarks import table

__all__ = ["robustness"]

FILE = Path(__file__).parents[1] / "benchmarks" / "training" / "results.json"
CONDITIONS = ("clean", "noise 0.05", "noise 0.1", "mxfp4")
Row = Mapping[str, Any]


def robustness() -> str:
    """Loss of every arm in every condition, differences to clean training, and what noise costs."""
    results = json.loads(FILE.read_text())
    if "summary" not in results:
        return "Not measured yet (`python benchmarks/training/run.py`)"
    asked, arms = results["asked"], results["summary"]
    head = ("training", *(f"{name}: loss" for name in CONDITIONS), "what noise 0.1 costs", "what mxfp4 costs")
    lines = []
    for arm, found in arms.items():
        costs = [_against(found[name]["cost_against_clean"], arm) for name in ("noise 0.1", "mxfp4")]
        lines.append((arm, *(_loss(found[name], arm) for name in CONDITIONS), *costs))
    seen = ", ".join(f"{_could_see(arms, name):.1f} ({name})" for name in CONDITIONS)
    note = (
        f"The Llama fixture trained further in {len(arms)} ways, {asked['steps']} steps and {asked['seeds']} seeds "
        f"each: loss in nats per token on {asked['held_out_tokens']} held-out tokens, and behind it the difference to "
        "clean training in thousandths, with a 95% interval over seeds that share their batches; bold where it does "
        "not hold 0. What noise costs is the loss under it less the loss without, again against clean training. "
        f"Differences of loss that would have been seen with a probability of 80%, whatever the arm: {seen}."
    )
    return f"{note}\n\n{table(head, lines)}"


def _could_see(arms: Row, condition: str) -> float:
    """Of the arm whose seeds differ most, in thousandths of a nat."""
    found = [row[condition]["nll_against_clean"] for arm, row in arms.items() if arm != "clean"]
    return 1000 * max(row["could_see"] for row in found)


def _loss(row: Row, arm: str) -> str:
    difference = "" if arm == "clean" else f" ({_against(row['nll_against_clean'], arm)})"
    return f"{row['nll_nats']:.4f}{difference}"


def _against(found: Row, arm: str) -> str:
    """The difference to clean training, in thousandths of a nat."""
    if arm == "clean":
        return ""
    value, low, high = (f"{1000 * found[name]:+.1f}" for name in ("value", "low", "high"))
    text = f"{value} [{low}, {high}]"
    return text if found["low"] <= 0 <= found["high"] else f"**{text}**"
