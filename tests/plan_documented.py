"""The errors of weights that docs/plan-precision.md states for the tools that round them, over those of a plan."""

from functools import cache
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs" / "plan-precision.md"


@cache
def documented(tool: str) -> dict[str, float]:
    """Format -> the ratio that the page has, for the tool whose column begins with that name."""
    lines = DOCS.read_text().splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("| | llm-compressor"))
    column = next(at for at, title in enumerate(_cells(lines[head])) if title.startswith(tool))
    found = dict[str, float]()
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            break
        names, text = _cells(line)[0].split(", "), _cells(line)[column]
        ratios = [float(number) for number in text.split(", ")] if text else []
        found |= zip(names, ratios * (len(names) // len(ratios)) if ratios else (), strict=bool(ratios))
    assert found, tool
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def as_documented(tool: str, form: str, ratio: float) -> bool:
    """Whether a measured ratio is what the page says of this format, if it says anything."""
    stated = documented(tool).get(form)
    return stated is None or abs(ratio - stated) <= 0.0055
