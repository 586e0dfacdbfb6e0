"""Curvature of parameter groups: what Fisher information and Hessian trace have in common.

Both are second derivatives of nats per predicted token by parameters, so their figures can be compared: the Fisher
trace is that part of the Hessian trace which stays when the model fits its data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..specs import Layer
from .intervals import Estimate, ratio
from .parameters import Parameters

__all__ = ["Curvature", "by_layer", "by_parameter", "curvature_json", "layer_sums", "whole"]


@dataclass(frozen=True)
class Curvature:
    """The trace over a group of parameters, and how many they are."""

    trace: Estimate
    size: int

    @property
    def mean(self) -> Estimate:
        """Per parameter: compare groups of different size by it."""
        return self.trace.scaled(1 / self.size)

    def as_json(self) -> dict[str, Any]:
        """Plain values for a report."""
        return {"trace": self.trace.as_json(), "size": self.size}


def by_parameter(
    parameters: Parameters, sums: ArrayLike, weights: ArrayLike, *, positive: bool
) -> dict[str, Curvature]:
    """Name -> curvature, from sums of clusters x parameters and the clusters' weights."""
    columns = np.asarray(sums, dtype=np.float64).T
    return {
        name: Curvature(ratio(column, weights, positive=positive), size)
        for name, column, size in zip(parameters.names, columns, parameters.sizes, strict=True)
    }


def by_layer(parameters: Parameters, sums: ArrayLike, weights: ArrayLike, *, positive: bool) -> dict[Layer, Curvature]:
    """Layer -> curvature of all its parameters together; `embed`, `final_norm` and `head` are layers of their own."""
    sizes = layer_sums(parameters, np.array([parameters.sizes]))
    columns = layer_sums(parameters, sums)
    return {
        layer: Curvature(ratio(column, weights, positive=positive), int(sizes[layer].item()))
        for layer, column in columns.items()
    }


def whole(parameters: Parameters, sums: ArrayLike, weights: ArrayLike, *, positive: bool) -> Curvature:
    """The curvature of all parameters together."""
    total = np.asarray(sums, dtype=np.float64).sum(1)
    return Curvature(ratio(total, weights, positive=positive), sum(parameters.sizes))


def layer_sums(parameters: Parameters, sums: ArrayLike) -> dict[Layer, np.ndarray]:
    """Columns of anything x parameters, added up by layer."""
    values = np.asarray(sums)
    found: dict[Layer, np.ndarray] = {}
    for at, layer in enumerate(parameters.layers):
        found[layer] = found[layer] + values[..., at] if layer in found else values[..., at]
    return found


def curvature_json(groups: Mapping[Any, Curvature]) -> dict[str, Any]:
    """Groups as plain values, keyed by text."""
    return {str(name): curvature.as_json() for name, curvature in groups.items()}
