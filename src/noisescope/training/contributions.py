"""What each layer's noise really costs: the noise of a training put into one layer at a time, and measured.

A report foretells it, to second order and from few samples. Here it is run; and what is run can be made equal.
"""

from dataclasses import replace
from typing import Any

from torch import nn

from ..diagnosis.accepting import accept, data_for
from ..errors import InputError
from ..measure.intervals import Estimate
from ..points import Bench, Point
from ..sites import Layout
from ..specs import Layer, Selection
from .adaptive import AdaptiveNoise
from .operator_noise import OperatorNoise

__all__ = ["equalize_contributions", "measure_contributions"]


def measure_contributions(
    model: nn.Module,
    data: object,
    noise: OperatorNoise,
    *,
    scale: float | None = None,
    tokenizer: Any = None,
    trials: int = 8,
    tolerance: float = 0.03,
) -> dict[Layer, Estimate]:
    """Layer -> KL in nats per predicted token that the noise in this layer alone costs, with its interval.

    To see whether contributions are equal that were made so; `equalize_contributions` makes them so.

    Args:
        model: a causal language model in eval mode.
        data: as `diagnose` takes it.
        noise: what the training will have; its forward noise is measured.
        scale: the base scale; None: that of the noise model.
        tokenizer: where the data is text.
        trials: independent draws, at most.
        tolerance: no more draws once the half-width of the interval is within that share of the KL.
    """
    accept(model)
    bench = Bench(model, data_for(model, data, tokenizer), layout=(layout := Layout.of(model, blocks=noise.blocks)))
    if noise.multipliers:
        raise InputError("noise: has operator_scales, which are not measured; leave them out")
    asked, base = noise.selection, noise.model_of_noise.scale if scale is None else scale
    layers = asked.layers if asked.layers is not None else tuple(range(len(layout.blocks)))
    found: dict[Layer, Estimate] = {}
    for layer in layers:
        point = Point(
            Selection((layer,), asked.operators, asked.modules),
            noise.model_of_noise,
            seed=noise.seed,
            trials=trials,
            tolerance=tolerance,
            scale=noise.scales(base).at(layer, ""),
        )
        comparison = bench.run(point).comparison
        if comparison is None:
            raise InputError(f"layer {layer}: this noise makes the output non-finite; use a smaller scale")
        found[layer] = comparison.kl
    return found


def equalize_contributions(
    model: nn.Module,
    data: object,
    noise: OperatorNoise,
    *,
    scale: float | None = None,
    tokenizer: Any = None,
    trials: int = 8,
    tolerance: float = 0.03,
) -> OperatorNoise:
    """The noise with factors that make measured contributions equal, their sum being that of one scale for all.

    Measures at one scale, or with the factors that the noise has, and once more with those that follow from it: at a
    large scale a KL no longer grows with the square of the scale, which one step corrects. Arguments as in
    `measure_contributions`; costs two forward passes a layer and draw, each from that layer on.
    """
    asked = {"scale": scale, "tokenizer": tokenizer, "trials": trials, "tolerance": tolerance}
    measured = measure_contributions(model, data, noise, **asked)
    known = noise.adaptive or AdaptiveNoise(dict.fromkeys(measured, 1.0), operators=noise.selection.operators)
    equal = replace(noise, layers=None, adaptive=known.corrected(_values(measured)))
    again = measure_contributions(model, data, equal, **asked)
    assert equal.adaptive is not None
    return replace(equal, adaptive=equal.adaptive.corrected(_values(again)))


def _values(measured: dict[Layer, Estimate]) -> dict[Layer, float]:
    return {layer: found.value for layer, found in measured.items()}
