"""Which layer explains how a suspect device's logits differ, where logits are all that it gives.

    found = rank_layers_by_fingerprint(model, inputs, logits_of_the_suspect)
    found.ranking[0], found.posterior, found.cannot_tell

The model at hand is healthy. An error e at the output of block L moves the logits by J_L e, whose covariance F depends
on L and on the family of the error (see `families`), not on its draw: no error is drawn here, so none can agree with
the fault's by sharing its seed. With d the deviation at some positions, in an orthonormal basis of the head's range,

    score(L) = log mean over families and r of |F + r I|^-1/2 (d^T (F + r I)^-1 d)^(-n/2)
    posterior(L) = softmax(score(L) / TEMPERATURE),    the same prior for every block

r is what a linear answer leaves over. A fault is taken to be an error at the output of one block. An error that arises
inside attention looks more like one at the output of the block before, and is said to be there; one of the embedding
looks like block 0. Errors so large that the answer is not linear, such as spikes, are not found. All of this is
measured in `benchmarks/fingerprint`.
"""

from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from ..diagnosis.accepting import refuse_training
from ..diagnosis.progress import Progress, silent
from ..errors import InputError, NonFinite
from ..injection import Injection
from ..noise import RelativeGaussian
from ..sites import Layout
from ..specs import Selection
from .families import FAMILIES, Spectrum, one_element, spectra
from .responses import Responses, View, logits_of

__all__ = ["Fingerprint", "Fingerprints", "rank_layers_by_fingerprint"]

LEFTOVERS = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0)
"""sizes of r, as shares of the mean variance of F"""
TEMPERATURE = 3.0
"""at which the mean posterior of the first layer was the share of right ones, over the faults of the design on
two small models; on the default model, where more is seen, the posterior is surer than it is right"""
LINEAR = 0.1
"""size of r from which on the answer is not believed: half of those of the design were wrong"""
CONFIDENT = 0.5
"""posterior below which the first layer is not to be believed"""
FLOOR = 10.0
"""how many times larger than the model's answer to one ulp of noise a deviation must be"""
INSIDE = 0.5
"""share of the deviation's energy in the range of the head, below which the blocks do not explain it"""


@dataclass(frozen=True)
class Fingerprint:
    """How probable each block is as the place of the fault."""

    posterior: tuple[float, ...]
    """by layer; they sum to 1"""
    family: tuple[str, ...]
    """by layer, the kind of error that explains the deviation best"""
    reason: str
    """why it cannot tell; empty where it can"""
    deviation: float
    """size of the deviation that was looked at, in units of what one ulp of noise makes of it"""
    leftover: float | None
    """r where the deviation is explained best; None where nothing was explained"""
    forward_passes: float
    """a backward pass counts as one"""

    @property
    def cannot_tell(self) -> bool:
        """True where the first layer is not to be believed."""
        return bool(self.reason)

    @property
    def ranking(self) -> tuple[int, ...]:
        """The layers, the most probable first."""
        return tuple(sorted(range(len(self.posterior)), key=lambda layer: -self.posterior[layer]))

    @property
    def entropy_nats(self) -> float:
        """0 for one layer that is certain, log of their number for all alike."""
        return -sum(p * log(p) for p in self.posterior if p > 0)


@dataclass(frozen=True)
class _Layer:
    """What is kept of one block: covariances by family, and |J| of every element."""

    spectra: dict[str, Spectrum]
    norms: Tensor


class Fingerprints:
    """The fingerprints of all blocks on some inputs; ranks as many deviations as there are, in two passes each."""

    def __init__(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        *,
        layout: Layout | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        refuse_training(model)
        _refuse_padding(inputs)
        self._model, self._inputs, self._layout = model, inputs, layout or Layout.of(model)
        step = (progress or silent)("layers", len(self._layout.blocks))
        responses = Responses(model, inputs, self._layout)
        self.logits = responses.logits.detach()
        self._view = View.of(model, self._layout, self.logits.shape[1], seed=seed)
        layers = {
            at: _Layer(spectra(jacobian, hidden), jacobian.square().sum(0).sqrt())
            for at, jacobian, hidden in responses.jacobians(self._view, step)
        }
        self._layers = [layers[at] for at in range(len(layers))]
        self._floor = self._rounding(seed)
        self.forward_passes = responses.passes + 1

    def _rounding(self, seed: int) -> float:
        """Size of what one ulp of noise on every operator makes of what is looked at."""
        noise = RelativeGaussian(torch.finfo(self.logits.dtype).eps)
        with torch.no_grad(), Injection(noise, Selection(), layout=self._layout, seed=seed, strict=False):
            return float(self._view(logits_of(self._model, self._inputs) - self.logits).norm())

    def rank(self, logits: Tensor, *, reference: Tensor | None = None, dtype: torch.dtype | None = None) -> Fingerprint:
        """The posterior over layers for the logits of a suspect device.

        `reference` is what a healthy device gives, if that is not the one at hand; `dtype` what the suspect computes
        in, if its logits are of another one.
        """
        reference = self.logits if reference is None else reference
        deviation = self._deviation(logits, reference)
        seen = self._view(deviation).double().cpu()
        coarsest = max(torch.finfo(found).eps for found in (logits.dtype, reference.dtype, dtype or logits.dtype))
        floor = self._floor * coarsest / torch.finfo(self.logits.dtype).eps
        size = float(seen.norm()) / floor if floor else 0.0
        if not size >= FLOOR:
            return self._nothing("the deviation is no larger than rounding makes it", size)
        if (inside := self._view.share_inside(deviation)) < INSIDE:
            return self._nothing(f"{1 - inside:.0%} of the deviation is what no block can do, but the head can", size)
        scores = self._scores(seen)
        posterior = torch.softmax(torch.logsumexp(scores, (1, 2)) / TEMPERATURE, 0)
        sure, leftover = float(posterior.max()), LEFTOVERS[int(scores.argmax()) % len(LEFTOVERS)]
        reason = "" if sure >= CONFIDENT else f"no layer is more probable than {sure:.0%}"
        if leftover >= LINEAR:
            reason = f"the best linear answer leaves {leftover:.0%} over; an error so large, or so many, are not known"
        family = tuple(FAMILIES[int(at)] for at in scores.amax(2).argmax(1))
        return Fingerprint(tuple(posterior.tolist()), family, reason, size, leftover, self.forward_passes + 2)

    def _deviation(self, logits: Tensor, reference: Tensor) -> Tensor:
        for name, given in (("logits", logits), ("reference", reference)):
            if given.shape != self.logits.shape:
                expected = "x".join(map(str, self.logits.shape))
                raise InputError(f"{name}: got {'x'.join(map(str, given.shape))}, expected {expected} as of the model")
        deviation = logits.to(self.logits.device).double() - reference.to(self.logits.device).double()
        if not bool(deviation.isfinite().all()):
            raise NonFinite("the logits that are compared are not all finite; they have no fingerprint")
        return deviation.float()

    def _nothing(self, reason: str, size: float) -> Fingerprint:
        count = len(self._layers)
        return Fingerprint((1 / count,) * count, ("",) * count, reason, size, None, self.forward_passes)

    def _scores(self, seen: Tensor) -> Tensor:
        """log p(seen): layers x families x sizes of what is left over."""
        leftover = torch.tensor(LEFTOVERS, dtype=torch.double)
        seen = seen / seen.norm()
        responses = Responses(self._model, self._inputs, self._layout)
        with torch.enable_grad():
            matched = (self._view(responses.logits) * seen.to(self.logits.device, torch.float32)).sum()
        rows = []
        for layer, along in zip(self._layers, responses.derivative(matched), strict=True):
            found = [layer.spectra[name].log_likelihood(seen, leftover) for name in FAMILIES[:-1]]
            found.append(one_element(seen, along.float().cpu(), layer.norms, leftover))
            rows.append(torch.stack(found))
        return torch.stack(rows)


def rank_layers_by_fingerprint(
    model: nn.Module,
    inputs: dict[str, Any],
    logits: Tensor,
    *,
    reference: Tensor | None = None,
    dtype: torch.dtype | None = None,
    layout: Layout | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Fingerprint:
    """The posterior over layers for the logits that a suspect device gives on these inputs.

    Use it where a device gives logits and nothing else; where it gives the values of every site, compare those. It
    takes a forward pass and at most 20 backward passes for each block, whatever the deviation. For several suspects of
    one model make the `Fingerprints` once.

    Args:
        model: the same model on a device that is healthy.
        inputs: its inputs, rows of one length.
        logits: what the suspect gave on them, rows x tokens x vocabulary.
        reference: what a healthy device gave, if that is not the one at hand.
        dtype: what the suspect computes in, if its logits are of another one: rounding is not taken for a fault.
        seed: of the directions, where the model is too wide to look at all of them.
    """
    prints = Fingerprints(model, inputs, layout=layout, seed=seed, progress=progress)
    return prints.rank(logits, reference=reference, dtype=dtype)


def _refuse_padding(inputs: dict[str, Any]) -> None:
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor) and not bool(mask.bool().all()):
        raise InputError("inputs: got padded rows, expected rows of one length, whose last tokens are all there")
