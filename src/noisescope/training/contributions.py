"""What each layer's noise really costs: the noise of a training put into one layer at a time, and measured.

A report foretells it, to second order and from few samples. Here it is run; and what is run can be made equal.
"""

import logging
import math
from dataclasses import replace
from statistics import fmean
from typing import Any

from torch import nn

from ..diagnosis.accepting import accept, data_for
from ..diagnosis.mapping import MOMENTS
from ..diagnosis.progress import Progress, silent
from ..errors import InputError, quoted
from ..measure.intervals import Estimate
from ..points import Bench, Point
from ..report.layers import label
from ..sites import Layout
from ..specs import Layer, Selection
from .adaptive import AdaptiveNoise
from .operator_noise import OperatorNoise
from .subject import Subject

__all__ = ["equalize_contributions", "measure_contributions"]

EQUAL, NEARLY = 1.05, 1.15
"""the largest contribution over the smallest, at which factors are not corrected any more; and not by few draws"""
TRUSTED = 1.15
"""the same in draws that factors were not made from, at which a warning is due"""
ROUNDS = 8
"""in which factors are corrected, at the most"""
FEW = 2
"""draws of dense noise that factors are corrected by at first: the same at every scale"""
_FLATTEST, _STEEPEST = 0.5, 4.0
"""powers of the scale that a KL may grow with: 2 for small noise, 1 for a share of values that are struck"""

log = logging.getLogger("noisescope.training")


def measure_contributions(
    model: nn.Module,
    data: object,
    noise: OperatorNoise,
    *,
    scale: float | None = None,
    tokenizer: Any = None,
    trials: int = 8,
    tolerance: float = 0.03,
    progress: Progress = silent,
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
        tolerance: no more draws once other ones would change the KL on this data by no more than that share of it.
            Intervals are wider, as they are for other data too.
        progress: told how far the run is.
    """
    return _Measuring(model, data, noise, scale, tokenizer, trials, tolerance, progress).of(noise)


def equalize_contributions(
    model: nn.Module,
    data: object,
    noise: OperatorNoise,
    *,
    scale: float | None = None,
    tokenizer: Any = None,
    trials: int = 8,
    tolerance: float = 0.03,
    progress: Progress = silent,
) -> OperatorNoise:
    """The noise with factors that make measured contributions equal, their sum being that of one scale for all.

    A few draws correct the factors until contributions are nearly equal: by the square of the scale at first, then by
    the power that each layer's KL was seen to grow with, which is another one for large noise and for bits that flip.
    What all draws tell there corrects them once more. In the end all is measured with other draws: that is what the
    table of `adaptive` shows, with intervals. Where they are more than 15% apart a warning says so: layers where a few
    values matter most, such as massive activations, take many draws.

    Arguments as in `measure_contributions`. It costs twice what that does, and some four draws more.
    """
    measuring = _Measuring(model, data, noise, scale, tokenizer, trials, tolerance, progress)
    factors = _corrected(measuring)
    judged = measuring.with_(factors, seed=noise.seed + 1)
    if (spread := _spread(judged)) > TRUSTED:
        log.warning(
            "contributions are not equal: with other draws the largest is %.3g times the smallest; more trials or rows "
            "may help",
            spread,
        )
    return measuring.noise_with(factors, judged)


def _corrected(measuring: "_Measuring") -> dict[Layer, float]:
    """The factors with which layers contribute equally, and together what they do with one scale for all."""
    few = min(FEW, measuring.trials) if measuring.noise.model_of_noise.name in MOMENTS else measuring.trials
    enough = NEARLY if few < measuring.trials else EQUAL
    factors, powers = dict.fromkeys(measuring.layers, 1.0), dict.fromkeys(measuring.layers, 2.0)
    kl = measuring.with_(factors, trials=few)
    aim = fmean(found.value for found in kl.values())

    def correct() -> dict[Layer, float]:
        return {layer: factors[layer] * (aim / kl[layer].value) ** (1 / powers[layer]) for layer in factors}

    best = _spread(kl), factors, kl, dict(powers)
    for _ in range(ROUNDS):
        if best[0] <= enough:
            break
        before, was = factors, kl
        factors = correct()
        kl = measuring.with_(factors, trials=few)
        for layer in factors:
            powers[layer] = _power(before[layer], factors[layer], was[layer].value, kl[layer].value, powers[layer])
        best = min(best, (_spread(kl), factors, kl, dict(powers)), key=lambda found: found[0])
    _, factors, kl, powers = best
    if few == measuring.trials:
        return factors  # no draw knows more
    kl = measuring.with_(factors)
    return correct()


class _Measuring:
    """A noise on a model and data, measured with one set of factors after the other."""

    def __init__(
        self,
        model: nn.Module,
        data: object,
        noise: OperatorNoise,
        scale: float | None,
        tokenizer: Any,
        trials: int,
        tolerance: float,
        progress: Progress,
    ) -> None:
        _check(noise, scale, trials)
        accept(model)
        self.noise, self.trials, self._tolerance, self._progress = noise, trials, tolerance, progress
        self._scale = noise.model_of_noise.scale if scale is None else scale
        layout = Layout.of(model, blocks=noise.blocks)
        asked = noise.selection.layers
        self.layers = asked if asked is not None else tuple(range(len(layout.blocks)))
        for layer in self.layers:
            layout.require(layer)
        self._subject = Subject.of_model(model, layers=len(layout.blocks))
        self._bench = Bench(model, data_for(model, data, tokenizer), layout=layout)

    def of(self, noise: OperatorNoise, trials: int | None = None) -> dict[Layer, Estimate]:
        """What each layer contributes, in as many draws or those that were asked for."""
        asked, found = noise.selection, dict[Layer, Estimate]()
        tick = self._progress("contributions", len(self.layers))
        for layer in self.layers:
            point = Point(
                Selection((layer,), asked.operators, asked.modules),
                noise.model_of_noise,
                seed=noise.seed,
                trials=trials or self.trials,
                tolerance=self._tolerance,
                scale=noise.scales(self._scale).at(layer, ""),
            )
            comparison = self._bench.run(point).comparison
            if comparison is None:
                raise InputError(f"{label(layer)}: this noise makes the output non-finite; use a smaller scale")
            found[layer] = comparison.kl
            tick()
        return found

    def with_(
        self, factors: dict[Layer, float], *, trials: int | None = None, seed: int | None = None
    ) -> dict[Layer, Estimate]:
        """What each layer contributes with these factors."""
        noise = replace(self.noise, layers=None, adaptive=AdaptiveNoise(factors))
        found = self.of(noise if seed is None else replace(noise, seed=seed), trials)
        if gone := [layer for layer, kl in found.items() if not kl.value > 0]:
            raise InputError(
                f"{label(gone[0])}: this noise costs nothing there (a KL of {found[gone[0]].value:.3g}), so nothing "
                "can be made equal to it; leave the layer out, or use a larger scale"
            )
        return found

    def noise_with(self, factors: dict[Layer, float], kl: dict[Layer, Estimate]) -> OperatorNoise:
        """The noise with factors under which these contributions were measured."""
        adaptive = AdaptiveNoise(
            factors,
            {layer: found.value for layer, found in kl.items()},
            {layer: (found.low, found.high) for layer, found in kl.items()},
            dict.fromkeys(factors, "equal"),
            self.noise.selection.operators,
            self.noise.model_of_noise.name,
            self._subject,
        )
        return replace(self.noise, layers=None, adaptive=adaptive)


def _check(noise: object, scale: float | None, trials: object) -> None:
    if not isinstance(noise, OperatorNoise):
        raise InputError(f"noise: got {quoted(noise)}, expected OperatorNoise, whose contributions are measured")
    if "forward" not in noise.selection.phases:
        raise InputError("noise: is in gradients alone, which cost no KL; contributions are those of forward noise")
    if noise.multipliers:
        raise InputError("noise: has operator_scales, which are not measured; leave them out")
    if not (noise.model_of_noise.scale if scale is None else scale):
        raise InputError("scale: got 0, expected a number > 0: without noise there is nothing to measure")
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < 1:
        raise InputError(f"trials: got {quoted(trials)}, expected a whole number of at least 1")


def _spread(kl: dict[Layer, Estimate]) -> float:
    values = [found.value for found in kl.values()]
    return max(values) / min(values)


def _power(before: float, after: float, was: float, now: float, known: float) -> float:
    """The power of the scale that a KL grew with between two factors; the known one if they hardly differ."""
    if abs(math.log(after / before)) < 0.02:
        return known
    return min(_STEEPEST, max(_FLATTEST, math.log(now / was) / math.log(after / before)))
