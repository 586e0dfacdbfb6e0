"""What noise costs in each layer, as the threshold rule wants it: a share of accuracy, read from a report."""

from ..diagnosis.by_layer import layer_degradation
from ..report import Report
from ..specs import Layer

__all__ = ["degradation_of"]


def degradation_of(report: Report) -> dict[Layer, float] | None:
    """Layer -> share of accuracy lost, the mean over the windows that contain it; None if the report does not say.

    It does not where windows were not looked at, or where the model is no better than chance.
    """
    sections = report.sections
    if not sections["metrics"]["clean"]["conclusive"]:
        return None
    found = layer_degradation(sections["layer_analysis"])
    every = set(range(sections["coverage"]["layers"])) <= set(found)
    return dict(found.items()) if found and every else None
