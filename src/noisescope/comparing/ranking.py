"""What to fix first: how far each source is off, times how much the model minds.

A sensitivity report has the KL divergence that noise of scale s at an operator of a layer costs. It grows with the
square of an error that is small:

    risk = KL(layer, operator) (error / s)^2
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from ..report import Report
from ..specs import Layer
from .blaming import LayerRow
from .judging import Judged

__all__ = ["Repair", "rank_repairs"]


@dataclass(frozen=True)
class Repair:
    """One source, by what it costs."""

    layer: Layer
    operator: str
    site: str
    divergence: float
    """relative error where it began"""
    sensitivity_kl: float
    """nats per token at the report's noise scale"""
    risk_kl: float
    """nats per token that this error is predicted to cost"""
    share: float
    """of all sources' risks"""


def rank_repairs(
    layers: Sequence[LayerRow], fed: Sequence[Judged], report: Report, *, blocks: int
) -> tuple[Repair, ...]:
    """The sources, the costliest first, of a model with so many blocks."""
    if (told := report.sections["coverage"]["layers"]) != blocks:
        raise InputError(f"report: is of a model with {told} layers, and the traces are of one with {blocks}")
    found = report.sections.get("map")
    if not isinstance(found, Mapping) or not found.get("cells"):
        raise InputError("report: has no sensitivity map; make one with `noisescope diagnose --level full`")
    scale, cells = found["noise_scale"], {(cell["layer"], cell["operator"]): cell for cell in found["cells"]}
    errors = {(site.site.stage, site.site.name): site for site in fed}
    risks = []
    for row in layers:
        if row.first is None:
            continue
        site = errors.get((row.first.site.stage, row.first.site.name), row.first)
        cell = _cell(cells, row.layer, site.site.operator)
        if cell is not None:
            error = site.metrics.relative_error.value
            risks.append((row.layer, site, cell["kl"]["value"], error, cell["kl"]["value"] * (error / scale) ** 2))
    total = sum(risk for *_, risk in risks)
    repairs = [
        Repair(layer, site.site.operator, site.site.name, error, kl, risk, risk / total if total else 0.0)
        for layer, site, kl, error, risk in risks
    ]
    return tuple(sorted(repairs, key=lambda repair: -repair.risk_kl))


def _cell(cells: Mapping[Any, Any], layer: Layer, operator: str) -> Any:
    """The map's cell of an operator; attention is what its second product gives."""
    names = (operator, "matmul") if operator == "attention" else (operator,)
    return next((cells[layer, name] for name in names if (layer, name) in cells), None)
