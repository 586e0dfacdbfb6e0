"""Precision plans of the fixture models as plain sections, with formats of one's choice, without planning."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import trained
from noisescope.quantising import Weight, find_weights
from noisescope.sites import Layout


@cache
def weights(name: str) -> dict[str, Weight]:
    return find_weights(Layout.of(trained.fixture(name)[0]))


def sections(name: str, formats: Sequence[str | None], *, axis: bool = False) -> dict[str, Any]:
    """A plan of a fixture that goes through the formats, over and over; None keeps a weight."""
    rows = [
        {"path": weight.path, "layer": weight.layer, "format": formats[number % len(formats)]}
        | ({"axis": weight.axis} if axis else {})
        for number, weight in enumerate(weights(name).values())
    ]
    return {"schema": "noisescope precision plan", "version": 1, "model": name, "weights": rows}


def one(path: str, form: str | None, *, layer: int = 0) -> dict[str, Any]:
    """A plan of a single weight."""
    return {"weights": [{"path": path, "layer": layer, "format": form}]}


def planned(plan: dict[str, Any]) -> dict[str, str | None]:
    """Path -> format."""
    return {row["path"]: row["format"] for row in plan["weights"]}
