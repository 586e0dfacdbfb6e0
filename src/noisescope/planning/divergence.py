"""How far each layer of another device is off, read from a comparison, and whether that is of the report's model.

A layer's divergence is the relative error that it adds by itself, where the suspect was fed with the reference's
inputs, else the one that it carries at its last operator. Its MAPE is always the latter: what `validate-migration`
looks at. What is not finite on one device alone is infinitely far off.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

from ..errors import InputError, quoted
from ..report import Report
from ..report.figures import Interval
from ..report.rows import Sections
from ..specs import Layer

__all__ = ["Divergence", "layer_divergence", "refuse_another_model"]

FAR = Interval(inf, inf, inf)


@dataclass(frozen=True)
class Divergence:
    """One layer on the other device."""

    error: Interval
    """relative: what it adds by itself if `own`, else what it carries"""
    own: bool
    mape: Interval
    """at its last operator, in the worse of prefill and decode"""


def layer_divergence(comparison: Sections) -> dict[Layer, Divergence]:
    """Layer -> how far it is off."""
    carried, added = (_ends(comparison[part]) for part in ("sites", "fed"))
    return {
        layer: Divergence(
            _worst(added.get(layer, ends), "relative_error"), bool(added.get(layer)), _worst(ends, "mape")
        )
        for layer, ends in carried.items()
    }


def refuse_another_model(report: Report, comparison: Sections) -> None:
    """Raises for a comparison of another model than the report's, naming the field.

    In one dtype the weights tell; in two they cannot, and the name has to.
    """
    sections, trace = report.sections, comparison["traces"]["reference"]
    config, told = sections["config"], "is of another model than the report"
    if (mine := sections["coverage"]["layers"]) != trace["layers"]:
        raise InputError(f"comparison: layers: {told}, with {trace['layers']} layers; the report's has {mine}")
    weights = config.get("weights"), trace.get("weights")
    if all(weights) and sections["environment"].get("dtype") == trace["environment"]["dtype"]:
        if weights[0] != weights[1]:
            raise InputError(
                f"comparison: weights: {told}, {quoted(weights[1])}; the report's are {quoted(weights[0])}"
            )
    elif config["model"] != trace["model"]:
        raise InputError(
            f"comparison: model: {told}, {quoted(trace['model'])}; the report's is {quoted(config['model'])}"
        )


def _ends(sites: Iterable[Mapping[str, Any]]) -> dict[Layer, list[Mapping[str, Any]]]:
    """Layer -> its last operator in each stage of the forward pass."""
    found: dict[Layer, dict[str, Mapping[str, Any]]] = {}
    for site in sites:
        if site["layer"] is not None and site["phase"] == "forward":
            found.setdefault(site["layer"], {})[site["stage"]] = site
    return {layer: list(stages.values()) for layer, stages in found.items()}


def _worst(ends: Iterable[Mapping[str, Any]], metric: str) -> Interval:
    return max((_figure(site, metric) for site in ends), key=lambda figure: (figure.high, figure.value))


def _figure(site: Mapping[str, Any], metric: str) -> Interval:
    found = site["metrics"].get(metric)
    lost = site["non_finite"][0] != site["non_finite"][1]
    if lost or found is None or any(part is None or isnan(part) for part in found.values()):
        return FAR
    return Interval(found["value"], found["low"], found["high"])
